"""Experiment trackers as callbacks: TensorBoard, Weights & Biases, MLflow and trackio.

A tracker is told the configuration, the measures of each evaluation, and of each round the number of votes, the length
of the aggregate and what the attack reports. The run's own `metrics.jsonl` stays the truth.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.callbacks import Callback, Round
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.files import write_atomically
from cyber0.registry import resolve

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "Trackio", "WandB", "get_tracker"]

PER_RUN = ("round", "client", "data", "data_sha256", "loss_function", "dropped", "samples")
FLUSH = 5  # seconds until TensorBoard sees what rounds log; by itself it takes 120


class Tracker(Callback, ABC):
    """What all trackers share. A subclass writes to one library, by `start`, `log`, `note` and `finish`.

    Args:
        project: What runs belong to.
        name: What the run is called; by default its rule and attack.
        group: What several runs belong to, such as a study.
        tags: Words to find it by, or one.
        folder: The folder of the run, in which the tracker remembers its run: resumed, it goes on there.

    """

    needs = ""
    """The module that it needs."""

    def __init__(
        self,
        *,
        project: str = "cyber0",
        name: str | None = None,
        group: str | None = None,
        tags: str | tuple[str, ...] = (),
        folder: str | Path | None = None,
    ) -> None:
        self.tags = tuple(tags) if isinstance(tags, tuple | list) else (tags,)
        texts = [
            ("project", project),
            ("name", name or ""),
            ("group", group or ""),
            *(("tags", tag) for tag in self.tags),
        ]
        for key, text in texts:
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidConfig(f"{key} = {text!r}: give a text in quotes")
        self.module = require(self.needs, extra="track")
        self.project, self.name, self.group = project, name, group
        self._kept = None if folder is None else Path(folder) / f"{type(self).__name__.lower()}.json"
        self._open = False

    def before_run(self, run: Any) -> None:
        """Begin a run of the tracker, or go on with the one that the folder remembers."""
        simulated = hasattr(run, "config")  # else it is a federator
        config, rounds = (run.config, run.rounds) if simulated else (run.settings.agreement, run.state.round)
        self.begin(config.model_dump(), rounds, resumes=rounds > 0 or not simulated)  # its folder is of one ledger

    def begin(self, config: Mapping[str, Any], rounds: int = 0, *, resumes: bool = False) -> None:
        """Begin a run with this configuration; where it `resumes`, go on after so many rounds with the one before."""
        self._last = config["rounds"]
        label = self.name or ", ".join(str(config[key]) for key in ("rule", "attack") if key in config)
        known = resumes and self._kept is not None and self._kept.exists()
        before = json.loads(self._kept.read_text(encoding="utf-8"))["id"] if known and self._kept else None
        found = self.start({key: value for key, value in config.items() if value is not None}, label, before, rounds)
        self._open = True
        if self._kept is not None:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._kept, json.dumps({"id": found}))

    def after_round(self, run: Any, round: Round) -> None:  # noqa: A002, ARG002
        """Log what happened in a round."""
        numbers: dict[str, float] = {"round/votes": float(len(round.admitted))}
        if round.aggregate is not None:
            numbers["round/aggregate_norm"] = float(np.linalg.norm(np.asarray(round.aggregate, dtype=np.float64)))
        for name, value in round.reports.items():
            numbers[f"round/{name}"] = float(np.mean(np.asarray(value, dtype=np.float64)))
        self.log(_finite(numbers), round.number + 1)

    def after_evaluation(self, run: Any, evaluation: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Log an evaluation; after the last one of a simulation the tracker's run ends."""
        self.add(evaluation)

    def add(self, evaluation: Mapping[str, Any]) -> None:
        """Log an evaluation, as of `metrics.jsonl`."""
        client = f"clients/{evaluation['client']}/" if "client" in evaluation else ""
        measured = {**evaluation, **evaluation.get("metrics", {})}
        numbers = {f"{client}{key}": value for key, value in measured.items() if key not in PER_RUN}
        self.log(_finite(numbers), evaluation["round"])
        if isinstance(evaluation.get("model"), str):
            self.fingerprint(evaluation["model"])
        if not client and evaluation["round"] >= self._last:
            self.close()

    def fingerprint(self, mark: str) -> None:
        """Note the fingerprint of the model as it is now."""
        if self._open:
            self.note("model_fingerprint", mark)

    def close(self) -> None:
        """End the tracker's run."""
        if self._open:
            self._open = False
            self.finish()

    @abstractmethod
    def start(self, config: dict[str, Any], name: str, before: str | None, rounds: int) -> str:
        """Begin a run, or go on with the one called `before` after so many rounds; return what it is called."""

    @abstractmethod
    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a round."""

    @abstractmethod
    def note(self, key: str, text: str) -> None:
        """Note a text about the run."""

    @abstractmethod
    def finish(self) -> None:
        """End the run."""


class TensorBoard(Tracker):
    """Writes event files below `logs`, one folder for each run: `tensorboard --logdir LOGS`.

    Needs the package tensorboard and no torch.
    """

    needs = "tensorboard"

    def __init__(
        self,
        *,
        logs: str | Path = "runs/tensorboard",
        project: str = "cyber0",
        name: str | None = None,
        group: str | None = None,
        tags: str | tuple[str, ...] = (),
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(project=project, name=name, group=group, tags=tags, folder=folder)
        if not isinstance(logs, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidConfig(f"logs = {logs!r}: name a folder, as logs='runs/tensorboard'")
        self.logs = Path(logs)

    def start(self, config: dict[str, Any], name: str, before: str | None, rounds: int) -> str:
        """Open an event file; what an earlier one has after these rounds is played again, and no longer shown."""
        events = require("tensorboard.summary.writer.event_file_writer", extra="track")
        self._proto = require("tensorboard.compat.proto.event_pb2", extra="track")
        self._summary = require("tensorboard.compat.proto.summary_pb2", extra="track")
        place = [part for part in (self.group, f"{name} {time.strftime('%Y-%m-%d %H.%M.%S')}") if part]
        folder = Path(before) if before else self.logs.joinpath(*(part.replace("/", "-") for part in place))
        self._writer = events.EventFileWriter(str(folder), flush_secs=FLUSH, filename_suffix=f".{rounds}")
        if before:
            session = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._write(rounds + 1, session_log=session)
        else:
            rows = "\n".join(f"| {key} | {value} |" for key, value in config.items())
            self.note("config", f"| key | value |\n|---|---|\n{rows}")
            if self.tags:
                self.note("tags", ", ".join(self.tags))
        return str(folder.resolve())

    def add(self, evaluation: Mapping[str, Any]) -> None:
        """Log an evaluation, so that TensorBoard sees it at once."""
        super().add(evaluation)
        if self._open:
            self._writer.flush()

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Write numbers as scalars."""
        values = [self._summary.Summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        self._write(step, summary=self._summary.Summary(value=values))

    def note(self, key: str, text: str) -> None:
        """Write a text, which TensorBoard shows as Markdown."""
        kinds = self._summary.SummaryMetadata
        tensors = require("tensorboard.compat.proto.tensor_pb2", extra="track")
        types = require("tensorboard.compat.proto.types_pb2", extra="track")
        metadata = kinds(plugin_data=kinds.PluginData(plugin_name="text", content=b""))
        tensor = tensors.TensorProto(dtype=types.DT_STRING, string_val=[text.encode()])
        value = self._summary.Summary.Value(tag=key, metadata=metadata, tensor=tensor)
        self._write(0, summary=self._summary.Summary(value=[value]))

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._proto.Event(wall_time=time.time(), step=step, **content))


