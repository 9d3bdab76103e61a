"""The round loop: one round reads like the paper's Algorithm 1."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0 import aggregation, attacks
from cyber0.attacks.scene import namespace
from cyber0.config import RunConfig
from cyber0.errors import Cyber0Error, InvalidAggregation, InvalidCommit, InvalidConfig
from cyber0.estimate import full_precision
from cyber0.parameters import Parameters
from cyber0.simulation.learners import Batched, FedAvg, Learner, Sequential, World
from cyber0.simulation.population import Indices, Population, participants
from cyber0.tasks import partition
from cyber0.tasks.task import Task, evaluate
from cyber0.tasks.task import find as find_task

__all__ = ["Round", "Simulation"]

LARGEST = float(np.finfo(np.float32).max)
LEARNERS: dict[str, type[Learner]] = {"batched": Batched, "sequential": Sequential}
WIDE = 1024  # scalars of a vote from which a device aggregates sooner than the host


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in a round: how many voted, how many were admitted, and the aggregate, None where too few were.

    >>> Round(number=7, present=40, admitted=18, aggregate=None)
    Round(number=7, present=40, admitted=18, aggregate=None)
    """

    number: int
    present: int
    admitted: int
    aggregate: NDArray[np.float32] | None


class Simulation:
    """A federation made of a configuration; `play()` it round by round.

    >>> simulation = Simulation(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
    >>> [round.admitted for round in simulation.play()]
    [5, 5]
    >>> accuracy, loss = simulation.evaluate()
    >>> 0 <= accuracy <= 1
    True
    """

    def __init__(self, config: RunConfig, task: Task | None = None) -> None:
        self.config = config
        self.rule = aggregation.find(config.rule)
        self.attack = attacks.find(config.attack)
        self.quorum = _quorum(self.rule, config)
        self.device = _device(config.device)
        with _named("task", config.task):
            folder = None if config.data is None else Path(config.data)
            self.task = task or find_task(config.task)(folder, config.source)
            module = self.task.build(config.seed).to(self.device).eval()
        self.parameters = Parameters.of(module)
        with _named("partition", config.partition):
            self.population = self._populate()
        self.world = World(self.parameters, self.population, config.plan)
        self.learner = learner_of(config)(self.task, [self.world])
        self.rounds = 0

    def play(self) -> Iterator[Round]:
        """Play the rounds that are left, one at a time."""
        while self.rounds < self.config.rounds:
            result = self.play_round(self.rounds)
            self.rounds += 1
            yield result

    def play_round(self, t: int) -> Round:
        """One round (Alg. 1)."""
        config = self.config
        present = participants(config.seed, t, config.clients, config.invited, config.dropout)
        if len(present) < self.quorum:
            return Round(t, len(present), 0, None)
        return self.decide(t, present, self.votes(t, present))

    def votes(self, t: int, present: Indices) -> Any:
        """What each present client would honestly send (lines 3 to 11): [rows, present, width]."""
        with full_precision():
            return placed(self.learner.votes(t, present)[0])

    def decide(self, t: int, present: Indices, votes: Any) -> Round:
        """What becomes of the honest votes [rows, present, width]: liars lie, the federator aggregates, all advance."""
        if _admissible(votes).all():  # a model that has diverged leaves liars nothing to build on
            votes = self._attacked(t, votes, present)
        votes = votes[:, _admissible(votes)]
        if votes.shape[1] < self.quorum:
            return Round(t, len(present), votes.shape[1], None)
        aggregate = self._aggregate(votes)  # line 12
        try:
            self.learner.advance(self.world, t, aggregate)  # lines 13 and 14
        except InvalidCommit:  # so large that no model can take it
            return Round(t, len(present), votes.shape[1], None)
        return Round(t, len(present), votes.shape[1], aggregate)

    def replay(self, aggregates: NDArray[np.float32]) -> None:
        """Take rounds from what was aggregated in them, [rounds, rows, k]; a round of NaN changed nothing."""
        for aggregate in aggregates:
            if np.isfinite(aggregate).all():
                self.learner.advance(self.world, self.rounds, aggregate)
            self.rounds += 1

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and mean loss of the global model on the test samples."""
        model: Any = self.parameters.module
        inputs, labels = self.population.test
        return evaluate(model, (inputs, labels), self.device, losses=self.task.losses)

    def _aggregate(self, votes: Any) -> NDArray[np.float32]:
        result = on_host(self.rule(_double(votes), self.config.byzantine))
        if result.shape != votes.shape[:1] + votes.shape[2:] or not np.isfinite(result).all():
            raise InvalidAggregation(
                f"rule {self.config.rule!r} made {votes.shape} votes into {result.shape}: it must give "
                f"{votes.shape[:1] + votes.shape[2:]}, without the clients' axis, and finite numbers"
            )
        return np.clip(result, -LARGEST, LARGEST).astype(np.float32)

    def _attacked(self, t: int, votes: Any, present: Indices) -> Any:
        liars = self.population.liars(present)
        if len(liars) == 0:
            return votes
        rng = np.random.default_rng([self.config.seed, t, 0x41545441])  # "ATTA"
        told = attacks.mount(self.attack, _double(votes), liars, self.rule, self.config.byzantine, rng)
        with np.errstate(over="ignore"):
            return namespace(votes).astype(told, votes.dtype)

    def _populate(self) -> Population:
        config, dataset = self.config, self.task.dataset
        options: dict[str, Any] = {} if config.alpha is None else {"alpha": config.alpha}
        shares = partition.split(config.partition, dataset.train_labels, config.clients, config.seed, **options)
        corrupt = getattr(self.attack, "corrupt_labels", None)
        sizes = config.batch, config.local_epochs, config.seed
        return Population(dataset, shares, config.byzantine, *sizes, self.device, corrupt)


def learner_of(config: RunConfig) -> type[Learner]:
    """The algorithm of a configuration, by its engine."""
    return FedAvg if config.algorithm == "fedavg" else LEARNERS[config.engine]


def placed(votes: torch.Tensor) -> Any:
    """Votes where rules are the quickest: in the memory of the host, unless there are many and they are on a device."""
    return votes if votes.is_cuda and votes.shape[-1] >= WIDE else votes.cpu().numpy()


def on_host(array: Any) -> NDArray[Any]:
    """An array of any library, as NumPy's."""
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def _double(votes: Any) -> Any:
    return namespace(votes).astype(votes, namespace(votes).float64)


