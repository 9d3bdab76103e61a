"""The table of a study, our numbers beside the paper's, in Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cyber0.study.recipe import Recipe, Table
from cyber0.study.statistics import Measured, Sample, rank

__all__ = ["Grid", "accuracy", "grid", "mean_and_sd", "signed", "to_csv", "to_latex", "to_markdown", "worst_of"]

Row = tuple[str, ...]
MINUS = "\N{MINUS SIGN}"
NO_CELL, NOT_RUN, FAILED = "\N{EN DASH}", "not run", "failed"
COLUMNS = ("mean", "sd", "n", "mean_low", "mean_high", "final_mean", "final_sd", "paper_mean", "paper_sd")
COMPARED = ("difference", "low", "high", "z", "bytes_up_per_client", "bytes_down_per_client")
SUCCESS = ("attack_success_mean", "attack_success_sd")  # of studies with an attack that has a goal
ESCAPES = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    NO_CELL: "--",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells by row and column; `worst` has the cell of the least mean of each row that has several with liars."""

    axes: list[str]
    rows: list[Row]
    columns: list[str]
    cells: dict[tuple[Row, str], Measured]
    worst: dict[Row, Measured]
    beside: list[Measured]
    references: Mapping[str, float] = field(default_factory=dict[str, float])


def grid(recipe: Recipe, cells: Sequence[Measured]) -> Grid:
    """Return the cells in the rows and columns of the recipe's table; without one, in a row for each cell.

    >>> recipe = Recipe.of({"axes": {"rule": ["krum", "cwtm"], "attack": ["sf", "lf"]},
    ...                     "table": {"rows": ["rule"], "columns": ["attack"]}})
    >>> shown = grid(recipe, [Measured(cell.labels, False, Sample(50.0, 1.0, 5)) for cell in recipe.cells()])
    >>> shown.rows, shown.columns, len(shown.cells)
    ([('krum',), ('cwtm',)], ['sf', 'lf'], 4)
    """
    table = recipe.table or Table(rows=list(recipe.axes), columns=[])
    rest = [axis for axis in recipe.axes if axis not in (*table.rows, *table.columns)]
    down = [*table.rows, *rest]  # no two cells in one place
    placed = {(_labels(cell, down), ", ".join(_labels(cell, table.columns))): cell for cell in cells if not cell.beside}
    used = {column for _, column in placed}
    return Grid(
        axes=down,
        rows=list(dict.fromkeys(row for row, _ in placed)),
        columns=[name for name in _names(recipe, table.columns) if name in used],
        cells=placed,
        worst=_worst(_attacked(recipe, placed)),
        beside=[cell for cell in cells if cell.beside],
        references=recipe.references,
    )


def mean_and_sd(sample: Sample | None) -> str:
    """Return a mean and its s.d., in percent, as text.

    >>> mean_and_sd(Sample(59.7, 9.04, 5)), mean_and_sd(Sample(59.7, None, 1)), mean_and_sd(None)
    ('59.7 ± 9.0', '59.7', 'not run')
    """
    if sample is None:
        return NOT_RUN
    return f"{sample.mean:.1f}" if sample.sd is None else f"{sample.mean:.1f} ± {sample.sd:.1f}"


def accuracy(cell: Measured) -> str:
    """Return the accuracy of a cell as text, or why there is none.

    >>> accuracy(Measured({}, False, Sample(59.7, 9.04, 5))), accuracy(Measured({}, False, failed=2))
    ('59.7 ± 9.0', 'failed')
    """
    return FAILED if cell.best is None and cell.failed else mean_and_sd(cell.best)


def signed(value: float) -> str:
    """Return a difference in points as text, with a sign.

    >>> signed(-10.24), signed(0.5), signed(-0.04)
    ('−10.2', '+0.5', '0.0')
    """
    text = f"{value:+.1f}".replace("-", MINUS)
    return "0.0" if text[1:] == "0.0" else text


