"""Memory of activations that is used again: never while somebody holds it; and gated layers, to the bit."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

from cyber0.directions import DirectionKey
from cyber0.layerwise import buffers as module
from cyber0.layerwise import modules
from cyber0.layerwise.batching import cuts
from cyber0.layerwise.buffers import Buffers
from cyber0.layerwise.modules import SignPair
from cyber0.layerwise.patched import patched
from cyber0.layerwise.source import Layout, TorchSource, perturbation_of
from cyber0.parameters import Parameters, to_bf16

STEPS = st.lists(st.tuples(st.sampled_from(["take", "drop", "begin"]), st.integers(0, 9)), max_size=40)


@pytest.fixture(autouse=True, scope="module")
def buffers_for_small_tensors():
    """Let tests do with little memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE", dict.fromkeys(module.LARGE, 2**18))
        yield


@given(STEPS)
def test_a_buffer_is_never_handed_out_while_somebody_holds_it(steps):
    pool, held = Buffers(), []
    for count, (what, number) in enumerate(steps):
        if what == "begin":
            pool.begin()
        elif what == "drop" and held:
            held.pop(number % len(held))
        elif what == "take":
            taken = pool.empty((2**16 + 2**13 * number, 2), torch.float32).fill_(count)
            views = [taken, taken[3:], taken.view(-1)[5:], taken.numpy(), taken.t().detach()]
            held.append((count, views[number % len(views)]))
    for value, each in held:
        assert (np.asarray(each) == value).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_a_walk_is_used_by_the_next(dtype):
    pool = Buffers()
    places = []
    for _ in range(3):
        pool.begin()
        one, two = pool.empty((512, 600), dtype), pool.empty((512, 300), dtype)
        places.append((one.data_ptr(), two.data_ptr()))
        del one, two
    assert len(set(places)) == 1


def test_buffers_of_another_size_make_room():
    pool = Buffers()
    for samples in (500, 1000, 2000, 500):
        pool.begin()
        assert pool.empty((samples, 512), torch.float32).shape == (samples, 512)
        assert sum(each.nbytes() for each in pool._kept) == samples * 512 * 4


def test_without_a_count_of_references_memory_is_torchs_own(monkeypatch):
    monkeypatch.setattr(module, "_references", None)
    pool = Buffers()
    assert pool.empty((512, 512), torch.float32).shape == (512, 512)
    assert pool._kept == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_layer_gives_the_bits_of_its_own_code(dtype, activation, bias):
    layer = LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=80, hidden_act=activation, mlp_bias=bias))
    layer = layer if dtype == torch.float32 else to_bf16(layer)
    parameters, x = Parameters.of(layer), torch.randn(6, 5, 64, dtype=dtype)
    found, handlers = {}, modules.handlers(layer)
    assert handlers[0] == (layer, modules._gated)
    for name, some in (("fused", handlers), ("own", handlers[1:])):
        source = TorchSource(Layout(parameters))
        source.set_perturbation(perturbation_of(parameters, DirectionKey(1, 2), 1e-2))
        kept = x.clone()
        with torch.no_grad(), patched(some, SignPair(source, dtype, len(x), buffers=Buffers())):
            found[name] = layer(kept)
        assert torch.equal(kept, x)
    assert torch.equal(found["fused"], found["own"])


class Another(nn.Module):
    """Like a gated layer, but it adds what that one multiplies."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(5, 3)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.gate(x)) + self.up(x))


class Swapped(Another):
    def forward(self, x):
        return self.down(self.gate(x) * self.act(self.up(x)))


@pytest.mark.parametrize("layer", [Another, Swapped])
def test_what_only_looks_like_a_gated_layer_runs_its_own_code(layer):
    assert [handler for _, handler in modules.handlers(layer())] == [modules._linear] * 3


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(50, 300))
def test_no_micro_batch_exceeds_the_most_tokens(sizes, most):
    ascending = np.sort(np.array(sizes))
    ends = cuts(ascending, 64, most)
    assert ends[0] == 0
    assert ends[-1] == len(sizes)
    assert all((b - a) * ascending[b - 1] <= most for a, b in pairwise(ends))


class Clamped(LlamaMLP):
    """A gated layer whose gate is limited, as that of some mixtures of experts."""

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=20) * self.up_proj(x))


def test_a_gated_layer_that_clamps_runs_by_its_own_code():
    config = LlamaConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2)
    assert modules._is_gated(LlamaMLP(config))
    assert not modules._is_gated(Clamped(config))


def test_hooks_within_a_gated_layer_are_called():
    layer, called = LlamaMLP(LlamaConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2)), []
    model = nn.Sequential(layer, nn.Linear(8, 2))
    signs = SignPair(TorchSource(Layout(Parameters.of(model))), torch.float32, 4)
    signs.source.set_perturbation(perturbation_of(Parameters.of(model), DirectionKey(1, 0), 1e-3))
    handlers = modules.handlers(model)
    layer.up_proj.register_forward_hook(lambda *_: called.append(1))
    with torch.no_grad(), patched(handlers, signs):
        model(torch.ones(4, 3, 8))
    assert called == [1]


def test_thousands_of_texts_are_cut_at_once():
    sizes = np.sort(np.r_[np.arange(12_799) % 40 + 1, 1024])
    ends = cuts(sizes, overhead=64, max_tokens=1024)
    assert all((end - begin) * sizes[end - 1] <= 1024 for begin, end in pairwise(ends))
