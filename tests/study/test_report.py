"""The page stands alone, holds everything, and is the same every time."""

import json
import re
from html.parser import HTMLParser
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console
from tests.study.synthetic import FIGURES, PAPER, invent, small, table1

from cyber0.cli.study import show
from cyber0.errors import InvalidData
from cyber0.study.recipe import Recipe
from cyber0.study.report import render, write
from cyber0.study.results import Failure, Results
from cyber0.study.statistics import agreement, measure
from cyber0.study.tables import grid, mean_and_sd, signed, to_csv, to_latex, to_markdown

VOID = {"meta", "br"}
RECIPE = small(**PAPER, figures=FIGURES, note="Mind `<b>` here.\n\nAnd there.")
RESULTS = Results(RECIPE, invent(RECIPE).frame, [], {"device": "<abacus> & co"})
QUICK = Results(small(**PAPER, figures=FIGURES[1:2]), RESULTS.frame)


class Page(HTMLParser):
    """The page's elements, checked to be closed in order; its text, and the values of its attributes."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text, self.attributes = [], [], "", []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def page():
    return render(RESULTS)


def test_the_page_is_well_formed_and_refers_to_nothing_outside(page):
    seen = Page(page)
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert not {"link", "img", "iframe", "image"} & set(seen.tags)
    references = [value for name, value in seen.attributes if name in ("src", "href", "xlink:href", "data")]
    names = [value for name, value in seen.attributes if name == "id"]
    assert references
    assert all(reference.startswith("#") and reference[1:] in names for reference in references)
    assert len(set(names)) == len(names)
    assert set(re.findall(r"url\(#(.+?)\)", page)) <= set(names)


def test_every_figure_is_on_the_page(page):
    assert page.count("<svg") == len(FIGURES)
    for figure in FIGURES:
        assert f'id="figure-{figure["name"]}"' in page


def test_every_number_is_on_the_page(page):
    text = Page(page).text
    cells = measure(RESULTS)
    found = agreement(cells)
    assert f"{found.rmse:.1f}" in text
    assert signed(found.bias) in text
    for cell in cells:
        assert f"{mean_and_sd(cell.paper)} · {signed(cell.difference.value)}" in text
        assert f"{signed(cell.difference.low)} to {signed(cell.difference.high)}" in text
        assert f"{mean_and_sd(cell.best)}" in text


def test_words_of_users_are_shown_not_obeyed(page):
    assert "Two rules &lt;under&gt; two attacks &amp; more" in page
    assert "<code>&lt;b&gt;</code>" in page
    assert "&lt;abacus&gt; &amp; co" in page


def test_the_configuration_is_on_the_page(page):
    assert RECIPE.to_toml().strip() in Page(page).text


def test_the_claims_of_table_1_are_on_the_page():
    results = table1(seeds=1)
    recipe = results.recipe.model_copy(update={"figures": results.recipe.figures[:1]})
    text = Page(render(Results(recipe, results.frame))).text
    assert "not for cyber0 with CWTM under SF (59.2 from 71.2, \N{MINUS SIGN}16.4 to \N{MINUS SIGN}7.6)" in text
    assert text.count("Our numbers") == 8


def test_writing_again_changes_no_byte_whatever_the_order_of_the_runs(tmp_path):
    write(QUICK, tmp_path)
    files = contents(tmp_path)
    write(Results(QUICK.recipe, QUICK.frame.sample(frac=1, random_state=0)), tmp_path)
    assert contents(tmp_path) == files
    figures = {f"worst.{kind}" for kind in ("svg", "pdf", "png")}
    tables = {"results.csv", "table.md", "table.csv", "table.tex"}
    assert set(files) == figures | tables | {"claims.json", "summary.json", "report.html"}


def test_the_summary_holds_what_the_page_shows(tmp_path):
    write(QUICK, tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    cells = measure(RESULTS)
    assert summary["agreement"]["rmse"] == agreement(cells).rmse
    assert [cell["best"]["mean"] for cell in summary["cells"]] == [cell.best.mean for cell in cells]
    assert (summary["paper_seeds"], summary["confidence"], summary["runs"]) == (5, 0.95, 12)
    assert json.loads((tmp_path / "claims.json").read_text()) == summary["claims"] == []
    assert len(pd.read_csv(tmp_path / "results.csv")) == len(RESULTS.frame)


@pytest.mark.parametrize("recipe", [small(), small(**PAPER)], ids=["bare", "with a paper"])
@pytest.mark.parametrize("without", [[], [0, 3], [0, 1, 2, 3]], ids=["whole", "half", "nothing"])
def test_a_study_that_has_only_begun_has_a_page(recipe, without):
    results = invent(recipe, seeds=1, without=without)
    failed = Failure({"rule": "cwtm", "attack": "SF"}, 2, "out of <memory>")
    text = Page(render(Results(recipe, results.frame, [failed]))).text
    assert "cwtm, SF, seed 2: out of <memory>" in text
    assert f"{4 - len(without)} of 12" in text
    assert "nan" not in text.lower()


def test_a_page_counts_one_cell_and_one_seed_in_the_singular():
    recipe = Recipe.of({"title": "One", "seeds": 1, "base": {"rounds": 20}, "axes": {"rule": ["cwtm"]}})
    failed = Failure({"rule": "cwtm"}, 0, "late")
    text = Page(render(Results(recipe, invent(recipe, seeds=1, without=[0]).frame, [failed]))).text
    assert "1 cell, 1 seed each" in text
    assert "1 cell has no run" in text


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidData, match="file: a report cannot be written there"):
        write(invent(small(), seeds=1), tmp_path / "file")


def test_without_published_numbers_the_table_is_coloured_by_accuracy():
    recipe = small(table={"rows": ["rule"], "columns": ["attack"]})
    frame = invent(recipe).frame
    frame["accuracy"] = [{"cwtm": 0.9, "krum": 0.5}[rule] for rule in frame["rule"]]
    page = render(Results(recipe, frame))
    assert re.findall(r'class="level[ a-z]*" style="--level: (\d+)%"', page) == ["100", "100", "0", "0"]
    assert "Colours: accuracy" in page
    assert "Distance from the paper" not in page
    assert page.count("last 90.0") >= 2
    assert "Colours: accuracy" not in render(RESULTS)


def test_the_terminal_shows_spread_and_the_last_accuracy():
    recipe = small()
    console = Console(width=120, file=StringIO())
    show(console, invent(recipe))
    shown = console.file.getvalue()
    assert re.search(r"cwtm .* SF .* \d+\.\d ± \d+\.\d \(\d+\.\d\)", shown)
    assert "mean ± s.d. of 3 seeds; in parentheses after the last round" in shown


def test_the_success_of_an_attack_stands_beside_the_accuracy_that_counts():
    recipe = small(seeds=2, axes={"rule": ["cwtm", "krum"], "attack": {"BD": "backdoor", "none": "none"}})
    frame = invent(recipe, seeds=2).frame
    aimed = frame["attack"] == "BD"
    frame.loc[aimed, "attack_success"] = frame.loc[aimed, "round"] / 40 + frame.loc[aimed, "seed"] / 100
    results = Results(recipe, frame)
    backdoored, clean = measure(results)[:2]
    assert (backdoored.success.mean, backdoored.success.n, clean.success) == (pytest.approx(50.5), 2, None)
    assert f"{mean_and_sd(backdoored.best)}, attack success 50.5 ± 0.7 |" in to_markdown(grid(recipe, measure(results)))
    assert "attack success" in to_latex(grid(recipe, measure(results)))
    lines = to_csv(recipe, measure(results)).splitlines()
    assert lines[0].endswith(",attack_success_mean,attack_success_sd")
    assert lines[2].endswith(",,")
    text = Page(render(results)).text
    assert "attack 50.5" in text
    assert "how often the attack reached its goal" in text
    console = Console(file=StringIO(), width=200)
    show(console, results)
    assert "attack 50.5" in console.file.getvalue()
    assert "attack_success" not in to_csv(QUICK.recipe, measure(QUICK))


def shown(results):
    console = Console(width=160, file=StringIO())
    show(console, results)
    return console.file.getvalue()


def test_a_cell_whose_runs_failed_says_so():
    recipe = small(table={"rows": ["rule"], "columns": ["attack"]})
    whole = Failure({"rule": "cwtm", "attack": "SF", "lr": "0.1"}, 0, "late")  # a candidate of a choice has more labels
    some = Failure({"rule": "krum", "attack": "SF"}, 2, "late")
    results = Results(recipe, invent(recipe, seeds=2, without=[0, 1]).frame, [whole, some])
    table = grid(recipe, measure(results))
    for text in (Page(render(results)).text, to_markdown(table), to_latex(table), shown(results)):
        assert (text.count("failed"), text.count("not run")) >= (1, 1)
    assert "| cwtm | failed | not run |" in to_markdown(table)
    assert to_latex(table).count("failed") == 1


def test_the_last_accuracy_is_not_taken_for_the_papers():
    recipe = small(table=PAPER["table"], paper={"cwtm": {"SF": [81.3, 2.5]}})
    text = shown(invent(recipe))
    assert text.count("(") == text.count("(81.3)") == 1
    assert "in parentheses the paper's" in text


def test_a_report_says_how_the_learning_rates_were_chosen():
    results = invent(small(rates="On `validation` samples."))
    assert "Learning rates: On validation samples." in Page(render(results)).text
    assert "Learning rates" not in Page(render(RESULTS)).text
