"""Distances between rows and sums of chosen rows: the expensive parts of a rule.

On the CPU each sum has one fixed order, with or without the compiled `_rows`, so that any machine gets the same bits.
BLAS is not used, since its order of summation varies. On a device rows are added by a product with a 0/1 matrix.
"""

import math
from typing import Any

import numpy as np

from cyber0.aggregation import native
from cyber0.aggregation.blocks import in_blocks
from cyber0.aggregation.choice import by_value
from cyber0.aggregation.rows import namespace

__all__ = ["chosen_sums", "squared_distances"]

ACROSS = 16  # distances of a row that _rows.c computes at once
ELEMENTS = 2**24  # differences that a device holds at once


def squared_distances(rows: Any) -> Any:
    """Return the squared distances `[..., n, n]`, summed from differences: no cancellation, equal rows have distance 0.

    >>> squared_distances(np.array([[1e9, 0.0], [1e9, 3.0], [1e9 + 4, 0.0]]))
    array([[ 0.,  9., 16.],
           [ 9.,  0., 25.],
           [16., 25.,  0.]])
    """
    if namespace(rows) is not np:
        step = max(1, ELEMENTS // (rows.shape[-2] ** 2 * math.prod(rows.shape[:-2])))
        return sum(_squared(rows[..., first : first + step]) for first in range(0, rows.shape[-1], step))
    within = _in_order if native.library() is None else _compiled
    return sum(in_blocks(lambda block: within(rows[..., block]), rows.shape[-1]))


def _squared(rows: Any) -> Any:
    difference = rows[..., :, None, :] - rows[..., None, :, :]
    return (difference * difference).sum(-1)


def _in_order(rows: Any) -> Any:
    return sum(_squared(rows[..., c : c + 1]) for c in range(rows.shape[-1]))


def _compiled(rows: Any) -> Any:
    *batch, n, k = rows.shape
    padded = -(-n // ACROSS) * ACROSS
    columns, squared = np.zeros((*batch, k, padded)), np.empty((*batch, padded, padded))
    columns[..., :n] = rows.swapaxes(-1, -2)
    native.library().cyber0_distances(native.address(columns), native.address(squared), math.prod(batch), padded, k)
    return squared[..., :n, :n]


def chosen_sums(chosen: Any, rows: Any) -> Any:
    """Return, for each row of a mask `[..., m, n]`, the sum of the rows that it marks, `[..., m, k]`.

    They are added in lexicographic order, so that the order of the rows does not matter.

    >>> chosen_sums(np.array([[True, False, True]]), np.array([[1.0], [2.0], [4.0]]))
    array([[5.]])
    """
    xp, library = namespace(rows), native.library()
    if xp is not np:
        return xp.matmul(xp.astype(chosen, rows.dtype), rows)
    weights, order = np.ascontiguousarray(chosen, np.float64), np.ascontiguousarray(by_value(rows), np.int64)
    if library is None:
        weights = np.take_along_axis(weights, order[..., None, :], axis=-1)
        rows = np.take_along_axis(rows, order[..., None], axis=-2)
        return sum(weights[..., j, None] * rows[..., j, None, :] for j in range(rows.shape[-2]))
    *batch, n, k = rows.shape
    sums = np.empty((*batch, chosen.shape[-2], k))
    arrays, sizes = map(native.address, (weights, rows, order, sums)), (math.prod(batch), chosen.shape[-2], n, k)
    given = (*arrays, *sizes)
    in_blocks(lambda block: library.cyber0_mix(*given, block.start, block.stop), k)
    return sums
