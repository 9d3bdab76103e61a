"""Figures show means over seeds, the same way every time."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from tests.study.synthetic import FIGURES, invent, small, table1

from cyber0.study import figures
from cyber0.study.figures import chosen, curves, draw
from cyber0.study.recipe import Figure, get_recipe
from cyber0.study.results import Results

RESULTS = invent(small(figures=FIGURES))
PLAIN, WORST, PANELS = RESULTS.recipe.figures


def of(results, **labels):
    """The accuracies of a cell: [seeds, evaluations], in percent."""
    frame = results.frame
    for axis, label in labels.items():
        frame = frame[frame[axis] == label]
    return 100 * frame.pivot_table(index="seed", columns="round", values="accuracy").to_numpy()


def test_a_line_is_the_mean_and_sd_of_the_seeds():
    (lines,) = curves(RESULTS, PLAIN).values()
    assert [curve.name for curve in lines] == ["SF", "FOE"]
    accuracy = of(RESULTS, rule="krum", attack="FOE")
    np.testing.assert_allclose(lines[1].mean, accuracy.mean(axis=0))
    np.testing.assert_allclose(lines[1].sd, accuracy.std(axis=0, ddof=1))
    np.testing.assert_allclose(lines[1].bytes_up, [0, 2560, 5120])


def test_the_worst_case_is_the_least_mean_with_its_own_sd():
    (lines,) = curves(RESULTS, WORST).values()
    for curve in lines:
        cells = [of(RESULTS, rule=curve.name, attack=attack) for attack in ("SF", "FOE")]
        means = np.stack([cell.mean(axis=0) for cell in cells])
        np.testing.assert_allclose(curve.mean, means.min(axis=0))
        least = cells[int(means[:, -1].argmin())]
        assert curve.sd[-1] == pytest.approx(least.std(axis=0, ddof=1)[-1])


def test_a_worst_case_is_never_one_in_which_nobody_lies():
    recipe = small(axes={"rule": ["cwtm"], "attack": {"none": "none", "SF": "sf"}})
    frame = invent(recipe).frame
    frame.loc[frame["attack"] == "none", "accuracy"] = 0.0
    ((curve,),) = curves(Results(recipe, frame), WORST).values()
    assert curve.mean[-1] > 50


def test_the_legend_is_in_the_recipes_order_and_bands_stay_from_0_to_100():
    recipe = small(axes={"rule": ["cwtm", "krum"]})
    frame = invent(recipe).frame
    frame["accuracy"] = [0.99 if seed % 2 else 0.3 for seed in frame["seed"]]
    frame.loc[frame["rule"] == "krum", "accuracy"] += 0.005  # above the other, and listed after it
    svg = draw(Results(recipe, frame), chosen(recipe)[0], ("svg",))["svg"].decode()
    assert svg.index("<!-- cwtm -->") < svg.index("<!-- krum -->")
    frame["accuracy"] = [0.0 if seed else 1.0 for seed in frame["seed"]]  # mean 33, s.d. 58
    for accuracy in (frame["accuracy"], 1 - frame["accuracy"]):
        (lines,) = curves(Results(recipe, frame.assign(accuracy=accuracy)), chosen(recipe)[0]).values()
        low, high = lines[0].band
        assert (low >= 0).all()
        assert (high <= 100).all()


def test_a_worst_case_over_fewer_cells_says_so():
    (lines,) = curves(invent(RESULTS.recipe, without=[0]), WORST).values()
    assert [curve.name for curve in lines] == ["cwtm (1 of 2 attacks)", "krum"]


def test_panels_stand_as_the_recipe_lists_them():
    results = table1(seeds=1)
    panels = curves(results, results.recipe.figures[2])
    assert list(panels) == ["ALIE", "ALIE-NNM", "FOE", "FOE-NNM", "SF", "LF"]
    assert [len(lines) for lines in panels.values()] == [8, 4, 8, 4, 8, 8]


def test_cells_that_differ_on_another_axis_are_not_one_line():
    (lines,) = curves(RESULTS, Figure(name="all", title="", line=["attack"])).values()
    assert [curve.name for curve in lines] == ["SF, cwtm", "FOE, cwtm", "SF, krum", "FOE, krum"]


def test_runs_that_end_early_shorten_the_mean():
    results = invent(small())
    frame = results.frame[~((results.frame["seed"] == 1) & (results.frame["round"] == 20))]
    (lines,) = curves(Results(results.recipe, frame), chosen(results.recipe)[0]).values()
    assert all(list(curve.rounds) == [0, 10] for curve in lines)


def test_a_label_keeps_its_colour_and_an_algorithm_its_stroke():
    results = table1(seeds=1)
    drawn = [figures._styles(results.recipe, figure, curves(results, figure)) for figure in results.recipe.figures[1:]]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({style["color"] for style in drawn[0].values()}) == 4
    for labels, style in drawn[0].items():
        assert style["linestyle"] == drawn[0][labels[0], "CWTM"]["linestyle"]
        assert style["color"] == drawn[0]["FedAvg", labels[1]]["color"]


def test_the_same_results_give_the_same_bytes():
    drawn = draw(RESULTS, PLAIN)
    assert drawn == draw(RESULTS, PLAIN)
    assert drawn["svg"].startswith(b"<?xml")
    assert drawn["pdf"].startswith(b"%PDF")
    assert drawn["png"].startswith(b"\x89PNG")
    assert b"<dc:date>" not in drawn["svg"]
    assert b"CreationDate" not in drawn["pdf"]


def test_a_dollar_sign_opens_no_formula():
    figure = Figure(name="cost", title=r"$1 and $\nothing", line=["attack"])
    assert draw(RESULTS, figure, ["svg"])["svg"]


def test_drawing_leaves_the_users_settings_alone_and_does_not_follow_them():
    before = draw(RESULTS, PLAIN, ["svg"])
    with mpl.rc_context({"backend": "pdf", "font.size": 30.0, "lines.linewidth": 9.0}):
        settings = dict(mpl.rcParams)
        assert draw(RESULTS, PLAIN, ["svg"]) == before
        assert dict(mpl.rcParams) == settings


@pytest.mark.parametrize("figure", RESULTS.recipe.figures, ids=lambda figure: figure.name)
@pytest.mark.parametrize(
    "results", [invent(RESULTS.recipe, seeds=1, without=[0, 2]), Results(RESULTS.recipe, pd.DataFrame())]
)
def test_a_study_that_has_only_begun_can_be_drawn(results, figure):
    assert draw(results, figure, ["svg"])["svg"].rstrip().endswith(b"</svg>")


def test_a_recipe_without_figures_gets_one_if_it_stays_readable():
    assert [figure.panel for figure in chosen(small())] == [None]
    many = small(axes={"rule": ["cwtm", "krum"], "attack": [f"alie(omega={omega})" for omega in range(8)]})
    assert [(figure.line, figure.panel) for figure in chosen(many)] == [(["rule"], "attack")]
    assert chosen(small(axes={"mu": [0.001 * step for step in range(1, 31)]})) == []
    assert chosen(get_recipe("table1")) == get_recipe("table1").figures
