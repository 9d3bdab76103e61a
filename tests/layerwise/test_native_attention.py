"""Our attention on a CPU gives what torch's own gives, whatever threads and other samples there are."""

import subprocess
import sys
import threading
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.layerwise.models import classifier, keys, prompts
from torch.autograd import forward_ad
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from cyber0.layerwise import LayerwiseEstimate, native_attention, proof
from cyber0.layerwise.attention import attention_on_cpu
from cyber0.layerwise.native_attention import LONGEST, attention, supports
from cyber0.parameters import Parameters, to_bf16
from cyber0.tasks.task import cross_entropy

pytestmark = pytest.mark.skipif(native_attention.library() is None, reason="not compiled, or not for this processor")
DTYPES = (torch.float32, torch.bfloat16)


def tensors(shape, dtype, *, groups=None, seed=0, transposed=True, size=1.0):
    """Queries, keys and values [batch, heads, tokens, width], in memory as transformers has them, or not."""
    batch, heads, tokens, width = shape
    generator = torch.Generator().manual_seed(seed)
    for count in (heads, groups or heads, groups or heads):
        axes = (batch, tokens, count, width) if transposed else (batch, count, tokens, width)
        values = (size * torch.randn(axes, generator=generator)).to(dtype)
        yield values.transpose(1, 2) if transposed else values


