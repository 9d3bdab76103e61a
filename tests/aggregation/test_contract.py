"""Every rule keeps the contract, and is as robust as has been proven; a rule that does not is found out."""

import numpy as np
import pytest
import torch

from cyber0.aggregation import PREAGGREGATIONS, RULES, cwtm, get_rule, krum, median
from cyber0.aggregation.decorators import _nan_if_nonfinite
from cyber0.errors import InvalidAggregation
from cyber0.testing import check_rule, measured_kappa, worst_case
from cyber0.theory import proven_kappa

COMPOSED = [f"{pre}+{rule}" for pre in PREAGGREGATIONS for rule in RULES if (pre, rule) != ("bucketing", "bulyan")]
VARIANTS = [
    "krum(power=1, neighbours='n-b-2')",
    "multikrum(chosen=3, power=1.5)",
    "geometric_median(smoothing=0.5, iterations=5)",
    "centered_clipping(radius=2.0, start='zero')",
    "clip(radius=1.5)+cwtm",
    "bucketing(size=3, seed=7)+median",
    "clip+nnm+cwtm",
    "centered_clipping_previous(radius=2.0, iterations=3)",
]


@pytest.mark.parametrize("name", [*RULES, *COMPOSED, *VARIANTS])
def test_every_rule_keeps_the_contract(name: str) -> None:
    choice = name.startswith("krum")
    robust = name in RULES and name != "mean"
    check_rule(get_rule(name), 13, 2, choice=choice, robust=robust)


@pytest.mark.parametrize(("n", "b"), [(5, 1), (7, 2), (9, 4), (11, 2)])
@pytest.mark.parametrize("pre", ["", "nnm+"])
@pytest.mark.parametrize("rule", ["cwtm", "krum", "median", "geometric_median"])
def test_kappa_lies_between_the_lower_bound_and_the_proven_one(pre: str, rule: str, n: int, b: int) -> None:
    kappa = measured_kappa(get_rule(pre + rule), n, b, trials=100)
    assert b / (n - 2 * b) * (1 - 1e-6) <= kappa <= (proven_kappa(pre + rule, n, b) or 0)


def test_the_worst_case_is_a_witness() -> None:
    kappa, vectors, honest = worst_case(cwtm, 7, 2)
    good = vectors[list(honest)]
    error = ((cwtm(vectors, 2) - good.mean(axis=0)) ** 2).sum()
    assert np.isclose(error, kappa * ((good - good.mean(axis=0)) ** 2).sum(axis=1).mean())


def first(vectors, _byzantine):
    return vectors[..., 0, :].copy()


def plain_mean(vectors, _byzantine):
    return vectors.mean(-2)


def sorts_its_input(vectors, byzantine):
    if isinstance(vectors, np.ndarray):
        vectors.sort(axis=-2)
    return median(vectors, byzantine)


def forgets_batches(vectors, byzantine):
    return median(vectors.reshape(-1, *vectors.shape[-2:])[0], byzantine)


def float64_only(vectors, byzantine):
    return median(vectors, byzantine).astype(np.float64)


def breaks_ties_by_position(vectors, _byzantine):
    if not isinstance(vectors, np.ndarray):
        return vectors.new_tensor(breaks_ties_by_position(vectors.numpy(), _byzantine))
    far = np.abs(vectors[..., :, None, :] / 4 - vectors[..., None, :, :] / 4).max(-1).max(-1)
    return np.take_along_axis(vectors, far.argmin(-1)[..., None, None], -2)[..., 0, :]


@pytest.mark.parametrize(
    ("rule", "law"),
    [
        (first, "unordered, on normal"),
        (plain_mean, "total, on largest of both signs"),
        (sorts_its_input, "unmodified, on normal"),
        (forgets_batches, "batch"),
        (float64_only, "libraries, on normal"),
        (lambda vectors, _byzantine: vectors, "total, on normal .*shape"),
    ],
)
def test_a_broken_rule_is_found_out(rule, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_rule(rule)


def test_a_choice_by_position_is_found_out() -> None:
    with pytest.raises(AssertionError, match="another order, another choice"):
        check_rule(breaks_ties_by_position, choice=True)


def test_a_rule_less_robust_than_claimed_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"krum is not 0\.5-robust: a kappa of 1\.\d+ was measured"):
        check_rule(krum, kappa=0.5)


@pytest.mark.parametrize("name", [*RULES, "nnm+cwtm", "clip+median", "bucketing+krum"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_rule_refuses_what_is_not_finite(name: str, value: float) -> None:
    votes = np.random.default_rng(0).standard_normal((2, 13, 3))
    votes[1, 4, 2] = value
    for given in (votes, votes[1], votes.astype(np.float32), torch.tensor(votes), torch.tensor(votes).bfloat16()):
        with pytest.raises(InvalidAggregation, match="holds a value that is not finite: leave such vectors out"):
            get_rule(name)(given, 2)


def test_a_users_rule_is_not_shown_what_is_not_finite() -> None:
    with pytest.raises(InvalidAggregation, match="not finite"):
        get_rule(plain_mean)(np.array([[1.0], [np.nan], [2.0]]), 1)


def test_a_result_on_a_device_is_nan_where_its_vectors_are_not_finite() -> None:
    rows = torch.tensor([[[1.0], [2.0]], [[1.0], [torch.inf]]])
    assert _nan_if_nonfinite(rows, torch.ones(2, 1)).isnan().tolist() == [[False], [True]]
    assert _nan_if_nonfinite(rows, torch.ones(2, 2, 1)).isnan().tolist() == [[[False], [False]], [[True], [True]]]
