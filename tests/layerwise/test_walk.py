"""A walk measures what `estimate` measures, writes nothing, and takes a model whole that it does not know."""

import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.layerwise.models import BLOCKS, FAMILIES, MASK, classifier, keys, prompts
from torch import nn

from cyber0.commit import Commit
from cyber0.errors import InvalidEstimate
from cyber0.estimate import estimate
from cyber0.layerwise import LayerwiseEstimate, Walk, modules
from cyber0.layerwise.batching import cuts
from cyber0.layerwise.modules import blocks, trained
from cyber0.parameters import Parameters, to_bf16
from cyber0.tasks.task import cross_entropy
from cyber0.tasks.text import checkpoint, tiny
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.heads import Head

WALKED = [*FAMILIES, *BLOCKS]
DIRECTIONS = ["gaussian", "sphere", "rademacher"]
LARGE = {"batch": 24, "width": 31}  # enough for several parts


def step(parameters, family):
    return 1e-2 * (parameters.size**0.5 if family == "sphere" else 1)


def near(ours, theirs, tolerance=3e-4):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def votes(model, x, y, family="gaussian", arithmetic=torch.float32, count=3):
    """By a walk, and by `estimate`; whether it was walked layer by layer."""
    parameters, walking = Parameters.of(model), LayerwiseEstimate(arithmetic)
    options = {"mu": step(parameters, family), "family": family}
    walked = walking(parameters, cross_entropy, (x, y), keys(count), **options)
    whole = estimate(parameters, cross_entropy, (x, y), keys(count), **options)
    return walked, whole, walking.walk(parameters, cross_entropy).layered


@pytest.mark.parametrize("family", DIRECTIONS)
@pytest.mark.parametrize("model", WALKED)
def test_a_walk_gives_what_an_estimate_gives(model, family):
    x, y = prompts(1, **LARGE)
    walked, whole, layered = votes(classifier(model), x[0], y[0], family)
    assert layered
    near(walked, whole)


@pytest.mark.parametrize("model", BLOCKS)
def test_blocks_are_a_part_of_the_model_and_are_left_as_they_were(model):
    x, y = prompts(2)
    walk = Walk(Parameters.of(built := classifier(model)), cross_entropy)
    before = {name: (id(parameter), parameter.detach().clone()) for name, parameter in built.named_parameters()}
    walk.slopes(x, y, keys()[0], 1e-2)
    found = blocks(walk.handlers)
    assert 0 < max(map(trained, found)) < trained(built) / 2
    assert {name: id(parameter) for name, parameter in built.named_parameters()} == {n: b[0] for n, b in before.items()}
    assert all(torch.equal(parameter, before[name][1]) for name, parameter in built.named_parameters())


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_so_do_the_tiny_models(kind, tmp_path):
    whole = checkpoint.get_checkpoint(str(tiny.model(tmp_path, kind))).load()
    causal = Head("causal", 2, (7, 30))
    heads = {"llama": causal, "mixtral": causal, "encoder": Head("pooled", 2)}
    x, y = prompts(1)
    model = Classifier(whole, heads.get(kind, Head("masked", 2, (7, 30), MASK)))
    walked, plain, layered = votes(model, x[0], y[0])
    assert layered
    near(walked, plain)