def exact(query, key, value, mask=None, scale=None, *, causal=False):
    """What attention is, in float64, as [batch, tokens, heads, width]."""
    repeated = (each.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
    found = scaled_dot_product_attention(query.double(), *repeated, attn_mask=mask, is_causal=causal, scale=scale)
    return found.transpose(1, 2)


def masks(kind, batch, tokens, seed):
    """A mask of which every query sees its own key."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (batch, 1), generator=generator)
    if kind == "keys":
        return (torch.arange(tokens) < lengths)[:, None, None, :]
    if kind == "one":
        return torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None]
    if kind == "each":
        seen = torch.rand(batch, 1, tokens, tokens, generator=generator) < 0.5
        return seen | torch.eye(tokens, dtype=torch.bool)
    return None


@given(
    batch=st.integers(1, 4),
    groups=st.integers(1, 3),
    shared=st.integers(1, 3),
    tokens=st.integers(1, LONGEST),
    width=st.integers(1, 16).map(lambda eighths: 8 * eighths),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from([None, "causal", "keys", "one", "each"]),
    transposed=st.booleans(),
    size=st.sampled_from([0.1, 1.0, 8.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_it_is_exact_to_rounding(batch, groups, shared, tokens, width, dtype, kind, transposed, size, seed):
    shape = (batch, groups * shared, tokens, width)
    query, key, value = tensors(shape, dtype, groups=groups, seed=seed, transposed=transposed, size=size)
    mask, causal, scale = masks(kind, batch, tokens, seed), kind == "causal", width**-0.5
    assert supports(query, key, value, mask)
    found = attention(query, key, value, mask, scale, causal=causal)
    expected = exact(query, key, value, mask, scale, causal=causal)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    rounding = torch.finfo(dtype).eps
    allowed = rounding * expected.abs() / 2 + 3e-6 * size * max(1.0, size**2)  # scores are as large as size ** 2
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_threads_nor_other_samples_change_a_bit(dtype):
    given = tuple(tensors((5, 6, 37, 24), dtype, groups=2))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(attention(*given, None, 0.2, causal=True))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    alone = [attention(*(each[row : row + 1] for each in given), None, 0.2, causal=True) for row in range(5)]
    assert torch.equal(found[0], torch.cat(alone))


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_scores_overflow_nothing(dtype):
    query, key, value = tensors((1, 1, 9, 8), dtype, size=1e4)
    found = attention(query, key, value, None, 1.0, causal=False)
    assert torch.equal(found.double(), exact(query, key, value, None, 1.0).to(dtype).double())  # one weight is 1


def test_what_is_not_finite_stays_in_its_sample():
    query, key, value = tensors((3, 2, 20, 16), torch.float32)
    expected = attention(query, key, value, None, 0.25, causal=True)
    for spoilt in (torch.nan, torch.inf):
        broken = query.clone()
        broken[1, 0, 4] = spoilt
        found = attention(broken, key, value, None, 0.25, causal=True)
        assert found[1, 4, 0].isnan().all()
        found[1, 4, 0] = expected[1, 4, 0]
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_nan_in_every_type(dtype):
    query, key, value = tensors((1, 1, 5, 8), dtype)
    value[0, 0, 2] = torch.nan
    assert attention(query, key, value, None, 1.0, causal=False).isnan().all()


def test_a_query_that_sees_no_key_gets_zero():
    query, key, value = tensors((2, 2, 11, 8), torch.float32)
    mask = torch.ones(2, 1, 11, 11, dtype=torch.bool)
    mask[1, 0, 3] = False
    found = attention(query, key, value, mask, 1.0, causal=False)
    assert (found[1, 3] == 0).all()
    assert (found != 0).sum() == found.numel() - found[1, 3].numel()


def test_what_is_hidden_is_not_read():
    """The keys of padding may be anything."""
    query, key, value = tensors((2, 2, 11, 8), torch.float32)
    mask = (torch.arange(11) < torch.tensor([[11], [6]]))[:, None, None, :]
    expected = attention(query, key, value, mask, 1.0, causal=False)
    key[1, :, 6:] = torch.nan
    assert torch.equal(attention(query, key, value, mask, 1.0, causal=False), expected)


def test_what_it_cannot_take_is_left_to_torch():
    def taken(shape=(2, 4, 9, 16), dtype=torch.float32, groups=None, mask=None, change=lambda *given: given):
        return supports(*change(*tensors(shape, dtype, groups=groups)), mask)

    assert taken()
    assert taken(groups=2)
    assert not taken((2, 4, LONGEST + 1, 16))
    assert not taken((2, 4, 9, 12))
    assert not taken((2, 4, 9, 136))
    assert not taken((0, 4, 9, 16))
    assert not taken(groups=3)
    assert not taken(dtype=torch.float16)
    assert not taken(dtype=torch.float64)
    assert not taken(mask=torch.zeros(2, 1, 9, 9))
    assert not taken(mask=torch.ones(2, 4, 9, 9, dtype=torch.bool))
    assert not taken(mask=torch.ones(9, 9, dtype=torch.bool))
    assert not taken(mask=torch.ones(2, 1, 9, 8, dtype=torch.bool))
    assert not taken(change=lambda q, k, v: (q, k, v[..., :8]))
    assert not taken(change=lambda q, k, v: (q[:, :, :1], k, v))
    assert not taken(change=lambda q, k, v: (q.bfloat16(), k, v))
    assert not taken(change=lambda q, k, v: (q.requires_grad_(), k, v))
    assert not taken(change=lambda q, k, v: (q, k.to("meta"), v))
    assert not taken(change=lambda q, k, v: (q[0], k[0], v[0]))
    assert not taken(change=lambda q, k, v: (q, k[:, :0], v[:, :0]))
    assert not taken(change=lambda q, k, v: (q, torch.complex(k, -k).conj().imag, v))  # its sign is not in its memory
    assert not taken(change=lambda q, k, v: (q, k, torch._efficientzerotensor(v.shape)))  # nor is anything of this
    assert not taken(mask=torch.ones(2, 1, 9, 9, dtype=torch.bool).to_sparse())
    with pytest.warns(UserWarning, match="prototype"):
        nested = torch.nested.nested_tensor([torch.ones(4, 9, 16)] * 2, layout=torch.strided)
    assert not supports(nested, nested, nested, None)


def test_what_torch_transforms_is_left_to_it():
    """Batches of functorch, derivatives forward, another type by autocast: tensors are not what they seem then."""
    query, key, value = tensors((2, 4, 9, 16), torch.float32)
    seen = []

    def noted(x):
        seen.append(supports(x, key, value, None))
        return x

    torch.func.vmap(noted, randomness="error")(query[None])
    torch.func.jvp(noted, (query,), (query,))
    with forward_ad.dual_level():
        noted(forward_ad.make_dual(query, query))
    with torch.autocast("cpu"):
        noted(query)
    assert seen == [False] * 4
    assert supports(query, key, value, None)


class Halved(TorchFunctionMode):
    """Halves what attention gives."""

    def __torch_function__(self, function, types, given=(), named=None):
        found = function(*given, **(named or {}))
        return found / 2 if function is scaled_dot_product_attention else found


def test_attention_that_somebody_replaces_is_used(monkeypatch):
    """Below transformers, too: by a mode, or by a function in place of torch's."""
    given = tuple(tensors((2, 4, 9, 16), torch.float32))
    with Halved():
        assert not supports(*given, None)
    with torch.device("cpu"):
        assert supports(*given, None)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda q, *_, **__: q)
    assert not supports(*given, None)


def test_a_walk_while_somebody_imports_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", ModuleType("transformers.modeling_utils"))
    with attention_on_cpu():
        pass


def test_the_result_is_where_the_tensors_are():
    given = tuple(tensors((1, 2, 5, 8), torch.float32))
    expected = attention(*given, None, 1.0, causal=True)
    with torch.device("meta"):
        assert torch.equal(attention(*given, None, 1.0, causal=True), expected)


