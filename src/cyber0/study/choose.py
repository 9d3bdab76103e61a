"""Hyper-parameters chosen on validation samples: a study plays every candidate, and reports the chosen ones.

A choice is made for each set of labels on the axes `choose_for`, by default all but `attack`: who defends does not know
the attack. A candidate is as good as its worst cell, and a cell as its runs' best accuracies on validation samples, on
average over seeds. Test samples have no part in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from cyber0.errors import InvalidConfig
from cyber0.study.recipe import Cell, Labels, Recipe
from cyber0.study.results import Results

__all__ = ["Candidate", "Choice", "choose", "played"]

VALIDATION = 0.1  # the share that is held out if the recipe does not say how much


@dataclass(frozen=True, slots=True)
class Candidate:
    """Values of the keys to choose, and the mean accuracy on validation samples of the worst cell, in percent."""

    values: Labels
    score: float


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for the cells with these labels, of which candidates; the chosen one is first."""

    labels: Labels
    candidates: list[Candidate]

    @property
    def text(self) -> str:
        """Return the choice in a line.

        >>> Choice({"rule": "cwtm"}, [Candidate({"lr": "0.1"}, 81.0), Candidate({"lr": "0.01"}, 74.5)]).text
        'cwtm: lr = 0.1 (81.0 % on validation samples; lr = 0.01: 74.5 %)'
        """
        said = [(", ".join(f"{key} = {value}" for key, value in each.values.items()), each) for each in self.candidates]
        first, *rest = said
        others = "".join(f"; {text}: {each.score:.1f} %" for text, each in rest)
        where = f"{', '.join(self.labels.values())}: " if self.labels else ""
        return f"{where}{first[0]} ({first[1].score:.1f} % on validation samples{others})"


def played(recipe: Recipe) -> Recipe:
    """Return the study that is played: with an axis for each key to choose, and validation samples held out.

    >>> recipe = Recipe.of({"axes": {"rule": ["mean"]}, "choose": {"lr": [0.01, 0.1]}})
    >>> [(cell.name, cell.config(seed=0).validation) for cell in played(recipe).cells()]
    [('mean, 0.01', 0.1), ('mean, 0.1', 0.1)]
    """
    if not recipe.choose:
        return recipe
    keys = recipe.model_dump(exclude_defaults=True)
    for name in ("choose", "choose_for", "table", "figures", "paper", "claims"):
        keys.pop(name, None)
    keys["base"] = {"validation": VALIDATION, **recipe.base}
    if not keys["base"]["validation"]:
        raise InvalidConfig("base.validation = 0: choose needs samples to choose by; give a share, such as 0.1")
    keys["axes"] = {**recipe.axes, **recipe.choose}
    points = [dict(zip(recipe.choose, values, strict=True)) for values in product(*recipe.choose.values())]
    keys["also"] = [
        Cell(labels=cell.labels | _labels(point), values=cell.values | point)
        for cell in recipe.also
        for point in points
    ]
    return Recipe.of(keys)


def choose(results: Results) -> Results:
    """Return the results with the runs of the chosen candidates alone, and with the choices."""
    recipe, frame = results.recipe, results.frame
    if not recipe.choose or not len(frame):
        return results
    axes = recipe.choose_for if recipe.choose_for is not None else [axis for axis in recipe.axes if axis != "attack"]
    groups: dict[tuple[str, ...], list[Labels]] = {}
    for cell in recipe.cells():
        groups.setdefault(tuple(cell.labels[axis] for axis in axes), []).append(cell.labels)
    choices = [_choice(results, dict(zip(axes, key, strict=True)), cells) for key, cells in groups.items()]
    kept = [_rows(frame, choice.labels | choice.candidates[0].values) for choice in choices if choice is not None]
    chosen = frame[sum(kept[1:], start=kept[0]) > 0] if kept else frame[:0]
    return replace(results, frame=chosen, choices=[choice for choice in choices if choice is not None])


def _choice(results: Results, group: Labels, cells: Sequence[Labels]) -> Choice | None:
    """Return the candidates of a group, the best first; of equal ones, the first listed. None if there are no runs."""
    scored: list[Candidate] = []
    every = [
        _labels(dict(zip(results.recipe.choose, at, strict=True))) for at in product(*results.recipe.choose.values())
    ]
    for values in every:
        scores = [_score(results.frame, cell | values) for cell in cells]
        known = [score for score in scores if score is not None]
        if len(known) == len(cells) or (known and len(every) == 1):
            scored.append(Candidate(values, min(known)))
    return Choice(group, sorted(scored, key=lambda each: -each.score)) if scored else None


def _score(frame: Any, labels: Labels) -> float | None:
    """Return the best accuracy on validation samples of a cell's runs, in percent, on average over seeds."""
    rows = frame[_rows(frame, labels) > 0]
    if not len(rows):
        return None
    return 100 * float(rows.groupby("seed")["validation_accuracy"].max().mean())


def _rows(frame: Any, labels: Labels) -> Any:
    """Return 1 for each row of a table that has these labels, and 0 for the others."""
    kept = frame["round"] * 0 + 1
    for axis, label in labels.items():
        kept = kept * (frame[axis].astype(str) == label)
    return kept


def _labels(point: dict[str, Any]) -> Labels:
    return {key: str(value) for key, value in point.items()}
