"""A run from its first round to its summary, in a folder or without one."""

import hashlib
import math
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.config import RunConfig
from cyber0.errors import InvalidCommit, InvalidConfig, InvalidData
from cyber0.simulation.folder import Folder, Line
from cyber0.simulation.simulation import Round, Simulation
from cyber0.tasks.dataset import Dataset

__all__ = ["MetricsLog", "run"]

Watch = Callable[[Round, Line], None]
Begin = Callable[[Simulation, Line], None]


def run(
    config: RunConfig,
    out: Path | None = None,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    begin: Begin | None = None,
) -> Line:
    """Play a run and return its summary.

    `begin` is called before the first round, with the evaluation of the model as it came; `watch` after each round,
    with the latest evaluation.

    >>> summary = run(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
    >>> summary["rounds"], summary["scalars_up_per_client"], summary["bytes_up_per_client"]
    (2, 8.0, 32.0)
    """
    folder = None if out is None else (Folder.resume(out) if resume else Folder.new(out, config))
    try:
        simulation = Simulation(config)
        log = MetricsLog(simulation, folder)
        if begin is not None:
            begin(simulation, log.lines[0])
        for played in simulation.play():
            log.add(played)
            if watch is not None:
                watch(played, log.lines[-1])
        summary = log.summary()
        if folder is not None:
            folder.finish(summary, {k: v.detach().cpu() for k, v in simulation.parameters.tensors.items()})
        return summary
    finally:
        if folder is not None:
            folder.close()


class MetricsLog:
    """What is kept of a run as it is played: its evaluations in `lines`, and in its folder, if it has one.

    A run that is played with others is told the `share` of the time that is its own.

    >>> simulation = Simulation(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=1))
    >>> log = MetricsLog(simulation)
    >>> for played in simulation.play():
    ...     log.add(played)
    >>> [line["round"] for line in log.lines]
    [0, 1]
    """

    def __init__(self, simulation: Simulation, folder: Folder | None = None, share: float = 1.0) -> None:
        self.simulation, self.folder, self.share = simulation, folder, share
        self.lines = _begin(simulation, folder)
        self._pending: list[Any] = []
        self._votes, self._skipped = self.lines[-1]["votes"], self.lines[-1]["skipped"]
        self._clock = time.perf_counter() - self.lines[-1]["seconds"] / share

    def add(self, played: Round) -> None:
        """Take note of a round, and evaluate the model when it is time to."""
        simulation, config = self.simulation, self.simulation.config
        self._votes, self._skipped = self._votes + played.present, self._skipped + (played.aggregate is None)
        if self.folder is not None:
            self._pending.append(_aggregate(simulation, played))
        if simulation.rounds % config.evaluate_every == 0 or simulation.rounds == config.rounds:
            seconds = (time.perf_counter() - self._clock) * self.share
            self.lines.append(_line(simulation, seconds, self._votes, self._skipped))
            if self.folder is not None:
                self.folder.append(np.stack(self._pending), self.lines[-1])
                self._pending.clear()

    def summary(self) -> Line:
        """The outcome."""
        return _summary(self.simulation, self.lines)


def _begin(simulation: Simulation, folder: Folder | None) -> list[Line]:
    """The evaluations so far, with the simulation where the last one left it; a first one for a new run."""
    origin = _origin(simulation)
    if folder is not None and folder.lines:
        _go_on(simulation, folder, origin)
        return [folder.lines[0] | origin, *folder.lines[1:]]
    beginning = _line(simulation, 0.0, 0, 0) | origin
    if folder is not None:
        folder.append(np.empty(0), beginning)
    return [beginning]


def _origin(simulation: Simulation) -> Line:
    """What a run starts from, before anything has been played."""
    dataset = simulation.task.dataset
    return {"data": dataset.source, "data_sha256": _digest(dataset), "model": _model(simulation)}


def _go_on(simulation: Simulation, folder: Folder, origin: Line) -> None:
    """Take the rounds of a folder: begun with the same, wherever that lay, and ending in the model last evaluated."""
    first, last = folder.lines[0], folder.lines[-1]
    for key in ("data_sha256", "model"):
        if first.get(key) != origin[key]:
            raise InvalidData(
                f"{folder.path} was begun with another {key} ({first.get(key)}, now {origin[key]}): "
                "give it the same data and the same model, or remove it"
            )
    try:
        simulation.replay(folder.aggregates(simulation.learner.rows, simulation.learner.width))
        model = _model(simulation)
    except InvalidCommit:
        model = "none"
    if last.get("model", model) != model:
        raise InvalidConfig(f"{folder.path} is damaged: its scalars do not lead to the model of round {last['round']}")


def _model(simulation: Simulation) -> str:
    simulation.parameters.settle()
    return f"{simulation.parameters.fingerprint():016x}"


@lru_cache(maxsize=1)  # runs that are played together share their data
def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for part in (dataset.train_inputs, dataset.train_labels, dataset.test_inputs, dataset.test_labels):
        digest.update(memoryview(np.ascontiguousarray(part)))  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()


def _aggregate(simulation: Simulation, played: Round) -> Any:
    if played.aggregate is not None:
        return played.aggregate
    return np.full((simulation.learner.rows, simulation.learner.width), np.nan, dtype=np.float32)


def _line(simulation: Simulation, seconds: float, votes: int, skipped: int) -> Line:
    """An evaluation: what has been reached, and what it has cost each client so far. A loss beyond numbers is None."""
    found = simulation.evaluate()
    scalars = simulation.learner.rows * simulation.learner.width
    up, down = votes * scalars / simulation.config.clients, float((simulation.rounds - skipped) * scalars)
    return {
        "round": simulation.rounds,
        "accuracy": found.accuracy,
        "loss": found.loss if math.isfinite(found.loss) else None,
        **({"metrics": dict(found.metrics)} if found.metrics else {}),
        "scalars_up_per_client": up,
        "scalars_down_per_client": down,
        "bytes_up_per_client": 4 * up,
        "bytes_down_per_client": 4 * down,
        "votes": votes,
        "skipped": skipped,
        "seconds": seconds,
        "model": _model(simulation),
    }


def _summary(simulation: Simulation, lines: list[Line]) -> Line:
    last = lines[-1]
    return {
        "max_accuracy": max((line["accuracy"] for line in lines if line["accuracy"] is not None), default=None),
        "final_accuracy": last["accuracy"],
        "final_loss": last["loss"],
        **{key: last[key] for key in last if key.endswith("_per_client")},
        "rounds": simulation.rounds,
        "skipped_rounds": last["skipped"],
        "seconds": last["seconds"],
        "model_fingerprint": _model(simulation),
        "data": simulation.task.dataset.source,
        "device": str(simulation.device),
    }