def test_a_thread_with_little_stack_can_compute_it():
    given, found = tuple(tensors((1, 1, LONGEST, 128), torch.float32)), []
    before = torch.get_num_threads()
    kept = threading.stack_size(2**17)
    try:
        torch.set_num_threads(1)
        thread = threading.Thread(target=lambda: found.append(attention(*given, None, 0.1, causal=False)))
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)
        threading.stack_size(kept)
    assert torch.equal(found[0], attention(*given, None, 0.1, causal=False))


@pytest.fixture
def calls(monkeypatch):
    """A list that grows with each call of our attention."""
    calls, own = [], native_attention.attention
    monkeypatch.setattr(native_attention, "attention", lambda *given, **named: calls.append(1) or own(*given, **named))
    return calls


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("roberta", {}),
        ("llama", {"head_dim": 8}),
        ("gpt2", {}),
        ("opt", {}),
        ("modernbert", {}),  # of whose layers some see a window
        ("mixtral", {"head_dim": 8, "sliding_window": 3}),
    ],
)
def test_a_model_scores_as_by_itself(family, changes, calls):
    """Prompts are ragged, so there are masks; outside of the context transformers' own attention is used again."""
    model, (x, _) = classifier(family, **changes), prompts()
    with torch.no_grad():
        expected = model.scores(x[0])
        with attention_on_cpu():
            torch.testing.assert_close(model.scores(x[0]), expected)
        assert calls
        calls.clear()
        assert torch.equal(model.scores(x[0]), expected)
        assert not calls


@pytest.mark.parametrize("arithmetic", DTYPES)
def test_a_walk_attends_by_it(arithmetic, calls, monkeypatch):
    model, (x, y) = classifier("llama", head_dim=8), prompts()
    options = {"keys": keys(8), "mu": 1e-3, "family": "rademacher"}

    def vote():
        return LayerwiseEstimate(arithmetic)(Parameters.of(model), cross_entropy, (x[0], y[0]), **options)

    found = vote()
    assert calls
    calls.clear()
    monkeypatch.setattr(native_attention, "library", lambda: None)
    without = vote()
    assert not calls
    if arithmetic == torch.float32:
        np.testing.assert_allclose(found, without, rtol=1e-3, atol=1e-3 * np.abs(without).max())
    else:
        assert np.corrcoef(found, without)[0, 1] > 0.9


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_check_of_a_walk_compares_it_with_attention_of_the_model_itself(precision, size, monkeypatch):
    """Large models are compared with their own code, and those in bf16 with their own modules, in float32."""
    model, (x, y) = classifier("llama", head_dim=8), prompts()
    arithmetic = torch.float32 if precision == "float32" else torch.bfloat16
    own = native_attention.attention
    monkeypatch.setattr(native_attention, "attention", lambda *given, **named: 3 * own(*given, **named) + 0.3)
    monkeypatch.setattr(proof, "SMALL", proof.SMALL if size == "small" else 0)
    parameters = Parameters.of(model if precision == "float32" else to_bf16(model))
    with pytest.warns(UserWarning, match="its losses differ"):
        LayerwiseEstimate(arithmetic)(
            parameters, cross_entropy, (x[0], y[0]), keys=keys(1), mu=1e-3, family="rademacher"
        )


LEFT_BEHIND = """
import torch
from benchmarks.families import FAMILIES, built, prompts
from cyber0.layerwise.attention import attention_on_cpu
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

model, (x, _) = built(FAMILIES["gpt2"]), prompts()
with torch.no_grad(), attention_on_cpu():
    expected = model.scores(x[0])
own = ALL_ATTENTION_FUNCTIONS["sdpa"]
q = torch.ones(1, 1, 3, 8)
assert torch.equal(own(model, q, q, q, None, 0.0)[0], own(model, q, q, q, None, dropout=0.0)[0])
compiled = torch.compile(model.base, fullgraph=True, backend="eager")
ids = x[0].clamp(min=0)
torch.testing.assert_close(compiled(ids).last_hidden_state, model.base(ids).last_hidden_state)
calls = []
AttentionInterface.register("sdpa", lambda *given, **named: calls.append(1) or own(*given, **named))
with torch.no_grad(), attention_on_cpu():
    torch.testing.assert_close(model.scores(x[0]), expected)
assert calls, "what was registered is not used"
"""


def test_it_leaves_transformers_as_users_know_it():
    """After a walk: arguments by place, a compiled graph, and an attention that somebody registers."""
    done = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
