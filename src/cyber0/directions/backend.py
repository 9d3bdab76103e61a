"""What a backend does. There are four; all give the same bits.

A buffer is contiguous, and one-dimensional but for `fill`: a NumPy array (float32, or uint16 holding the bits of bf16
values) or a torch tensor (float32 or bfloat16). A backend trusts what it is given: `cyber0.directions.api` checks.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Backend", "Buffer", "Packed"]

Buffer = Any
Packed = NDArray[np.void]


class Backend(Protocol):
    """The operations that hot paths need, none of which materialises a whole direction."""

    @property
    def name(self) -> str:
        """What `backend=` calls it."""
        ...

    def fill(self, out: Buffer, packed: Packed, start: int) -> None:
        """Write z of direction i to out[i], from coordinate `start` on; out is [directions, size]."""
        ...

    def squared_lengths(self, packed: Packed, dimension: int, device: Any) -> list[int]:
        """For each direction, the sum over all coordinates of the integer part of z * z * 2**20."""
        ...

    def move(self, weights: Buffer, packed: Packed, start: int, plus: Buffer, minus: Buffer | None) -> None:
        """Plus = weights + c z, minus = weights - c z, for the one direction packed; rounds to nearest."""
        ...

    def descend(self, weights: Buffer | None, packed: Packed, start: int, out: Buffer) -> None:
        """Out = weights - u, u = 0 + c z + c' z' + ... in the order packed; or out = u where weights is None.

        A bf16 result is rounded stochastically, with the rounding bits of the first direction's seed and round.
        """
        ...

    def descend_all(self, tensors: Sequence[tuple[Buffer, int]], packed: Packed) -> None:
        """Descend in place, for flat buffers on one device, each given with its first coordinate."""
        ...

    def fold(self, weights: Buffer, packed: Packed, start: int) -> None:
        """Descend by each row of packed [commits, directions] in turn, in place and in one pass over the weights."""
        ...

    def fingerprint(self, weights: Buffer, start: int) -> int:
        """The sum modulo 2**64 over all coordinates p of mix64(p * 0x9E3779B97F4A7C15 + bits of weight p)."""
        ...
