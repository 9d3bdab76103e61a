"""Several runs of one shape, played in step: what all their clients measure is one batch on the device."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cyber0.aggregation.registry import is_ours
from cyber0.attacks.registry import searches
from cyber0.attacks.scene import namespace
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig
from cyber0.estimate import full_precision
from cyber0.protocol.decide import admissible
from cyber0.simulation.population import Indices
from cyber0.simulation.simulation import Round, Simulation, learner_of, placed
from cyber0.tasks.task import Task

__all__ = ["Ensemble", "shape_of"]

ALONE = ("seed", "rule", "byzantine")  # of the agreement, runs that are played together may differ in these alone


def shape_of(config: RunConfig) -> str | None:
    """What runs must share to be played together, as text; None for one that can only be played alone.

    >>> shape_of(RunConfig(seed=1, attack="foe")) == shape_of(RunConfig(seed=2, rule="krum"))
    True
    >>> shape_of(RunConfig(dropout=0.1)) is None                    # not the same clients in every run
    True
    """
    if config.engine != "batched" or config.model is not None or config.invited < config.clients or config.dropout > 0:
        return None
    shared = Agreement(**config.agreement.model_dump(exclude=set(ALONE)), byzantine=0).model_dump_json()
    return f"{shared} {config.algorithm} {config.validation} {config.data} {config.source} {config.device}"


class Ensemble:
    """Simulations that share a shape, and a task; `play()` them round by round.

    >>> small = {"source": "embedded", "clients": 5, "byzantine": 1, "directions": 4, "rounds": 2}
    >>> ensemble = Ensemble([RunConfig(seed=seed, **small) for seed in (1, 2, 3)])
    >>> for rounds in ensemble.play():
    ...     print([round.admitted for round in rounds])
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
            first.task, [simulation.world for simulation in self.simulations]
        )

    def play(self) -> Iterator[list[Round]]:
        """Play the rounds of all runs, one round at a time."""
        if len(self.simulations) == 1:
            yield from ([played] for played in self.simulations[0].play())
            return
        present = np.arange(self.simulations[0].config.clients)
        for t in range(self.simulations[0].config.rounds):
            with full_precision():
                votes = placed(self._learner.votes(t, present))
            told = self._lies(t, present, votes)
            results = self._results(told)
            both = zip(self.simulations, told, results, strict=True)
            rounds = [simulation.conclude(t, present, own, result) for simulation, own, result in both]
            for simulation in self.simulations:
                simulation.rounds += 1
            yield rounds

    def _lies(self, t: int, present: Indices, votes: Any) -> Any:
        """What is told in all runs, [runs, rows, present, width]; attacks that are searched for, run by run at once."""
        told = namespace(votes).asarray(votes, copy=True)
        for runs in self._grouped(lambda s: (s.config.attack, s.config.rule, s.config.byzantine)):
            first = self.simulations[runs[0]]
            if searches(first.attack):
                told[runs] = first.lie(t, present, votes[runs])
                continue
            for run in runs:
                told[run] = self.simulations[run].lie(t, present, votes[run])
        return told

    def _results(self, told: Any) -> list[Any]:
        """What the rule of each run makes of what is told there; None where somebody's vote is none."""
        results: list[Any] = [None] * len(told)
        if not admissible(told).all():
            return results
        for runs in self._grouped(lambda s: (s.config.rule, s.config.byzantine)):
            if is_ours(self.simulations[runs[0]].rule):
                for run, result in zip(runs, self.simulations[runs[0]].aggregate(told[runs]), strict=True):
                    results[run] = result
        return results

    def _grouped(self, key: Callable[[Simulation], Any]) -> list[list[int]]:
        """The numbers of the runs that have the same key."""
        groups: dict[Any, list[int]] = {}
        for number, simulation in enumerate(self.simulations):
            groups.setdefault(key(simulation), []).append(number)
        return list(groups.values())
