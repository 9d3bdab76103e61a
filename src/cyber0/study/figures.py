"""The figures of a study: accuracy over rounds or over bytes, as the mean over seeds with the s.d. as a band."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.extras import require
from cyber0.simulation.plots import COLOURS, FORMATS, INK, PAPER, RULE, STYLE
from cyber0.study.recipe import Cell, Figure, Labels, Recipe
from cyber0.study.results import Results
from cyber0.study.statistics import Run, rank, runs

__all__ = ["COLOURS", "FORMATS", "INK", "PAPER", "RULE", "Curve", "chosen", "curves", "draw"]

STROKES = ("solid", (0, (4.5, 1.8)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))
MOST_LINES = 12  # in a figure that the recipe does not ask for

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a figure: mean and s.d. in percent at each evaluation, and the bytes each client has sent by then.

    `note` says how many cells a worst case is over, if some have no runs.
    """

    labels: tuple[str, ...]
    rounds: Floats
    bytes_up: Floats
    mean: Floats
    sd: Floats
    note: str = ""

    @property
    def band(self) -> tuple[Floats, Floats]:
        """Return the edges of the band of one s.d., which is from 0 to 100 as accuracies are."""
        return np.maximum(self.mean - self.sd, 0.0), np.minimum(self.mean + self.sd, 100.0)

    @property
    def name(self) -> str:
        """Return the labels joined by commas, and the note."""
        return ", ".join(self.labels) + (f" ({self.note})" if self.note else "")


def chosen(recipe: Recipe) -> list[Figure]:
    """Return the recipe's figures; if it has none, accuracy over rounds, unless there would be too many lines.

    >>> [figure.line for figure in chosen(Recipe.of({"axes": {"rule": ["mean", "krum"]}}))]
    [['rule']]
    """
    if recipe.figures:
        return list(recipe.figures)
    axes, title = list(recipe.axes), "Accuracy over rounds"
    if len(recipe.cells()) <= MOST_LINES:
        return [Figure(name="accuracy", title=title, line=axes)]
    lines = {tuple(cell.labels[axis] for axis in axes[:-1]) for cell in recipe.cells()}
    if len(lines) <= MOST_LINES and len(rank(recipe, axes[-1])) <= MOST_LINES:
        return [Figure(name="accuracy", title=title, line=axes[:-1], panel=axes[-1])]
    return []


def curves(results: Results, figure: Figure) -> dict[str, list[Curve]]:
    """Return the lines of each panel by its label ('' without panels), without cells that have no runs."""
    recipe, played = results.recipe, runs(results)
    kept = [cell for cell in recipe.cells() if _fits(cell.labels, figure)]
    if figure.worst:  # where nobody lies is no worst case
        kept = [cell for cell in kept if cell.attacked] or kept
    axes = _line_axes(recipe, figure, kept)
    panels: dict[str, dict[tuple[str, ...], list[list[Run]]]] = {label: {} for label in _panels(recipe, figure, kept)}
    for cell in kept:
        lines = panels[cell.labels[figure.panel] if figure.panel else ""]
        found = played.get(tuple(cell.labels[axis] for axis in recipe.axes), [])
        lines.setdefault(tuple(cell.labels[axis] for axis in axes), []).append(found)
    return {
        panel: [_curve(labels, cells, figure.worst) for labels, cells in lines.items() if any(cells)]
        for panel, lines in panels.items()
    }


def draw(results: Results, figure: Figure, kinds: Sequence[str] = FORMATS) -> dict[str, bytes]:
    """Return the figure as the content of a file in each format; the same results give the same bytes.

    >>> import pandas
    >>> empty = Results(Recipe.of({"axes": {"rule": ["mean"]}}), pandas.DataFrame())
    >>> sorted(draw(empty, chosen(empty.recipe)[0]))
    ['pdf', 'png', 'svg']
    """
    matplotlib = require("matplotlib", extra="study")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignores the user's own style
        matplotlib.rcParams.update(STYLE)
        canvas = _draw_canvas(results.recipe, figure, curves(results, figure))
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once, the same in every format
        return {kind: _save(canvas, kind) for kind in kinds}


def _fits(labels: Labels, figure: Figure) -> bool:
    return all(labels[axis] in ([label] if isinstance(label, str) else label) for axis, label in figure.where.items())


def _line_axes(recipe: Recipe, figure: Figure, kept: Sequence[Cell]) -> list[str]:
    """Return the axes that name a line: those asked for, and every other on which the cells differ."""
    used = (*figure.line, figure.panel, figure.worst)
    rest = [axis for axis in recipe.axes if axis not in used and len({cell.labels[axis] for cell in kept}) > 1]
    return [*figure.line, *rest]


