"""Operations on rows, `[..., n, k]` in float64, that several rules share."""

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, to_device

from cyber0.aggregation import native
from cyber0.aggregation.blocks import in_blocks
from cyber0.errors import UnknownName

__all__ = [
    "average",
    "median_row",
    "namespace",
    "norms",
    "safe_scale",
    "shortened",
    "starting_point",
    "to_numpy",
    "total",
    "trimmed",
]

ABOVE, DOWN = 2.0**400, 2.0**-600
BELOW, UP = 2.0**-400, 2.0**600
NUMPY = (np.ndarray, np.generic)
TINY = 1e-300  # in place of zero in a denominator


def namespace(array: Any) -> Any:
    """Return NumPy itself for its arrays, since its own functions are faster; else the library by array-api-compat.

    >>> namespace(np.ones(1)) is np
    True
    """
    return np if isinstance(array, NUMPY) else array_namespace(array)


def to_numpy(array: Any) -> Any:
    """Return an array of any library and device as a NumPy array.

    >>> to_numpy(np.ones(1))
    array([1.])
    """
    return array if namespace(array) is np else np.asarray(to_device(array, "cpu"))


def safe_scale(peak: Any) -> Any:
    """Return powers of two that scale values of these sizes so that squares do not overflow or underflow; None for 1.

    On a device they are always returned, since reading a value from a device would stall it.

    >>> safe_scale(np.array([1.0])), safe_scale(np.array([1e300])) < 1e-150
    (None, array([ True]))
    """
    xp = namespace(peak)
    if xp is np and ((peak > BELOW) & (peak < ABOVE)).all():
        return None
    one = xp.ones_like(peak)
    return xp.where(peak > ABOVE, DOWN * one, xp.where(peak < BELOW, UP * one, one))


def average(rows: Any) -> Any:
    """Return the mean of the rows, also where their sum would overflow.

    >>> average(np.array([[1e308, 1.0], [1.5e308, 2.0]]))
    array([1.25e+308, 1.50e+000])
    """
    count = rows.shape[-2]
    if namespace(rows) is not np:
        return rows.sum(-2) / count  # a device raises nothing, but there the rows are in range
    try:
        with np.errstate(over="raise"):
            return np.add.reduce(rows, -2) / count
    except FloatingPointError:
        small = 0.5 ** count.bit_length()
        most = float(np.finfo(np.float64).max) * small
        rescued: Any = np.clip(total(rows * small) / count, -most, most) / small
        with np.errstate(over="ignore", invalid="ignore"):
            mean: Any = total(rows) / count
        mean[~np.isfinite(mean)] = rescued[~np.isfinite(mean)]
        return mean


def total(rows: Any, axis: int = -2) -> Any:
    """Return the sum along an axis.

    >>> total(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([4., 6.])
    """
    return np.add.reduce(rows, axis) if namespace(rows) is np else rows.sum(axis)


def trimmed(rows: Any, dropped: int) -> Any:
    """Return the mean of each column without its `dropped` smallest and largest values.

    >>> trimmed(np.array([[3.0, 1.0], [2.0, 5.0], [7.0, 2.0]]), 1)
    array([3., 2.])
    """
    if namespace(rows) is not np:
        return _middle(namespace(rows).sort(rows, axis=-2), dropped)
    rows = np.ascontiguousarray(rows)
    *batch, n, k = rows.shape
    out = np.empty((*batch, k))
    if native.library() is not None:
        given = native.address(rows), native.address(out), math.prod(batch), n, k, dropped
        if all(in_blocks(lambda block: native.library().cyber0_trimmed(*given, block.start, block.stop), k)):
            return out
    ordered = np.sort(rows, axis=-2)
    try:
        with np.errstate(over="raise"):
            return _middle(ordered, dropped)
    except FloatingPointError:
        return average(ordered[..., dropped : n - dropped, :]) + 0.0


def _middle(ordered: Any, dropped: int) -> Any:
    """Return the mean of ordered rows without the outermost, added from the smallest on, as the compiled code does."""
    count = ordered.shape[-2] - 2 * dropped
    total = ordered[..., dropped, :]
    for i in range(1, count):
        total = total + ordered[..., dropped + i, :]
    return total / count + 0.0  # sorting does not separate 0.0 and -0.0


def median_row(rows: Any) -> Any:
    """Return the median of each column, `[..., k]`; of an even number of rows, the mean of the middle two.

    >>> median_row(np.array([[3.0], [1.0], [2.0], [9.0]]))
    array([2.5])
    """
    return trimmed(rows, (rows.shape[-2] - 1) // 2)


def norms(rows: Any) -> Any:
    """Return the length of each row, `[..., n, 1]`.

    >>> norms(np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([[5.],
           [1.]])
    """
    return namespace(rows).sqrt(total(rows * rows, axis=-1))[..., None]


def shortened(rows: Any, reach: Any) -> Any:
    """Return each row, shortened to the length `reach` where it is longer; a number or `[..., n or 1, 1]`.

    >>> shortened(np.array([[3.0, 4.0], [0.0, 1.0]]), 2.0)
    array([[1.2, 1.6],
           [0. , 1. ]])
    """
    xp, length = namespace(rows), norms(rows)
    least = max(reach, TINY) if isinstance(reach, float) else xp.maximum(reach, TINY)
    return rows * (reach / xp.maximum(length, least))


def starting_point(vectors: Any, start: str) -> Any:
    """Return the point to start from, `[..., 1, k]`: the 'median' of each coordinate, or 'zero'.

    >>> starting_point(np.array([[1.0], [2.0], [9.0]]), "median")
    array([[2.]])
    """
    if start == "zero":
        return namespace(vectors).zeros_like(vectors[..., :1, :])
    if start == "median":
        return median_row(vectors)[..., None, :]
    raise UnknownName("start", start, ["median", "zero"])
