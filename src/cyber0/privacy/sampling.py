"""Poisson sampling: each sample is in a batch with the same probability, by a coin of its own that nobody knows."""

import os

import numpy as np
from numpy.typing import NDArray

__all__ = ["poisson_batch", "sampling_rate"]


def sampling_rate(batch: int, samples: int) -> float:
    """Return how likely a sample is in a batch, for an expected size: 1 for size 0, and where there are not as many.

    >>> sampling_rate(64, 1280), sampling_rate(64, 40), sampling_rate(0, 40)
    (0.05, 1.0, 1.0)
    """
    return min(1.0, batch / samples) if batch else 1.0


def poisson_batch(samples: int, rate: float) -> NDArray[np.int64]:
    """Draw a batch from the randomness of the operating system: the numbers of its samples, ascending.

    A coin is 32 bits of it, and falls with the largest multiple of 2**-32 that is at most `rate`: a smaller rate is the
    more private one.

    >>> poisson_batch(3, rate=1.0)
    array([0, 1, 2])
    """
    coins = np.frombuffer(os.urandom(4 * samples), dtype="<u4")
    return np.flatnonzero(coins < np.uint64(int(rate * 2**32)))
