"""The folder of a study: its recipe, a file for each run that has ended, and what is made of them.

study.toml    the recipe: the folder belongs to it
runs/         a JSON file for each run: its labels, its configuration, its evaluations, its summary
unfinished/   the folder of each run that is being played alone, or was when the study was stopped
exports/      where the recipe says `keep`, a file for each run that rebuilds its model: `cyber0 replay`
log.jsonl     a line for each time the study was worked on: the command, the machine, the time it took
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from cyber0.config import RunConfig, load
from cyber0.errors import InputError, InvalidConfig
from cyber0.extras import require
from cyber0.files import lock_folder, make_folder, naming, write_atomically
from cyber0.protocol.export import write as write_export
from cyber0.protocol.ledger import ExportedRun
from cyber0.study.recipe import Labels, Recipe
from cyber0.study.results import Failure, Results
from cyber0.study.work import Job, Outcome, jobs_of

__all__ = ["StudyFolder"]

MENDED = ("task", "partition", "attack", "rule")  # where a user's own stand, as package:object


class StudyFolder:
    """The folder of a study, which one process at a time works in.

    >>> from tempfile import mkdtemp
    >>> recipe = Recipe.of({"axes": {"rule": ["mean"]}})
    >>> jobs = jobs_of(recipe, {})
    >>> with StudyFolder(Path(mkdtemp()) / "study", recipe, jobs) as folder:
    ...     folder.done(jobs[0])
    False
    """

    def __init__(self, path: Path, recipe: Recipe, jobs: Sequence[Job] | None = None) -> None:
        """Open the folder for a recipe and its runs, which are `jobs_of(recipe, {})` if not given."""
        self.path, self.unfinished, self.recipe = path, path / "unfinished", recipe
        try:
            make_folder(path)
            others = sorted(found.name for found in path.iterdir() if found.name not in (".lock", "runs"))
            if others and not (path / "study.toml").exists():
                raise InvalidConfig(f"{path} holds something else ({others[0]}): name another folder")
            self._lock = lock_folder(path, "study")
        except OSError as error:
            raise InvalidConfig(f"cannot write to {path}: {error.strerror}") from None
        try:
            self._claim(jobs_of(recipe, {}) if jobs is None else jobs)
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
        """Return whether a run has ended before."""
        if not self._file(job).exists():
            return False
        self._forget(job)  # a study that was killed may not have come to it
        return True

    @staticmethod
    def file(path: Path, job: Job) -> Path:
        """Return the file of a run that has ended, in the study's folder `path`."""
        return path / "runs" / f"{job.name}.json"

    def keep(self, outcome: Outcome) -> None:
        """Write down the outcome of a run. One that failed is tried again next time, from its last evaluation.

        If it uses code of the user's, it begins anew, since that code may have changed by then.
        """
        job, failed = outcome.job, self._file(outcome.job).with_suffix(".failed")
        if outcome.error is not None:
            if ":" in "".join(getattr(job.config, key) for key in MENDED):
                self._forget(job)
            kept = {"labels": job.labels, "seed": job.config.seed, "error": outcome.error}
            write_atomically(failed, json.dumps({**kept, "traceback": outcome.traceback}))
            return
        if self.recipe.keep and outcome.exported is not None:
            self._export(job, outcome.exported)
        *lines, summary = (self._portable(line, job) for line in outcome.lines)
        kept = {"labels": job.labels, "config": self._config(job), "lines": lines, "summary": summary}
        write_atomically(self._file(job), json.dumps(kept, allow_nan=False))
        failed.unlink(missing_ok=True)
        self._forget(job)

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to the log of when the study was worked on."""
        log = self.path / "log.jsonl"
        with naming(log), log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def results(self, jobs: list[Job]) -> Results:
        """Return what those of the runs that have ended have measured."""
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
                found = json.loads(failed.read_text())
                failures.append(Failure(job.labels, job.config.seed, found["error"], found.get("traceback", "")))
        frame = require("pandas", extra="study").DataFrame(rows)
        return Results(self.recipe, frame, failures, {**self._worked(), **about})

    def _file(self, job: Job) -> Path:
        return self.file(self.path, job)

    def _forget(self, job: Job) -> None:
        rmtree(self.unfinished / job.name, ignore_errors=True)

    def _export(self, job: Job, exported: ExportedRun) -> None:
        from cyber0.simulation.export import renamed

        (self.path / "exports").mkdir(exist_ok=True)
        write_export(self.path / "exports" / f"{job.name}.cyber0", renamed(exported, self._model(job)))

    def _config(self, job: Job) -> dict[str, Any]:
        return {**_shared(job.config), "model": self._model(job)}

    def _model(self, job: Job) -> str | None:
        """Return the recipe's name of the model, which may lie in a folder of this machine."""
        model = job.config.model
        if model is None or not Path(model).is_absolute():
            return model
        return str(self.recipe.base.get("model", Path(model).name))

    def _portable(self, line: dict[str, Any], job: Job) -> dict[str, Any]:
        """Return an evaluation without the names of folders of this machine."""
        if "data" not in line:
            return line
        data, model = job.config.data, job.config.model
        source = line["data"].replace(data, "DIR") if data else line["data"]
        return {**line, "data": source.replace(model, self._model(job)) if model else source}

    def _claim(self, jobs: Sequence[Job]) -> None:
        """Make the folder this study's. Runs that have ended there must be runs of this study, too.

        A recipe may be mended as long as it asks the same of these runs; before one has ended, in any way.
        """
        kept = self.path / "study.toml"
        before = Recipe.of(load(kept)) if kept.exists() else self.recipe
        changed = before.model_copy(update={"seeds": self.recipe.seeds}) != self.recipe
        ended = sorted((self.path / "runs").glob("*.json"))
        if changed and not ended and self._published():
            raise InvalidConfig(f"{self.path} holds the results of {before.title!r}: name another folder")
        for path in ended:
            self._check_ended(path, jobs, before.title)
        if changed:
            self._clear({job.name for job in jobs})
        (self.path / "runs").mkdir(exist_ok=True)
        write_atomically(kept, self.recipe.to_toml())

    def _check_ended(self, path: Path, jobs: Sequence[Job], title: str) -> None:
        """Refuse a run that has ended and that this study does not have, or has with other keys."""
        labels, config = _read(path)
        job = next((job for job in jobs if job.labels == labels), None)
        if job is None:
            differs, remedy = f"of which this recipe has no cell {', '.join(labels.values())!r}", "name another folder"
        else:
            ours = {**self._config(job), "seed": config["seed"]}
            changes = [
                f"{key} = {config.get(key)!r}, now {ours[key]!r}" for key in ours if config.get(key) != ours[key]
            ]
            if not changes:
                return
            differs, remedy = f"which had {', '.join(changes)}", "give the recipe what it had, name another folder"
        raise InvalidConfig(
            f"{self.path} holds another study ({title!r}): {path.name} has ended, {differs}; {remedy}, or "
            "remove this one"
        )

    def _published(self) -> bool:
        """Return whether there are results without the runs they were made of."""
        table = self.path / "results.csv"
        measured = table.exists() and len(table.read_text(encoding="utf-8").splitlines()) > 1
        return measured or (self.path / "results.csv.gz").exists()

    def _clear(self, names: set[str]) -> None:
        """Remove what is left of runs that the recipe no longer has."""
        for failed in (self.path / "runs").glob("*.failed"):
            if failed.stem not in names:
                failed.unlink()
        for begun in self.unfinished.glob("*"):
            if begun.name not in names:
                rmtree(begun, ignore_errors=True)

    def _worked(self) -> dict[str, Any]:
        log = self.path / "log.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        if not lines:
            return {}
        return {**lines[-1], **{key: sum(line[key] for line in lines) for key in ("runs", "seconds")}}


def _measured(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("data", "data_sha256", "loss_function", "model")}


def _shared(config: RunConfig) -> dict[str, Any]:
    """Return a configuration without what belongs to one machine."""
    return {**config.agreement.model_dump(mode="json"), **config.simulation.model_dump(mode="json")}


def _read(path: Path) -> tuple[Labels, dict[str, Any]]:
    """Return the labels of a run that has ended and what it was asked; keys that came later have their defaults."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["labels"], _shared(RunConfig(**found["config"]))
    except (ValueError, KeyError, TypeError, InputError) as error:
        raise InvalidConfig(f"{path} is damaged ({error}): remove it, and its run is played again") from error
