"""The interface of a backend. There are four backends, and all give the same bits.

A buffer is contiguous, and one-dimensional except in `fill`: a NumPy array (float32, or uint16 holding the bits of bf16
values) or a torch tensor (float32 or bfloat16). Backends do not check their arguments: `cyber0.directions.api` does.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Backend", "Buffer", "Packed"]

Buffer = Any
Packed = NDArray[np.void]


class Backend(Protocol):
    """The operations on directions, none of which stores a whole direction except `fill`."""

    @property
    def name(self) -> str:
        """Return the name by which `backend=` selects it."""
        ...

    def fill(self, out: Buffer, packed: Packed, start: int) -> None:
        """Write coordinates start, start + 1, ... of direction i to out[i]; out is [directions, size]."""
        ...

    def squared_lengths(self, packed: Packed, dimension: int, device: Any) -> list[int]:
        """Return, for each direction, the sum over all coordinates of the integer part of z * z * 2**20."""
        ...

    def move(self, weights: Buffer, packed: Packed, start: int, plus: Buffer, minus: Buffer | None) -> None:
        """Write weights + c z to plus and weights - c z to minus, for one direction; bf16 is rounded to nearest."""
        ...

    def descend(self, weights: Buffer | None, packed: Packed, start: int, out: Buffer) -> None:
        """Write weights - u to out, or u if weights is None, where u = 0 + c z + c' z' + ... in the order packed.

        A bf16 result is rounded stochastically, with the rounding bits of the first direction's seed and round.
        """
        ...

    def descend_all(self, tensors: Sequence[tuple[Buffer, int]], packed: Packed) -> None:
        """Descend several flat buffers on one device in place, each given with its first coordinate."""
        ...

    def fold(self, weights: Buffer, packed: Packed, start: int) -> None:
        """Descend by each row of packed [commits, directions] in turn, in place and in one pass over the weights."""
        ...

    def fingerprint(self, weights: Buffer, start: int) -> int:
        """Return the sum modulo 2**64 over all coordinates p of mix64(p * 0x9E3779B97F4A7C15 + bits of weight p)."""
        ...
