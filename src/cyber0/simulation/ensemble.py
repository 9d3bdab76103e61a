"""Several runs of one shape, played in step: the measurements of all their clients are one batch on the device."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cyber0.aggregation import is_ours, namespace
from cyber0.callbacks import Round
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig
from cyber0.estimate import full_precision
from cyber0.protocol.decide import admissible, decide
from cyber0.simulation.population import Indices
from cyber0.simulation.simulation import Simulation, learner_of, placed
from cyber0.tasks.task import Task

__all__ = ["Ensemble", "shape_of"]

ALONE = ("seed", "rule", "byzantine")  # of the agreement, runs that are played together may differ in these alone


def shape_of(config: RunConfig) -> str | None:
    """Return what runs must share to be played together, as text; None for a run that can only be played alone.

    >>> shape_of(RunConfig(seed=1, attack="foe")) == shape_of(RunConfig(seed=2, rule="krum"))
    True
    >>> shape_of(RunConfig(dropout=0.1)) is None                    # not the same clients in every run
    True
    """
    if config.engine != "batched" or config.model is not None or config.invited < config.clients or config.dropout > 0:
        return None
    shared = Agreement(**config.agreement.model_dump(exclude=set(ALONE)), byzantine=0).model_dump_json()
    others = config.algorithm, config.validation, config.data, config.source, config.device, config.is_private
    return " ".join(map(str, (shared, *others)))


class Ensemble:
    """Simulations of one shape and one task that `play()` plays together, round by round.

    >>> small = {"source": "embedded", "clients": 5, "byzantine": 1, "directions": 4, "rounds": 2}
    >>> ensemble = Ensemble([RunConfig(seed=seed, **small) for seed in (1, 2, 3)])
    >>> for rounds in ensemble.play():
    ...     print([len(round.admitted) for round in rounds])
    [5, 5, 5]
    [5, 5, 5]
    """

    def __init__(self, configs: Sequence[RunConfig], task: Task | None = None) -> None:
        if not configs:
            raise InvalidConfig("there is no run to play")
        if len(configs) > 1 and (len(shapes := set(map(shape_of, configs))) > 1 or None in shapes):
            raise InvalidConfig(
                "these runs cannot be played together: only seed, rule, byzantine, attack and partition may differ"
            )
        first = Simulation(configs[0], task)
        self.simulations = [first, *(Simulation(config, first.task) for config in configs[1:])]
        self._learner = learner_of(configs[0], first.world)(
            first.participant.task, [simulation.world for simulation in self.simulations]
        )

    def play(self) -> Iterator[list[Round]]:
        """Play the rounds of all runs, one round at a time."""
        if len(self.simulations) == 1:
            yield from ([played] for played in self.simulations[0].play())
            return
        present = np.arange(self.simulations[0].config.clients)
        for t in range(self.simulations[0].config.rounds):
            with full_precision():
                honest = placed(self._learner.votes(t, present))
            sent = self._with_lies(t, present, honest)
            aggregates = self._aggregates(sent)
            rounds = [
                simulation.conclude(t, present, honest[run], sent[run], aggregates[run])
                for run, simulation in enumerate(self.simulations)
            ]
            for simulation in self.simulations:
                simulation.rounds += 1
            yield rounds
        for simulation in self.simulations:
            simulation.parameters.settle()

    def _with_lies(self, t: int, present: Indices, votes: Any) -> Any:
        """Return what is sent in all runs, [runs, rows, present, width]; runs share one search where they can."""
        sent = namespace(votes).asarray(votes, copy=True)
        for runs in self._grouped(lambda s: (s.config.attack, s.config.rule, s.config.byzantine)):
            first = self.simulations[runs[0]]
            if first.attack.searches and is_ours(first.rule):
                sent[runs] = first.with_lies(t, present, votes[runs])
                reports = first.attack.reports
                for place, run in enumerate(runs):
                    self.simulations[run].attack.reports = {name: value[place] for name, value in reports.items()}
                continue
            for run in runs:
                sent[run] = self.simulations[run].with_lies(t, present, votes[run])
        return sent

    def _aggregates(self, sent: Any) -> list[Any]:
        """Return the aggregate of each run; None for a run that must aggregate by itself."""
        found: list[Any] = [None] * len(sent)
        if not admissible(sent).all():
            return found
        for runs in self._grouped(lambda s: (s.config.rule, s.config.byzantine)):
            first = self.simulations[runs[0]]
            if is_ours(first.rule):
                for run, aggregate in zip(runs, decide(first.rule, sent[runs], first.config.byzantine), strict=True):
                    found[run] = aggregate
        return found

    def _grouped(self, key: Callable[[Simulation], Any]) -> list[list[int]]:
        """Return the numbers of the runs, grouped by a key."""
        groups: dict[Any, list[int]] = {}
        for number, simulation in enumerate(self.simulations):
            groups.setdefault(key(simulation), []).append(number)
        return list(groups.values())
