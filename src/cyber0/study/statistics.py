"""The statistics of a study: the accuracy of its runs, and how far it is from the published one.

A run counts by its best accuracy, as in the paper; all accuracies are in percent. `difference` compares two means of a
few seeds each by Welch's interval, since the published mean is an estimate too.

>>> ours, paper = Sample(59.7, 9.0, 5), Sample(69.9, 4.8, PAPER_SEEDS)
>>> far = difference(ours, paper)
>>> round(far.value, 1), round(far.low, 1), round(far.high, 1), round(far.z, 2)
(-10.2, -21.3, 0.9, 1.0)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.extras import require
from cyber0.study.recipe import Labels, Recipe
from cyber0.study.results import Results

__all__ = [
    "CONFIDENCE",
    "PAPER_SEEDS",
    "Agreement",
    "Difference",
    "Measured",
    "Run",
    "Sample",
    "agreement",
    "difference",
    "measure",
    "rank",
    "runs",
]

CONFIDENCE = 0.95
PAPER_SEEDS = 5  # the runs behind a published mean and s.d.: Table 1 has five

Floats = NDArray[np.float64]
Key = tuple[str, ...]  # a cell's label on each axis, in the order of the axes


@dataclass(frozen=True, slots=True)
class Run:
    """The evaluations of one run. Accuracy in percent; bytes are those of one client so far, in float32.

    `validation` is the accuracy on held-out samples, if there are any: it chooses the round that counts. `success` is
    how often the attack reached its goal, in percent, if it has one.

    >>> run = Run(0, np.array([0.0, 10.0]), np.array([80.0, 75.0]), np.array([0.0, 640.0]), np.array([0.0, 640.0]))
    >>> run.best, run.final
    (80.0, 75.0)
    """

    seed: int
    rounds: Floats
    accuracy: Floats
    bytes_up: Floats
    bytes_down: Floats
    validation: Floats | None = None
    success: Floats | None = None

    @property
    def counted(self) -> int | None:
        """Return the evaluation that counts: the best on validation samples or, without these, on test samples."""
        for measure in (self.validation, self.accuracy):
            if measure is not None and np.isfinite(measure).any():
                return int(np.nanargmax(measure))
        return None

    @property
    def best(self) -> float:
        """Return the accuracy of the evaluation that counts; NaN if none is finite."""
        return math.nan if self.counted is None else float(self.accuracy[self.counted])

    @property
    def attack_success(self) -> float:
        """Return how often the attack reached its goal in the evaluation that counts; NaN if it has none."""
        return math.nan if self.counted is None or self.success is None else float(self.success[self.counted])

    @property
    def final(self) -> float:
        """Return the accuracy of the last evaluation."""
        return float(self.accuracy[-1])


@dataclass(frozen=True, slots=True)
class Sample:
    """A mean over n seeds, and their s.d., which divides by n - 1 and is None for a single seed.

    >>> Sample.of([1.0, 2.0, 3.0])
    Sample(mean=2.0, sd=1.0, n=3)
    >>> Sample.of([1.0])
    Sample(mean=1.0, sd=None, n=1)
    """

    mean: float
    sd: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Sample | None":
        """Return the sample of the finite values; None if no value is finite."""
        kept = np.array([value for value in values if math.isfinite(value)])
        if not len(kept):
            return None
        return cls(float(kept.mean()), float(kept.std(ddof=1)) if len(kept) > 1 else None, len(kept))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95% confidence interval of the mean, by Student's t with n - 1 degrees of freedom.

        An accuracy is from 0 to 100, and so is its interval.

        >>> Sample(99.0, 2.0, 3).interval[1]
        100.0
        """
        if self.sd is None:
            return None
        half = _quantile(self.n - 1) * self.sd / math.sqrt(self.n)
        return max(self.mean - half, 0.0), min(self.mean + half, 100.0)


