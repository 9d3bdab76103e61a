"""Write the report of a study to a folder: tables, figures, and one page of HTML.

results.csv                    a line for each run and evaluation
table.md, table.csv, table.tex the table, ours beside the paper's
figures/NAME.svg, .pdf, .png   the curves
claims.json                    each claim, tested on our numbers and on the paper's
summary.json                   the same, and every cell's numbers
report.html                    all of it on one page, without links to other files
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.errors import InvalidData
from cyber0.extras import require
from cyber0.files import write_atomically
from cyber0.study import figures
from cyber0.study.claims import Verdict, judge
from cyber0.study.recipe import Figure
from cyber0.study.results import Results
from cyber0.study.statistics import CONFIDENCE, PAPER_SEEDS, Agreement, Measured, agreement, measure
from cyber0.study.tables import (
    MINUS,
    Grid,
    accuracy,
    grid,
    mean_and_sd,
    signed,
    to_csv,
    to_latex,
    to_markdown,
    worst_of,
)

__all__ = ["render", "write"]

SHADES = (1, 2, 3)  # differences, in combined s.d., from which on a cell has the next colour

DARK = (  # the figures' colours on a dark page: the same hues, lighter
    *("#3fa7e6", "#f08341", "#2fc79b", "#e3a0c6", "#f2b838", "#a6dbff", "#a5abb5"),
    *("#d4719f", "#74d3c2", "#cfcf6a", "#d486c8", "#c98a75"),
)


@dataclass(frozen=True, slots=True)
class _Report:
    """The contents of the page."""

    results: Results
    cells: list[Measured]
    grid: Grid
    verdicts: list[Verdict]
    drawn: list[tuple[Figure, dict[str, bytes]]]

    @property
    def agreement(self) -> Agreement | None:
        return agreement([cell for cell in self.cells if not cell.beside])

    @property
    def runs(self) -> int:
        return sum(cell.best.n for cell in self.cells if cell.best is not None)

    @property
    def incomplete(self) -> list[tuple[str, int]]:
        """Return the cells with fewer runs than asked for, and how many each has."""
        counts = [(cell.name, cell.best.n if cell.best else 0) for cell in self.cells]
        return [(name, count) for name, count in counts if count < self.results.recipe.seeds]


def write(results: Results, out: Path) -> None:
    """Write tables, figures and the page to the folder `out`, each file atomically; the same results, the same bytes.

    >>> import pandas, tempfile
    >>> from cyber0.study.recipe import Recipe
    >>> out = Path(tempfile.mkdtemp())
    >>> write(Results(Recipe.of({"axes": {"rule": ["krum"]}}), pandas.DataFrame()), out)
    >>> sorted(path.name for path in out.iterdir())
    ['claims.json', 'figures', 'report.html', 'results.csv', 'summary.json', 'table.csv', 'table.md', 'table.tex']
    """
    contents = _contents(_collect(results))
    try:
        for name, content in contents.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, content)
    except OSError as error:
        raise InvalidData(f"{out}: a report cannot be written there: {error.strerror or error}") from error


def render(results: Results) -> str:
    """Return the page of HTML.

    >>> import pandas
    >>> from cyber0.study.recipe import Recipe
    >>> page = render(Results(Recipe.of({"title": "Krum < CWTM", "axes": {"rule": ["krum"]}}), pandas.DataFrame()))
    >>> "<title>Krum &lt; CWTM</title>" in page
    True
    """
    return _page(_collect(results, kinds=("svg",)))


def _collect(results: Results, kinds: Sequence[str] = figures.FORMATS) -> _Report:
    cells = measure(results)
    drawn = [(figure, figures.draw(results, figure, kinds)) for figure in figures.chosen(results.recipe)]
    verdicts = [] if "embedded" in str(results.about.get("data", "")) else judge(results.recipe, cells)
    return _Report(results, cells, grid(results.recipe, cells), verdicts, drawn)


def _contents(found: _Report) -> dict[str, str | bytes]:
    """Return the content of every file, by its name."""
    claims = [_claim(verdict) for verdict in found.verdicts]
    texts = {
        "results.csv": _rows(found.results),
        "table.md": to_markdown(found.grid),
        "table.csv": to_csv(found.results.recipe, found.cells),
        "table.tex": to_latex(found.grid),
        "claims.json": _json(claims),
        "summary.json": _json(_summary(found) | {"claims": claims}),
        "report.html": _page(found),
    }
    pictures = {
        f"figures/{figure.name}.{kind}": content for figure, kinds in found.drawn for kind, content in kinds.items()
    }
    return {**pictures, **texts}


def _rows(results: Results) -> str:
    """Return the frame as CSV, in the order of cells, seeds and rounds."""
    frame: Any = results.frame
    if not len(frame):
        return frame.to_csv(index=False, lineterminator="\n")
    axes = list(results.recipe.axes)
    places = {tuple(cell.labels[axis] for axis in axes): at for at, cell in enumerate(results.recipe.cells())}
    at = [places.get(key, len(places)) for key in zip(*(frame[axis].astype(str) for axis in axes), strict=True)]
    return frame.iloc[np.lexsort((frame["round"], frame["seed"], at))].to_csv(index=False, lineterminator="\n")


def _summary(found: _Report) -> dict[str, Any]:
    recipe, results = found.results.recipe, found.results
    beside = agreement([cell for cell in found.cells if cell.beside])
    return {
        "title": recipe.title,
        "seeds": recipe.seeds,
        "first_seed": recipe.first_seed,
        "runs": found.runs,
        "confidence": CONFIDENCE,
        "paper_seeds": PAPER_SEEDS,
        "agreement": found.agreement and asdict(found.agreement),
        "agreement_beside": beside and asdict(beside),
        "cells": [_cell(cell) for cell in found.cells],
        "validated": results.validated,
        "choices": [asdict(choice) for choice in results.choices],
        "failures": [asdict(failure) for failure in results.failures],
        "about": results.about,
    }


def _cell(cell: Measured) -> dict[str, Any]:
    """Return the numbers of a cell; how often its attack succeeded, if it has a goal, and how many runs failed."""
    numbers = asdict(cell) | {"interval": cell.best and cell.best.interval}
    return {key: value for key, value in numbers.items() if key not in ("success", "failed") or value}


def _claim(verdict: Verdict) -> dict[str, Any]:
    sides = {"ours": verdict.ours, "paper": verdict.paper}
    return {"claim": verdict.text} | {
        side: {
            "holds": outcome.holds,
            "outcome": outcome.word,
            "margin": outcome.margin,
            "interval": outcome.interval,
            "doubtful": outcome.doubtful,
            "numbers": outcome.sentence,
        }
        for side, outcome in sides.items()
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _page(found: _Report) -> str:
    jinja = require("jinja2", extra="study")
    environment = jinja.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja.StrictUndefined
    )
    environment.globals |= {
        "accuracy": accuracy,
        "mean_and_sd": mean_and_sd,
        "signed": signed,
        "shade": _shade,
        "level": _level,
        "describe": _describe,
        "worst_of": worst_of,
    }
    environment.globals |= {"span": _span, "paragraphs": _paragraphs, "number": _number}
    template = environment.from_string((files("cyber0.study") / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        found=found,
        recipe=found.results.recipe,
        held=sum(verdict.ours.holds is True for verdict in found.verdicts),
        held_there=sum(verdict.paper.holds is True for verdict in found.verdicts),
        pictures=[(figure, _inline(kinds["svg"].decode(), figure.name)) for figure, kinds in found.drawn],
        compared=any(cell.paper for cell in found.cells),
        aimed=any(cell.success for cell in found.cells),
        scale=_scale(found.cells),
        light=figures.COLOURS,
        dark=DARK,
        paper_seeds=PAPER_SEEDS,
        confidence=f"{CONFIDENCE:.0%}",
    )


def _inline(svg: str, name: str) -> str:
    """Return a picture as a part of the page, with the page's colours and with ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'(\bid="|url\(#|\bhref="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1), count=1
    )
    colours = {figures.INK: "currentColor", figures.RULE: "var(--rule)", figures.PAPER: "none"}
    colours |= {colour: f"var(--line-{at})" for at, colour in enumerate(figures.COLOURS)}
    return re.sub("|".join(colours), lambda match: colours[match[0]], svg)


