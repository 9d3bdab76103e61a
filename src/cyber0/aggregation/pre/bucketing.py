"""Bucketing.

Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR 2022.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.aggregation.choice import by_value
from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.rows import average, namespace
from cyber0.directions import DirectionKey, sample
from cyber0.errors import InvalidAggregation

__all__ = ["bucketing"]


@on_rows(squares=False)
def bucketing(vectors: Any, byzantine: int, *, size: int = 2, seed: int = 0) -> Any:  # noqa: ARG001
    """Shuffle the vectors and replace each `size` of them by their mean; the last bucket may hold fewer.

    They are sorted by value before they are shuffled, so that the order of the clients does not matter. Each liar
    spoils one bucket, so that the rule that follows needs more than 2b buckets.

    >>> import numpy as np
    >>> bucketing(np.array([[1.0], [1.0], [1.0], [7.0]]), 1)
    array([[1.],
           [4.]])
    """
    n = vectors.shape[-2]
    if not 1 <= size <= n:
        raise InvalidAggregation(f"size = {size} of n = {n} vectors: a bucket holds from 1 to {n}")
    xp = namespace(vectors)
    order = by_value(vectors)[
        ..., _shuffled(seed, n) if xp is np else xp.asarray(_shuffled(seed, n), device=vectors.device)
    ]
    rows = vectors[order] if vectors.ndim == 2 else xp.take_along_axis(vectors, order[..., None], axis=-2)
    whole = n - n % size
    buckets = average(rows[..., :whole, :].reshape(*rows.shape[:-2], n // size, size, rows.shape[-1]))
    if whole == n:
        return buckets
    return xp.concat([buckets, average(rows[..., whole:, :])[..., None, :]], axis=-2)


@lru_cache(maxsize=64)
def _shuffled(seed: int, n: int) -> NDArray[np.intp]:
    return np.argsort(sample(DirectionKey(seed=seed, round=0), n), kind="stable")
