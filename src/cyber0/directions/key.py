"""The key that names a direction, and the packed form in which kernels receive it."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidSize, KeyOutOfRange, UnknownName

__all__ = [
    "COMPRESSED_EPOCH",
    "COORDINATES",
    "FAMILIES",
    "PACKED",
    "ROUNDING",
    "DirectionKey",
    "Family",
    "pack",
]

Family = Literal["gaussian", "sphere", "rademacher"]
FAMILIES: tuple[Family, ...] = get_args(Family)

COMPRESSED_EPOCH = 2**32 - 1
"""The epoch reserved for the directions on which the `compressed` scheme projects."""

ROUNDING = 0x524E4452  # "RNDR": the domain of the bits that round bf16 weights
COORDINATES = 2**50  # the coordinates of a direction: 2**48 blocks of four

_BITS = {"seed": 64, "round": 32, "epoch": 32, "index": 16}

PACKED = np.dtype(
    [(name, "u4") for name in ("k0", "k1", "t", "l", "r", "bits")] + [("unit", "f4"), ("coefficient", "f4")]
)
"""One direction as a kernel reads it, on the CPU and on the GPU: eight words of 32 bits.

Key words k0, k1; counter words t, l, r; `bits` is 1 for one random bit per coordinate (rademacher), else 0; `unit`
scales the direction to its family (1/|z| for the sphere, else 1); `coefficient` is its share of a sum."""


@dataclass(frozen=True, slots=True)
class DirectionKey:
    """The key of one pseudorandom direction, from which anyone can compute it.

    `seed` is the seed of the run; `round`, `epoch` (local) and `index` are the paper's t, l and r, counted from 0.

    >>> DirectionKey(seed=7, round=3, index=1)
    DirectionKey(seed=7, round=3, epoch=0, index=1)
    >>> DirectionKey(seed=7, round=3, index=70_000)
    Traceback (most recent call last):
    cyber0.errors.KeyOutOfRange: index = 70000 is out of range: it must be an integer from 0 to 2**16 - 1
    """

    seed: int
    round: int
    epoch: int = 0
    index: int = 0

    def __post_init__(self) -> None:
        for name, bits in _BITS.items():
            value: Any = getattr(self, name)
            if type(value) is int and 0 <= value < 1 << bits:
                continue
            if not hasattr(value, "__index__") or not 0 <= index(value) < 1 << bits:
                raise KeyOutOfRange(
                    f"{name} = {value!r} is out of range: it must be an integer from 0 to 2**{bits} - 1"
                )
            object.__setattr__(self, name, index(value))


def check_family(family: str) -> None:
    """Raise UnknownName if there is no such family."""
    if family not in FAMILIES:
        raise UnknownName("family", family, FAMILIES)


def check_slice(size: int, start: int, family: str, dimension: int | None) -> int:
    """Return the dimension of the direction of a slice; raise InvalidSize if there is no such slice."""
    check_family(family)
    if size < 1:
        raise InvalidSize(f"size = {size}: it must be at least 1")
    if not 0 <= start <= COORDINATES - size:
        raise InvalidSize(f"start = {start}, size = {size}: coordinates run from 0 to 2**50 - 1")
    if dimension is None:
        if family == "sphere" and start > 0:
            raise InvalidSize(f"start = {start}: a slice of a sphere direction also needs dimension=, its whole length")
        return start + size
    if dimension > COORDINATES:
        raise InvalidSize(f"dimension = {dimension}: a direction has at most 2**50 coordinates")
    if dimension < start + size:
        raise InvalidSize(f"dimension = {dimension}: it must be at least start + size = {start + size}")
    return dimension


def pack(
    keys: Sequence[DirectionKey],
    family: Family,
    units: Sequence[float] | NDArray[Any],
    coefficients: Sequence[float] | NDArray[Any],
) -> NDArray[np.void]:
    """Return directions as kernels read them: an array of `PACKED`.

    >>> pack([DirectionKey(seed=2**32 + 5, round=3, index=9)], "gaussian", [1.0], [0.5])[["k0", "k1", "t", "r"]].item()
    (5, 1, 3, 9)
    """
    packed = np.zeros(len(keys), dtype=PACKED)
    packed["k0"] = [key.seed & 0xFFFFFFFF for key in keys]
    packed["k1"] = [key.seed >> 32 for key in keys]
    packed["t"] = [key.round for key in keys]
    packed["l"] = [key.epoch for key in keys]
    packed["r"] = [key.index for key in keys]
    packed["bits"] = family == "rademacher"
    packed["unit"] = units
    packed["coefficient"] = coefficients
    return packed