@dataclass(frozen=True, slots=True)
class Difference:
    """Our mean less the paper's, its 95% interval, and `z`: its size in units of sqrt(s^2 + s_paper^2)."""

    value: float
    low: float | None
    high: float | None
    z: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of a cell. `beside` marks a baseline outside the grid, which is not counted with the grid.

    `success` is how often the attack reached its goal in the evaluations that count, if it has one; `failed` how many
    runs failed.
    """

    labels: Labels
    beside: bool
    best: Sample | None = None
    final: Sample | None = None
    paper: Sample | None = None
    difference: Difference | None = None
    bytes_up: float | None = None
    bytes_down: float | None = None
    success: Sample | None = None
    failed: int = 0

    @property
    def name(self) -> str:
        """Return the cell's labels, joined by commas."""
        return ", ".join(self.labels.values())


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close a set of cells is to the published numbers: root mean square and mean of the differences, in points.

    `within` counts the cells whose difference is at most one combined s.d., of the `judged` cells that have one.
    """

    cells: int
    rmse: float
    bias: float
    within: int
    judged: int


def difference(ours: Sample, paper: Sample) -> Difference:
    """Return how far our mean is from the paper's; interval and z are None unless both s.d. are known.

    >>> difference(Sample(50.0, None, 1), Sample(52.0, 1.0, 5))
    Difference(value=-2.0, low=None, high=None, z=None)
    """
    value = ours.mean - paper.mean
    if ours.sd is None or paper.sd is None or paper.n < 2:
        return Difference(value, None, None, None)
    combined = math.hypot(ours.sd, paper.sd)
    half = _welch(ours.sd**2 / ours.n, paper.sd**2 / paper.n, ours.n - 1, paper.n - 1)
    return Difference(value, value - half, value + half, abs(value) / combined if combined else None)


def measure(results: Results, paper_seeds: int = PAPER_SEEDS) -> list[Measured]:
    """Return the numbers of every cell of the study, also of cells without runs, in the recipe's order.

    >>> import pandas
    >>> from cyber0.study.recipe import Recipe
    >>> recipe = Recipe.of({"base": {"rounds": 2}, "axes": {"rule": ["mean", "cwtm"]}})
    >>> frame = pandas.DataFrame({"rule": ["mean"], "seed": [0], "round": [2], "accuracy": [0.5], "loss": [1.0]})
    >>> frame["bytes_up_per_client"] = frame["bytes_down_per_client"] = 512.0
    >>> [(cell.name, cell.best) for cell in measure(Results(recipe, frame))]
    [('mean', Sample(mean=50.0, sd=None, n=1)), ('cwtm', None)]
    """
    recipe, played = results.recipe, runs(results)
    beside = [cell.labels for cell in recipe.also]
    cells: list[Measured] = []
    for cell in recipe.cells():
        published = recipe.published(cell.labels)
        paper = None if published is None else Sample(*published, n=paper_seeds)
        labels = {axis: cell.labels[axis] for axis in recipe.axes}
        found = _measured(labels, labels in beside, played.get(tuple(labels.values()), []), paper)
        failed = sum(labels.items() <= failure.labels.items() for failure in results.failures)
        cells.append(replace(found, failed=failed))
    return cells


def agreement(cells: Sequence[Measured]) -> Agreement | None:
    """Return how close these cells are to the published numbers; None if no cell has a difference.

    >>> cells = [Measured({}, False, difference=Difference(d, None, None, z)) for d, z in ((3.0, 0.5), (-1.0, None))]
    >>> agreement(cells)
    Agreement(cells=2, rmse=2.23606797749979, bias=1.0, within=1, judged=1)
    """
    known = [cell.difference for cell in cells if cell.difference is not None]
    if not known:
        return None
    values = np.array([each.value for each in known])
    judged = [each.z for each in known if each.z is not None]
    rmse, bias = float(np.sqrt(np.mean(values**2))), float(values.mean())
    return Agreement(len(known), rmse, bias, sum(z <= 1 for z in judged), len(judged))


def rank(recipe: Recipe, axis: str) -> dict[str, int]:
    """Return the position of each label on its axis, in the recipe's order; labels beside the grid come last.

    >>> from cyber0.study.recipe import get_recipe
    >>> rank(get_recipe("table1"), "attack")
    {'ALIE': 0, 'ALIE-NNM': 1, 'FOE': 2, 'FOE-NNM': 3, 'SF': 4, 'LF': 5, 'none': 6}
    """
    listed = dict.fromkeys([*map(str, recipe.axes[axis]), *(cell.labels[axis] for cell in recipe.also)])
    return {label: place for place, label in enumerate(listed)}


def runs(results: Results) -> dict[Key, list[Run]]:
    """Return the runs of each cell that has any, by the cell's labels in the order of the axes."""
    frame: Any = results.frame
    if not len(frame):
        return {}
    found: dict[Key, list[Run]] = {}
    for (*labels, seed), rows in frame.groupby([*results.recipe.axes, "seed"], sort=True, observed=True):
        found.setdefault(tuple(map(str, labels)), []).append(
            _run(int(seed), rows.sort_values("round"), results.validated)
        )
    return found


def _run(seed: int, rows: Any, validated: bool) -> Run:
    rounds, accuracy, up, down = (
        rows[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("round", "accuracy", "bytes_up_per_client", "bytes_down_per_client")
    )
    held_out = rows["validation_accuracy"].to_numpy(dtype=np.float64, na_value=np.nan) if validated else None
    success: Floats | None = None
    if "attack_success" in rows.columns:
        success = 100 * rows["attack_success"].to_numpy(dtype=np.float64, na_value=np.nan)
    return Run(seed, rounds, 100 * accuracy, up, down, held_out, success)


def _measured(labels: Labels, beside: bool, played: list[Run], paper: Sample | None) -> Measured:
    names = "best", "final", "attack_success"
    best, final, success = (Sample.of(getattr(run, name) for run in played) for name in names)
    up, down = (Sample.of(getattr(run, name)[-1] for run in played) for name in ("bytes_up", "bytes_down"))
    return Measured(
        labels=labels,
        beside=beside,
        best=best,
        final=final,
        paper=paper,
        difference=None if best is None or paper is None else difference(best, paper),
        bytes_up=None if up is None else up.mean,
        bytes_down=None if down is None else down.mean,
        success=success,
    )


def _welch(ours: float, paper: float, ours_free: int, paper_free: int) -> float:
    """Return half the width of Welch's interval, from the variance of each mean and its degrees of freedom."""
    total = ours + paper
    if not total:
        return 0.0
    # by shares of the total: squares of small variances would underflow
    free = 1 / ((ours / total) ** 2 / ours_free + (paper / total) ** 2 / paper_free)
    return _quantile(free) * math.sqrt(total)


def _quantile(free: float) -> float:
    """Return the two-sided quantile of Student's t."""
    return float(require("scipy.special", extra="study").stdtrit(free, (1 + CONFIDENCE) / 2))
