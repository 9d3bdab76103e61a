"""Bulyan.

El Mhamdi, Guerraoui, Rouault. The Hidden Vulnerability of Distributed Learning in Byzantium. ICML 2018.
"""

from typing import Any

from cyber0.aggregation.choice import smallest
from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.distances import squared_distances
from cyber0.aggregation.rows import namespace
from cyber0.aggregation.rules.krum import scores
from cyber0.aggregation.rules.meamed import around_median
from cyber0.errors import InvalidAggregation

__all__ = ["bulyan"]


@on_rows()
def bulyan(vectors: Any, byzantine: int) -> Any:
    """Choose n - 2b vectors by Krum, one after the other; of each coordinate, average the n - 4b nearest to the median.

    >>> import numpy as np
    >>> bulyan(np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [90.0]]), 1)
    array([3.])
    """
    n = vectors.shape[-2]
    if n < 4 * byzantine + 3:
        raise InvalidAggregation(f"byzantine = {byzantine} of n = {n} vectors: Bulyan needs n >= 4 b + 3")
    xp = namespace(vectors)
    chosen = _chosen(vectors, byzantine)
    first = xp.argsort(xp.astype(~chosen, xp.int64), axis=-1, stable=True)[..., : n - 2 * byzantine, None]
    return around_median(xp.take_along_axis(vectors, first, axis=-2), n - 4 * byzantine)


def _chosen(vectors: Any, byzantine: int) -> Any:
    xp, n = namespace(vectors), vectors.shape[-2]
    squared = squared_distances(vectors)
    infinite = xp.full_like(squared, float("inf"))
    gone = xp.zeros_like(squared[..., 0], dtype=xp.bool)
    for left in range(n, 2 * byzantine, -1):
        present = xp.where(gone[..., None, :], infinite, squared)
        score = scores(present, left - byzantine - 1)
        gone = gone | smallest(xp.where(gone, infinite[..., 0], score), 1, vectors)
    return gone