@pytest.mark.parametrize("model", ["roberta", "llama", "gpt2"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # peft corrects it
def test_an_adapter_is_walked_and_the_frozen_weights_stay(model):
    x, y = prompts(1, **LARGE)
    adapted = classifier(model, "lora(rank=2)")
    frozen = {name: p.detach().clone() for name, p in adapted.named_parameters() if not p.requires_grad}
    walked, whole, layered = votes(adapted, x[0], y[0])
    assert layered
    near(walked, whole)
    assert all(torch.equal(frozen[name], p) for name, p in adapted.named_parameters() if name in frozen)


@pytest.mark.parametrize("pooling", [("mean", True), ("cls", False), ("cls", True)])
def test_every_pooling_is_walked(pooling):
    encoder = classifier("encoder")
    model = Classifier(encoder.whole, Head("pooled", 2, (), None, *pooling, scale=3.0), encoder.classifier).eval()
    x, y = prompts(1)
    walked, whole, layered = votes(model, x[0], y[0])
    assert layered
    near(walked, whole)


@pytest.mark.parametrize("family", DIRECTIONS)
@pytest.mark.parametrize("model", ["bert", "gpt2", "albert", "llama"])
def test_drift_is_what_a_copy_that_descended_measures(model, family):
    own = classifier(model)
    parameters, moved = Parameters.of(own), Parameters.of(copy.deepcopy(own))
    mu = step(parameters, family)
    drift = [Commit(5, 7, 10 * mu, [[0.3, -0.2]], family), Commit(5, 8, 10 * mu, [[-0.1, 0.4]], family)]
    for commit in drift:
        moved.apply(commit)
    told = [key for commit in drift for key in commit.keys], np.concatenate([c.coefficients for c in drift])
    x, y = prompts()
    drifted, there, here = (
        Walk(each, cross_entropy).slopes(x, y, keys()[0], mu, family, given)
        for each, given in ((parameters, told), (moved, None), (parameters, None))
    )
    near(drifted.numpy(), there.numpy(), 1e-3)
    assert (drifted - here).abs().max() > 1e-2 * here.abs().max()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("model", ["roberta", "gpt2", "opt"])
@pytest.mark.filterwarnings("ignore:this model cannot be walked")
def test_no_walk_writes_a_weight(model, bf16):
    own = to_bf16(classifier(model)) if bf16 else classifier(model)
    walk = Walk(Parameters.of(own), cross_entropy, torch.bfloat16 if bf16 else torch.float32)
    before = {name: p.detach().clone() for name, p in own.named_parameters()}
    x, y = prompts()
    walk.slopes(x, y, keys()[0], 1e-2)
    walk.slopes(x, y, keys()[0], 1e-2, drift=(keys(2, round=3), [0.1, 0.2]))
    walk.model(x[0])
    assert all(torch.equal(before[name].view(torch.uint8), p.view(torch.uint8)) for name, p in own.named_parameters())
    assert not any("forward" in module.__dict__ for module in own.modules())


@pytest.mark.parametrize("family", DIRECTIONS)
@pytest.mark.parametrize("model", ["roberta", "gpt2", "llama", "encoder", "modernbert", *BLOCKS])
def test_bf16_votes_are_about_those_of_float32(model, family):
    x, y = prompts(1, batch=16)
    walked, whole, _ = votes(classifier(model), x[0], y[0], family, torch.bfloat16, count=12)
    assert 0.9 < np.corrcoef(walked, whole)[0, 1] < 1


class Beside(nn.Module):
    """A parameter of its own next to children."""

    def __init__(self):
        super().__init__()
        self.first, self.gain, self.last = nn.Linear(6, 6), nn.Parameter(torch.ones(6)), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.gain)


class Large(nn.Module):
    """Most of the weights are in what is known, and `kind` is a small part of it."""

    def __init__(self, kind):
        super().__init__()
        self.before, self.inner = nn.Linear(6, 6), kind()
        self.after = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.LayerNorm(20), nn.Linear(20, 2))

    def forward(self, x):
        return self.after(self.inner(torch.tanh(self.before(x))))


class Recursive(nn.Module):
    """A block that calls itself."""

    def __init__(self):
        super().__init__()
        self.gain, self.inner, self.last = nn.Parameter(torch.eye(6)), nn.Linear(6, 6, bias=False), nn.Linear(6, 2)

    def forward(self, x, depth=2):
        x = torch.tanh(self.inner(x)) @ self.gain
        return self(x, depth - 1) if depth else self.last(x)


