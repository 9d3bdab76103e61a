"""Choose the backend for an array, and check it against known answers before it is first used."""

import hashlib
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from cyber0.directions import native
from cyber0.directions.backend import Backend, Buffer, Packed
from cyber0.directions.elementwise import numpy_backend, torch_backend
from cyber0.directions.key import DirectionKey, pack
from cyber0.errors import BackendError, UnknownName
from cyber0.extras import require

__all__ = ["BACKENDS", "device_of", "empty", "get_backend", "host", "is_numpy", "proof"]

PROOF = "988cc9e85841f270"  # what proof() must return on every backend and device


def _triton() -> Backend:
    from cyber0.directions.kernels import Triton

    return Triton()


BACKENDS: dict[str, Callable[[], Backend]] = {
    "numpy": numpy_backend,
    "cpu": native.Cpu,
    "torch": torch_backend,
    "triton": _triton,
}


def device_of(array: Buffer) -> Any:
    """Return the device of a torch tensor; None for a NumPy array."""
    return None if is_numpy(array) else array.device


def is_numpy(array: Buffer) -> bool:
    """Return whether an array is NumPy's, rather than torch's."""
    return isinstance(array, np.ndarray)


def host(array: Buffer) -> Any:
    """Return a CPU tensor as a NumPy array that shares its memory (bf16 as uint16); a NumPy array as it is.

    >>> import torch
    >>> host(torch.ones(2, dtype=torch.bfloat16))
    array([16256, 16256], dtype=uint16)
    """
    if is_numpy(array):
        return array
    torch = require("torch", extra="train")
    words: Any = array.view(torch.int16) if array.dtype == torch.bfloat16 else array
    return words.numpy().view(np.uint16) if words is not array else words.numpy()


def empty(size: int, device: Any, *, bf16: bool = False) -> Buffer:
    """Return an uninitialised buffer: a NumPy array if the device is None, else a tensor on it."""
    if device is None:
        return np.empty(size, dtype=np.uint16 if bf16 else np.float32)
    torch = require("torch", extra="train")
    return torch.empty(size, dtype=torch.bfloat16 if bf16 else torch.float32, device=device)


@dataclass(frozen=True, slots=True)
class Hosted:
    """A NumPy backend applied to tensors: those on the CPU share their memory, others are copied there and back."""

    inner: Backend

    @property
    def name(self) -> str:
        return self.inner.name

    def fill(self, out: Buffer, packed: Packed, start: int) -> None:
        with _borrow(out) as (there,):
            self.inner.fill(there, packed, start)

    def squared_lengths(self, packed: Packed, dimension: int, device: Any) -> list[int]:  # noqa: ARG002
        return self.inner.squared_lengths(packed, dimension, None)

    def move(self, weights: Buffer, packed: Packed, start: int, plus: Buffer, minus: Buffer | None) -> None:
        if self._takes(weights, plus):
            self.inner.move(weights, packed, start, plus, minus)
            return
        with _borrow(plus, *([] if minus is None else [minus])) as outs:
            self.inner.move(host(weights.cpu()), packed, start, outs[0], None if minus is None else outs[1])

    def descend(self, weights: Buffer | None, packed: Packed, start: int, out: Buffer) -> None:
        if self._takes(weights, out):
            self.inner.descend(weights, packed, start, out)
            return
        with _borrow(out) as (there,):
            self.inner.descend(None if weights is None else host(weights.cpu()), packed, start, there)

    def descend_all(self, tensors: Sequence[tuple[Buffer, int]], packed: Packed) -> None:
        for flat, start in tensors:
            self.descend(flat, packed, start, flat)

    def fold(self, weights: Buffer, packed: Packed, start: int) -> None:
        with _borrow(weights) as (there,):
            self.inner.fold(there, packed, start)

    def _takes(self, *tensors: Any) -> bool:
        """Return whether the backend takes tensors as they are: a round has a hundred, most of them small."""
        return isinstance(self.inner, native.Cpu) and all(
            each is None or (each.device.type == "cpu" and not each.is_neg()) for each in tensors
        )

    def fingerprint(self, weights: Buffer, start: int) -> int:
        return self.inner.fingerprint(host(weights.cpu()), start)


