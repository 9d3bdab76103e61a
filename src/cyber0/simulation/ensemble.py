"""Several runs of one shape, played in step: what all their clients measure is one batch on the device."""

from collections.abc import Iterator, Sequence

import numpy as np

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig
from cyber0.estimate import full_precision
from cyber0.simulation.simulation import Round, Simulation, learner_of, placed
from cyber0.tasks.task import Task

__all__ = ["Ensemble", "shape_of"]

FREE = ("seed", "attack", "rule", "byzantine", "partition", "alpha", "evaluate_every")


def shape_of(config: RunConfig) -> str | None:
    """What runs must share to be played together, as text; None for one that can only be played alone.

    >>> shape_of(RunConfig(seed=1, attack="foe")) == shape_of(RunConfig(seed=2, rule="krum"))
    True
    >>> shape_of(RunConfig(dropout=0.1)) is None                    # not the same clients in every run
    True
    """
    if config.engine != "batched" or config.invited < config.clients or config.dropout > 0:
        return None
    return config.model_dump_json(exclude=set(FREE))


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
            raise InvalidConfig(f"these runs cannot be played together: they may differ in {', '.join(FREE)} only")
        first = Simulation(configs[0], task)
        self.simulations = [first, *(Simulation(config, first.task) for config in configs[1:])]
        self._learner = learner_of(configs[0])(first.task, [simulation.world for simulation in self.simulations])

    def play(self) -> Iterator[list[Round]]:
        """Play the rounds of all runs, one round at a time."""
        if len(self.simulations) == 1:
            yield from ([played] for played in self.simulations[0].play())
            return
        present = np.arange(self.simulations[0].config.clients)
        for t in range(self.simulations[0].config.rounds):
            with full_precision():
                votes = placed(self._learner.votes(t, present))
            rounds = [
                simulation.decide(t, present, own) for simulation, own in zip(self.simulations, votes, strict=True)
            ]
            for simulation in self.simulations:
                simulation.rounds += 1
            yield rounds
