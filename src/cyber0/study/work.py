"""Put the runs of a study into batches, and play a batch."""

import re
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cyber0.config import RunConfig
from cyber0.errors import Cyber0Error, InputError, InvalidConfig
from cyber0.extras import require
from cyber0.protocol.ledger import ExportedRun
from cyber0.study.recipe import Labels, Recipe
from cyber0.threads import cores

__all__ = ["Batch", "Job", "Outcome", "batches", "jobs_of", "on_cuda", "play", "workers_for"]

RUNS_PER_BATCH = 30  # on a GPU: with more, what is done run by run takes most of the time
DEVICE_WORKERS = 8  # processes that share a GPU


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a study.

    >>> Job({"rule": "NNM+Krum", "attack": "FOE"}, RunConfig(seed=3)).name
    'NNM+Krum_FOE_seed3'
    """

    labels: Labels
    config: RunConfig

    @property
    def name(self) -> str:
        """Return the name of the run's file."""
        words = [re.sub(r"[^\w.+=-]+", "-", label) for label in self.labels.values()]
        return "_".join([*words, f"seed{self.config.seed}"])


Batch = list[Job]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: its evaluations and its summary in `lines`, or an error.

    `exported` is the run as it can be exported; it is None for FedAvg.
    """

    job: Job
    lines: list[dict[str, Any]]
    error: str | None = None
    exported: ExportedRun | None = None
    traceback: str = ""


def jobs_of(recipe: Recipe, options: dict[str, Any]) -> list[Job]:
    """Return the runs of a study, cell by cell and seed by seed; `options` override the keys of each cell.

    Raise InvalidConfig with the problems of all cells, or if two cells have the same name.

    >>> [job.name for job in jobs_of(Recipe.of({"seeds": 2, "axes": {"rule": ["mean"]}}), {})]
    ['mean_seed0', 'mean_seed1']
    >>> jobs_of(Recipe.of({"axes": {"lr": [0.1, -1.0]}}), {})
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: cell '-1.0': lr = -1.0: input should be greater than 0
    """
    jobs: list[Job] = []
    problems: dict[str, str] = {}  # each problem, and the first cell that has it
    for cell in recipe.cells():
        cell = cell.model_copy(update={"values": cell.values | options})
        try:
            jobs += [Job(cell.labels, cell.config(seed)) for seed in recipe.every_seed]
        except InputError as error:
            problems.setdefault(str(error), cell.name)
    if problems:
        raise InvalidConfig("; ".join(f"cell {name!r}: {problem}" for problem, name in problems.items()))
    names = Counter(job.name for job in jobs)
    if twice := [name for name, count in names.items() if count > 1]:
        raise InvalidConfig(f"two cells are called {twice[0].rpartition('_seed')[0]!r}: give them different labels")
    return jobs


def batches(jobs: Sequence[Job], workers: int = 1) -> list[Batch]:
    """Return the runs in batches: on a GPU up to 30 of one shape, enough for all workers; single runs on a CPU.

    >>> jobs = [Job({"rule": "mean"}, RunConfig(seed=seed, device="cpu")) for seed in range(5)]
    >>> [len(batch) for batch in batches(jobs)]
    [1, 1, 1, 1, 1]
    """
    from cyber0.simulation.ensemble import shape_of

    shapes: dict[str | None, list[Job]] = {}
    for job in jobs:
        shapes.setdefault(shape_of(job.config), []).append(job)
    result: list[Batch] = []
    for shape, runs in shapes.items():
        on_gpu = shape is not None and on_cuda(runs[0].config.device)
        size = min(RUNS_PER_BATCH, -(-len(jobs) // workers)) if on_gpu else 1
        result += [runs[first : first + size] for first in range(0, len(runs), size)]
    return result


def workers_for(jobs: Sequence[Job]) -> int:
    """Return how many processes to play runs on: one for each core, and at most eight that share a GPU.

    >>> workers_for([Job({}, RunConfig(device="cpu"))]) == cores()
    True
    """
    return min(cores(), DEVICE_WORKERS) if jobs and on_cuda(jobs[0].config.device) else cores()


def on_cuda(device: str) -> bool:
    """Return whether a run with this `device` is played on a GPU.

    >>> on_cuda("cpu")
    False
    """
    return device.startswith("cuda") or (device == "auto" and require("torch", extra="train").cuda.is_available())


def play(batch: Batch, watch: Callable[[int], None], unfinished: Path | None = None) -> list[Outcome]:
    """Return the outcomes of a batch; if it fails, play its runs one by one, to find the one that fails.

    A run that is played alone has a folder below `unfinished`, if given, and resumes from there.

    >>> job = Job({}, RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2, device="cpu"))
    >>> [outcome] = play([job], watch=lambda round: None)
    >>> [line["round"] for line in outcome.lines[:-1]]
    [0, 2]
    """
    try:
        return _play_batch(batch, watch, unfinished)
    except Exception as error:  # whatever it is, the other runs of the study go on
        if len(batch) > 1:
            return [outcome for job in batch for outcome in play([job], watch, unfinished)]
        text = str(error) if isinstance(error, Cyber0Error) else f"{type(error).__name__}: {error}"
        return [Outcome(batch[0], [], text, traceback=traceback.format_exc())]


def _play_batch(batch: Batch, watch: Callable[[int], None], unfinished: Path | None) -> list[Outcome]:
    from cyber0.simulation.export import recorded
    from cyber0.simulation.folder import RunFolder

    config = batch[0].config
    task = _task(config.task, config.data, config.source, config.model)
    if task.dataset.classes is None:
        raise InvalidConfig(f"task = {config.task!r} has no classes, and a study compares accuracies: use cyber0.run")
    if unfinished is not None and len(batch) == 1:
        with closing(RunFolder.begun(unfinished / batch[0].name, config)) as folder:
            found = recorded([config], watch, task, folder)
    else:
        found = recorded([job.config for job in batch], watch, task)
    return [Outcome(job, lines, exported=exported) for job, (lines, exported) in zip(batch, found, strict=True)]


@lru_cache(maxsize=1)  # a process plays many batches on the same data
def _task(name: str, data: str | None, source: str, model: str | None) -> Any:
    from cyber0.tasks.task import make

    return make(name, None if data is None else Path(data), source, model)
