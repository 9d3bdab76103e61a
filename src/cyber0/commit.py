"""A commit: the aggregated scalars of one round, which is all that a model needs to advance by that round."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cyber0.directions.key import DirectionKey, Family, check_family
from cyber0.errors import InvalidCommit

__all__ = ["Commit"]


@dataclass(frozen=True, slots=True)
class Commit:
    """The step `w <- w - lr * sum over l, then r, of scalars[l][r] z(seed, round, epochs[l], r)`.

    `scalars` has a row for each set of directions and a column for each direction. It is kept in float32, the type it
    is sent in. `epochs` names the local epoch whose directions each row multiplies; 0, 1, ... by default.
    With `blocks` above 1 it moves one of so many blocks of the model alone: see `cyber0.blocks`. `coefficients` are
    what the directions are multiplied with: learning rate times scalar in float64, rounded once to float32.

    >>> commit = Commit(seed=7, round=0, lr=0.01, scalars=[[1.0, -2.0]])
    >>> commit.keys[1]
    DirectionKey(seed=7, round=0, epoch=0, index=1)
    >>> commit.coefficients
    array([ 0.01, -0.02], dtype=float32)
    """

    seed: int
    round: int
    lr: float
    scalars: Sequence[Sequence[float]] | NDArray[Any]
    family: Family = "gaussian"
    epochs: Sequence[int] | None = None
    blocks: int = 1
    coefficients: NDArray[np.float32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_family(self.family)
        scalars = _float32(self.scalars)
        epochs = tuple(range(len(scalars))) if self.epochs is None else tuple(self.epochs)
        if len(epochs) != len(scalars):
            raise InvalidCommit(f"epochs = {epochs} names {len(epochs)} rows, but scalars has {len(scalars)}")
        object.__setattr__(self, "lr", _finite(self.lr))
        object.__setattr__(self, "scalars", tuple(tuple(map(float, row)) for row in scalars))
        object.__setattr__(self, "epochs", epochs)
        for epoch in epochs:
            DirectionKey(self.seed, self.round, epoch, scalars.shape[1] - 1)  # refuses what is out of range
        with np.errstate(over="ignore"):
            coefficients = (self.lr * scalars.ravel().astype(np.float64)).astype(np.float32)
        if not np.isfinite(coefficients).all():
            raise InvalidCommit(f"lr = {self.lr} times the scalars is too large for float32")
        coefficients.flags.writeable = False
        object.__setattr__(self, "coefficients", coefficients)

    @property
    def keys(self) -> list[DirectionKey]:
        """The keys of all directions, row by row."""
        epochs, width = cast("Sequence[int]", self.epochs), len(self.scalars[0])
        return [DirectionKey(self.seed, self.round, epoch, index) for epoch in epochs for index in range(width)]


def _finite(rate: Any) -> float:
    try:
        if np.isfinite(value := float(rate)):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidCommit(f"lr = {rate!r} must be a finite number")


def _float32(scalars: Any) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(scalars, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidCommit("scalars must be rows of numbers, all of one length") from error
    if array.ndim != 2 or array.size == 0:
        raise InvalidCommit(f"scalars has shape {array.shape}: it must have rows (epochs) and columns (directions)")
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InvalidCommit(f"scalars[{row}][{column}] = {array[row, column]} must be finite in float32")
    return array
