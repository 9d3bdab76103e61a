"""The noise has the distribution that it claims, to the integer; and it comes from the operating system."""

import random
from math import erf, sqrt

import numpy as np
import pytest
from scipy.stats import chisquare

from cyber0.privacy import noise
from cyber0.privacy.noise import RoundedGaussian

DRAWS = 12_000


def seeded(bits, seed=1):
    source = random.Random(seed)  # noqa: S311
    return RoundedGaussian(iter(lambda: source.getrandbits(bits), -1), bits)


def probabilities(scale, values):
    """Return how likely round(scale x N(0, 1)) is each of some integers, and anything beyond them."""
    ends = [value - 0.5 for value in values] + [values[-1] + 0.5]
    below = np.array([0.5 * (1 + erf(end / scale / sqrt(2))) for end in ends])
    within = np.diff(below)
    return np.append(within, 1 - within.sum())


@pytest.mark.parametrize("bits", [1, 2, 64])  # digits of one bit are equal half of the time, and must be made longer
@pytest.mark.parametrize("scale", [1, 3])
def test_draws_are_a_rounded_gaussian(bits, scale):
    values = list(range(-3 * scale, 3 * scale + 1))
    drawn = seeded(bits).many(DRAWS, scale)
    counts = np.array([(drawn == value).sum() for value in values])
    seen = np.append(counts, DRAWS - counts.sum())
    assert chisquare(seen, DRAWS * probabilities(scale, values)).pvalue > 1e-3


def test_the_test_above_can_fail():
    """A deviation of 5% more, or a discrete Gaussian instead of a rounded one at scale 1, is told apart."""
    values = list(range(-3, 4))
    drawn = seeded(64).many(DRAWS, 1)
    counts = np.array([(drawn == value).sum() for value in values])
    seen = np.append(counts, DRAWS - counts.sum())
    assert chisquare(seen, DRAWS * probabilities(1.05, values)).pvalue < 1e-3
    discrete = np.exp(-(np.array(values) ** 2) / 2)
    discrete = np.append(discrete / discrete.sum() * (1 - 1e-4), 1e-4)
    assert chisquare(seen, DRAWS * discrete).pvalue < 1e-3


def test_a_large_scale_is_as_a_gaussian():
    drawn = seeded(64).many(DRAWS, 2**40) / 2**40
    assert abs(drawn.mean()) < 0.04
    assert abs(drawn.std() - 1) < 0.03
    assert abs((np.abs(drawn) > 1.96).mean() - 0.05) < 0.01
    assert len(np.unique(drawn)) == DRAWS


def test_a_scale_of_0_draws_nothing():
    assert seeded(64).many(5, 0).tolist() == [0] * 5


def test_digits_come_from_the_operating_system(monkeypatch):
    asked, urandom = [], noise.os.urandom
    monkeypatch.setattr(noise.os, "urandom", lambda count: asked.append(count) or urandom(count))
    RoundedGaussian().many(10, 100)
    assert asked
    assert RoundedGaussian().many(20, 2**40).tolist() != RoundedGaussian().many(20, 2**40).tolist()
