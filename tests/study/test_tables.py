"""A table has every number in its place, in three formats."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.study.synthetic import PAPER, invent, small, table1

from cyber0.study.statistics import Measured, Sample, measure
from cyber0.study.tables import NO_CELL, Grid, grid, mean_and_sd, signed, to_csv, to_latex, to_markdown

WHOLE = table1(seeds=2)
CELLS = measure(WHOLE)
GRID = grid(WHOLE.recipe, CELLS)


def entries(line):
    return [entry.strip() for entry in line.strip().strip("|").split("|")]


def test_rows_and_columns_stand_as_the_recipe_lists_them():
    assert GRID.columns == ["ALIE", "ALIE-NNM", "FOE", "FOE-NNM", "SF", "LF"]
    assert GRID.rows[:2] == [("cyber0", "CWTM"), ("cyber0", "NNM+CWTM")]
    assert (len(GRID.rows), len(GRID.cells), len(GRID.beside)) == (8, 40, 2)


def test_every_published_number_stands_beside_ours():
    text = to_markdown(GRID)
    for cell in CELLS:
        paper = f" (paper {mean_and_sd(cell.paper)}, {signed(cell.difference.value)})" if cell.paper else ""
        assert f"{mean_and_sd(cell.best)}{paper}" in text.replace("**", "")
    latex = to_latex(GRID)
    for cell in CELLS:
        for sample in filter(None, (cell.best, cell.paper)):
            assert mean_and_sd(sample).replace("±", r"$\pm$") in latex


def test_the_bold_entry_is_the_least_of_its_row():
    for line in to_markdown(GRID).split("\n\n")[0].splitlines()[2:]:
        row = [entry for entry in entries(line)[2:-1] if entry != NO_CELL]
        means = [float(entry.strip("*").split()[0]) for entry in row]
        (bold,) = [mean for mean, entry in zip(means, row, strict=True) if entry.startswith("**")]
        assert bold == min(means) == float(entries(line)[-1].split()[0])


def test_markdown_lines_have_one_width():
    lines = to_markdown(GRID).split("\n\n")[0].splitlines()
    assert {len(entries(line)) for line in lines} == {9}


@pytest.mark.parametrize("shown", [GRID, grid(WHOLE.recipe, measure(table1(seeds=1, without=[0, 5, 41])))])
def test_latex_is_balanced_and_has_one_width(shown):
    text = to_latex(shown)
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert text.isascii()
    body = [line for line in text.splitlines() if "&" in line]
    assert {line.count("&") for line in body} == {9}
    assert all(line.endswith(r"\\") for line in body)
    assert [word for word in re.findall(r"\\\w+", text) if word.endswith("rule")] == [
        r"\toprule", r"\midrule", r"\midrule", r"\bottomrule",
    ]  # fmt: skip


@given(st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1))
def test_any_label_can_be_printed(label):
    text = to_latex(Grid(["rule"], [(label,)], ["SF"], {}, {}, []))
    bare = re.sub(r"\\[&%$#_{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert not set("#_$~^") & set(bare)
    assert bare.count("&") == 4
    assert bare.count("%") == 1  # the comment at the top


def test_csv_has_a_line_for_each_cell_and_every_number():
    rows = list(csv.DictReader(io.StringIO(to_csv(WHOLE.recipe, CELLS))))
    assert len(rows) == 42
    for row, cell in zip(rows, CELLS, strict=True):
        assert [row[axis] for axis in ("algorithm", "rule", "attack")] == list(cell.labels.values())
        assert float(row["mean"]) == cell.best.mean
        assert row["difference"] == ("" if cell.difference is None else repr(cell.difference.value))
    assert sum(row["worst"] == "True" for row in rows) == 8


def test_without_a_table_every_cell_has_a_row():
    results = invent(small())
    shown = grid(results.recipe, measure(results))
    assert (len(shown.rows), shown.columns, shown.worst) == (4, [""], {})
    assert "| rule | attack | best accuracy (%) |" in to_markdown(shown)
    assert "paper" not in to_markdown(shown) + to_latex(shown)


def test_an_axis_the_table_forgets_gets_a_column_of_its_own():
    recipe = small(table={"rows": [], "columns": ["attack"]})
    shown = grid(recipe, measure(invent(recipe)))
    assert (shown.axes, len(shown.cells)) == (["rule"], 4)


def test_the_worst_of_a_row_is_so_far_while_cells_wait():
    results = invent(small(**PAPER), without=[0])
    text = to_markdown(grid(results.recipe, measure(results)))
    assert "not run (paper 81.3 ± 2.5)" in text
    assert "(FOE, so far)" in text
    assert text.count("so far") == 1


def test_a_cell_in_which_nobody_lies_is_never_the_worst():
    axes = {"rule": ["cwtm", "krum"], "attack": {"SF": "sf", "FOE": "foe", "none": "none"}}
    recipe = small(axes=axes, table={"rows": ["rule"], "columns": ["attack"]})
    cells = [Measured(cell.labels, False, Sample(90.0 - 10 * at, 1.0, 3)) for at, cell in enumerate(recipe.cells())]
    assert [cell.labels["attack"] for cell in grid(recipe, cells).worst.values()] == ["FOE", "FOE"]
    calm = small(axes={"rule": ["cwtm"], "directions": [1, 2]}, table={"rows": ["rule"], "columns": ["directions"]})
    cells = [Measured(cell.labels, False, Sample(90.0 - 10 * at, 1.0, 3)) for at, cell in enumerate(calm.cells())]
    assert grid(calm, cells).worst == {}


def test_one_seed_has_no_spread():
    assert "±" not in to_markdown(grid(small(), measure(invent(small(), seeds=1))))


def test_a_bar_in_a_label_does_not_end_its_column():
    cell = Measured({"rule": "a|b"}, False, Sample(1.0, None, 1))
    assert r"| a\|b | 1.0 |" in to_markdown(Grid(["rule"], [("a|b",)], [""], {(("a|b",), ""): cell}, {}, []))


def test_numbers_to_compare_with_stand_below_the_table_in_all_that_is_read():
    recipe = WHOLE.recipe.model_copy(update={"references": {"AdamW, all_weights": 82.84}})
    shown = grid(recipe, CELLS)
    assert to_markdown(shown).endswith("\nTo compare with:\n\n- AdamW, all_weights: 82.8\n")
    assert r"{l}{AdamW, all\_weights: 82.8} \\" in to_latex(shown)
    assert to_csv(recipe, CELLS) == to_csv(WHOLE.recipe, CELLS)  # it has cells alone
