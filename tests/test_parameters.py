import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cyber0 import errors
from cyber0.commit import Commit
from cyber0.directions import COMPRESSED_EPOCH, Cpu, DirectionKey, descend, sample
from cyber0.directions.elementwise import numpy_backend, torch_backend
from cyber0.parameters import Manifest, Parameters, to_bf16


def mlp(seed=1, *, bf16=False):
    """A small network with weights from the stream, so that every test run has the same."""
    module = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 7))
    for index, parameter in enumerate(module.parameters()):
        z = sample(DirectionKey(seed, 0, index=index), parameter.numel(), device="cpu")
        parameter.data = z.view(parameter.shape) * 0.1
    return to_bf16(module) if bf16 else module


def as_numpy(parameters):
    """The same parameters in NumPy arrays of their own."""
    return Parameters(
        {
            entry.name: np.array(flat.view(torch.int16).numpy().view(np.uint16) if flat.itemsize == 2 else flat.numpy())
            .reshape(entry.shape)
            for entry, flat in parameters
        }
    )  # fmt: skip


def commits(count, *, family="gaussian", seed=99, shape=(2, 3)):
    scalars = np.random.default_rng(seed).normal(size=(count, *shape))
    return [Commit(seed, t, 1e-3, scalars[t], family) for t in range(count)]


@pytest.mark.parametrize("backend", ["numpy", "cpu", "torch"])
@pytest.mark.parametrize("bf16", [False, True])
def test_known_answers(backend, bf16, known):
    weights = torch.from_numpy(sample(DirectionKey(seed=5, round=0), 4096) * np.float32(0.05)).reshape(64, 64)
    if bf16:
        weights = (weights.view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)
    parameters = Parameters({"w": weights})
    for t in range(3):
        parameters.apply(Commit(99, t, 1e-3, [[0.5, -1.25], [2.0, 0.75]]), backend)
    digest = hashlib.sha256(weights.float().numpy().astype("<f4").tobytes()).hexdigest()
    assert digest == known["apply"]["bf16_as_float32_sha256" if bf16 else "float32_sha256"]


@pytest.mark.parametrize("family", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_same_commits_give_the_same_bits_everywhere(family, bf16):
    reference = as_numpy(Parameters.of(mlp(bf16=bf16)))
    others = {
        "NumPy, odd chunks": (as_numpy(Parameters.of(mlp(bf16=bf16))), numpy_backend(chunk=101)),
        "one thread": (as_numpy(Parameters.of(mlp(bf16=bf16))), Cpu(threads=1)),
        "torch, two threads": (Parameters.of(mlp(bf16=bf16)), Cpu(threads=2)),
        "torch, odd chunks": (Parameters.of(mlp(bf16=bf16)), torch_backend(chunk=99)),
    }
    for commit in commits(12, family=family):
        reference.apply(commit, "numpy")
        for parameters, backend in others.values():
            parameters.apply(commit, backend)
    for name, (parameters, backend) in others.items():
        assert parameters.fingerprint(backend) == reference.fingerprint("numpy"), name


@pytest.mark.parametrize("bf16", [False, True])
def test_after_a_thousand_commits(bf16):
    reference, parameters = as_numpy(Parameters.of(mlp(bf16=bf16))), Parameters.of(mlp(bf16=bf16))
    for commit in commits(1000, shape=(1, 2)):
        reference.apply(commit, "numpy")
        parameters.apply(commit)
    assert parameters.fingerprint() == reference.fingerprint("numpy")
    assert parameters.fingerprint() != Parameters.of(mlp(bf16=bf16)).fingerprint()


@given(cuts=st.sets(st.integers(1, 4999), max_size=6))
def test_only_the_flat_vector_counts(cuts):
    """However the vector is cut into tensors, the bits are the same: any slice can be updated alone."""
    w = sample(DirectionKey(seed=1, round=0), 5000)
    whole = Parameters({"w": w.copy()})
    parts = Parameters({str(i): part.copy() for i, part in enumerate(np.split(w, sorted(cuts)))})
    for commit in commits(2, family="sphere"):
        whole.apply(commit)
        parts.apply(commit)
    assert np.concatenate([flat for _, flat in parts]).tobytes() == whole.tensors["w"].tobytes()
    assert parts.fingerprint() == whole.fingerprint()


def test_a_commit_of_another_epoch_uses_its_directions():
    w = np.zeros(10, dtype=np.float32)
    Parameters({"w": w}).apply(Commit(7, 3, 0.5, [[2.0]], epochs=[COMPRESSED_EPOCH]))
    assert (w == -sample(DirectionKey(7, 3, COMPRESSED_EPOCH), 10)).all()


def test_stochastic_rounding_is_unbiased():
    """The mean over many rounds of a bf16 result is the float32 one, to five standard errors."""
    w = sample(DirectionKey(seed=1, round=0), 400)
    rounds = 4000
    total = np.zeros(w.shape)
    out = np.empty(w.shape, dtype=np.uint16)
    for t in range(rounds):
        descend(w, [DirectionKey(seed=8, round=t)], [0.0], out=out)
        total += (out.astype(np.uint32) << 16).view(np.float32)
    spacing = np.spacing(np.abs(w)) * 2.0**16
    error = (total / rounds - w) / spacing
    assert np.abs(error).max() < 5 * 0.5 / np.sqrt(rounds)
    assert np.abs(error.mean()) < 5 * 0.5 / np.sqrt(rounds * len(w))


def test_small_steps_move_bf16_weights():
    """Rounded to nearest, steps below half a spacing would all be lost; rounded stochastically they add up."""
    model = to_bf16(nn.Linear(50, 40, bias=False))
    nn.init.ones_(model.weight)
    parameters = Parameters.of(model)
    step = np.zeros(2000)
    for commit in [Commit(5, t, 1e-4, [[1.0]]) for t in range(300)]:
        parameters.apply(commit)
        step += -1e-4 * sample(commit.keys[0], 2000)
    moved = model.weight.detach().double().numpy().ravel() - 1
    assert np.corrcoef(moved, step)[0, 1] > 0.1


def test_tied_tensors_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert [entry.name for entry in Parameters.of(model).manifest.entries] == ["0.weight"]


def test_frozen_parameters_are_left_alone():
    model = mlp()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    parameters = Parameters.of(model)
    assert parameters.size == 30 + 7 * 30 + 7
    parameters.apply(commits(1)[0])
    assert torch.equal(model[0].weight, before)


def test_the_manifest_tells_layouts_apart():
    digests = {
        Parameters.of(module).manifest.digest
        for module in (
            nn.Linear(3, 4),
            nn.Linear(4, 3),
            nn.Linear(3, 4, bias=False),
            nn.Sequential(nn.Linear(3, 4)),
            to_bf16(nn.Linear(3, 4)),
        )
    }
    assert len(digests) == 5
    parameters = Parameters.of(mlp(bf16=True))
    assert as_numpy(parameters).manifest.digest == parameters.manifest.digest
    assert isinstance(parameters.manifest, Manifest)


def test_the_fingerprint_sees_every_bit_and_place():
    w = sample(DirectionKey(seed=1, round=0), 1000)
    prints = {Parameters({"w": w}).fingerprint(), Parameters({"w": w[::-1].copy()}).fingerprint()}
    for bit in range(32):
        changed = w.copy()
        changed.view(np.uint32)[123] ^= np.uint32(1 << bit)
        prints.add(Parameters({"w": changed}).fingerprint())
    assert len(prints) == 34


def test_a_bf16_fingerprint_is_that_of_the_same_values():
    model = mlp(bf16=True)
    assert Parameters.of(model).fingerprint() == Parameters.of(model.float()).fingerprint()


def ghost(tensor):
    module = nn.Module()
    module.weight = nn.Parameter(tensor, requires_grad=tensor.is_floating_point() or tensor.is_complex())
    return module


def test_no_trainable_parameters():
    for module in (nn.ReLU(), mlp().requires_grad_(False)):
        with pytest.raises(errors.InvalidParameters, match="nothing to train"):
            Parameters.of(module)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(3, 3, dtype=torch.float64), "is float64: train float32 or bfloat16"),
        (torch.zeros(3, 3, dtype=torch.complex64), "is complex64"),
        (torch.zeros(3, 3, dtype=torch.float16), "is float16"),
        (torch.zeros(3, dtype=torch.bfloat16), "one-dimensional and bfloat16: keep it float32"),
        (torch.zeros(4, 6).t(), "not contiguous"),
        (torch.zeros(0, 6), "it is empty"),
        (torch.zeros(4, 6, device="meta"), "meta device"),
    ],
)
def test_parameters_that_cannot_be_trained(tensor, message):
    with pytest.raises(errors.InvalidParameters, match=message):
        Parameters.of(ghost(tensor))


