"""Choose rows by score, and by value where scores are equal, so that the order of the rows does not matter."""

import math
from typing import Any

from cyber0.aggregation.rows import namespace

__all__ = ["by_value", "ranks", "smallest"]


def smallest(scores: Any, count: int, rows: Any) -> Any:
    """Return a mask of the `count` smallest scores along the last axis; of equal scores, the lesser row's first.

    >>> import numpy as np
    >>> smallest(np.array([1.0, 3.0, 3.0, 2.0]), 3, np.array([[0.0], [7.0], [5.0], [1.0]]))
    array([ True, False,  True,  True])
    """
    xp = namespace(scores)
    bound = xp.sort(scores, axis=-1)[..., count - 1 : count]
    mask = scores <= bound
    if xp.count_nonzero(mask) == count * math.prod(scores.shape[:-1]):
        return mask
    rank = ranks(rows)
    if scores.ndim == rows.ndim:
        rank = rank[..., None, :]
    below = scores < bound
    tied = xp.where(mask & ~below, rank, xp.full_like(rank, rows.shape[-2]))
    place = xp.argsort(xp.argsort(tied, axis=-1, stable=True), axis=-1)
    room = count - xp.sum(xp.astype(below, xp.int64), axis=-1, keepdims=True)
    return below | (place < room)


def by_value(rows: Any) -> Any:
    """Return the lexicographic order of the rows, `[..., n]`.

    >>> import numpy as np
    >>> by_value(np.array([[2.0, 1.0], [1.0, 9.0], [2.0, 0.0]]))
    array([1, 2, 0])
    """
    xp, first = namespace(rows), rows[..., 0]
    order = xp.argsort(first, axis=-1)
    ordered = first[order] if first.ndim == 1 else xp.take_along_axis(first, order, axis=-1)
    if (ordered[..., 1:] > ordered[..., :-1]).all():  # the first column decides
        return order
    return xp.argsort(ranks(rows), axis=-1, stable=True)


def ranks(rows: Any) -> Any:
    """Return how many rows come before each one in lexicographic order, `[..., n]`; equal rows share a rank.

    >>> import numpy as np
    >>> ranks(np.array([[2.0, 1.0], [1.0, 9.0], [2.0, 0.0], [1.0, 9.0]]))
    array([3, 0, 2, 0])
    """
    xp, n = namespace(rows), rows.shape[-2]
    all_different = math.prod(rows.shape[:-2]) * n * (n - 1) // 2
    value, peers = rows[..., 0], True
    rank: Any = 0
    for _ in range(n):  # each pass separates at least two rows
        before = (value[..., None, :] < value[..., :, None]) & peers
        rank = rank + xp.sum(before, axis=-1, dtype=xp.int64)
        if xp.sum(rank) == all_different:
            return rank
        peers = rank[..., None, :] == rank[..., :, None]
        order = xp.argsort(rank, axis=-1, stable=True)
        ordered = xp.take_along_axis(rows, order[..., None], axis=-2)
        tied = xp.diff(xp.take_along_axis(rank, order, axis=-1)) == 0
        undecided = xp.any((ordered[..., 1:, :] != ordered[..., :-1, :]) & tied[..., None], axis=-2)
        if not undecided.any():
            break
        column = xp.argmax(xp.astype(undecided, xp.int64), axis=-1)  # the first in which rows of one rank differ
        value = xp.take_along_axis(rows, column[..., None, None], axis=-1)[..., 0]
    return rank