class WandB(Tracker):
    """Logs to Weights & Biases; with WANDB_MODE=offline to files that `wandb sync` uploads."""

    needs = "wandb"

    def start(self, config: dict[str, Any], name: str, before: str | None, rounds: int) -> str:  # noqa: ARG002
        """Begin a run of W&B, or go on with one by its id."""
        options: dict[str, Any] = {"project": self.project, "name": name, "group": self.group, "tags": list(self.tags)}
        resume = {"id": before, "resume": "allow"} if before else {}
        self._run = self.module.init(config=config, allow_val_change=True, reinit="create_new", **options, **resume)
        self._step, self._clients = 0, set[str]()
        return self._run.id

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers. W&B drops what comes with an earlier step than the last, as a client's evaluation may."""
        self._step = max(self._step, step)
        clients = {key.rpartition("/")[0] for key in numbers if key.startswith("clients/")}
        for client in clients - self._clients:
            self._run.define_metric(f"{client}/*", step_metric=f"{client}/round")
        self._clients |= clients
        self._run.log({**numbers, **{f"{client}/round": step for client in clients}}, step=self._step)

    def note(self, key: str, text: str) -> None:
        """Write a text to the run's summary."""
        self._run.summary[key] = text

    def finish(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow(Tracker):
    """Logs to MLflow: to the server or store that MLFLOW_TRACKING_URI names, else where MLflow itself does."""

    needs = "mlflow"

    def start(self, config: dict[str, Any], name: str, before: str | None, rounds: int) -> str:
        """Begin a run of the experiment, or go on with one by its id."""
        entities = require("mlflow.entities", extra="track")
        self._metric = entities.Metric
        self._client = self.module.MlflowClient()
        if before:
            self._client.update_run(before, status="RUNNING")
            self._client.set_tag(before, "resumed_at_round", str(rounds))
            self._id = before
            return before
        experiment = self._client.get_experiment_by_name(self.project)
        found = experiment.experiment_id if experiment else self._client.create_experiment(self.project)
        tags = {"group": self.group or "", **dict.fromkeys(self.tags, "true")}
        self._id = self._client.create_run(found, run_name=name, tags=tags).info.run_id
        params = [entities.Param(key, str(value)[:500]) for key, value in config.items()]
        self._client.log_batch(self._id, params=params)
        return self._id

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers."""
        now = int(1000 * time.time())
        metrics = [self._metric(key, value, now, step) for key, value in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def note(self, key: str, text: str) -> None:
        """Write a text as a tag."""
        self._client.set_tag(self._id, key, text)

    def finish(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)


class Trackio(Tracker):
    """Logs to trackio, on this machine: `trackio show --project PROJECT`."""

    needs = "trackio"

    def start(self, config: dict[str, Any], name: str, before: str | None, rounds: int) -> str:  # noqa: ARG002
        """Begin a run of the project, or go on with one by its name, which is made to differ from all others."""
        called = before or f"{name} {time.strftime('%Y-%m-%d %H.%M.%S')}"
        resume = "allow" if before else "never"
        noted = {**config, "tags": ", ".join(self.tags)}
        options: dict[str, Any] = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        self._run = self.module.init(
            self.project, name=called, group=self.group, config=noted, resume=resume, **options
        )
        return called

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers."""
        self._run.log(numbers, step=step)

    def note(self, key: str, text: str) -> None:
        """Log a text among the numbers: trackio has no summary."""
        self._run.log({key: text})

    def finish(self) -> None:
        """End the run."""
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "tensorboard": TensorBoard, "trackio": Trackio, "wandb": WandB}


def get_tracker(name: str, /, **options: Any) -> Tracker:
    """Return the tracker of a name, with options in parentheses: `tensorboard(logs='logs')`.

    >>> get_tracker("tensorbord")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown tracker 'tensorbord': use one of mlflow, tensorboard, trackio, wandb (did you \
mean 'tensorboard'?)
    """
    return resolve("tracker", name, TRACKERS)(**options)


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return what is a finite number: trackers refuse or hide the others."""
    known: dict[str, Any] = {key: value for key, value in numbers.items() if isinstance(value, int | float | np.number)}
    return {key: float(value) for key, value in known.items() if np.isfinite(value)}
