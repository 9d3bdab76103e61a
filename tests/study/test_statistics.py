"""The numbers of a study agree with scipy's, and follow what they are made of."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.study.synthetic import PAPER, invent, small, table1

from cyber0.study.recipe import get_recipe
from cyber0.study.results import Results
from cyber0.study.statistics import (
    Difference,
    Measured,
    Run,
    Sample,
    agreement,
    difference,
    measure,
    rank,
    runs,
)

percents = st.lists(st.floats(0, 100).map(lambda value: round(value, 3)), min_size=2, max_size=8)

varied = percents.filter(lambda values: np.std(values) > 1e-3)  # scipy warns of equal values


@given(percents)
def test_a_sample_is_numpys_mean_and_sd_of_n_less_one(values):
    sample = Sample.of(values)
    assert sample.n == len(values)
    assert sample.mean == pytest.approx(np.mean(values))
    assert sample.sd == pytest.approx(np.std(values, ddof=1))


@given(varied)
def test_the_interval_of_a_mean_is_students(values):
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert Sample.of(values).interval == pytest.approx((max(expected.low, 0), min(expected.high, 100)))


@given(varied, varied)
def test_the_interval_of_a_difference_is_welchs(ours, paper):
    far = difference(Sample.of(ours), Sample.of(paper))
    expected = stats.ttest_ind(ours, paper, equal_var=False).confidence_interval(0.95)
    assert far.value == pytest.approx(np.mean(ours) - np.mean(paper))
    assert (far.low, far.high) == pytest.approx((expected.low, expected.high))


@given(percents, percents, st.floats(-50, 50))
def test_a_shift_of_ours_shifts_the_difference_and_nothing_else(ours, paper, shift):
    theirs = Sample.of(paper)
    before, after = (difference(Sample.of(values), theirs) for values in (ours, [value + shift for value in ours]))
    assert after.value == pytest.approx(before.value + shift, abs=1e-6)
    assert after.high - after.low == pytest.approx(before.high - before.low, abs=1e-6)


@given(percents, percents)
def test_changing_sides_changes_the_sign(ours, paper):
    samples = [Sample.of(ours), Sample.of(paper)]
    there, back = difference(*samples), difference(*reversed(samples))
    assert (there.value, there.z) == (-back.value, back.z)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_no_spread_no_z():
    assert difference(Sample(3.0, 0.0, 5), Sample(1.0, 0.0, 5)) == Difference(2.0, 2.0, 2.0, None)
    assert difference(Sample(3.0, 1.0, 5), Sample(1.0, 1.0, 1)) == Difference(2.0, None, None, None)


def test_a_value_that_is_no_number_is_not_counted():
    assert Sample.of([1.0, float("nan"), 3.0]) == Sample.of([1.0, 3.0])
    assert Sample.of([float("nan")]) is None
    run = Run(0, *(np.array([np.nan, 3.0, np.nan]) for _ in range(4)))
    assert run.best == 3.0
    assert np.isnan(Run(0, *(np.array([np.nan]) for _ in range(4))).best)


@settings(max_examples=20)
@given(st.randoms())
def test_the_order_of_rows_and_seeds_does_not_matter(random):
    results = invent(small(**PAPER))
    order = list(range(len(results.frame)))
    random.shuffle(order)
    assert measure(Results(results.recipe, results.frame.iloc[order])) == measure(results)


def test_a_run_counts_with_its_best_evaluation():
    rows = [("krum", 0, 0, 0.1), ("krum", 0, 10, 0.9), ("krum", 0, 20, 0.7), ("krum", 1, 0, 0.5), ("krum", 1, 20, 0.3)]
    frame = pd.DataFrame(rows, columns=["rule", "seed", "round", "accuracy"])
    frame["bytes_up_per_client"] = frame["bytes_down_per_client"] = 256.0 * frame["round"]
    from_frame = Results(small(axes={"rule": ["krum"]}), frame)
    (cell,) = measure(from_frame)
    assert (cell.best.mean, cell.best.n) == (pytest.approx(70.0), 2)
    assert cell.final.mean == pytest.approx(50.0)
    assert cell.bytes_up == cell.bytes_down == 256.0 * 20
    assert [run.seed for run in runs(from_frame)["krum",]] == [0, 1]


def test_table1_has_40_cells_in_the_grid_and_the_baselines_beside():
    cells = measure(table1(seeds=2))
    within = agreement([cell for cell in cells if not cell.beside])
    beside = [cell for cell in cells if cell.beside]
    assert within.cells == within.judged == 40
    assert [cell.name for cell in beside] == ["cyber0, mean, none", "FedAvg, mean, none"]
    assert agreement(beside).cells == 1  # only FedAvg's is published
    assert all(cell.paper.n == 5 for cell in cells if cell.paper)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=10))
def test_the_mean_square_is_bias_squared_and_variance(values):
    found = agreement([Measured({}, False, difference=Difference(value, None, None, None)) for value in values])
    assert found.rmse**2 == pytest.approx(found.bias**2 + np.var(values), abs=1e-9)


def test_nothing_to_compare():
    assert agreement([]) is None
    assert [cell.best for cell in measure(Results(get_recipe("table1"), pd.DataFrame()))] == [None] * 42


def test_labels_rank_as_the_recipe_lists_them():
    assert list(rank(get_recipe("table1"), "rule")) == ["CWTM", "NNM+CWTM", "Krum", "NNM+Krum", "mean"]
