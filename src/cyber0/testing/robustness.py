"""Measure how robust a rule is (Definition 2 of the CyBeR-0 paper), over all honest subsets of few vectors."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cyber0.aggregation import Rule

__all__ = ["WorstCase", "measured_kappa", "worst_case"]


class WorstCase(NamedTuple):
    """The input on which a rule did worst: vectors `[n, k]`, the rows that are honest, and kappa.

    >>> from cyber0.aggregation import krum
    >>> worst_case(krum, 4, 1).honest
    (0, 1, 2)
    """

    kappa: float
    vectors: NDArray[np.float64]
    honest: tuple[int, ...]


def measured_kappa(rule: Rule, n: int = 7, byzantine: int = 2, *, trials: int = 300, seed: int = 0) -> float:
    """Return a lower bound on the kappa for which the rule is (b, kappa)-robust (Definition 2).

    It is the least kappa with |R - mean_H|^2 <= kappa / |H| sum over H of |v_i - mean_H|^2 for all honest subsets H of
    n - b vectors, over many adversarial, random and small inputs. No rule has less than b / (n - 2b).

    >>> from cyber0.aggregation import cwtm
    >>> round(measured_kappa(cwtm, 5, 1), 2)
    0.33
    """
    return worst_case(rule, n, byzantine, trials=trials, seed=seed).kappa


def worst_case(rule: Rule, n: int = 7, byzantine: int = 2, *, trials: int = 300, seed: int = 0) -> WorstCase:
    """Return the input on which `measured_kappa` was found.

    >>> from cyber0.aggregation import mean
    >>> worst_case(mean, 3, 1).kappa
    inf
    """
    subsets = np.array(list(combinations(range(n), n - byzantine)))
    worst = WorstCase(0.0, np.zeros((n, 1)), tuple(range(n - byzantine)))
    for vectors in _adversarial(n, byzantine, trials, seed):
        honest = vectors[:, subsets]  # [trial, subset, n - b, k]
        mean = honest.mean(axis=2, keepdims=True)
        error = ((rule(vectors, byzantine)[:, None] - mean[:, :, 0]) ** 2).sum(axis=-1)
        variance = ((honest - mean) ** 2).sum(axis=-1).mean(axis=-1)
        rounding = 1e-20 * (honest**2).sum(axis=-1).max(axis=-1)
        error, variance = np.where(error <= 1e6 * rounding, 0.0, error), np.where(variance <= rounding, 0.0, variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            kappa = np.where(error == 0.0, 0.0, error / variance)
        trial, subset = np.unravel_index(kappa.argmax(), kappa.shape)
        if kappa[trial, subset] > worst.kappa:
            worst = WorstCase(float(kappa[trial, subset]), vectors[trial], tuple(subsets[subset].tolist()))
    return worst


def _adversarial(n: int, byzantine: int, trials: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield batches of inputs `[trial, n, k]`."""
    for values in ((0.0, 1.0), (-1.0, 0.0, 1.0), (0.0, 1.0, 1e3)):
        if len(values) ** n <= 3000:
            yield np.array(list(product(values, repeat=n)))[..., None]
    lie = np.zeros((1, n, 1))
    lie[:, :byzantine] = 1.0
    yield lie
    random = np.random.default_rng(seed)
    for k in (1, 2, 5):
        normal = random.standard_normal((trials, n, k))
        yield normal
        yield normal * 10 ** random.uniform(-2, 2, (trials, n, 1))
        omega = 10 ** random.uniform(-1, 3, (trials, 1, 1)) * random.choice([-1.0, 1.0], (trials, 1, 1))
        honest = normal[:, byzantine:]
        for direction in (honest.std(axis=1, keepdims=True), honest.mean(axis=1, keepdims=True), normal[:, :1]):
            clones = honest.mean(axis=1, keepdims=True) + omega * direction
            yield np.concatenate([np.repeat(clones, byzantine, axis=1), honest], axis=1)