def test_integer_parameters():
    with pytest.raises(errors.InvalidParameters, match="'w' is int64"):
        Parameters({"w": np.zeros((3, 3), dtype=np.int64)})


def test_overlapping_tensors():
    storage = torch.zeros(10)
    with pytest.raises(errors.InvalidParameters, match="'a' and 'b' overlap"):
        Parameters({"a": storage[:6], "b": storage[5:]})


def test_parameters_that_were_moved_are_not_trained_elsewhere():
    model = mlp()
    parameters = Parameters.of(model)
    to_bf16(model)
    with pytest.raises(errors.InvalidParameters, match=r"'0.weight' has been moved: build its Parameters anew"):
        parameters.apply(commits(1)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scalars": []}, "must have rows"),
        ({"scalars": [1.0, 2.0]}, "must have rows"),
        ({"scalars": [[1.0], [2.0, 3.0]]}, "all of one length"),
        ({"scalars": [["x"]]}, "rows of numbers"),
        ({"scalars": [[1.0, float("nan")]]}, r"scalars\[0\]\[1\] = nan must be finite"),
        ({"scalars": [[1e39]]}, "must be finite in float32"),
        ({"lr": float("inf")}, "lr = inf must be a finite number"),
        ({"lr": 1e30, "scalars": [[1e30]]}, "too large for float32"),
        ({"lr": 10**400}, "must be a finite number"),
        ({"lr": "x"}, "lr = 'x' must be a finite number"),
        ({"epochs": [0, 1]}, "names 2 rows, but scalars has 1"),
    ],
)
def test_commits_that_no_model_can_apply(change, message):
    with pytest.raises(errors.InvalidCommit, match=message):
        Commit(**{"seed": 1, "round": 0, "lr": 0.1, "scalars": [[1.0]], **change})


@pytest.mark.parametrize(
    "change", [{"seed": -1}, {"round": 2**32}, {"epochs": [-3]}, {"scalars": np.zeros((1, 2**16 + 1))}]
)
def test_commits_of_directions_that_do_not_exist(change):
    with pytest.raises(errors.KeyOutOfRange):
        Commit(**{"seed": 1, "round": 0, "lr": 0.1, "scalars": [[1.0]], **change})


def test_commits_compare_by_value():
    assert Commit(1, 0, 0.1, [[0.1]]) == Commit(1, 0, 0.1, np.array([[0.1]], dtype=np.float32))
    assert len({Commit(1, 0, 0.1, [[0.1]]), Commit(1, 0, 0.1, [[0.2]])}) == 2
