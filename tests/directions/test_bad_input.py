import numpy as np
import pytest
import torch

from cyber0 import errors
from cyber0.directions import Cpu, DirectionKey, combine, descend, perturb, perturb_pair, sample
from cyber0.directions.elementwise import Elementwise, numpy_backend

KEY = DirectionKey(seed=1, round=0)
W = np.zeros(8, dtype=np.float32)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("seed", 2**64),
        ("round", 2**32),
        ("epoch", 2**32),
        ("index", 2**16),
        ("index", -1),
        ("round", 1.5),
        ("seed", "7"),
    ],
)
def test_a_key_out_of_range(field, value):
    with pytest.raises(errors.KeyOutOfRange, match=f"{field} = .*must be an integer from 0 to"):
        DirectionKey(**{"seed": 1, "round": 0, field: value})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sample(KEY, 0), "size = 0"),
        (lambda: sample(KEY, -3), "size = -3"),
        (lambda: sample(KEY, 5, start=-1), "start = -1"),
        (lambda: sample(KEY, 5, start=2**50), r"from 0 to 2\*\*50"),
        (lambda: sample(KEY, 5, start=3, family="sphere"), "needs dimension="),
        (lambda: sample(KEY, 5, family="sphere", dimension=4), "dimension = 4"),
        (lambda: combine([KEY], [1.0], 0), "size = 0"),
        (lambda: perturb(W[:0], KEY, 1.0), "size = 0"),
    ],
)
def test_no_such_slice(call, message):
    with pytest.raises(errors.InvalidSize, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: perturb(np.zeros(8), KEY, 1.0), "float64: give float32"),
        (lambda: perturb([0.0], KEY, 1.0), "weights is a list"),
        (lambda: perturb(np.zeros((4, 4), dtype=np.float32).T[:, :2], KEY, 1.0), "not contiguous"),
        (lambda: perturb(torch.zeros(4, 4).t()[:2], KEY, 1.0), "not contiguous"),
        (lambda: perturb(torch.zeros(4, dtype=torch.complex64), KEY, 1.0), "complex64"),
        (lambda: perturb(W, KEY, 1.0, out=np.zeros(7, dtype=np.float32)), "out has 7 values"),
        (lambda: perturb(W, KEY, 1.0, out=torch.zeros(8)), "as many on the same device"),
        (lambda: perturb(W, KEY, float("nan")), "coefficient nan"),
        (lambda: perturb(W, KEY, 1e39), "not a finite float32"),
        (lambda: perturb_pair(W, KEY, 1.0, out=(W.copy(), np.zeros(8, dtype=np.uint16))), "of one type"),
        (lambda: descend(W, [], []), "0 keys and 0 coefficients"),
        (lambda: descend(W, [KEY], [1.0, 2.0]), "1 keys and 2 coefficients"),
    ],
)
def test_no_such_array(call, message):
    with pytest.raises(errors.InvalidArray, match=message):
        call()


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(errors.UnknownName, match=r"gaussian, rademacher, sphere \(did you mean 'gaussian'\?\)"):
        sample(KEY, 5, family="gausian")
    with pytest.raises(errors.UnknownName, match="cpu, numpy, torch, triton"):
        sample(KEY, 5, backend="gpu")


def test_a_backend_that_cannot_reach_the_array():
    with pytest.raises(errors.BackendError, match="give a device="):
        sample(KEY, 5, backend="torch")
    with pytest.raises(errors.BackendError, match="cannot use device 'meta'"):
        sample(KEY, 5, backend="cpu", device="meta")


def test_a_backend_with_wrong_bits_is_refused():
    class Fused:
        """The array library of a device whose square root is an ulp off."""

        def __getattr__(self, name):
            return getattr(numpy_backend().xp, name)

        def sqrt(self, x):
            return np.nextafter(np.sqrt(x), np.inf, dtype=x.dtype) * (1 + 2.0**-24)

    with pytest.raises(errors.BackendError, match="does not give the stream's known answers"):
        sample(KEY, 5, backend=Elementwise("numpy", Fused()))


def test_flushing_subnormal_numbers_changes_no_bit():
    """Some processes ask their processor to; the compiled backend does not heed it, and others are refused."""
    w = np.array([1e-40, -1e-42, 1.0], dtype=np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        kept = descend(w, [KEY], [0.0], backend=Cpu(threads=1)).tobytes() == w.tobytes()
        bits = perturb(np.zeros(64, dtype=np.float32), KEY, 2.0**-126, backend=Cpu(threads=1)).view(np.uint32)
        with pytest.raises(errors.BackendError, match="known answers"):
            sample(KEY, 5, backend=numpy_backend(chunk=4098))  # one that has not been proven yet
    finally:
        torch.set_flush_denormal(False)
    assert kept
    assert ((bits & 0x7FFFFFFF) != 0).all()
    assert ((bits & 0x7F800000) == 0).any()


def test_a_tensor_whose_sign_is_not_in_its_memory_is_refused():
    with pytest.raises(RuntimeError, match="negative bit"):
        perturb(torch._neg_view(torch.ones(8)), KEY, 0.1)