def worst_of(shown: Grid, row: Row) -> str:
    """Return the worst case of a row and its column as text, with `so far` if a cell of the row has no runs.

    >>> cells = {(("krum",), "SF"): Measured({"attack": "SF"}, False, Sample(44.1, None, 1))}
    >>> worst_of(Grid(["rule"], [("krum",)], ["SF"], cells, {("krum",): cells[("krum",), "SF"]}, []), ("krum",))
    '44.1 (SF)'
    """
    worst = shown.worst.get(row)
    if worst is None or worst.best is None:
        return NO_CELL
    column = next(place[1] for place, cell in shown.cells.items() if cell is worst)
    incomplete = any(place[0] == row and cell.best is None for place, cell in shown.cells.items())
    return f"{worst.best.mean:.1f} ({column}{', so far' if incomplete else ''})"


def to_markdown(shown: Grid) -> str:
    """Return the table in Markdown: in each cell ours, the paper's and the difference; the worst of a row is bold.

    >>> cell = Measured({"rule": "krum"}, False, Sample(50.0, 1.5, 5), paper=Sample(52.0, 1.0, 5))
    >>> print(to_markdown(Grid(["rule"], [("krum",)], [""], {(("krum",), ""): cell}, {}, [])))
    | rule | best accuracy (%) |
    |---|---|
    | krum | 50.0 ± 1.5 (paper 52.0 ± 1.0) |
    <BLANKLINE>
    """
    lines = [_header(shown)]
    for row in shown.rows:
        places = [_in_markdown(shown, row, column) for column in shown.columns]
        lines.append([*row, *places, *([worst_of(shown, row)] if shown.worst else [])])
    text = [f"| {' | '.join(map(_pipe, line))} |" for line in lines]
    text.insert(1, "|" + "---|" * len(lines[0]))
    if shown.beside:
        text += ["", "Beside the grid:", "", *(f"- {cell.name}: {_entry(cell, bold=False)}" for cell in shown.beside)]
    if shown.references:
        text += ["", "To compare with:", "", *(f"- {name}: {value:.1f}" for name, value in shown.references.items())]
    return "\n".join(text) + "\n"