class Frozen(nn.Module):
    """What is its own is not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.shift = nn.Parameter(torch.ones(6), requires_grad=False)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) + self.shift)


class Leaky(Large):
    """A weight of a block is read outside it, for a little."""

    def __init__(self):
        super().__init__(Beside)

    def forward(self, x):
        return super().forward(x) + 0.1 * x @ self.inner.last.weight.t()


@dataclass
class Wrapped:
    value: torch.Tensor


class Wrapping(Beside):
    def forward(self, x):
        return Wrapped(super().forward(x))


class Opening(Large):
    """A block gives an object that is no tensor."""

    def __init__(self):
        super().__init__(Wrapping)

    def forward(self, x):
        return self.after(self.inner(torch.tanh(self.before(x))).value)


class Across(nn.Module):
    """torch's attention, with the batch second, and a mask."""

    def __init__(self):
        super().__init__()
        self.table, self.mix, self.last = nn.Embedding(40, 6), nn.MultiheadAttention(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        h = self.table(x).transpose(0, 1)
        return self.last(self.mix(h, h, h, key_padding_mask=x == 1, need_weights=False)[0].mean(0))


class Twice(nn.Module):
    """One module under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.again = self.first

    def forward(self, x):
        return self.last(self.again(torch.tanh(self.first(x))))


class Second(nn.Module):
    """The batch is the second dimension inside."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(40, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.table(x)).transpose(0, 1)).mean(0)


class Listed(nn.Module):
    """A list of parameters is a module that nobody calls."""

    def __init__(self):
        super().__init__()
        self.first, self.others = nn.Linear(6, 6), nn.ParameterList([nn.Parameter(torch.eye(6)[:, :2].contiguous())])

    def forward(self, x):
        return torch.tanh(self.first(x)) @ self.others[0]


class Borrowed(nn.Module):
    """A child's weight is read without calling the child."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return torch.tanh(self.first(x)) @ self.last.weight.t()


class Positions(nn.Module):
    """A table that is the same for all samples, in a module of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 9, 6))

    def forward(self, x):
        return self.weight[:, : x.shape[1]]


class Posed(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions, self.table, self.last = Positions(), nn.Embedding(40, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.table(x) + self.positions(x)).mean(1))


def made(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return kind()


def floats(count):
    return torch.sin(torch.arange(6.0 * count)).view(count, 6), torch.arange(count) % 2


def tokens(count, length=9):
    return (7 * torch.arange(count * length) % 40).view(count, length), torch.arange(count) % 2


@pytest.mark.parametrize("small", [None, 0])  # how many weights make a model that is compared in copies
@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        (Beside, floats(5)),
        (Second, tokens(5)),
        (Second, tokens(1, 4)),
        (Across, tokens(5)),
        (Leaky, floats(5)),
        (Opening, floats(5)),
    ],
)
def test_an_unknown_model_is_taken_whole_with_the_same_numbers(kind, batch, small, monkeypatch):
    if small is not None:
        monkeypatch.setattr("cyber0.layerwise.proof.SMALL", small)
    with pytest.warns(UserWarning, match=r"this model cannot be walked layer by layer \(.*\): it is measured in two"):
        walked, whole, layered = votes(made(kind), *batch)
    assert not layered
    near(walked, whole)


@pytest.mark.parametrize("kind", [Beside, Listed, Borrowed, Recursive])
@pytest.mark.parametrize("arithmetic", [torch.float32, torch.bfloat16])
def test_an_unknown_part_is_a_block_and_the_rest_is_walked(kind, arithmetic):
    """Also where a block is found only when its weights are not asked for."""
    walked, whole, layered = votes(made(lambda: Large(kind)), *floats(20), arithmetic=arithmetic, count=12)
    assert layered
    if arithmetic == torch.float32:
        near(walked, whole)
    assert np.corrcoef(walked, whole)[0, 1] > 0.9


