"""The round loop: one round reads like the paper's Algorithm 1."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0 import aggregation
from cyber0.aggregation import Rule, namespace
from cyber0.attacks import Attack, AttackRun
from cyber0.callbacks import Round
from cyber0.config import RunConfig
from cyber0.errors import InvalidCommit, InvalidConfig
from cyber0.estimate import full_precision
from cyber0.layerwise.measure import LayerwiseEstimate
from cyber0.participant import build_participant, load_task
from cyber0.plan import CommitSequence, participants
from cyber0.protocol.decide import admissible, decide, quorum
from cyber0.simulation.learners import Batched, Differentiated, FedAvg, Layered, Learner, Sequential, World
from cyber0.simulation.population import Indices, Population
from cyber0.simulation.private import PrivateClients
from cyber0.simulation.spread import Spread
from cyber0.tasks import devices, partition
from cyber0.tasks.evaluation import Evaluation, evaluate
from cyber0.tasks.memory import check_batches
from cyber0.tasks.partition import Partition
from cyber0.tasks.task import Task

__all__ = ["Simulation"]

LEARNERS: dict[str, type[Learner]] = {"batched": Batched, "sequential": Sequential}
WIDE = 1024  # scalars of a vote from which a device aggregates sooner than the host


class Simulation:
    """A federation in one process, to be played round by round.

    Args:
        config: The run.
        task: What is trained, instead of the task that the configuration names.
        rule: A rule instead of the one it names.
        attack: An attack instead of the one it names.
        split: A partition instead of the one it names.

    >>> simulation = Simulation(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
    >>> [len(round.admitted) for round in simulation.play()]
    [5, 5]
    >>> 0 <= simulation.evaluate().accuracy <= 1
    True

    """

    def __init__(
        self,
        config: RunConfig,
        task: Task | None = None,
        *,
        rule: Rule | str | None = None,
        attack: Attack | type | str | None = None,
        split: Partition | str | None = None,
    ) -> None:
        self.config, self.plan = config, config.plan
        self.rule = aggregation.get_rule(config.rule if rule is None else rule)
        self.memory = aggregation.begin(self.rule)
        self.attack = AttackRun(config.attack if attack is None else attack, seed=config.seed, knows=config.knows)
        self.quorum = quorum(self.rule, config.byzantine, config.invited)
        self.device = devices.get_device(config.device)
        self.task = task or load_task(config, config.data, config.source, config.model)
        self.participant = build_participant(self.task, config, self.device, simulated=config)
        self.parameters = self.participant.parameters
        self.population, self.validation = self._populate(config.partition if split is None else split)
        if config.batch == 0:
            module: Any = self.parameters.module
            largest = max(len(share) for share in self.population.shares)
            check_batches(module, config, self.population.dataset, self.device, largest)
        self.goal = self._aim()
        private = PrivateClients(config, self.population, self.parameters.size) if config.is_private else None
        commits, measure = CommitSequence(self.plan), self.participant.measure
        self.world = World(self.parameters, self.population, self.plan, commits, measure, private)
        if config.engine.startswith("ray"):
            self.learner: Learner | Spread = Spread(
                config, self.world, {"task": task, "attack": attack, "split": split}
            )
        else:
            self.learner = learner_of(config, self.world)(self.participant.task, [self.world])
        self.rounds = 0

    def play(self) -> Iterator[Round]:
        """Play the rounds that are left, one at a time."""
        while self.rounds < self.config.rounds:
            played = self.play_round(self.rounds)
            self.rounds += 1
            yield played
        self.parameters.settle()
        if isinstance(self.learner, Spread):
            self.learner.close()

    def play_round(self, t: int) -> Round:
        """Play one round (Alg. 1)."""
        config = self.config
        present = participants(config.seed, t, config.clients, config.invited, config.dropout)
        if len(present) < self.quorum:
            return Round(t, present)
        honest = self.votes(t, present)  # lines 3 to 11
        sent = self.with_lies(t, present, honest)
        return self.conclude(t, present, honest, sent)  # lines 12 to 14

    def votes(self, t: int, present: Indices) -> Any:
        """Return what each present client would honestly send: [rows, present, directions]."""
        with full_precision():
            return placed(self.learner.votes(t, present)[0])

    def with_lies(self, t: int, present: Indices, votes: Any) -> Any:
        """Return the votes [..., rows, present, directions] with the lies of the liars in their places."""
        liars = self.population.liars(present)
        if len(liars) == 0:
            self.attack.reports = {}  # those of an earlier round say nothing about this one
            return votes
        rule = aggregation.with_memory(self.rule, self.memory)
        xp = namespace(votes)
        doubles = xp.astype(votes, xp.float64)
        sent = self.attack.mount(doubles, liars, rule, self.config.byzantine, round=t, model=self._known_model())
        with np.errstate(over="ignore"):
            return xp.astype(sent, votes.dtype)

    def conclude(self, t: int, present: Indices, honest: Any, sent: Any, aggregate: Any = None) -> Round:
        """Admit votes, aggregate them unless `aggregate` is what comes of that, and advance the global model."""
        counted = admissible(sent)
        facts: dict[str, Any] = {"admitted": present[counted], "honest": honest, "sent": sent}
        facts |= {"liars": present[self.population.liars(present)], "reports": dict(self.attack.reports)}
        if counted.sum() < self.quorum:
            return Round(t, present, **facts)
        if aggregate is None:
            admitted = sent if counted.all() else sent[:, counted]
            aggregate = decide(self.rule, admitted, self.config.byzantine, self.memory)  # line 12
        try:
            self.learner.advance(self.world, t, aggregate)  # lines 13 and 14
        except InvalidCommit:  # so large that no model can take it
            return Round(t, present, **facts)
        self.memory = aggregation.after(self.rule, self.memory, aggregate)
        return Round(t, present, aggregate=aggregate, **facts)

    def replay(self, aggregates: NDArray[np.float32]) -> None:
        """Take rounds from what was aggregated in them, [rounds, rows, k]; a round of NaN changed nothing."""
        voted = [(t, aggregate) for t, aggregate in enumerate(aggregates, self.rounds) if np.isfinite(aggregate).all()]
        if self.config.algorithm == "cyber0":
            self.parameters.apply_all(self.world.commits.commit(t, aggregate) for t, aggregate in voted)
        else:
            for t, aggregate in voted:
                self.learner.advance(self.world, t, aggregate)
        for t, aggregate in voted:
            self.memory = aggregation.after(self.rule, self.memory, aggregate)
            if isinstance(self.learner, Spread):
                self.learner.note(t, aggregate)
        self.rounds += len(aggregates)

    def evaluate(self) -> Evaluation:
        """Evaluate the global model on the test samples, and how often the attack reaches its goal, if it has one."""
        found = self._evaluate(self.population.test)
        if self.goal is None:
            return found
        return replace(found, attack_success=self._evaluate(self.goal, replace(self.task, metrics={})).accuracy)

    def validate(self) -> Evaluation | None:
        """Evaluate the global model on the validation samples, if any are held out."""
        return None if self.validation is None else self._evaluate(self.validation)

    def _evaluate(self, data: Any, task: Task | None = None) -> Evaluation:
        self.parameters.settle()
        inputs, targets = data
        return evaluate(task or self.task, self.participant.model, (inputs, targets), self.device)

    def _aim(self) -> Any:
        """Return inputs and the classes that the liars want them to be taken for, if the attack has such a goal."""
        if self.attack.goal is None:
            return None
        dataset = self.task.dataset
        aimed = self.attack.goal(dataset.test_inputs, dataset.test_labels, dataset.classes)
        return tuple(torch.as_tensor(part).to(self.device) for part in aimed)

    def _known_model(self) -> Any:
        """Return a copy of the global model, for liars that know it."""
        if self.config.knows != "model":
            return None
        self.parameters.settle()
        return deepcopy(self.parameters.module)

    def _populate(self, split: Partition | str) -> tuple[Population, Any]:
        config, dataset, validation = self.config, self.task.dataset, None
        if config.validation > 0:
            dataset, held = dataset.split_validation(config.validation, config.seed)
            validation = tuple(torch.as_tensor(part).to(self.device) for part in held)
        options: dict[str, Any] = {} if config.alpha is None else {"alpha": config.alpha}
        shares = partition.shares_of(dataset, split, config.clients, config.seed, **options)
        sizes = config.batch, config.local_epochs, config.seed
        corrupt = self.attack.corrupt_labels, self.attack.corrupt_samples
        population = Population(
            dataset, shares, config.byzantine, *sizes, self.device, *corrupt, objective=config.trained_by
        )
        return population, validation


def learner_of(config: RunConfig, world: World) -> type[Learner]:
    """Return how clients learn: by the algorithm and the engine of a configuration, and by the kind of model."""
    layerwise = isinstance(world.measure, LayerwiseEstimate)
    if config.algorithm == "fedavg":
        if layerwise:
            raise InvalidConfig(f"algorithm = 'fedavg' cannot train a language model, task = {config.task!r}")
        return FedAvg
    if layerwise and config.engine == "batched":
        if config.mu > 0:
            return Layered
        once = config.local_epochs == 1 and world.plan.sends != "projection" and world.private is None
        return Differentiated if once else Sequential
    return LEARNERS[config.engine]


def placed(votes: torch.Tensor) -> Any:
    """Return votes where rules are the quickest: as NumPy, unless they are many and on a device."""
    return votes if votes.is_cuda and votes.shape[-1] >= WIDE else votes.cpu().numpy()
