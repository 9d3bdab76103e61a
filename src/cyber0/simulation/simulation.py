"""The round loop: one round reads like the paper's Algorithm 1."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0 import aggregation, attacks
from cyber0.attacks.scene import namespace
from cyber0.config import RunConfig
from cyber0.errors import InvalidCommit, InvalidConfig
from cyber0.estimate import full_precision
from cyber0.layerwise.measure import LayerwiseEstimate
from cyber0.participant import build_participant
from cyber0.plan import participants
from cyber0.protocol.decide import admissible, decide, quorum
from cyber0.simulation.learners import Batched, FedAvg, Layered, Learner, Sequential, World
from cyber0.simulation.population import Indices, Population
from cyber0.tasks import devices, partition
from cyber0.tasks.evaluation import Evaluation, evaluate
from cyber0.tasks.task import Task
from cyber0.tasks.task import make as make_task

__all__ = ["Round", "Simulation"]

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
    >>> 0 <= simulation.evaluate().accuracy <= 1
    True
    """

    def __init__(self, config: RunConfig, task: Task | None = None) -> None:
        self.config = config
        self.rule = aggregation.get_rule(config.rule)
        self.attack = attacks.get_attack(config.attack)
        self.quorum = quorum(self.rule, config.byzantine, config.invited)
        self.device = devices.get_device(config.device)
        folder = None if config.data is None else Path(config.data)
        self.task = task or make_task(config.task, folder, config.source, config.model)
        self.participant = build_participant(self.task, config, self.device, simulated=config)
        self.parameters = self.participant.parameters
        self.population = self._populate()
        self.world = World(self.parameters, self.population, config.plan, self.participant.measure)
        self.learner = learner_of(config, self.world)(self.task, [self.world])
        self.rounds = 0

    def play(self) -> Iterator[Round]:
        """Play the rounds that are left, one at a time.

        Between rounds the last commit may be pending: call `parameters.settle()` before reading the weights.
        """
        while self.rounds < self.config.rounds:
            result = self.play_round(self.rounds)
            self.rounds += 1
            yield result
        self.parameters.settle()

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
        """What becomes of honest votes [rows, present, width]: liars lie, the federator aggregates, all advance."""
        return self.conclude(t, present, self.lie(t, present, votes))

    def lie(self, t: int, present: Indices, votes: Any) -> Any:
        """The votes [..., rows, present, width] with the liars' lies in their places."""
        liars = self.population.liars(present)
        if len(liars) == 0 or not admissible(votes).all():  # a model that has diverged leaves liars nothing to build on
            return votes
        rng = np.random.default_rng([self.config.seed, t, 0x41545441])  # "ATTA"
        told = attacks.mount(self.attack, _double(votes), liars, self.rule, self.config.byzantine, rng)
        with np.errstate(over="ignore"):
            return namespace(votes).astype(told, votes.dtype)

    def conclude(self, t: int, present: Indices, told: Any, result: Any = None) -> Round:
        """Aggregate what was told, unless `result` is what the rule made of it, and advance the global model."""
        if result is None:
            told = told[:, admissible(told)]
            if told.shape[1] < self.quorum:
                return Round(t, len(present), told.shape[1], None)
            result = self.aggregate(told)  # line 12
        try:
            self.learner.advance(self.world, t, result)  # lines 13 and 14
        except InvalidCommit:  # so large that no model can take it
            return Round(t, len(present), told.shape[1], None)
        return Round(t, len(present), told.shape[1], result)

    def aggregate(self, told: Any) -> Any:
        """Return the scalars that the rule makes of admissible votes [..., rows, n, width]."""
        return decide(self.rule, told, self.config.byzantine)

    def replay(self, aggregates: NDArray[np.float32]) -> None:
        """Take rounds from what was aggregated in them, [rounds, rows, k]; a round of NaN changed nothing."""
        voted = [(t, aggregate) for t, aggregate in enumerate(aggregates, self.rounds) if np.isfinite(aggregate).all()]
        if self.config.algorithm == "cyber0":
            self.parameters.apply_all(self.world.plan.commit(t, aggregate) for t, aggregate in voted)
        else:
            for t, aggregate in voted:
                self.learner.advance(self.world, t, aggregate)
        self.rounds += len(aggregates)

    def evaluate(self) -> Evaluation:
        """Evaluate the global model on the test samples."""
        self.parameters.settle()
        inputs, labels = self.population.test
        return evaluate(self.task, self.participant.model, (inputs, labels), self.device)

    def _populate(self) -> Population:
        config, dataset = self.config, self.task.dataset
        options: dict[str, Any] = {} if config.alpha is None else {"alpha": config.alpha}
        shares = partition.shares_of(dataset, config.partition, config.clients, config.seed, **options)
        corrupt = getattr(self.attack, "corrupt_labels", None)
        sizes = config.batch, config.local_epochs, config.seed
        return Population(dataset, shares, config.byzantine, *sizes, self.device, corrupt)


def learner_of(config: RunConfig, world: World) -> type[Learner]:
    """The algorithm of a configuration, by its engine; a language model's clients are batched layer by layer."""
    walked = isinstance(world.measure, LayerwiseEstimate)
    if config.algorithm == "fedavg":
        if walked:
            raise InvalidConfig(f"algorithm = 'fedavg' cannot train a language model, task = {config.task!r}")
        return FedAvg
    if walked and config.engine == "batched":
        return Layered if config.mu > 0 else Sequential
    return LEARNERS[config.engine]


def placed(votes: torch.Tensor) -> Any:
    """Votes where rules are the quickest: in the memory of the host, unless there are many and they are on a device."""
    return votes if votes.is_cuda and votes.shape[-1] >= WIDE else votes.cpu().numpy()


def _double(votes: Any) -> Any:
    return namespace(votes).astype(votes, namespace(votes).float64)