@pytest.mark.parametrize("arithmetic", [torch.float32, torch.bfloat16])
def test_what_is_frozen_makes_no_block(arithmetic):
    parameters, (x, y) = Parameters.of(made(Frozen)), floats(5)
    walk = Walk(parameters, cross_entropy, arithmetic)
    slope = walk.slopes(x[None], y[None], keys()[0], 1e-2)
    assert blocks(walk.handlers) == []
    near(
        slope,
        estimate(parameters, cross_entropy, (x, y), keys(1), mu=1e-2),
        1e-4 if walk.arithmetic.itemsize == 4 else 0.1,
    )


@pytest.mark.parametrize("arithmetic", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", ["roberta", "bert", "encoder"])
def test_steps_that_are_run_as_one_give_the_bits_of_each(model, arithmetic, monkeypatch):
    """A product and its activation, a product and the norm of its sum: in place of new memory, with the same bits."""
    own = classifier(model)
    found = {run.__name__ for _, run in modules.handlers(own)}
    assert {"_activated", "_summed"} <= found
    x, y = (part[:1] for part in prompts())
    measured = Walk(Parameters.of(own), cross_entropy, arithmetic).slopes(x, y, keys()[0], 1e-3)
    monkeypatch.setattr(modules, "_fused", lambda _: None)
    apart = Walk(Parameters.of(own), cross_entropy, arithmetic)
    assert not {"_activated", "_summed"} & {run.__name__ for _, run in apart.handlers}
    assert torch.equal(measured, apart.slopes(x, y, keys()[0], 1e-3))


class Scaled(torch.nn.Module):
    """Children like those of a layer of BERT, and other code."""

    def __init__(self, last):
        super().__init__()
        self.dense, self.last = torch.nn.Linear(8, 8), last

    def forward(self, x, residual=None):
        return self.last(0.5 * self.dense(x) + (0 if residual is None else residual))


@pytest.mark.parametrize("last", [torch.nn.GELU(), torch.nn.LayerNorm(8)])
def test_a_module_that_only_looks_like_two_steps_runs_its_own_code(last):
    assert modules._fused(Scaled(last)) is None


def test_a_module_of_two_names_is_one_and_left_as_it_was():
    model, (x, y) = made(Twice), floats(5)
    before = dict(model.named_parameters(remove_duplicate=False))
    copy_of = copy.deepcopy(model)
    walked, whole, layered = votes(model, x, y)
    assert layered
    near(walked, whole)
    assert all(parameter is before[name] for name, parameter in model.named_parameters(remove_duplicate=False))
    torch.testing.assert_close(model(x), copy_of(x), rtol=0, atol=0)


def test_a_block_whose_code_fails_has_its_weights_back():
    model = made(lambda: Large(Beside))
    walk = Walk(Parameters.of(model), cross_entropy)
    x, y = floats(5)
    walk.slopes(x[None], y[None], keys()[0], 1e-2)
    before = dict(model.named_parameters())
    model.inner.last.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        walk.slopes(x[None], y[None], keys()[0], 1e-2)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_opt_is_walked_though_its_layers_put_the_tokens_of_all_samples_into_one_dimension():
    x, y = prompts(1, **LARGE)
    walked, whole, layered = votes(classifier("opt"), x[0], y[0])
    assert layered
    near(walked, whole)


@pytest.mark.parametrize("kind", [Listed, Borrowed])
@pytest.mark.filterwarnings("ignore:this model cannot be walked")
def test_a_weight_that_is_not_used_by_its_own_module_is_perturbed(kind):
    walked, whole, _ = votes(made(kind), *floats(5))
    near(walked, whole)


@pytest.mark.filterwarnings("ignore:this model cannot be walked")
def test_an_adapter_of_embeddings_is_perturbed():
    x, y = prompts(1)
    walked, whole, _ = votes(classifier("roberta", "lora(rank=2, targets=('word_embeddings',))"), x[0], y[0])
    near(walked, whole)


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.filterwarnings("ignore:this model cannot be walked")
def test_a_length_that_is_the_size_of_a_batch_is_not_taken_for_it(count):
    walked, whole, _ = votes(made(Second), *tokens(count, 6))
    near(walked, whole)


@pytest.mark.filterwarnings("ignore:this model cannot be walked")
def test_a_table_that_all_samples_share_is_walked_or_taken_whole():
    walked, whole, _ = votes(made(Posed), *tokens(5))
    near(walked, whole)


@pytest.mark.parametrize("model", ["roberta", "llama", "encoder", "gpt2"])
def test_parts_change_nothing(model):
    x, y = prompts(2, batch=20, width=31)
    parameters = Parameters.of(classifier(model))
    slopes = []
    for most in (None, 200, 31, 1):
        walk = Walk(parameters, cross_entropy)
        walk.cutter.max_tokens = most
        batch = walk.batch(x, y)
        assert sorted(torch.cat([part.order for part in batch.micro_batches]).tolist()) == list(range(40))
        slopes.append(walk.along(batch, keys()[0], 1e-2).numpy())
    assert len(batch.micro_batches) == 40
    for cut in slopes[1:]:
        near(cut, slopes[0])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(0, 300), st.none() | st.integers(1, 400))
