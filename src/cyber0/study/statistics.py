"""The numbers of a study: what its runs have reached, and how far that is from what was published.

A run counts with its best accuracy, as in the paper; all accuracies are in percent. `difference` compares two means,
each of a few seeds: by Welch's interval, since the published mean is an estimate too.

>>> ours, paper = Sample(59.7, 9.0, 5), Sample(69.9, 4.8, PAPER_SEEDS)
>>> far = difference(ours, paper)
>>> round(far.value, 1), round(far.low, 1), round(far.high, 1), round(far.z, 2)
(-10.2, -21.3, 0.9, 1.0)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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

    >>> run = Run(0, np.array([0.0, 10.0]), np.array([80.0, 75.0]), np.array([0.0, 640.0]), np.array([0.0, 640.0]))
    >>> run.best, run.final
    (80.0, 75.0)
    """

    seed: int
    rounds: Floats
    accuracy: Floats
    bytes_up: Floats
    bytes_down: Floats

    @property
    def best(self) -> float:
        """The highest accuracy of all evaluations; NaN if none is a number."""
        finite = self.accuracy[np.isfinite(self.accuracy)]
        return float(finite.max()) if len(finite) else math.nan

    @property
    def final(self) -> float:
        """The accuracy of the last evaluation."""
        return float(self.accuracy[-1])


@dataclass(frozen=True, slots=True)
class Sample:
    """A mean over seeds. The s.d. divides by n - 1; a single seed has none.

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
        """The sample of the values that are numbers, or None where there is none."""
        kept = np.array([value for value in values if math.isfinite(value)])
        if not len(kept):
            return None
        return cls(float(kept.mean()), float(kept.std(ddof=1)) if len(kept) > 1 else None, len(kept))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the true mean lies with 95% confidence: Student's t with n - 1 degrees of freedom."""
        if self.sd is None:
            return None
        half = _quantile(self.n - 1) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True, slots=True)
class Difference:
    """Ours less the paper's, its 95% interval, and `z`: its size in units of sqrt(s^2 + s_paper^2).

    >>> Difference(-1.0, -3.0, 1.0, 0.5).value
    -1.0
    """

    value: float
    low: float | None
    high: float | None
    z: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell's numbers. `beside` is true of cells outside the grid: baselines, which are not counted with it.

    >>> Measured(labels={"rule": "Krum"}, beside=False).name
    'Krum'
    """

    labels: Labels
    beside: bool
    best: Sample | None = None
    final: Sample | None = None
    paper: Sample | None = None
    difference: Difference | None = None
    bytes_up: float | None = None
    bytes_down: float | None = None

    @property
    def name(self) -> str:
        """Its labels in a row."""
        return ", ".join(self.labels.values())


@dataclass(frozen=True, slots=True)
class Agreement:
    """How near a set of cells comes to the published numbers: root mean square and mean of the differences, in points.

    `within` counts the cells whose difference is at most one combined s.d.; `judged` those of which that is known.

    >>> Agreement(cells=2, rmse=5.0, bias=1.0, within=1, judged=2).rmse
    5.0
    """

    cells: int
    rmse: float
    bias: float
    within: int
    judged: int


def difference(ours: Sample, paper: Sample) -> Difference:
    """How far our mean is from the paper's; interval and z only where both s.d. are known.

    >>> difference(Sample(50.0, None, 1), Sample(52.0, 1.0, 5))
    Difference(value=-2.0, low=None, high=None, z=None)
    """
    value = ours.mean - paper.mean
    if ours.sd is None or paper.sd is None or paper.n < 2:
        return Difference(value, None, None, None)
    spread = math.hypot(ours.sd, paper.sd)
    half = _welch(ours.sd**2 / ours.n, paper.sd**2 / paper.n, ours.n - 1, paper.n - 1)
    return Difference(value, value - half, value + half, abs(value) / spread if spread else None)


def measure(results: Results, paper_seeds: int = PAPER_SEEDS) -> list[Measured]:
    """Every cell of the study, in the recipe's order, those without runs too.

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
        cells.append(_measured(labels, labels in beside, played.get(tuple(labels.values()), []), paper))
    return cells


def agreement(cells: Sequence[Measured]) -> Agreement | None:
    """How near these cells come to what was published; None if none of them has a difference.

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
    """The place of each label on its axis, as the recipe lists them; labels of cells beside the grid come last.

    >>> from cyber0.study.recipe import get_recipe
    >>> rank(get_recipe("table1"), "attack")
    {'ALIE': 0, 'ALIE-NNM': 1, 'FOE': 2, 'FOE-NNM': 3, 'SF': 4, 'LF': 5, 'none': 6}
    """
    listed = dict.fromkeys([*map(str, recipe.axes[axis]), *(cell.labels[axis] for cell in recipe.also)])
    return {label: place for place, label in enumerate(listed)}


def runs(results: Results) -> dict[Key, list[Run]]:
    """The runs of each cell that has any, by its labels in the order of the axes.

    >>> import pandas
    >>> from cyber0.study.recipe import Recipe
    >>> runs(Results(Recipe.of({"axes": {"rule": ["mean"]}}), pandas.DataFrame()))
    {}
    """
    frame: Any = results.frame
    if not len(frame):
        return {}
    found: dict[Key, list[Run]] = {}
    for (*labels, seed), rows in frame.groupby([*results.recipe.axes, "seed"], sort=True, observed=True):
        found.setdefault(tuple(map(str, labels)), []).append(_run(int(seed), rows.sort_values("round")))
    return found


def _run(seed: int, rows: Any) -> Run:
    rounds, accuracy, up, down = (
        rows[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("round", "accuracy", "bytes_up_per_client", "bytes_down_per_client")
    )
    return Run(seed, rounds, 100 * accuracy, up, down)


def _measured(labels: Labels, beside: bool, played: list[Run], paper: Sample | None) -> Measured:
    best, final = (Sample.of(getattr(run, name) for run in played) for name in ("best", "final"))
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
    )


def _welch(ours: float, paper: float, ours_free: int, paper_free: int) -> float:
    """Half the interval, from the variance of each mean and its degrees of freedom."""
    both = ours + paper
    if not both:
        return 0.0
    # of shares: squares of small variances would vanish
    free = 1 / ((ours / both) ** 2 / ours_free + (paper / both) ** 2 / paper_free)
    return _quantile(free) * math.sqrt(both)


def _quantile(free: float) -> float:
    """The two-sided quantile of Student's t."""
    return float(require("scipy.special", extra="study").stdtrit(free, (1 + CONFIDENCE) / 2))
