"""A run from its first round to its summary, in a folder or without one."""

import hashlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig
from cyber0.simulation.folder import Folder, Line
from cyber0.simulation.simulation import Round, Simulation

__all__ = ["run"]

Watch = Callable[[Round, Line], None]


def run(config: RunConfig, out: Path | None = None, *, resume: bool = False, watch: Watch | None = None) -> Line:
    """Play a run and return its summary. `watch` is called after each round, with the latest evaluation.

    >>> summary = run(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
    >>> summary["rounds"], summary["scalars_up_per_client"], summary["bytes_up_per_client"]
    (2, 8.0, 32.0)
    """
    folder = None if out is None else (Folder.resume(out) if resume else Folder.new(out, config))
    try:
        simulation = Simulation(config)
        lines = _play(simulation, folder, watch or (lambda _round, _line: None))
        summary = _summary(simulation, lines)
        if folder is not None:
            folder.finish(summary, {k: v.detach().cpu() for k, v in simulation.parameters.tensors.items()})
        return summary
    finally:
        if folder is not None:
            folder.close()


def _play(simulation: Simulation, folder: Folder | None, watch: Watch) -> list[Line]:
    lines = _begin(simulation, folder)
    pending: list[Any] = []
    votes, skipped = lines[-1]["votes"], lines[-1]["skipped"]
    clock = time.perf_counter() - lines[-1]["seconds"]
    for played in simulation.play():
        pending.append(_aggregate(simulation, played))
        votes, skipped = votes + played.present, skipped + (played.aggregate is None)
        if simulation.rounds % simulation.config.evaluate_every == 0 or simulation.rounds == simulation.config.rounds:
            lines.append(_line(simulation, time.perf_counter() - clock, votes, skipped))
            if folder is not None:
                folder.append(np.stack(pending), lines[-1])
            pending.clear()
        watch(played, lines[-1])
    return lines


def _begin(simulation: Simulation, folder: Folder | None) -> list[Line]:
    """The evaluations so far, with the simulation where the last one left it; a first one for a new run."""
    origin = _origin(simulation)
    beginning = {**_line(simulation, 0.0, 0, 0), **origin}
    if folder is None or not folder.lines:
        if folder is not None:
            folder.append(np.empty(0), beginning)
        return [beginning]
    for key, value in origin.items():
        if folder.lines[0].get(key) != value:
            raise InvalidConfig(
                f"{folder.path} was begun with another {key} ({folder.lines[0].get(key)}, now {value}): "
                "give it the same data"
            )
    simulation.replay(folder.aggregates(simulation.learner.rows, simulation.learner.width))
    return list(folder.lines)


def _origin(simulation: Simulation) -> Line:
    """What a run starts from: it can only be continued with the same."""
    dataset = simulation.task.dataset
    digest = hashlib.sha256()
    for part in (dataset.train_inputs, dataset.train_labels, dataset.test_inputs, dataset.test_labels):
        digest.update(memoryview(np.ascontiguousarray(part)))  # pyright: ignore[reportArgumentType]
    model = f"{simulation.parameters.fingerprint():016x}"  # nothing has been played yet
    return {"data": dataset.source, "data_sha256": digest.hexdigest(), "model": model}


def _aggregate(simulation: Simulation, played: Round) -> Any:
    if played.aggregate is not None:
        return played.aggregate
    return np.full((simulation.learner.rows, simulation.learner.width), np.nan, dtype=np.float32)


def _line(simulation: Simulation, seconds: float, votes: int, skipped: int) -> Line:
    """An evaluation: what has been reached, and what it has cost each client so far. A loss beyond numbers is None."""
    accuracy, loss = simulation.evaluate()
    scalars = simulation.learner.rows * simulation.learner.width
    up, down = votes * scalars / simulation.config.clients, float((simulation.rounds - skipped) * scalars)
    return {
        "round": simulation.rounds,
        "accuracy": accuracy,
        "loss": loss if math.isfinite(loss) else None,
        "scalars_up_per_client": up,
        "scalars_down_per_client": down,
        "bytes_up_per_client": 4 * up,
        "bytes_down_per_client": 4 * down,
        "votes": votes,
        "skipped": skipped,
        "seconds": seconds,
    }


def _summary(simulation: Simulation, lines: list[Line]) -> Line:
    last = lines[-1]
    return {
        "max_accuracy": max(line["accuracy"] for line in lines),
        "final_accuracy": last["accuracy"],
        "final_loss": last["loss"],
        **{key: last[key] for key in last if key.endswith("_per_client")},
        "rounds": simulation.rounds,
        "skipped_rounds": last["skipped"],
        "seconds": last["seconds"],
        "model_fingerprint": f"{simulation.parameters.fingerprint():016x}",
        "data": simulation.task.dataset.source,
        "device": str(simulation.device),
    }