def _shade(cell: Measured) -> str:
    """Return the CSS class of a cell: how far it is from the paper, and on which side."""
    if cell.difference is None:
        return "alone"
    if cell.difference.z is None:
        return "unknown"
    steps = sum(cell.difference.z > edge for edge in SHADES)
    side = "above" if cell.difference.value > 0 else "below"
    return f"{side}-{steps}" if steps else "near"


def _scale(cells: Sequence[Measured]) -> tuple[float, float] | None:
    """Return from where to where the colours of a table go that has no published numbers: tens around all means."""
    means = [cell.best.mean for cell in cells if cell.best is not None]
    if not means or any(cell.paper for cell in cells):
        return None
    return float(np.floor(min(means) / 10) * 10), float(np.ceil(max(means) / 10) * 10) or 10.0


def _level(cell: Measured, scale: tuple[float, float] | None) -> str:
    """Return how full the colour of a cell is, in percent, as a style; '' for the colours of a comparison."""
    if scale is None or cell.best is None:
        return ""
    low, high = scale
    return f"--level: {100 * (cell.best.mean - low) / max(high - low, 1.0):.0f}%"


def _describe(cell: Measured) -> str:
    """Return the numbers of a cell in a sentence."""
    parts = [f"{cell.name}: best {accuracy(cell)}" + (f" ({_seeds(cell.best.n)})" if cell.best else "")]
    if cell.final is not None:
        parts.append(f"last {mean_and_sd(cell.final)}")
    if cell.success is not None:
        parts.append(f"attack success {mean_and_sd(cell.success)}")
    if cell.paper is not None:
        parts.append(f"paper {mean_and_sd(cell.paper)}")
    if (far := cell.difference) is not None:
        parts.append(f"difference {signed(far.value)}")
        if far.low is not None and far.high is not None:
            parts.append(f"95% interval {_span((far.low, far.high), signs=True)}")
        if far.z is not None:
            parts.append(f"{far.z:.1f} combined s.d.")
    return ", ".join(parts)


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def _span(interval: tuple[float | None, float | None] | None, signs: bool = False) -> str:
    """Return an interval as text; '' if it is None or an end is missing."""
    ends = [end for end in interval or () if end is not None]
    text = [signed(end) if signs else f"{end:.1f}".replace("-", MINUS) for end in ends]
    return " to ".join(text) if len(text) == 2 else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.{0 if value >= 1000 else 1}f}"


def _paragraphs(text: str) -> list[Sequence[str]]:
    """Return the paragraphs of a note, each split at its backticks: every second part is code."""
    return [part.split("`") for part in re.split(r"\n\s*\n", text.strip()) if part]