def test_cuts_cover_a_batch_and_keep_to_the_most(sizes, fixed, most):
    sizes = np.sort(sizes)
    found = cuts(sizes, fixed, most)
    assert found[0] == 0
    assert found[-1] == len(sizes)
    assert list(found) == sorted(set(found))
    if most is not None:
        for begin, end in pairwise(found):
            assert end - begin == 1 or (end - begin) * max(1, sizes[end - 1]) <= most


def failing(walk, monkeypatch, too_large):
    """Let the allocator fail for parts that are too large, before they change anything; how many it was asked for."""
    own, asked = walk._measure, []

    def part(part):
        asked.append(tuple(part.inputs.shape))
        if too_large(part.inputs):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return own(part)

    monkeypatch.setattr(walk, "_measure", part)
    return asked


@pytest.mark.parametrize("limit", [200, 60, 31])
def test_what_does_not_fit_is_measured_in_smaller_parts(limit, monkeypatch):
    x, y = prompts(2, batch=20, width=31)
    walk = Walk(Parameters.of(classifier("roberta")), cross_entropy)
    whole = walk.slopes(x, y, keys()[0], 1e-2).numpy()
    asked = failing(walk, monkeypatch, lambda inputs: inputs.numel() > limit)
    batch = walk.batch(x, y)
    with pytest.warns(UserWarning, match=r"out of memory on cpu: micro-batches of at most \d+ tokens from now on"):
        near(walk.along(batch, keys()[0], 1e-2).numpy(), whole)
    asked.clear()
    walk.along(batch, keys()[1], 1e-2)
    assert all(count * width <= limit for count, width in asked)


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("count", [1, 12])
def test_one_sample_that_does_not_fit_is_refused_though_others_do(count, monkeypatch):
    x, y = prompts(1, batch=count, width=31)
    x = x.clone()
    x[0, :, 5:] = -1
    x[0, -1] = 9
    walk = Walk(Parameters.of(classifier("llama")), cross_entropy)
    asked = failing(walk, monkeypatch, lambda inputs: inputs.shape[1] > 20)
    said = r"one sample of 31 values does not fit into the memory of cpu: use shorter texts \(length=...\), a smaller"
    with pytest.raises(InvalidEstimate, match=said):
        walk.slopes(x, y, keys()[0], 1e-2)
    assert len(asked) < 20


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("limit", [10**6, 100, 0])
def test_a_commit_that_is_due_is_applied_once_whatever_fits(limit, monkeypatch):
    """Where nothing could be walked it is still pending, else it is not."""
    x, y = prompts(2, batch=20, width=31)
    parameters, twin = (Parameters.of(classifier("roberta")) for _ in range(2))
    walk, commit, applied = Walk(parameters, cross_entropy), Commit(5, 0, 0.1, [[0.3]]), []
    walk.slopes(x, y, keys()[0], 1e-2)
    own = walk._measure

    def part(part):
        """As on CUDA: the part that is walked with a commit applies it, a failed one does not."""
        if part.inputs.numel() > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if walk.source._perturbation.applies_commit:
            applied.append(commit)
            Parameters.of(walk.module).apply(commit)
        return own(part)

    monkeypatch.setattr(walk, "_measure", part)
    monkeypatch.setattr(Walk, "_writes", True)
    parameters.defer(commit)
    twin.apply(commit)
    if limit:
        walk.slopes(x, y, keys()[0], 1e-2)
    else:
        with pytest.raises(InvalidEstimate, match="one sample of"):
            walk.slopes(x, y, keys()[0], 1e-2)
    assert len(applied) == (1 if limit else 0)
    assert (parameters.pending is None) == bool(limit)
    parameters.settle()
    assert parameters.fingerprint() == twin.fingerprint()


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    walk = Walk(Parameters.of(classifier("roberta")), cross_entropy)

    def part(_):
        raise RuntimeError("something else")

    monkeypatch.setattr(walk, "_measure", part)
    with pytest.raises(RuntimeError, match="something else"):
        walk.slopes(*prompts(), keys()[0], 1e-2)


