"""Many commits in one pass give the bits of one commit after the other, in the definition's own operations."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cyber0.commit import Commit
from cyber0.directions import Cpu, DirectionKey, native, sample
from cyber0.directions.elementwise import numpy_backend, torch_backend
from cyber0.directions.key import COMPRESSED_EPOCH, pack
from cyber0.parameters import Parameters
from cyber0.plan import CommitSequence, Plan
from cyber0.step_rule import parse

FAMILIES = ["gaussian", "rademacher", "sphere"]
coefficients = st.one_of(
    st.floats(-2, 2, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1e30, -3e38]),  # nothing, and almost nothing, and too much
)
starts = st.one_of(
    st.integers(0, 5000), *(st.integers(edge - 4500, edge + 200) for edge in (2**34, 2**39)), st.just(2**50 - 5000)
)


def weights_of(size, *, bf16):
    """Weights of all sizes: zeros of both signs and subnormal numbers among them."""
    w = sample(DirectionKey(seed=8, round=8), size) * np.float32(0.05)
    w[::7], w[1::11], w[2::13] = -0.0, 1e-40, 0.0
    return (w.view(np.uint32) >> 16).astype(np.uint16) if bf16 else w


@settings(max_examples=60)
@given(
    rows=st.lists(st.lists(coefficients, min_size=3, max_size=3), min_size=1, max_size=5),
    width=st.integers(1, 3),
    size=st.integers(1, 5000),
    start=starts,
    family=st.sampled_from(FAMILIES),
    bf16=st.booleans(),
    threads=st.integers(1, 3),
)
def test_a_pass_is_one_commit_after_the_other(rows, width, size, start, family, bf16, threads):
    epochs = (1, COMPRESSED_EPOCH)
    keys = [DirectionKey(2**40 + 3, t, epochs[t % 2], r) for t in range(len(rows)) for r in range(width)]
    units = [0.7 + 0.1 * (n % 3) for n in range(len(keys))] if family == "sphere" else [1.0] * len(keys)
    packed = pack(keys, family, units, np.array([row[:width] for row in rows]).ravel()).reshape(len(rows), width)
    expected = weights_of(size, bf16=bf16)
    with np.errstate(over="ignore", invalid="ignore"):
        for commit in packed:
            numpy_backend().descend(expected, commit, start, expected)
    found = weights_of(size, bf16=bf16)
    Cpu(threads=threads).fold(found, packed, start)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bf16", [False, True])
def test_threads_and_cuts_change_no_bit(family, bf16, monkeypatch):
    size, packed = 3 * 2**15 + 77, pack([DirectionKey(5, t) for t in range(6)], family, [1.0] * 6, [0.1] * 6)
    expected = weights_of(size, bf16=bf16)
    Cpu(threads=1).fold(expected, packed.reshape(3, 2), 2**34 - 50_000)
    monkeypatch.setattr(native, "LONGEST", 2**14)
    for threads in (2, 3, 5):
        found = weights_of(size, bf16=bf16)
        Cpu(threads=threads).fold(found, packed.reshape(3, 2), 2**34 - 50_000)
        assert found.tobytes() == expected.tobytes()
    whole, parts = weights_of(size, bf16=bf16), (0, 1, 127, 2048, 40_000, size)
    for first, last in pairwise(parts):
        Cpu().fold(whole[first:last], packed.reshape(3, 2), 2**34 - 50_000 + first)
    assert whole.tobytes() == expected.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    ("scheme", "rule", "directions", "local_epochs"),
    [
        ("unbiased", "plain", 1, 1),
        ("unbiased", "normalised(beta=0.9)", 1, 1),
        ("unbiased", "normalised(beta=0.9)", 2, 3),
        ("biased", "plain", 3, 2),
        ("compressed", "normalised", 2, 2),
    ],
)
def test_a_replay_is_one_apply_after_the_other(family, bf16, scheme, rule, directions, local_epochs):
    """Of every family, type, step rule and scheme; tensors that begin and end inside blocks, some of them frozen."""
    plan = Plan(11, directions, local_epochs, scheme, 1e-3, 0.05, family, step_rule=parse(rule))
    scalars = np.random.default_rng(0).normal(size=(9, plan.rows, directions)).astype(np.float32)
    scalars[4] = 0
    commits = list(CommitSequence(plan).commits(0, scalars))

    def model():
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(37, 61), torch.nn.Linear(61, 5), torch.nn.Linear(5, 30))
        layers[1].requires_grad_(False)
        if bf16:
            for layer in layers:
                layer.weight.data = layer.weight.data.to(torch.bfloat16)
        return Parameters.of(layers)

    one_by_one, at_once, by_torch = model(), model(), model()
    for commit in commits:
        one_by_one.apply(commit, backend="numpy")
    at_once.apply_all(commits)
    by_torch.apply_all(commits, backend=torch_backend(chunk=777))
    assert at_once.fingerprint() == one_by_one.fingerprint() == by_torch.fingerprint()
    for name, tensor in at_once.tensors.items():
        assert torch.equal(tensor, one_by_one.tensors[name])


def test_a_pass_keeps_subnormal_numbers_whatever_the_process_asks_its_processor_for():
    packed = pack([DirectionKey(5, 0)], "rademacher", [1.0], [1e-40]).reshape(1, 1)
    expected = np.zeros(300, dtype=np.float32)
    numpy_backend().fold(expected, packed, 0)
    assert np.count_nonzero(expected) == 300
    found = np.zeros(300, dtype=np.float32)
    torch.set_flush_denormal(True)
    try:
        Cpu(threads=1).fold(found, packed, 0)
    finally:
        torch.set_flush_denormal(False)
    assert found.tobytes() == expected.tobytes()


def test_a_commit_of_zeros_moves_nothing():
    for family in ("gaussian", "rademacher"):
        w = np.array([-0.0, 0.0, 1.0, -1e-45], dtype=np.float32)
        before = w.tobytes()
        Parameters({"w": w}).apply_all([Commit(3, 0, 0.5, [[0.0]], family), Commit(3, 1, -0.0, [[1.0]], family)])
        assert w.tobytes() == before