def _panels(recipe: Recipe, figure: Figure, kept: Sequence[Cell]) -> list[str]:
    if figure.panel is None:
        return [""]
    shown = {cell.labels[figure.panel] for cell in kept}
    return [label for label in rank(recipe, figure.panel) if label in shown]


def _curve(labels: tuple[str, ...], cells: Sequence[Sequence[Run]], worst: str | None) -> Curve:
    """Return the line of one cell; of several, at each evaluation the least mean and its s.d."""
    known = [_over_seeds(labels, played) for played in cells if played]
    rounds = _common([curve.rounds for curve in known])
    at = [np.searchsorted(curve.rounds, rounds) for curve in known]
    means, sds, sent = (
        np.stack([getattr(curve, name)[where] for curve, where in zip(known, at, strict=True)])
        for name in ("mean", "sd", "bytes_up")
    )
    least, each = np.argmin(means, axis=0), np.arange(len(rounds))
    note = f"{len(known)} of {len(cells)} {worst}s" if worst and len(known) < len(cells) else ""
    return Curve(labels, rounds, sent.mean(axis=0), means[least, each], sds[least, each], note)


def _over_seeds(labels: tuple[str, ...], played: Sequence[Run]) -> Curve:
    rounds = _common([run.rounds for run in played])
    at = [np.searchsorted(run.rounds, rounds) for run in played]
    accuracy = np.stack([run.accuracy[where] for run, where in zip(played, at, strict=True)])
    sent = np.stack([run.bytes_up[where] for run, where in zip(played, at, strict=True)])
    sd = accuracy.std(axis=0, ddof=1) if len(played) > 1 else np.zeros(len(rounds))
    return Curve(labels, rounds, sent.mean(axis=0), accuracy.mean(axis=0), sd)


def _common(every: Sequence[Floats]) -> Floats:
    """Return the rounds at which all were evaluated: elsewhere a mean over fewer would jump."""
    shared = every[0]
    for rounds in every[1:]:
        shared = np.intersect1d(shared, rounds)
    return shared