def _admissible(votes: Any) -> NDArray[np.bool_]:
    """Whose votes are votes: what is not finite is none."""
    xp = namespace(votes)
    return on_host(xp.all(xp.isfinite(votes), axis=(0, 2)))


def _quorum(rule: Any, config: RunConfig) -> int:
    """The fewest votes that a rule can decide on; refuses at once one that needs more than are invited."""
    for votes in range(2 * config.byzantine + 1, config.invited + 1):
        try:
            with _named("rule", config.rule):
                shape = np.shape(rule(np.zeros((2, votes, 3)), config.byzantine))
        except InvalidAggregation:
            if votes == config.invited:
                raise
            continue
        if shape != (2, 3):
            raise InvalidAggregation(
                f"rule {config.rule!r} made (2, {votes}, 3) votes into {shape}: it must give (2, 3)"
            )
        return votes
    raise InvalidConfig(f"participation = {config.participation} invites too few")  # RunConfig has seen to that


@contextmanager
def _named(field: str, value: str) -> Generator[None]:
    """Turn what a callable raises at its options into an error that names it."""
    try:
        yield
    except Cyber0Error:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError, IndexError) as error:
        raise InvalidConfig(f"{field} = {value!r} cannot be used: {type(error).__name__}: {error}") from error


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidConfig(f"device = {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device
