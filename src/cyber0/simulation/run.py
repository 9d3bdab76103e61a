"""A run from its first round to its summary, in a folder or without one."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.config import RunConfig
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
    simulation = Simulation(config)
    width = simulation.learner.scalars // (1 if config.algorithm == "fedavg" else config.plan.rows)
    folder = None if out is None else (Folder.resume(out, width) if resume else Folder.new(out, config, width))
    try:
        lines = _play(simulation, folder, watch or (lambda _round, _line: None))
        summary = _summary(simulation, lines)
        if folder is not None:
            folder.finish(summary, {k: v.detach().cpu() for k, v in simulation.parameters.tensors.items()})
        return summary
    finally:
        if folder is not None:
            folder.close()


def _play(simulation: Simulation, folder: Folder | None, watch: Watch) -> list[Line]:
    lines = list(folder.lines) if folder else []
    if folder is not None:
        simulation.replay(folder.aggregates)
    clock = time.perf_counter() - (lines[-1]["seconds"] if lines else 0.0)
    tally = lines[-1] if lines else _line(simulation, 0.0, 0, 0)
    if not lines:
        lines.append(tally)
        if folder is not None:
            folder.append(np.empty((0,)), tally)
    pending: list[Any] = []
    voters, skipped = tally["votes"], tally["skipped"]
    for played in simulation.play():
        pending.append(_aggregate(simulation, played))
        voters, skipped = voters + played.present, skipped + (played.aggregate is None)
        if simulation.rounds % simulation.config.evaluate_every == 0 or simulation.rounds == simulation.config.rounds:
            lines.append(_line(simulation, time.perf_counter() - clock, voters, skipped))
            if folder is not None:
                folder.append(np.stack(pending), lines[-1])
            pending.clear()
        watch(played, lines[-1])
    return lines


def _aggregate(simulation: Simulation, played: Round) -> Any:
    if played.aggregate is not None:
        return played.aggregate
    rows = 1 if simulation.config.algorithm == "fedavg" else simulation.config.plan.rows
    return np.full((rows, simulation.learner.scalars // rows), np.nan, dtype=np.float32)


def _line(simulation: Simulation, seconds: float, voters: int, skipped: int) -> Line:
    """An evaluation: what has been reached, and what it has cost each client so far."""
    accuracy, loss = simulation.evaluate()
    scalars = simulation.learner.scalars
    up, down = voters * scalars / simulation.config.clients, float(simulation.rounds * scalars)
    return {
        "round": simulation.rounds,
        "accuracy": accuracy,
        "loss": loss,
        "scalars_up_per_client": up,
        "scalars_down_per_client": down,
        "bytes_up_per_client": 4 * up,
        "bytes_down_per_client": 4 * down,
        "votes": voters,
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
