"""The folder of a study: its recipe, a file for each run that has ended, and what is made of them.

study.toml    the recipe: the folder belongs to it
runs/         a JSON file for each run: its labels, its configuration, its evaluations, its summary
unfinished/   the folder of each run that is being played alone, or was when the study was stopped
exports/      where the recipe says `keep`, a file for each run that rebuilds its model: `cyber0 replay`
log.jsonl     a line for each time the study was worked on: the command, the machine, the time it took
"""

import json
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from cyber0.config import load
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.files import lock_folder, write_atomically
from cyber0.protocol.export import write as write_export
from cyber0.protocol.ledger import History
from cyber0.study.recipe import Recipe
from cyber0.study.results import Failure, Results
from cyber0.study.work import Job, Outcome

__all__ = ["StudyFolder"]

MENDED = ("task", "partition", "attack", "rule")  # where a user's own stand, as package:object
ELSEWHERE = {"data", "device"}  # of a machine, not of a study


class StudyFolder:
    """A study's folder, held by one process at a time.

    >>> from tempfile import mkdtemp
    >>> recipe = Recipe.of({"axes": {"rule": ["mean"]}})
    >>> with StudyFolder(Path(mkdtemp()) / "study", recipe) as folder:
    ...     folder.done(Job({"rule": "mean"}, recipe.cells()[0].config(0)))
    False
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.unfinished, self.recipe = path, path / "unfinished", recipe
        try:
            path.mkdir(parents=True, exist_ok=True)
            others = sorted(found.name for found in path.iterdir() if found.name not in (".lock", "runs"))
            if others and not (path / "study.toml").exists():
                raise InvalidConfig(f"{path} holds something else ({others[0]}): name another folder")
            self._lock = lock_folder(path, "study")
        except OSError as error:
            raise InvalidConfig(f"cannot write to {path}: {error.strerror}") from None
        try:
            self._claim()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> "StudyFolder":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # runs are left in it, or it is not there
            self.unfinished.rmdir()
        self._lock.close()

    def done(self, job: Job) -> bool:
        """Whether a run has ended before; one of another configuration under its name is refused."""
        kept = self._file(job)
        if not kept.exists():
            return False
        found = json.loads(kept.read_text())["config"]
        if found != (ours := self._config(job)):
            different = sorted(key for key in found | ours if found.get(key) != ours.get(key))
            raise InvalidConfig(f"{kept} is a run with another {', '.join(different)}: name another folder")
        self._forget(job)  # a study that was killed may not have come to it
        return True

    def keep(self, outcome: Outcome) -> None:
        """Write down what became of a run; one that failed is tried again next time, from its last evaluation.

        Where it has rules or the like of the user's own it begins anew: they may be mended by then.
        """
        job, failed = outcome.job, self._file(outcome.job).with_suffix(".failed")
        if outcome.error is not None:
            if ":" in "".join(getattr(job.config, key) for key in MENDED):
                self._forget(job)
            write_atomically(
                failed, json.dumps({"labels": job.labels, "seed": job.config.seed, "error": outcome.error})
            )
            return
        if self.recipe.keep and outcome.history is not None:
            self._export(job, outcome.history)
        *lines, summary = (self._anywhere(line, job) for line in outcome.lines)
        kept = {"labels": job.labels, "config": self._config(job), "lines": lines, "summary": summary}
        write_atomically(self._file(job), json.dumps(kept, allow_nan=False))
        failed.unlink(missing_ok=True)
        self._forget(job)

    def log(self, line: dict[str, Any]) -> None:
        """Say that the study was worked on."""
        with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def results(self, jobs: list[Job]) -> Results:
        """What these runs have measured, as far as they have ended."""
        rows: list[dict[str, Any]] = []
        failures: list[Failure] = []
        about: dict[str, Any] = {}
        for job in jobs:
            kept, failed = self._file(job), self._file(job).with_suffix(".failed")
            if kept.exists():
                found = json.loads(kept.read_text())
                rows += [{**job.labels, "seed": job.config.seed, **_measured(line)} for line in found["lines"]]
                about |= {"data": found["summary"]["data"], "device": found["summary"]["device"]}
            elif failed.exists():
                failures.append(Failure(job.labels, job.config.seed, json.loads(failed.read_text())["error"]))
        frame = require("pandas", extra="study").DataFrame(rows)
        return Results(self.recipe, frame, failures, {**self._worked(), **about})

    def _file(self, job: Job) -> Path:
        return self.path / "runs" / f"{job.name}.json"

    def _forget(self, job: Job) -> None:
        rmtree(self.unfinished / job.name, ignore_errors=True)

    def _export(self, job: Job, history: History) -> None:
        from cyber0.simulation.export import renamed

        (self.path / "exports").mkdir(exist_ok=True)
        write_export(self.path / "exports" / f"{job.name}.cyber0", renamed(history, self._model(job)))

    def _config(self, job: Job) -> dict[str, Any]:
        return {**job.config.model_dump(mode="json", exclude=ELSEWHERE), "model": self._model(job)}

    def _model(self, job: Job) -> str | None:
        """What the recipe calls the model, which may lie in a folder of this machine."""
        model = job.config.model
        if model is None or not Path(model).is_absolute():
            return model
        return str(self.recipe.base.get("model", Path(model).name))

    def _anywhere(self, line: dict[str, Any], job: Job) -> dict[str, Any]:
        """A line that says where its data come from, but not in which folders of this machine."""
        if "data" not in line:
            return line
        data, model = job.config.data, job.config.model
        told = line["data"].replace(data, "DIR") if data else line["data"]
        return {**line, "data": told.replace(model, self._model(job)) if model else told}

    def _claim(self) -> None:
        """Make the folder this study's, or see that it is; a study may go on with more seeds than it began with."""
        kept = self.path / "study.toml"
        if not kept.exists():
            (self.path / "runs").mkdir(exist_ok=True)
            write_atomically(kept, self.recipe.to_toml())
            return
        found, ours = load(kept), Recipe.of(load(kept))
        different = [
            key for key in Recipe.model_fields if key != "seeds" and getattr(ours, key) != getattr(self.recipe, key)
        ]
        if different:
            title = found.get("title", ours.title)
            raise InvalidConfig(
                f"{self.path} holds another study ({title!r}; {different[0]} differs): name another folder"
            )
        write_atomically(kept, self.recipe.to_toml())

    def _worked(self) -> dict[str, Any]:
        log = self.path / "log.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        if not lines:
            return {}
        return {**lines[-1], **{key: sum(line[key] for line in lines) for key in ("runs", "seconds")}}


def _measured(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("data", "data_sha256", "model")}