@contextmanager
def _borrow(*outs: Any) -> Generator[list[Any]]:
    """Yield the outputs as NumPy arrays; copy those of other devices back at the end."""
    copies = [out.cpu() for out in outs]  # a tensor on the CPU itself
    yield [host(copy) for copy in copies]
    for out, copy in zip(outs, copies, strict=True):
        if copy is not out:
            out.copy_(copy)


def proof(backend: Backend, device: Any) -> str:
    """Return a digest of each family and operation at unaligned positions, equal on every backend and device.

    >>> proof(numpy_backend(), None) == proof(get_backend(None, None), None)
    True
    """
    key = DirectionKey(seed=0x0123456789ABCDEF, round=3, epoch=2, index=1)
    outputs = [empty(5000, device) for _ in range(5)] + [empty(5000, device, bf16=True)]
    z, signs, plus, minus, tiny, descended = outputs
    backend.fill(z.reshape(1, -1), pack([key], "gaussian", [1.0], [1.0]), 13)
    backend.fill(signs.reshape(2, -1), pack([key, key], "rademacher", [1.0, 1.0], [1.0, 1.0]), 2**34 - 99)
    backend.move(z, pack([key], "sphere", [0.01], [0.5]), 2**34 - 99, plus, minus)
    backend.descend(plus, pack([key, key], "sphere", [0.7, 1.1], [0.3, -1e-3]), 7, descended)
    host_tiny = host(z if device is None else z.cpu()).copy().view(np.uint32) % np.uint32(2**23)  # subnormal numbers
    tiny[:] = host_tiny.view(np.float32) if device is None else tiny.new_tensor(host_tiny.view(np.float32))
    backend.descend(tiny, pack([key], "gaussian", [1.0], [2.0**-126]), 5, tiny)
    later = DirectionKey(seed=0x0123456789ABCDEF, round=4, epoch=2, index=1)
    for out in (minus, descended):
        backend.fold(out, pack([key, key, later, later], "sphere", [0.7, 1.1] * 2, [0.3, -1e-3] * 2).reshape(2, 2), 7)
    lengths = backend.squared_lengths(pack([key, key], "gaussian", [1.0, 1.0], [1.0, 1.0]), 5000, device)
    digest = hashlib.sha256(repr((lengths, backend.fingerprint(descended, 1))).encode())
    for out in outputs:
        digest.update(host(out if device is None else out.cpu()).tobytes())
    return digest.hexdigest()[:16]


_PROVEN: set[tuple[Backend, Any]] = set()


def _proven(backend: Backend, device: Any) -> bool:
    if (backend, device) not in _PROVEN and proof(backend, device) == PROOF:
        _PROVEN.add((backend, device))
    return (backend, device) in _PROVEN


def _default_name(device: Any) -> str:
    if device is not None and device.type != "cpu":
        return "triton" if device.type == "cuda" and find_spec("triton") else "torch"
    return "cpu" if native.available() else "numpy" if device is None else "torch"


def get_backend(backend: str | Backend | None, device: Any) -> Backend:
    """Return the backend asked for, or the fastest one for the device if none is.

    Raise BackendError if it cannot serve the device, or does not give the known answers there.
    """
    chosen = _make(backend if backend is not None else _default_name(device))
    if device is not None and chosen.name in ("numpy", "cpu"):
        if device.type != "cpu":
            raise BackendError(f"backend {chosen.name!r} cannot use device {str(device)!r}: use 'torch' or 'triton'")
        chosen = Hosted(chosen)
    if device is None and chosen.name in ("torch", "triton"):
        raise BackendError(f"backend {chosen.name!r} needs torch tensors: give a device=, or use 'numpy' or 'cpu'")
    if _proven(chosen, device):
        return chosen
    if backend is None and device is not None and device.type != "cpu":
        warnings.warn(
            f"{device} does not give the stream's known answers: its directions are computed on the CPU",
            stacklevel=3,
        )
        return Hosted(get_backend(None, None))
    raise BackendError(f"backend {chosen.name!r} on {device or 'the CPU'} does not give the stream's known answers")


def _make(backend: str | Backend) -> Backend:
    if isinstance(backend, Hosted):
        return backend.inner
    if not isinstance(backend, str):
        return backend
    if backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)
    if backend in ("torch", "triton"):
        require("torch", extra="train")
    return BACKENDS[backend]()
