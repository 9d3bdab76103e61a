"""Minimum-diameter averaging.

Rousseeuw. Multivariate Estimation with High Breakdown Point. 1985; as an aggregation rule: El Mhamdi, Guerraoui,
Guirguis, Hoang, Rouault. Genuinely Distributed Byzantine Machine Learning. PODC 2020.
"""

import math
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.aggregation.choice import by_value
from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.distances import chosen_sums, squared_distances
from cyber0.aggregation.rows import namespace, to_numpy
from cyber0.errors import InvalidAggregation

__all__ = ["minimum_diameter"]


@on_rows(isometric=True)
def minimum_diameter(vectors: Any, byzantine: int, *, most: int = 100_000) -> Any:
    """Return the mean of the n - b vectors with the smallest diameter, found by trying all subsets, up to `most`.

    Of subsets with the same diameter, the one with the least sum of squared distances is taken.

    >>> import numpy as np
    >>> minimum_diameter(np.array([[0.0], [1.0], [2.0], [9.0]]), 1)
    array([1.])
    """
    n = vectors.shape[-2]
    count = math.comb(n, byzantine)
    if count > most:
        raise InvalidAggregation(
            f"byzantine = {byzantine} of n = {n} vectors leaves {count} subsets to try: raise most = {most}"
        )
    xp = namespace(vectors)
    squared, order = to_numpy(squared_distances(vectors)), to_numpy(by_value(vectors))
    chosen = np.zeros((math.prod(squared.shape[:-2]), n), dtype=np.bool)
    for row, one, places in zip(chosen, squared.reshape(-1, n, n), order.reshape(-1, n), strict=True):
        row[places[_best(one[places][:, places], byzantine)]] = True
    mask = xp.asarray(chosen.reshape(*squared.shape[:-2], 1, n), device=vectors.device)
    return chosen_sums(mask, vectors)[..., 0, :] / (n - byzantine)


def _best(squared: NDArray[np.float64], byzantine: int) -> NDArray[np.intp]:
    subsets = _subsets(len(squared), len(squared) - byzantine)
    diameter, total = np.empty(len(subsets)), np.empty(len(subsets))
    step = 1 + 2**20 // subsets.shape[1] ** 2
    for first in range(0, len(subsets), step):
        some = subsets[first : first + step]
        pairs = squared[some[:, :, None], some[:, None, :]]
        diameter[first : first + step] = pairs.max(axis=(1, 2))
        total[first : first + step] = pairs.sum(axis=(1, 2))
    return subsets[np.lexsort((total, diameter))[0]]


@lru_cache(maxsize=4)
def _subsets(n: int, size: int) -> NDArray[np.intp]:
    return np.array(list(combinations(range(n), size)), dtype=np.intp)