def test_a_commit_that_is_due_does_not_spoil_the_proof():
    parameters, twin = (Parameters.of(classifier("roberta")) for _ in range(2))
    walk, commit = Walk(parameters, cross_entropy), Commit(5, 0, 1.0, [[0.3]])
    parameters.defer(commit)
    twin.apply(commit)
    slopes = walk.slopes(*prompts(), keys()[0], 1e-2)
    assert walk.layered
    near(slopes.numpy(), Walk(twin, cross_entropy).slopes(*prompts(), keys()[0], 1e-2).numpy())


SPOILED = {  # how a first batch or the weights are not finite, and how they come to be again
    "inputs": lambda _, x: (x * torch.nan, lambda: None),
    "weights": lambda model, x: (x, spoil(model, torch.nan)),
    "losses": lambda model, x: (x, spoil(model, 3e38)),
}


def spoil(model, value):
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data.fill_(value)
    return lambda: [parameter.data.copy_(kept[name]) for name, parameter in model.named_parameters()]


@pytest.mark.parametrize("small", [None, 0])
@pytest.mark.parametrize("spoiled", SPOILED)
@pytest.mark.parametrize("kind", [Twice, lambda: Large(Borrowed), lambda: Large(Beside)])
def test_a_batch_that_is_not_finite_decides_nothing(kind, spoiled, small, monkeypatch):
    """The next finite one does, and until then no warning says that the model cannot be walked."""
    if small is not None:
        monkeypatch.setattr("cyber0.layerwise.proof.SMALL", small)
    parameters, (x, y) = Parameters.of(made(kind)), floats(5)
    walk = Walk(parameters, cross_entropy)
    first, mend = SPOILED[spoiled](parameters.module, x)
    for _ in range(2):
        assert not walk.slopes(first[None], y[None], keys()[0], 1e-2).isfinite().any()
    mend()
    slopes = walk.slopes(x[None], y[None], keys()[0], 1e-2)
    assert walk.layered
    assert torch.equal(slopes, Walk(parameters, cross_entropy).slopes(x[None], y[None], keys()[0], 1e-2))


def test_the_finite_samples_of_a_batch_are_enough_for_the_proof():
    parameters, (x, y) = Parameters.of(made(Twice)), floats(10)
    spoiled = x.clone()
    spoiled[:5] = torch.inf
    walk, whole = Walk(parameters, cross_entropy), estimate(parameters, cross_entropy, (x[5:], y[5:]), keys(1), mu=1e-2)
    slopes = walk.slopes(spoiled.view(2, 5, 6), y.view(2, 5), keys()[0], 1e-2)
    assert not slopes[0].isfinite()
    near(slopes[1:], whole)
    assert walk._proven


