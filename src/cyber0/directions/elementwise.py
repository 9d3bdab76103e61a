"""The backends `numpy` (the reference) and `torch` (any device): the definition of the stream, applied to chunks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cyber0.directions import stream
from cyber0.directions.backend import Buffer, Packed

__all__ = ["Elementwise", "numpy_backend", "torch_backend"]

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as int64
MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)  # the finaliser of splitmix64


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A backend made of array operations of the namespace `xp`, on `chunk` coordinates at a time to save memory."""

    name: str
    xp: Any
    chunk: int = 2**16

    def fill(self, out: Buffer, packed: Packed, start: int) -> None:
        for row, direction in zip(out, packed, strict=True):
            for part in self._parts(row):
                row[part] = self._z(direction, start + part.start, part.stop - part.start, out.device)

    def squared_lengths(self, packed: Packed, dimension: int, device: Any) -> list[int]:
        return [self._squared_length(direction, dimension, device) for direction in packed]

    def _squared_length(self, direction: Any, dimension: int, device: Any) -> int:
        total = 0
        for first in range(0, dimension, self.chunk):
            z = self._z(direction, first, min(self.chunk, dimension - first), device)
            total += int(self.xp.sum(self.xp.astype(z * z * 2.0**20, self.xp.int64)))
        return total

    def move(self, weights: Buffer, packed: Packed, start: int, plus: Buffer, minus: Buffer | None) -> None:
        for part in self._parts(weights):
            w = self._load(weights[part])
            step = self._z(packed[0], start + part.start, len(w), weights.device) * float(packed[0]["coefficient"])
            self._store(plus[part], w + step)
            if minus is not None:
                self._store(minus[part], w - step)

    def descend(self, weights: Buffer | None, packed: Packed, start: int, out: Buffer) -> None:
        for part in self._parts(out):
            first, size = start + part.start, part.stop - part.start
            u = self.xp.zeros(size, dtype=self.xp.float32, device=out.device)
            for direction in packed:
                u = u + self._z(direction, first, size, out.device) * float(direction["coefficient"])
            result = u if weights is None else self._load(weights[part]) - u
            if out.dtype == self.xp.float32:
                out[part] = result
            else:
                dither = stream.halves(self.xp, packed[0], first, size, out.device)
                self._store_bits(out[part], self._bits(result) + dither)

    def descend_all(self, tensors: Sequence[tuple[Buffer, int]], packed: Packed) -> None:
        for flat, start in tensors:
            self.descend(flat, packed, start, flat)

    def fold(self, weights: Buffer, packed: Packed, start: int) -> None:
        for part in self._parts(weights):
            for directions in packed:
                self.descend(weights[part], directions, start + part.start, weights[part])

    def fingerprint(self, weights: Buffer, start: int) -> int:
        total = 0
        for part in self._parts(weights):
            p = self.xp.arange(start + part.start, start + part.stop, dtype=self.xp.int64, device=weights.device)
            x = p * GOLDEN + self._bits(self._load(weights[part]))
            x = (x ^ ((x >> 30) & (2**34 - 1))) * MIX[0]
            x = (x ^ ((x >> 27) & (2**37 - 1))) * MIX[1]
            total += int(self.xp.sum(x ^ ((x >> 31) & (2**33 - 1))))
        return total % 2**64

    def _parts(self, buffer: Buffer) -> Iterator[slice]:
        for first in range(0, len(buffer), self.chunk):
            yield slice(first, min(first + self.chunk, len(buffer)))

    def _z(self, direction: Any, start: int, size: int, device: Any) -> Any:
        family = stream.rademacher if direction["bits"] else stream.gaussian
        return family(self.xp, direction, start, size, device) * float(direction["unit"])

    def _bits(self, values: Any) -> Any:
        """Return the 32 bits of float32 values, as int64."""
        return self.xp.astype(values.view(self.xp.int32), self.xp.int64) & stream.MASK

    def _load(self, buffer: Buffer) -> Any:
        if buffer.dtype != getattr(self.xp, "uint16", None):
            return self.xp.astype(buffer, self.xp.float32)
        return self.xp.astype(self.xp.astype(buffer, self.xp.int64) << 16, self.xp.uint32).view(self.xp.float32)

    def _store(self, buffer: Buffer, values: Any) -> None:
        """Write float32 values to a buffer, rounded to its type: to nearest, ties to even."""
        if buffer.dtype == self.xp.float32:
            buffer[:] = values
        else:
            bits = self._bits(values)
            self._store_bits(buffer, bits + 0x7FFF + ((bits >> 16) & 1))

    def _store_bits(self, buffer: Buffer, bits: Any) -> None:
        """Write the upper halves of 32-bit words to a 16-bit buffer."""
        words = self.xp.astype((bits >> 16) & 0xFFFF, self.xp.int32)
        words = self.xp.astype(words - ((words >> 15) << 16), self.xp.int16)  # the same bits, as a signed word
        buffer.view(self.xp.int16)[:] = words


def numpy_backend(chunk: int = 2**14) -> Elementwise:
    """Return the reference backend: slow, and what every other backend is compared with."""
    import array_api_compat.numpy as xp

    return Elementwise("numpy", xp, chunk)


def torch_backend(chunk: int = 2**20) -> Elementwise:
    """Return the backend that does the same operations on torch tensors, on any device."""
    import array_api_compat.torch as xp

    return Elementwise("torch", xp, chunk)
