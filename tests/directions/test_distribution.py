"""The directions are what they are called: tolerances are five standard errors, seeds are fixed."""

import numpy as np
import pytest

from cyber0.directions import COMPRESSED_EPOCH, DirectionKey, sample

SIZE = 2**20
KEY = DirectionKey(seed=2026, round=5)


def test_gaussian_moments():
    z = sample(KEY, SIZE).astype(np.float64)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 5 * np.sqrt(variance / SIZE)


def test_gaussian_distribution_function():
    """Kolmogorov and Smirnov: the largest distance to the normal distribution function, against its 1e-6 quantile."""
    from scipy.stats import norm

    z = np.sort(sample(KEY, SIZE))
    distance = np.abs(norm.cdf(z) - np.arange(SIZE) / SIZE).max()
    assert distance < 2.7 / np.sqrt(SIZE)


def test_rademacher_is_balanced():
    z = sample(KEY, SIZE, family="rademacher")
    assert set(np.unique(z)) == {-1.0, 1.0}
    assert abs(z.mean()) < 5 / np.sqrt(SIZE)
    assert abs((z[1:] * z[:-1]).mean()) < 5 / np.sqrt(SIZE)


@pytest.mark.parametrize("family", ["gaussian", "rademacher"])
@pytest.mark.parametrize(
    "other",
    [
        DirectionKey(seed=2027, round=5),
        DirectionKey(seed=2026 + 2**32, round=5),
        DirectionKey(seed=2026, round=6),
        DirectionKey(seed=2026, round=5, epoch=1),
        DirectionKey(seed=2026, round=5, epoch=COMPRESSED_EPOCH),
        DirectionKey(seed=2026, round=5, index=1),
    ],
)
def test_different_keys_are_uncorrelated(family, other):
    a, b = sample(KEY, SIZE, family=family), sample(other, SIZE, family=family)
    assert abs(np.mean(a * b, dtype=np.float64)) < 5 / np.sqrt(SIZE)
