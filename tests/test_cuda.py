"""A CUDA device gives the bits of the CPU. Skipped where there is none; the last results are in benchmarks/results/."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from cyber0.commit import Commit
from cyber0.directions import Cpu, DirectionKey, combine, descend, fingerprint, perturb_pair, sample
from cyber0.directions.select import host
from cyber0.estimate import estimate
from cyber0.parameters import Parameters, to_bf16

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
KEY = DirectionKey(seed=0x0123456789ABCDEF, round=3, epoch=2, index=1)
SIZE = 2**24
FAMILIES = ["gaussian", "sphere", "rademacher"]
BACKENDS = ["triton", "torch"]
SLICES = [(0, SIZE), (5, 100_003), (2**34 - 777, 100_003), (2**39 - 3000, 7001), (2**50 - 2000, 2000)]


def same(cuda, reference):
    return host(cuda.cpu()).tobytes() == host(reference).tobytes()


def test_triton_is_there():
    assert find_spec("triton")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_sample(backend, family):
    cuda = sample(KEY, SIZE, family=family, backend=backend, device="cuda")
    assert same(cuda, sample(KEY, SIZE, family=family))
    assert same(cuda[:4096], sample(KEY, 4096, family=family, dimension=SIZE, backend="numpy"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["gaussian", "rademacher"])
@pytest.mark.parametrize(("start", "size"), SLICES[1:])
def test_slices(backend, family, start, size):
    cuda = sample(KEY, size, start, family, backend=backend, device="cuda")
    assert same(cuda, sample(KEY, size, start, family))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["gaussian", "rademacher"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("start", "size"), SLICES)
@pytest.mark.parametrize("magnitude", [1.0, 2.0**-120])  # the second reaches into the subnormal numbers
def test_perturb_and_descend(backend, family, dtype, start, size, magnitude):
    w = torch.from_numpy(sample(DirectionKey(seed=1, round=1), size)) * magnitude
    keys = [DirectionKey(seed=7, round=9, epoch=index % 2, index=index) for index in range(5)]
    coefficients = np.random.default_rng(0).normal(size=5) * magnitude * 2.0**-8
    where = {"start": start, "family": family}
    for reference, cuda in zip(
        perturb_pair(w, KEY, magnitude * 1e-3, out=pair(w, dtype), **where),
        perturb_pair(w.cuda(), KEY, magnitude * 1e-3, out=pair(w.cuda(), dtype), backend=backend, **where),
        strict=True,
    ):
        assert same(cuda, reference)
    reference = descend(w, keys, coefficients, out=torch.empty_like(w, dtype=dtype), **where)
    out = torch.empty_like(w, dtype=dtype, device="cuda")
    assert same(descend(w.cuda(), keys, coefficients, out=out, backend=backend, **where), reference)
    assert same(
        combine(keys, coefficients, size, backend=backend, device="cuda", **where),
        combine(keys, coefficients, size, **where),
    )
    assert fingerprint(out, start=start, backend=backend) == fingerprint(reference, start=start)


def pair(w, dtype):
    return torch.empty_like(w, dtype=dtype), torch.empty_like(w, dtype=dtype)


def network(*, bf16):
    module = nn.Sequential(nn.Linear(61, 130), nn.LayerNorm(130), nn.Linear(130, 33))
    for index, parameter in enumerate(module.parameters()):
        z = sample(DirectionKey(4, 0, index=index), parameter.numel(), device="cpu")
        parameter.data = z.view(parameter.shape) * 0.1
    return to_bf16(module) if bf16 else module


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bf16", [False, True])
def test_after_a_thousand_commits(backend, family, bf16):
    cpu, cuda = Parameters.of(network(bf16=bf16)), Parameters.of(network(bf16=bf16).cuda())
    scalars = np.random.default_rng(5).normal(size=(1000, 2, 4))
    for t in range(1000 if backend == "triton" else 30):
        commit = Commit(8, t, 1e-3, scalars[t], family)
        cpu.apply(commit, Cpu(threads=1))
        cuda.apply(commit, backend)
    assert cuda.fingerprint(backend) == cpu.fingerprint()
    for (_, ours), (_, theirs) in zip(cpu, cuda, strict=True):
        assert same(theirs, ours)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bf16", [False, True])
def test_many_commits_in_one_pass(backend, family, bf16):
    parts, whole = (Parameters.of(network(bf16=bf16).cuda()) for _ in range(2))
    scalars = np.random.default_rng(5).normal(size=(100, 2, 4))
    commits = [Commit(8, t, 1e-3, scalars[t], family) for t in range(100)]
    for commit in commits:
        parts.apply(commit, backend)
    whole.apply_all(commits, backend)
    for (_, ours), (_, theirs) in zip(parts, whole, strict=True):
        assert same(theirs, ours.cpu())


@pytest.mark.parametrize("mu", [0.0, 1e-3])
def test_an_estimate_on_the_device(mu):
    """A vote is a measurement: equal to rounding. The weights stay the same bits."""
    votes = []
    for device in ("cpu", "cuda"):
        model = network(bf16=False).to(device)
        parameters = Parameters.of(model)
        before = parameters.fingerprint()
        batch = torch.from_numpy(sample(DirectionKey(6, 0), 20 * 61)).view(20, 61).to(device)
        keys = [DirectionKey(seed=7, round=9, index=index) for index in range(16)]
        votes.append(estimate(parameters, lambda model, x: model(x).square().sum(1), batch, keys, mu=mu))
        assert parameters.fingerprint() == before
    np.testing.assert_allclose(votes[1], votes[0], rtol=1e-2, atol=1e-2 * np.abs(votes[0]).max())


@pytest.mark.parametrize("task", ["mnist", "mnist-mlp(hidden=6)", "mnist-cnn"])
@pytest.mark.parametrize("mu", [0.0, 1e-2])
def test_a_simulation_on_the_device(task, mu):
    """Both engines on the device agree with the CPU to rounding, and repeat themselves to the bit."""
    from cyber0.config import RunConfig
    from cyber0.simulation import Simulation

    def votes(engine, device):
        size = {"clients": 5, "byzantine": 1, "directions": 6, "batch": 8, "rounds": 3, "local_epochs": 2}
        config = RunConfig(task=task, engine=engine, device=device, mu=mu, lr=0.005, family="gaussian", **size)
        simulation = Simulation(config)
        simulation.play_round(0)
        from cyber0.estimate import full_precision

        with full_precision():
            return simulation.votes(1, np.arange(5))

    reference = votes("sequential", "cpu")
    for engine in ("batched", "sequential"):
        there = votes(engine, "cuda")
        np.testing.assert_allclose(there, reference, rtol=0.02, atol=0.02 * np.abs(reference).max())
        assert there.tobytes() == votes(engine, "cuda").tobytes()


def test_more_directions_than_a_grid_has_rows():
    keys = [DirectionKey(seed=1, round=0, epoch=epoch, index=index) for epoch in range(2) for index in range(2**16 - 1)]
    from cyber0.directions import matrix

    assert same(matrix(keys, 8, family="sphere", device="cuda"), matrix(keys, 8, family="sphere"))
