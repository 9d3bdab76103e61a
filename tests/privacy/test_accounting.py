"""The accountant is dp-accounting's; what is searched with it fits the budget, and barely."""

from math import erfc, exp, inf, sqrt

import pytest

from cyber0.errors import InvalidConfig
from cyber0.privacy.accounting import Step, check_delta, check_epsilon, epsilon_of, most_steps, noise_for


def gaussian_delta(epsilon, mu):
    """Return the delta of the Gaussian mechanism of sensitivity mu (Balle and Wang, 2018, Theorem 8)."""

    def below(x):
        return erfc(-x / sqrt(2)) / 2

    return below(mu / 2 - epsilon / mu) - exp(epsilon) * below(-mu / 2 - epsilon / mu)


def test_a_full_batch_costs_what_the_gaussian_mechanism_does():
    """k steps of noise sigma are one of sensitivity sqrt(k) / sigma, whose delta is known in closed form."""
    epsilon = epsilon_of([(Step(10.0, 1.0), 25)], delta=1e-5)
    assert gaussian_delta(epsilon, 0.5) <= 1e-5
    assert gaussian_delta(epsilon * 0.98, 0.5) > 1e-5


def test_sampling_amplifies_and_steps_add_up():
    one = epsilon_of([(Step(1.0, 0.05), 100)], 1e-5)
    assert one < epsilon_of([(Step(1.0, 1.0), 100)], 1e-5) / 5
    assert one < epsilon_of([(Step(1.0, 0.05), 50), (Step(0.9, 0.05), 50)], 1e-5)
    assert epsilon_of([(Step(1.0, 0.05), 50), (Step(1.0, 0.05), 50)], 1e-5) == one
    assert epsilon_of([(Step(0.0, 0.05), 1)], 1e-5) == inf


@pytest.mark.parametrize(("epsilon", "rate"), [(1.0, 0.05), (4.0, 1.0)])
def test_the_noise_for_a_budget_fits_it_and_a_little_less_does_not(epsilon, rate):
    noise = noise_for(epsilon, 1e-5, rate, 200)
    assert epsilon_of([(Step(noise, rate), 200)], 1e-5) <= epsilon
    assert epsilon_of([(Step(noise * 0.98, rate), 200)], 1e-5) > epsilon
    assert 200 <= most_steps(epsilon, 1e-5, Step(noise, rate)) < 212


def test_what_was_spent_before_leaves_less():
    spent = [(Step(1.0, 0.05), 100)]
    noise = noise_for(4.0, 1e-5, 0.05, 100, spent)
    assert noise > noise_for(4.0, 1e-5, 0.05, 100)
    assert epsilon_of([*spent, (Step(noise, 0.05), 100)], 1e-5) <= 4.0
    with pytest.raises(InvalidConfig, match=r"of which 3.5 is spent: nothing is left"):
        noise_for(1.0, 1e-5, 0.05, 100, spent)
    assert most_steps(1.0, 1e-5, Step(1.0, 0.05), spent) == 0


def test_bad_budgets_are_refused():
    with pytest.raises(InvalidConfig, match=r"epsilon = 0.0001 at delta = 1e-05: 400 steps cost more"):
        noise_for(1e-4, 1e-5, 1.0, 400)
    with pytest.raises(InvalidConfig, match=r"delta = 0.01: it must be above 0 and below 1 / samples = 0.001"):
        check_delta(0.01, 1000)
    with pytest.raises(InvalidConfig, match="epsilon = nan"):
        check_epsilon(float("nan"))
