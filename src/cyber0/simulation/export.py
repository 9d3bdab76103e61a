"""A simulated run as the small file that a federation's ledger is exported to: its identity, its aggregated scalars.

A round in which too few voted changed nothing. Its scalars are zeros there, which change nothing either.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.callbacks import Round
from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidExport
from cyber0.participant import Participant, build_participant, load_task
from cyber0.protocol.chain import Seal
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import ExportedRun
from cyber0.protocol.records import to_wire
from cyber0.simulation.ensemble import Ensemble
from cyber0.simulation.folder import Line, RunFolder
from cyber0.simulation.metrics import MetricsLog
from cyber0.simulation.simulation import Simulation
from cyber0.tasks.task import Task

__all__ = ["Record", "from_folder", "recorded", "renamed"]


class Record:
    """A run as it is played, to be exported; made before the first round, since the initial weights are part of it.

    >>> simulation = Simulation(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
    >>> record = Record(simulation)
    >>> for played in simulation.play():
    ...     record.add(played)
    >>> exported = record.exported()
    >>> exported.rounds, exported.seal.fingerprint == simulation.parameters.fingerprint()
    (2, True)
    """

    def __init__(self, simulation: Simulation) -> None:
        if simulation.rounds:
            raise InvalidExport(f"{simulation.rounds} rounds have been played: a record begins before the first")
        self.simulation, self.identity = simulation, _identity(simulation.config, simulation.participant)
        self._scalars: list[bytes] = []

    def add(self, played: Round) -> None:
        """Add a round."""
        nothing = np.zeros((self.identity.plan.rows, self.identity.plan.directions), dtype=np.float32)
        self._scalars.append(to_wire(nothing if played.aggregate is None else played.aggregate))

    def add_all(self, aggregates: NDArray[np.float32]) -> None:
        """Add rounds that were played before, [rounds, rows, directions], as a run's folder has them."""
        self._scalars.append(_changes(aggregates))

    def exported(self) -> ExportedRun:
        """Return the rounds so far, and the fingerprint of the model they lead to."""
        run = ExportedRun(self.identity, b"".join(self._scalars))
        self.simulation.parameters.settle()
        return _sealed(run, self.simulation.parameters.fingerprint())


def recorded(
    configs: Sequence[RunConfig],
    watch: Callable[[int], None] | None = None,
    task: Task | None = None,
    folder: RunFolder | None = None,
) -> list[tuple[list[Line], ExportedRun | None]]:
    """Play runs of one shape as one batch, and return for each its evaluations with its summary last, and its export.

    The export of a FedAvg run, which sends weights, is None.

    Args:
        configs: The runs.
        watch: A function that is called with the number of each round after it is played.
        task: What is trained, instead of the task that the configurations name.
        folder: Where a single run is kept: it goes on from there, or begins anew if the folder is damaged.

    >>> small = {"source": "embedded", "clients": 5, "byzantine": 1, "directions": 4, "rounds": 2}
    >>> [(lines, exported)] = recorded([RunConfig(**small)])
    >>> lines[-1]["model_fingerprint"] == f"{exported.seal.fingerprint:016x}"
    True

    """
    ensemble = Ensemble(configs, task)
    try:
        logs, records = _begin(ensemble.simulations, folder)
    except InvalidConfig:
        if folder is None or not folder.lines:
            raise
        folder.clear()
        return recorded(configs, watch, ensemble.simulations[0].task, folder)
    for number, rounds in enumerate(ensemble.play(), ensemble.simulations[0].rounds):
        for kept, record, played in zip(logs, records, rounds, strict=True):
            kept.add(played)
            if record is not None:
                record.add(played)
        if watch is not None:
            watch(number)
    ended = zip(logs, records, strict=True)
    return [([*kept.lines, kept.summary()], None if record is None else record.exported()) for kept, record in ended]


def _begin(runs: list[Simulation], folder: RunFolder | None) -> tuple[list[MetricsLog], list[Record | None]]:
    """Return the metrics log and the record of each run, with all that was played before."""
    records = [Record(run) if run.config.algorithm == "cyber0" else None for run in runs]
    logs = [MetricsLog(run, folder, share=1 / len(runs)) for run in runs]
    if folder is not None and (record := records[0]) is not None:
        record.add_all(folder.aggregates(record.identity.plan.rows, record.identity.plan.directions))
    return logs, records


def from_folder(path: Path, data: str | None = None, model: str | None = None, task: Task | None = None) -> ExportedRun:
    """Return the run in a folder, up to its last evaluation; `data` and `model` say where they are now, if elsewhere.

    The initial weights are built anew, since the folder has only their fingerprint.

    >>> from tempfile import mkdtemp
    >>> from cyber0.simulation.run import run
    >>> folder = Path(mkdtemp()) / "run"
    >>> result = run(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2), folder)
    >>> f"{from_folder(folder).seal.fingerprint:016x}" == result.fingerprint
    True
    """
    folder = RunFolder.read(path)
    if not folder.lines:
        raise InvalidExport(f"{path} holds no evaluation yet: there is nothing to export")
    here = {key: value for key, value in (("data", data), ("model", model)) if value is not None}
    config = folder.config.updated(**here)
    loaded = task or load_task(config, config.data, config.source, config.model)
    initial = build_participant(loaded, config, torch.device("cpu"))
    identity, last = _identity(folder.config, initial), folder.lines[-1]["round"]
    if (found := f"{initial.parameters.fingerprint():016x}") != folder.lines[0].get("model"):
        raise InvalidExport(
            f"{path} began with a model of fingerprint {folder.lines[0].get('model')}, but this one has {found}: "
            "give it the same by --model and --data"
        )
    scalars = _changes(folder.aggregates(identity.plan.rows, identity.plan.directions))
    summary = folder.summary
    ended = summary is not None and summary["rounds"] == last
    return _sealed(ExportedRun(identity, scalars), int(summary["model_fingerprint"], 16) if ended and summary else None)


def renamed(run: ExportedRun, model: str | None) -> ExportedRun:
    """Return the same run under another name of its model, which is part of the identity.

    >>> simulation = Simulation(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
    >>> renamed(Record(simulation).exported(), "roberta-large").identity.agreement.model
    'roberta-large'
    """
    agreement = run.identity.agreement.updated(model=model)
    again = ExportedRun(replace(run.identity, agreement=agreement, written=None), run.scalars)
    return _sealed(again, None if run.seal is None else run.seal.fingerprint)


def _identity(config: RunConfig, initial: Participant) -> Identity:
    """Return the identity of a run that begins with this model; no votes are kept of it."""
    if config.algorithm != "cyber0":
        raise InvalidExport(f"algorithm = {config.algorithm!r} sends weights: a run by cyber0 can be exported")
    roster = [f"client-{number}" for number in range(config.clients)]
    return Identity.of(config.agreement, roster, initial.parameters, keep_votes=False, meaning=initial.meaning)


def _changes(aggregates: NDArray[np.float32]) -> bytes:
    """Return rounds [rounds, rows, directions] as bytes, with zeros where too few voted."""
    voted = np.isfinite(aggregates).all(axis=(1, 2), keepdims=True)
    return to_wire(np.where(voted, aggregates, 0))


def _sealed(run: ExportedRun, fingerprint: int | None) -> ExportedRun:
    return run if fingerprint is None else replace(run, seal=Seal.of(run.head, fingerprint))
