"""What a round is: which directions a local step uses, what a client sends, how the commit is applied.

The three schemes of local epochs are data about a round, `SCHEMES`:

| scheme     | directions of local epoch l | a client sends                   | the commit weighs      |
|------------|-----------------------------|----------------------------------|------------------------|
| unbiased   | fresh ones, epoch l         | every step's scalars: K rows     | epochs 0 .. K - 1      |
| biased     | the same for all, epoch 0   | the sum of its steps: 1 row      | epoch 0                |
| compressed | fresh ones, epoch l         | its whole update, projected on   | the reserved epoch     |
|            |                             | directions of their own: 1 row   |                        |
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from cyber0.commit import Commit
from cyber0.directions.key import COMPRESSED_EPOCH, DirectionKey, Family
from cyber0.schedule import Schedule
from cyber0.step_rule import StepRule

__all__ = ["SCHEMES", "CommitSequence", "LocalEpochs", "Plan", "Scale", "Scheme", "participants"]

Scheme = Literal["unbiased", "biased", "compressed"]
Scale = Literal["unbiased", "paper"]


@dataclass(frozen=True, slots=True)
class LocalEpochs:
    """A scheme of local epochs: whether each has directions of its own, and what a client sends of its steps."""

    fresh: bool
    sends: Literal["steps", "sum", "projection"]


SCHEMES: dict[Scheme, LocalEpochs] = {
    "unbiased": LocalEpochs(fresh=True, sends="steps"),
    "biased": LocalEpochs(fresh=False, sends="sum"),
    "compressed": LocalEpochs(fresh=True, sends="projection"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything clients agree on before a round: given the round's number, what to measure and what to send.

    `scale` is that of the compressed scheme: with the factor that makes the expected update right (d / nu on the
    sphere, else 1 / nu), or the paper's plain projection. `blocks` are those of `cyber0.blocks`.

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
    schedule: Schedule = field(default_factory=Schedule)
    horizon: int | None = None
    step_rule: StepRule = field(default_factory=StepRule)
    blocks: int = 1

    @property
    def sends(self) -> Literal["steps", "sum", "projection"]:
        """What a client sends of its local steps."""
        return SCHEMES[self.scheme].sends

    @property
    def rows(self) -> int:
        """How many rows of scalars a client sends, and a commit has."""
        return self.local_epochs if self.sends == "steps" else 1

    @property
    def scalars(self) -> int:
        """How many scalars travel each way per client and round."""
        return self.rows * self.directions

    def epoch(self, local_epoch: int) -> int:
        """Return whose directions a local step measures along."""
        return local_epoch if SCHEMES[self.scheme].fresh else 0

    def keys(self, round: int, epoch: int) -> list[DirectionKey]:  # noqa: A002
        """Return the directions of an epoch."""
        return [DirectionKey(self.seed, round, epoch, index) for index in range(self.directions)]

    def rate(self, round: int) -> float:  # noqa: A002
        """Return the learning rate of a round.

        >>> from cyber0.schedule import parse
        >>> plan = Plan(7, 2, 1, "unbiased", 1e-3, lr=0.5, schedule=parse("linear"), horizon=4)
        >>> [plan.rate(round) for round in range(5)]
        [0.5, 0.375, 0.25, 0.125, 0.0]
        """
        return self.schedule.rate(self.lr, round, self.horizon)

    def step(
        self,
        round: int,  # noqa: A002
        local_epoch: int,
        scalars: Sequence[float] | NDArray[Any],
        moment: float = 0.0,
    ) -> Commit:
        """Return a client's own local step, as a commit on its local model (Alg. 1, line 9).

        `moment` is what the step rule has derived from the commits of earlier rounds.
        """
        epochs, rate = [self.epoch(local_epoch)], self._rate(round, scalars, moment)
        return Commit(self.seed, round, rate, np.asarray(scalars)[None], self.family, epochs, self.blocks)

    def message(self, steps: Sequence[Any], project: Callable[[], Any], axis: int = 0) -> Any:
        """Return what clients send of their local steps, each [..., directions], with the rows at `axis`.

        `project` gives the whole update, projected on the round's own directions, where that is what is sent.

        >>> plan = Plan(seed=7, directions=2, local_epochs=2, scheme="biased", mu=1e-3, lr=0.01)
        >>> plan.message([np.array([1.0, 2.0]), np.array([0.5, 0.5])], project=lambda: None)
        array([[1.5, 2.5]], dtype=float32)
        """
        xp = array_namespace(steps[0])
        if self.sends == "steps":
            return xp.stack(steps, axis=axis)
        if self.sends == "projection":
            return xp.expand_dims(project(), axis=axis)
        total = xp.sum(xp.astype(xp.stack(steps), xp.float64), axis=0)
        return xp.expand_dims(xp.astype(total, xp.float32), axis=axis)

    def commit(self, round: int, scalars: NDArray[Any], moment: float = 0.0) -> Commit:  # noqa: A002
        """Return the commit of the aggregated scalars [rows, directions] (Alg. 1, line 14).

        `moment` is what the step rule has derived from the commits of earlier rounds: `CommitSequence` keeps it.
        """
        epochs = [COMPRESSED_EPOCH] if self.sends == "projection" else list(range(self.rows))
        rate = self._rate(round, scalars, moment)
        return Commit(self.seed, round, rate, scalars, self.family, epochs, self.blocks)

    def _rate(self, round: int, scalars: Any, moment: float) -> float:  # noqa: A002
        return self.step_rule.rate(self.rate(round), self.step_rule.after(moment, scalars))

    def projection(self, dimension: int) -> float:
        """Return what the compressed scheme multiplies its projections with."""
        if self.scale == "paper":
            return 1.0
        return (dimension if self.family == "sphere" else 1) / self.directions


class CommitSequence:
    """The commits of a run, made of its aggregated scalars round by round.

    `moment` is the one number that a step rule derives from the rounds so far: whoever stores weights stores it, too.

    >>> from cyber0.step_rule import parse
    >>> sequence = CommitSequence(Plan(7, 2, 1, "unbiased", 1e-3, lr=0.5, step_rule=parse("normalised(beta=0.75)")))
    >>> [commit.lr for commit in sequence.commits(0, np.array([3, 4, 0, 0, 0, 1], dtype=np.float32))]
    [0.1, 0.1, 0.11470786693528087]
    >>> sequence.moment
    19.0
    """

    def __init__(self, plan: Plan, moment: float = 0.0) -> None:
        self.plan, self.moment = plan, moment

    def commit(self, round: int, scalars: NDArray[Any]) -> Commit:  # noqa: A002
        """Return the commit of the next round; one that no model can apply changes nothing."""
        commit = self.plan.commit(round, scalars, self.moment)
        self.moment = self.plan.step_rule.after(self.moment, scalars)
        return commit

    def commits(self, first: int, scalars: bytes | NDArray[np.float32]) -> Iterator[Commit]:
        """Yield the commits of consecutive rounds, from `first` on, of their scalars as they travel or as an array."""
        array = np.frombuffer(scalars, dtype="<f4") if isinstance(scalars, bytes) else scalars
        for number, rows in enumerate(array.reshape(-1, self.plan.rows, self.plan.directions), first):
            yield self.commit(number, rows)


def participants(seed: int, t: int, clients: int, invited: int, dropout: float) -> NDArray[np.int64]:
    """Return who takes part in round t: as many clients as are invited, drawn by seed, less those who drop out.

    >>> participants(seed=0, t=0, clients=10, invited=5, dropout=0.0)
    array([5, 6, 7, 8, 9])
    """
    if invited == clients and dropout == 0:
        return np.arange(clients)
    rng = np.random.default_rng([seed, t, 0x50415254])  # "PART"
    drawn = rng.permutation(clients)[:invited]
    return np.sort(drawn[rng.random(invited) >= dropout])