@pytest.mark.parametrize("kind", [Leaky, Opening])
def test_an_unknown_model_is_taken_whole_after_a_batch_that_is_not_finite(kind):
    parameters, (x, y) = Parameters.of(made(kind)), floats(5)
    walk = Walk(parameters, cross_entropy)
    walk.slopes(x[None] * torch.nan, y[None], keys()[0], 1e-2)
    with pytest.warns(UserWarning, match="this model cannot be walked layer by layer"):
        slopes = walk.slopes(x[None], y[None], keys()[0], 1e-2)
    near(slopes, estimate(parameters, cross_entropy, (x, y), keys(1), mu=1e-2))
    assert not walk.layered


class Tagger(nn.Module):
    """Scores for each token, which it could cut to the longest sample."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(40, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.table(x.clamp(min=0))))

    def sizes(self, x):
        return (x >= 0).sum(1)


def test_each_token_may_have_a_label():
    def losses(model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)

    x = tokens(72, length=31)[0].view(3, 24, 31)
    y, lengths = x % 3, torch.arange(24)[:, None] % 29 + 2
    x = torch.where(torch.arange(31) < lengths, x, -1)
    parameters = Parameters.of(made(Tagger))
    walk = Walk(parameters, losses)
    slopes = walk.slopes(x, y, keys()[0], 1e-2)
    assert walk.layered
    near(slopes, [estimate(parameters, losses, batch, keys(1), mu=1e-2)[0] for batch in zip(x, y, strict=True)])


def test_the_model_itself_is_called_in_the_arithmetic_of_the_walk():
    model = classifier("roberta")
    x, _ = prompts()
    with torch.no_grad():
        own = model(x[0])
    for arithmetic, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        walk = Walk(Parameters.of(model), cross_entropy, arithmetic)
        for scores in (walk.model(x[0]), walk.unperturbed(x[0])):
            assert scores.dtype == torch.float32
            near(scores.numpy(), own.numpy(), tolerance)


def test_a_walk_needs_a_module():
    with pytest.raises(InvalidEstimate, match=r"a walk needs a torch module: build the parameters with Parameters.of"):
        Walk(Parameters({"w": torch.zeros(3)}), cross_entropy)


def test_a_micro_batch_on_a_cpu_has_a_most_of_tokens(monkeypatch):
    x, y = prompts()
    walk = Walk(Parameters.of(classifier("llama")), cross_entropy)
    monkeypatch.setattr("cyber0.layerwise.micro_batches.AT_MOST", {"cpu": 24})
    few, found = walk.batch(x, y), walk.slopes(x, y, keys(1)[0], 1e-2)
    assert all(len(part.labels) == 1 or part.inputs.numel() <= 24 for part in few.micro_batches)
    monkeypatch.undo()
    whole = Walk(walk.parameters, cross_entropy)
    assert len(few.micro_batches) > len(whole.batch(x, y).micro_batches)
    torch.testing.assert_close(found, whole.slopes(x, y, keys(1)[0], 1e-2), rtol=1e-3, atol=1e-4)


def test_the_weights_of_whole_copies_are_aligned():
    """Some products take no other ones: grouped matrix products on CUDA want multiples of 16 bytes."""
    addresses = []

    class Odd(nn.Linear):
        def forward(self, x):
            addresses.extend(tensor.data_ptr() % 64 for tensor in (self.weight, self.bias))
            return super().forward(x)

    walk = Walk(Parameters.of(nn.Sequential(Odd(3, 5), nn.Tanh(), Odd(5, 3))), cross_entropy)
    walk.handlers = None  # as if it could not be walked
    walk.slopes(torch.rand(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64), keys(1)[0], 1e-2)
    assert addresses
    assert not any(addresses)
