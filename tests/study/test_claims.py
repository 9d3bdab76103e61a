"""The claims of Table 1, on the paper's own numbers and on others."""

import pytest
from tests.study.synthetic import small, table1

from cyber0.errors import UnknownName
from cyber0.study.claims import CLAIMS, Evidence, judge
from cyber0.study.recipe import get_recipe
from cyber0.study.statistics import Measured, Sample, measure

RECIPE = get_recipe("table1")


def published(**changed):
    """Cells with exactly the paper's means, but for those changed."""
    cells = []
    for cell in RECIPE.cells():
        pair = RECIPE.published(cell.labels)
        mean = changed.get(cell.name.replace(", ", "_").replace("+", "_"), pair and pair[0])
        numbers = 64 if cell.labels["algorithm"] == "cyber0" else 7850
        best = None if mean is None else Sample(mean, 1.0, 5)
        cells.append(
            Measured(cell.labels, cell in RECIPE.also, best, bytes_up=1600.0 * numbers, bytes_down=1600.0 * numbers)
        )
    return cells


def test_the_papers_table_denies_its_third_claim():
    verdicts = judge(RECIPE, [])
    assert [verdict.paper.holds for verdict in verdicts] == [True, True, False, True]
    assert "not for cyber0 with CWTM under SF (59.2 from 71.2)" in verdicts[2].paper.sentence
    assert "11.4 points below" in verdicts[0].paper.sentence
    assert "123 times" in verdicts[3].paper.sentence


def test_our_numbers_and_the_papers_are_judged_alike():
    for verdict in judge(RECIPE, published()):
        assert verdict.ours == verdict.paper


def test_nothing_measured_nothing_said():
    assert [verdict.ours.holds for verdict in judge(RECIPE, [])] == [None] * 4


def test_the_margin_must_exceed_ten_points():
    first = judge(RECIPE, published(cyber0_CWTM_FOE=68.5, cyber0_CWTM_SF=68.5))[0].ours
    assert first.holds is False
    assert "10.0 points below" in first.sentence


def test_another_best_row_is_named():
    first = judge(RECIPE, published(cyber0_CWTM_FOE=20.0))[0].ours
    assert first.holds is False
    assert "is 20.0; the best of the eight rows is cyber0 with NNM_CWTM".replace("_", "+") in first.sentence
    assert "38.5 points above" in first.sentence


def test_one_counterexample_decides_even_while_runs_are_missing():
    second, third = judge(RECIPE, published(cyber0_Krum_FOE=20.0, FedAvg_NNM_CWTM_SF=None, cyber0_CWTM_LF=None))[1:3]
    assert (
        second.ours.sentence
        == "It is so in 1 of 4 comparisons, not for Krum (20.0 against 23.9); runs are missing for 2."
    )
    assert third.ours.holds is False
    assert "runs are missing for 2" in third.ours.sentence


def test_without_a_counterexample_missing_runs_leave_it_open():
    second = judge(RECIPE, published(FedAvg_Krum_SF=None))[1].ours
    assert (second.holds, second.sentence) == (None, "It is so in 3 of 4 comparisons; runs are missing for 1.")


def test_two_orders_of_magnitude_are_a_hundred_times():
    test = CLAIMS["table1"][3].test
    assert test(Evidence({}, {"cyber0": 1.0, "FedAvg": 100.0})).holds is True
    assert test(Evidence({}, {"cyber0": 1.0, "FedAvg": 99.9})).holds is False
    assert test(Evidence({}, {"cyber0": 1.0})).holds is None


def test_bytes_are_measured_up_and_down():
    sentence = judge(RECIPE, measure(table1(seeds=1)))[3].ours.sentence
    assert "10,240 bytes with cyber0 and 1,256,000 with FedAvg" in sentence  # 20 rounds, both ways, 4 bytes each


def test_a_study_without_claims_has_none_and_an_unknown_set_is_refused():
    assert judge(small(), []) == []
    with pytest.raises(UnknownName, match=r"set of claims 'tabel1'.*did you mean 'table1'"):
        judge(small(claims="tabel1"), [])


def test_a_study_with_other_axes_cannot_say():
    assert [verdict.ours.holds for verdict in judge(small(claims="table1"), [])] == [None] * 4