def _draw_canvas(recipe: Recipe, figure: Figure, panels: dict[str, list[Curve]]) -> Any:
    down, across = _layout(len(panels))
    size = (7.6, 4.2) if len(panels) == 1 else (3.1 * across + 0.4, 2.5 * down + 1.0)
    canvas = require("matplotlib.figure", extra="study").Figure(figsize=size, layout="constrained", facecolor=PAPER)
    axes = canvas.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    styles = _styles(recipe, figure, panels)
    for place, (label, lines) in zip(axes, panels.items(), strict=False):
        place.set_title(_escape(label), fontsize=9.5, fontweight="bold", loc="left")
        _draw_panel(place, figure, lines, styles)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    _frame(canvas, axes[: len(panels)], figure, panels, across)
    _legend(canvas, styles, panels)
    canvas.suptitle(_escape(figure.title), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
    return canvas


def _layout(panels: int) -> tuple[int, int]:
    """Return the number of rows and of columns of panels."""
    across = panels if panels <= 3 else 2 if panels == 4 else 3
    return -(-panels // across), across


def _styles(recipe: Recipe, figure: Figure, panels: dict[str, list[Curve]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the style of each line, the same in every figure: the stroke by its first axis, the colour by others."""
    axes = _line_axes(recipe, figure, [cell for cell in recipe.cells() if _fits(cell.labels, figure)])
    split = 1 if len(axes) > 1 else 0
    strokes, colours = _places(recipe, axes[:split]), _places(recipe, axes[split:])
    drawn = {curve.labels for lines in panels.values() for curve in lines}
    places = {labels: (strokes[labels[:split]], colours[labels[split:]]) for labels in drawn}
    return {
        labels: {"color": COLOURS[colour % len(COLOURS)], "linestyle": STROKES[stroke % len(STROKES)]}
        for labels, (stroke, colour) in sorted(places.items(), key=lambda item: item[1])
    }


def _places(recipe: Recipe, axes: Sequence[str]) -> dict[tuple[str, ...], int]:
    """Return a number for each combination of labels on these axes, in the recipe's order."""
    ranks = {axis: rank(recipe, axis) for axis in axes}
    found = {tuple(cell.labels[axis] for axis in axes) for cell in recipe.cells()}
    ordered = sorted(found, key=lambda labels: [ranks[axis][label] for axis, label in zip(axes, labels, strict=True)])
    return {labels: place for place, labels in enumerate(ordered)}


def _draw_panel(place: Any, figure: Figure, lines: Sequence[Curve], styles: dict[tuple[str, ...], Any]) -> None:
    if not lines:
        place.text(0.5, 0.5, "no runs yet", transform=place.transAxes, ha="center", va="center")
    for curve in lines:
        style = styles[curve.labels]
        seen = curve.bytes_up > 0 if figure.x == "bytes" else slice(None)  # a log axis cannot show 0 bytes
        x = (curve.bytes_up if figure.x == "bytes" else curve.rounds)[seen]
        low, high = (edge[seen] for edge in curve.band)
        place.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)
        place.plot(x, curve.mean[seen], linewidth=1.6, solid_capstyle="round", **style)


def _frame(canvas: Any, axes: Sequence[Any], figure: Figure, panels: dict[str, list[Curve]], across: int) -> None:
    """Set what the panels share: limits, labels of the axes, and the grid."""
    first = axes[0]
    if figure.x == "bytes":
        _set_log_axis(first, panels)
    first.set_ylim(*_limits(panels))
    for at, place in enumerate(axes):
        place.set_facecolor("none")
        place.grid(True, color=RULE, linewidth=0.7)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
        place.tick_params(length=3, width=0.6, labelbottom=at + across >= len(axes))
    over = {"round": "round", "bytes": "bytes sent by each client so far (up, float32)"}[figure.x]
    for place in axes[-across:]:
        place.set_xlabel(over, fontsize=9 if len(axes) == 1 else 8)
    has_sd = any((curve.sd > 0).any() for lines in panels.values() for curve in lines)  # not with a single seed
    note = ", mean ± s.d. of the seeds" if has_sd else ""
    canvas.supylabel(f"test accuracy (%){note}", fontsize=9, color=INK)


def _set_log_axis(first: Any, panels: dict[str, list[Curve]]) -> None:
    """Make a log axis with labels at 1, or at 1, 2 and 5 of each decade if there are few decades."""
    ticker = require("matplotlib.ticker", extra="study")
    sent = [curve.bytes_up[curve.bytes_up > 0] for lines in panels.values() for curve in lines]
    known = np.concatenate(sent) if sent else np.empty(0)
    few = len(known) == 0 or known.max() < 100 * known.min()
    first.set_xscale("log")
    first.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few else (1,)))
    first.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    first.xaxis.set_minor_formatter(ticker.NullFormatter())


def _limits(panels: dict[str, list[Curve]]) -> tuple[float, float]:
    """Return the limits of the accuracy axis: multiples of ten around all means; bands may be cut off."""
    means = [curve.mean for lines in panels.values() for curve in lines]
    finite = np.concatenate(means)[np.isfinite(np.concatenate(means))] if means else np.empty(0)
    if not len(finite):
        return 0.0, 100.0
    low, high = np.floor(finite.min() / 10 - 0.2) * 10, np.ceil(finite.max() / 10 + 0.2) * 10
    return float(max(low, 0)), float(min(high, 100))


def _legend(canvas: Any, styles: dict[tuple[str, ...], Any], panels: dict[str, list[Curve]]) -> None:
    """Add the legend, in the recipe's order: beside a single panel, else below."""
    lines = require("matplotlib.lines", extra="study")
    drawn = {curve.labels: curve for each in panels.values() for curve in each}
    single = len(panels) == 1
    handles = [
        lines.Line2D([], [], linewidth=2, label=_escape(drawn[labels].name), **style)
        for labels, style in styles.items()
    ]
    if handles:
        below = {"loc": "outside lower center", "ncols": _columns([drawn[labels].name for labels in styles])}
        place = {"loc": "outside right center"} if single else below
        canvas.legend(handles=handles, frameon=False, fontsize=8.5, handlelength=2.6, **place)


def _columns(names: Sequence[str]) -> int:
    """Return the columns of a legend: four, or for short names up to five, in rows of about equal length."""
    if max(map(len, names)) > 8:
        return 4
    rows = math.ceil(len(names) / 5)
    return math.ceil(len(names) / rows)


def _escape(text: str) -> str:
    """Return a text with its dollar signs escaped, since they would start a formula."""
    return text.replace("$", r"\$")


def _save(canvas: Any, kind: str) -> bytes:
    content = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    canvas.savefig(content, format=kind, dpi=160, metadata=metadata)
    return content.getvalue()
