"""A study from its recipe to its report."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyber0 import __version__
from cyber0.errors import UnknownName
from cyber0.extras import require
from cyber0.study.check import check_jobs
from cyber0.study.choose import choose, played
from cyber0.study.claims import check_claims
from cyber0.study.engines import ENGINES
from cyber0.study.folder import StudyFolder
from cyber0.study.recipe import Pattern, Recipe
from cyber0.study.report import write
from cyber0.study.results import Results
from cyber0.study.work import Batch, Outcome, batches, jobs_of, workers_for
from cyber0.threads import cores

__all__ = ["Watch", "jobs_of", "study"]


@dataclass(frozen=True, slots=True)
class Watch:
    """Functions that are called as a study is played, to show it.

    `begin` gets the batches to play and how many runs are done already, `progress` the number of a batch and how many
    of its rounds are done, `end` the number of a batch and its outcomes.
    """

    begin: Callable[[list[Batch], int], None] = lambda _batches, _done: None
    progress: Callable[[int, int], None] = lambda _number, _round: None
    end: Callable[[int, list[Outcome]], None] = lambda _number, _outcomes: None


def study(
    recipe: Recipe,
    out: Path,
    *,
    engine: str = "local",
    jobs: int | None = None,
    options: dict[str, Any] | None = None,
    only: Pattern | None = None,
    command: str = "",
    watch: Watch | None = None,
) -> Results:
    """Play the runs of a study that have not been played yet, and write its tables, figures and report.

    `options` go over the recipe's base for this machine alone: where the data are, which device. `only` cells with
    these labels are played this time.

    >>> from tempfile import mkdtemp
    >>> recipe = Recipe.of({"seeds": 1, "base": {"rounds": 2, "source": "embedded"}, "axes": {"directions": [2, 4]}})
    >>> results = study(recipe, Path(mkdtemp()) / "study", jobs=1)
    >>> len(results.frame), results.failures                        # two runs, evaluated before and after
    (4, [])
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    whole = played(recipe)
    watch, every = watch or Watch(), jobs_of(whole, options or {})
    wanted = [cell.labels for cell in whole.chosen(only or {})]
    check_claims(recipe.claims)
    unplayed = [job for job in every if job.labels in wanted and not StudyFolder.file(out, job).exists()]
    check_jobs(unplayed, here=engine == "local")
    with StudyFolder(out, recipe, every) as folder:
        due = [job for job in every if not folder.done(job)]
        left = [job for job in due if job.labels in wanted]
        workers, clock = min(jobs or workers_for(left), len(every)), time.perf_counter()
        planned = batches(left, workers)
        watch.begin(planned, len(every) - len(due))
        ended = 0
        try:
            for number, outcomes in ENGINES[engine](planned, workers, watch.progress, folder.unfinished):
                for outcome in outcomes:
                    folder.keep(outcome)
                ended += len(outcomes)
                watch.end(number, outcomes)
        finally:
            if left:
                took = {"runs": ended, "seconds": round(time.perf_counter() - clock, 1)}
                folder.log({"command": command, **_machine(), "engine": engine, **took})
        results = choose(folder.results(every))
        write(results, out)
    return results


def _machine() -> dict[str, Any]:
    torch, numpy = require("torch", extra="train"), require("numpy", extra="train")
    packages = {"cyber0": __version__, "Python": platform.python_version(), "torch": torch.__version__}
    versions = ", ".join(f"{name} {number}" for name, number in {**packages, "NumPy": numpy.__version__}.items())
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return {"versions": versions, "machine": f"{platform.system()} {platform.machine()}, {cores()} cores{gpu}"}
