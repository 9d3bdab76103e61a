import hashlib

import numpy as np
import pytest

from cyber0.directions import Cpu, DirectionKey, descend, sample
from cyber0.directions.elementwise import numpy_backend, torch_backend

BACKENDS = {
    "numpy": (numpy_backend(), None),
    "numpy, odd chunks": (numpy_backend(chunk=4099), None),
    "cpu": (Cpu(), None),
    "cpu, one thread": (Cpu(threads=1), None),
    "cpu, five threads": (Cpu(threads=5), None),
    "cpu, on a tensor": (Cpu(), "cpu"),
    "torch": (torch_backend(), "cpu"),
    "torch, odd chunks": (torch_backend(chunk=99_991), "cpu"),
}
KEY = DirectionKey(seed=0x0123456789ABCDEF, round=3, epoch=2, index=1)


def sha256(array):
    return hashlib.sha256(np.asarray(array, dtype="<f4").tobytes()).hexdigest()


@pytest.fixture(params=BACKENDS)
def draw(request):
    backend, device = BACKENDS[request.param]
    return lambda *args, **kwargs: np.asarray(sample(KEY, *args, backend=backend, device=device, **kwargs))


def test_gaussian(draw, known):
    assert draw(8).view(np.uint32).tolist() == known["gaussian_first8_bits"]
    assert sha256(draw(2**20)) == known["gaussian_2**20_sha256"]


def test_gaussian_far_out(draw, known):
    far = draw(8, start=2**34 + 12345).view(np.uint32)
    assert far.tolist() == known["gaussian_start_2**34+12345_first8_bits"]


def test_sphere(draw, known):
    assert draw(4, family="sphere", dimension=7850).tolist() == known["sphere_7850_first4"]
    assert sha256(draw(7850, family="sphere")) == known["sphere_7850_sha256"]


def test_rademacher(draw, known):
    assert draw(16, start=100, family="rademacher").tolist() == known["rademacher_start_100_first16"]
    assert sha256(draw(2**20, family="rademacher")) == known["rademacher_2**20_sha256"]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("bf16", [False, True])
def test_apply(name, bf16, known):
    backend, device = BACKENDS[name]
    weights = sample(DirectionKey(seed=5, round=0), 4096) * np.float32(0.05)
    if bf16:
        weights = (weights.view(np.uint32) >> 16).astype(np.uint16)  # bf16, as its bits
    if device:
        torch = pytest.importorskip("torch")
        weights = torch.from_numpy(weights.view(np.int16)).view(torch.bfloat16) if bf16 else torch.from_numpy(weights)
    for t in range(3):
        keys = [DirectionKey(99, t, epoch, index) for epoch in range(2) for index in range(2)]
        coefficients = 1e-3 * np.array([0.5, -1.25, 2.0, 0.75])
        descend(weights, keys, coefficients, out=weights, backend=backend)
    if bf16:
        bits = np.asarray(weights.view(torch.int16) if device else weights).view(np.uint16)
        weights = (bits.astype(np.uint32) << 16).view(np.float32)
    assert sha256(weights) == known["apply"]["bf16_as_float32_sha256" if bf16 else "float32_sha256"]
