"""Krum and multi-Krum.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
NeurIPS 2017. Squared distances and n - b - 1 neighbours by default, as Allouah et al. (AISTATS 2023) analyse it.
"""

from typing import Any

from cyber0.aggregation.choice import smallest
from cyber0.aggregation.decorators import in_range, on_rows
from cyber0.aggregation.distances import chosen_sums, squared_distances
from cyber0.aggregation.rows import namespace, total
from cyber0.errors import InvalidAggregation, UnknownName

__all__ = ["krum", "multikrum", "scores"]

NEIGHBOURS = {"n-b-1": 1, "n-b-2": 2}


@on_rows(squares=False, isometric=True)
def krum(vectors: Any, byzantine: int, *, neighbours: int | str | None = None, power: float = 2) -> Any:
    """Return the vector with the least sum of distances, to the given power, to its nearest neighbours.

    `neighbours` is a number, 'n-b-1' (the default) or 'n-b-2'. Of vectors with equal scores the lesser is chosen.

    >>> import numpy as np
    >>> krum(np.array([[1.0, 2.0], [1.5, 2.0], [9e9, 0.0], [2.0, 2.0]]), 1)
    array([1.5, 2. ])
    """
    squared = squared_distances(in_range(vectors))  # scaled for the scores alone: the chosen vector keeps its bits
    score = scores(squared, _neighbours(neighbours, vectors.shape[-2], byzantine), power)
    best = smallest(score, 1, vectors)
    return vectors[best].reshape(vectors[..., 0, :].shape) + 0.0  # two vectors may differ in the sign of a zero


@on_rows(isometric=True)
def multikrum(
    vectors: Any,
    byzantine: int,
    *,
    chosen: int | None = None,
    neighbours: int | str | None = None,
    power: float = 2,
) -> Any:
    """Return the mean of the `chosen` (by default n - b) vectors with the best Krum scores.

    >>> import numpy as np
    >>> multikrum(np.array([[1.0, 2.0], [1.5, 2.0], [9e9, 0.0], [2.0, 2.0]]), 1)
    array([1.5, 2. ])
    """
    n = vectors.shape[-2]
    count = n - byzantine if chosen is None else chosen
    if not 1 <= count <= n:
        raise InvalidAggregation(f"chosen = {count} of n = {n} vectors: it must be from 1 to {n}")
    score = scores(squared_distances(vectors), _neighbours(neighbours, n, byzantine), power)
    return chosen_sums(smallest(score, count, vectors)[..., None, :], vectors)[..., 0, :] / count


def scores(squared: Any, neighbours: int, power: float = 2) -> Any:
    """Return the Krum score of each vector, from their squared distances `[..., n, n]`.

    >>> import numpy as np
    >>> scores(np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]]), 1)
    array([1., 1., 4.])
    """
    if not power > 0:
        raise InvalidAggregation(f"power = {power} must be positive")
    xp = namespace(squared)
    nearest = xp.sort(squared, axis=-1)[..., 1 : neighbours + 1]  # the first is the distance to itself
    return total(nearest if power == 2 else nearest ** (power / 2), axis=-1)


def _neighbours(neighbours: int | str | None, n: int, byzantine: int) -> int:
    if neighbours is None:
        return n - byzantine - 1
    if isinstance(neighbours, str):
        name = neighbours.replace(" ", "")
        if name not in NEIGHBOURS:
            raise UnknownName("number of neighbours", neighbours, NEIGHBOURS)
        neighbours = n - byzantine - NEIGHBOURS[name]
    if not 0 < neighbours < n:
        raise InvalidAggregation(f"neighbours = {neighbours} of n = {n} vectors: it must be from 1 to {n - 1}")
    return neighbours
