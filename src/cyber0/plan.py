"""What a round is: which directions a local step uses, what a client sends, how the commit is applied.

The three schemes of local epochs are data about a round, not branches of the code that plays it:

| scheme     | directions of local epoch l | a client sends                   | the commit weighs      |
|------------|-----------------------------|----------------------------------|------------------------|
| unbiased   | fresh ones, epoch l         | every step's scalars: K rows     | epochs 0 .. K - 1      |
| biased     | the same for all, epoch 0   | the sum of its steps: 1 row      | epoch 0                |
| compressed | fresh ones, epoch l         | its whole update, projected on   | the reserved epoch     |
|            |                             | directions of their own: 1 row   |                        |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cyber0.commit import Commit
from cyber0.directions.key import COMPRESSED_EPOCH, DirectionKey, Family

__all__ = ["SCHEMES", "Plan", "Scale", "Scheme"]

Scheme = Literal["unbiased", "biased", "compressed"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
Scale = Literal["unbiased", "paper"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything clients agree on before a round: given the round's number, what to measure and what to send.

    `scale` is that of the compressed scheme: with the factor that makes the expected update right (d / nu on the
    sphere, else 1 / nu), or the paper's plain projection.

    >>> plan = Plan(seed=7, directions=2, local_epochs=3, scheme="unbiased", mu=1e-3, lr=0.01)
    >>> plan.keys(round=5, epoch=2)[1]
    DirectionKey(seed=7, round=5, epoch=2, index=1)
    >>> plan.rows
    3
    """

    seed: int
    directions: int
    local_epochs: int
    scheme: Scheme
    mu: float
    lr: float
    family: Family = "sphere"
    scale: Scale = "unbiased"

    @property
    def rows(self) -> int:
        """How many rows of scalars a client sends, and a commit has."""
        return self.local_epochs if self.scheme == "unbiased" else 1

    @property
    def scalars(self) -> int:
        """How many scalars travel each way per client and round."""
        return self.rows * self.directions

    def epoch(self, local_epoch: int) -> int:
        """Whose directions a local step measures along."""
        return 0 if self.scheme == "biased" else local_epoch

    def keys(self, round: int, epoch: int) -> list[DirectionKey]:  # noqa: A002
        """The directions of an epoch."""
        return [DirectionKey(self.seed, round, epoch, index) for index in range(self.directions)]

    def step(self, round: int, local_epoch: int, scalars: Sequence[float] | NDArray[Any]) -> Commit:  # noqa: A002
        """A client's own local step, as a commit on its local model (Alg. 1, line 9)."""
        return Commit(self.seed, round, self.lr, np.asarray(scalars)[None], self.family, [self.epoch(local_epoch)])

    def commit(self, round: int, scalars: NDArray[Any]) -> Commit:  # noqa: A002
        """The commit of the aggregated scalars [rows, directions] (Alg. 1, line 14)."""
        epochs = [COMPRESSED_EPOCH] if self.scheme == "compressed" else list(range(self.rows))
        return Commit(self.seed, round, self.lr, scalars, self.family, epochs)

    def projection(self, dimension: int) -> float:
        """What the compressed scheme multiplies its projections with."""
        if self.scale == "paper":
            return 1.0
        return (dimension if self.family == "sphere" else 1) / self.directions


def summed(steps: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """The sum of local steps' scalars, formed in float64: what the biased scheme sends.

    >>> summed([np.array([1.0, 2.0]), np.array([0.5, 0.5])])
    array([1.5, 2.5], dtype=float32)
    """
    return np.sum(np.asarray(steps, dtype=np.float64), axis=0).astype(np.float32)