def to_latex(shown: Grid) -> str:
    r"""Return the table in LaTeX with booktabs, to `\input`: two lines for each row, ours and below it the paper's.

    >>> print(to_latex(Grid(["rule"], [("krum",)], ["a_b"], {}, {}, [])).splitlines()[3])
    rule &  & a\_b \\
    """
    down, titles = len(shown.axes), [_tex(title) for title in _header(shown)]
    width = len(titles) + 1
    lines = [rf"\begin{{tabular}}{{{'l' * (down + 1)}{'r' * (width - down - 1)}}}", r"\toprule"]
    lines += [_tex_line([*titles[:down], "", *titles[down:]]), r"\midrule"]
    for row in shown.rows:
        lines += _in_latex(shown, row)
    below = [f"{cell.name}: {_entry(cell, bold=False)}" for cell in shown.beside]
    below += [f"{name}: {value:.1f}" for name, value in shown.references.items()]
    lines += [r"\midrule"] if below else []
    lines += [rf"\multicolumn{{{width}}}{{l}}{{{_tex(text)}}} \\" for text in below]
    return "\n".join([r"% needs \usepackage{booktabs}", *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(recipe: Recipe, cells: Sequence[Measured]) -> str:
    """Return a line of CSV for each cell, with all digits; numbers that are not known are empty.

    >>> recipe = Recipe.of({"axes": {"rule": ["krum"]}})
    >>> print(to_csv(recipe, [Measured({"rule": "krum"}, False, Sample(50.0, None, 1))]).splitlines()[1])
    krum,False,False,50.0,,1,,,,,,,,,,,,
    """
    worst = list(grid(recipe, cells).worst.values())
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    aimed = any(cell.success for cell in cells)
    rows.writerow([*recipe.axes, "beside", "worst", *COLUMNS, *COMPARED, *(SUCCESS if aimed else ())])
    for cell in cells:
        success = [cell.success and cell.success.mean, cell.success and cell.success.sd] if aimed else []
        rows.writerow([*_labels(cell, recipe.axes), cell.beside, cell in worst, *_numbers(cell), *success])
    return file.getvalue()


def _labels(cell: Measured, axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(cell.labels[axis] for axis in axes)


def _names(recipe: Recipe, axes: Sequence[str]) -> list[str]:
    """Return the names of the columns in the order of the axes' labels, since the first rows may lack some."""
    found = [cell.labels for cell in recipe.cells()]
    ranks = {axis: rank(recipe, axis) for axis in axes}
    found.sort(key=lambda labels: [ranks[axis][labels[axis]] for axis in axes])
    return list(dict.fromkeys(", ".join(labels[axis] for axis in axes) for labels in found))


def _attacked(recipe: Recipe, placed: Mapping[tuple[Row, str], Measured]) -> dict[tuple[Row, str], Measured]:
    """Return the cells in which somebody lies."""
    liars = [cell.labels for cell in recipe.cells() if cell.attacked]
    return {place: cell for place, cell in placed.items() if cell.labels in liars}


def _worst(placed: Mapping[tuple[Row, str], Measured]) -> dict[Row, Measured]:
    """Return the cell of the least mean of each row that has several cells."""
    rows: dict[Row, list[Measured]] = {}
    for (row, _), cell in placed.items():
        rows.setdefault(row, []).append(cell)
    found: dict[Row, Measured] = {}
    for row, cells in rows.items():
        known = [(cell.best.mean, at) for at, cell in enumerate(cells) if cell.best is not None]
        if known and len(cells) > 1:
            found[row] = cells[min(known)[1]]
    return found


def _header(shown: Grid) -> list[str]:
    columns = shown.columns if any(shown.columns) else ["best accuracy (%)"]
    return [*shown.axes, *columns, *(["worst"] if shown.worst else [])]


def _in_markdown(shown: Grid, row: Row, column: str) -> str:
    cell = shown.cells.get((row, column))
    return NO_CELL if cell is None else _entry(cell, bold=cell is shown.worst.get(row))


def _entry(cell: Measured, bold: bool) -> str:
    ours = f"**{accuracy(cell)}**" if bold else accuracy(cell)
    if cell.success is not None:
        ours += f", attack success {mean_and_sd(cell.success)}"
    if cell.paper is None:
        return ours
    difference = "" if cell.difference is None else f", {signed(cell.difference.value)}"
    return f"{ours} (paper {mean_and_sd(cell.paper)}{difference})"


def _in_latex(shown: Grid, row: Row) -> list[str]:
    cells = [shown.cells.get((row, column)) for column in shown.columns]
    worst = shown.worst.get(row)
    ours = [_tex(NO_CELL if cell is None else accuracy(cell)) for cell in cells]
    bold = [rf"\textbf{{{text}}}" if cell and cell is worst else text for cell, text in zip(cells, ours, strict=True)]
    papers = [None if cell is None else cell.paper for cell in cells]
    goals = [None if cell is None else cell.success for cell in cells]
    lines = [[*map(_tex, row), "ours", *bold, *([_tex(worst_of(shown, row))] if shown.worst else [])]]
    if any(papers):
        numbers = [rf"\footnotesize {_tex(mean_and_sd(paper))}" if paper else "" for paper in papers]
        lines.append([*("" for _ in row), r"\footnotesize paper", *numbers, *([""] if shown.worst else [])])
    if any(goals):
        numbers = [rf"\footnotesize {_tex(mean_and_sd(goal))}" if goal else "" for goal in goals]
        lines.append([*("" for _ in row), r"\footnotesize attack success", *numbers, *([""] if shown.worst else [])])
    return [_tex_line(line) for line in lines]


def _tex_line(fields: Sequence[str]) -> str:
    return " & ".join(fields) + r" \\"


def _tex(text: str) -> str:
    return text.translate(str.maketrans(ESCAPES))


def _pipe(text: str) -> str:
    return text.replace("|", "\\|")


def _numbers(cell: Measured) -> list[float | int | None]:
    best, final, paper, far = cell.best, cell.final, cell.paper, cell.difference
    low, high = (best and best.interval) or (None, None)
    ours = [best and best.mean, best and best.sd, best.n if best else 0, low, high]
    others = [final and final.mean, final and final.sd, paper and paper.mean, paper and paper.sd]
    compared = [far and far.value, far and far.low, far and far.high, far and far.z]
    return [*ours, *others, *compared, cell.bytes_up, cell.bytes_down]
