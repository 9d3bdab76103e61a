"""The door every rule and pre-aggregation is entered by: check, compute in float64 within a safe range, give back.

Behind it a function meets a contiguous float64 array `[..., n, k]` with 0 <= 2b < n, of NumPy for NumPy arrays and for
tensors on the CPU (whose memory it shares), of its own library for a device. float32 has room in float64 for any square
and any sum. An input beyond 2**400, or nowhere above 2**-400, is multiplied by a power of two, which is exact, and its
result divided by it: every rule commutes with that.
"""

import math
from collections.abc import Callable
from functools import wraps
from operator import index
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from cyber0.aggregation.rows import namespace
from cyber0.errors import InvalidAggregation

__all__ = ["in_range", "like", "on_host", "on_rows", "widened"]

ABOVE, DOWN = 2.0**400, 2.0**-600
BELOW, UP = 2.0**-400, 2.0**600
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
LARGEST = float(np.finfo(np.float64).max)

Rule = Callable[..., Any]


def on_rows(*, squares: bool = True, lengths: tuple[str, ...] = (), isometric: bool = False) -> Callable[[Rule], Rule]:
    """Make a function on float64 rows a rule, or a pre-aggregation, on any rows.

    `squares` says that it squares or subtracts, and so needs the safe range (a device always gets it, for float64);
    `lengths` names its options that are lengths in the units of the vectors; `isometric` says that it commutes with
    rotations and translations, which lets attacks on it be searched for sooner.

    >>> @on_rows()
    ... def spread(vectors, byzantine):
    ...     return vectors.max(axis=-2) - vectors.min(axis=-2)
    >>> spread(np.array([[1, 5], [2, 2], [4, 3]], dtype=np.float32), 1)
    array([3., 3.], dtype=float32)
    """

    def decorate(function: Rule) -> Rule:
        @wraps(function)
        def rule(vectors: Any, byzantine: int, **options: Any) -> Any:
            rows = widened(vectors)
            _check(rows.shape, byzantine)
            given = _given(lengths, options)
            needed = squares if _is_numpy(rows) else vectors.dtype.itemsize == 8
            scale = _scale(rows) if needed else None
            if scale is None:
                return like(vectors, function(rows, byzantine, **options))
            options |= {name: length * scale for name, length in given.items()}
            return like(vectors, _unscaled(function(rows * scale, byzantine, **options), scale))

        rule.__dict__["isometric"] = isometric
        return rule

    return decorate


def widened(vectors: Any) -> Any:
    """The vectors in float64, contiguous; those of the CPU as a NumPy array.

    >>> widened(np.array([[1.0, 2.0]], dtype=np.float32)).dtype
    dtype('float64')
    """
    if _is_numpy(vectors):
        if vectors.dtype.kind == "f":
            return np.ascontiguousarray(vectors, np.float64)
    elif _is_host_tensor(vectors):
        if vectors.is_floating_point():
            rows = vectors.detach() if vectors.requires_grad else vectors
            return np.ascontiguousarray((rows if rows.itemsize > 2 else rows.float()).numpy(), np.float64)
    else:
        try:
            xp = array_namespace(vectors)
        except TypeError:
            raise InvalidAggregation(f"vectors is a {type(vectors).__name__}: give an array [..., n, k]") from None
        if xp.isdtype(vectors.dtype, "real floating"):
            return xp.astype(vectors, xp.float64)
    raise InvalidAggregation(f"vectors is {vectors.dtype}: give floating-point numbers")


def on_host(vectors: Any) -> bool:
    """Whether the vectors are computed with NumPy.

    >>> on_host(np.zeros((2, 3)))
    True
    """
    return _is_numpy(vectors) or _is_host_tensor(vectors)


def _is_numpy(vectors: Any) -> bool:
    return isinstance(vectors, np.ndarray)


def _is_host_tensor(vectors: Any) -> bool:
    return is_torch_array(vectors) and vectors.device.type == "cpu"


def _check(shape: tuple[int, ...], byzantine: int) -> None:
    if len(shape) < 2 or 0 in shape:
        raise InvalidAggregation(f"vectors has shape {tuple(shape)}: it must be [..., n, k], with n and k at least 1")
    if not hasattr(byzantine, "__index__"):
        raise InvalidAggregation(f"byzantine = {byzantine!r} must be an integer")
    if not 0 <= 2 * index(byzantine) < shape[-2]:
        most = (shape[-2] - 1) // 2
        raise InvalidAggregation(
            f"byzantine = {byzantine} of n = {shape[-2]} vectors: fewer than half may be, so from 0 to {most}"
        )


def _given(lengths: tuple[str, ...], options: dict[str, Any]) -> dict[str, float]:
    """Those options that are lengths, checked."""
    given = {name: options[name] for name in lengths if options.get(name) is not None} if lengths else {}
    for name, length in given.items():
        if not 0 <= length < math.inf:
            raise InvalidAggregation(f"{name} = {length} must be a length, finite and not negative")
    return given


def in_range(rows: Any) -> Any:
    """The rows, multiplied by a power of two where their squares would leave the range; on a device they are already.

    >>> in_range(np.array([[1e300, 2e300]])) < 1e150
    array([[ True,  True]])
    """
    scale = _scale(rows) if _is_numpy(rows) else None
    return rows if scale is None else rows * scale


def _scale(rows: Any) -> Any:
    """A power of two for each set of vectors, `[..., 1, 1]`, or None where none is needed."""
    xp = namespace(rows)
    if rows.ndim == 2 and xp is np and rows.size * BELOW**2 < np.vdot(rows, rows) < ABOVE**2:
        return None  # the quickest look: a sum of squares in this range has its largest value in range
    peak = xp.max(xp.abs(rows), axis=(-2, -1), keepdims=True)
    if xp is np:  # to ask a device would stall it
        if not np.isfinite(peak).all():
            raise InvalidAggregation("vectors holds a value that is not finite: leave such vectors out")
        if ((peak > BELOW) & (peak < ABOVE)).all():
            return None
    one = xp.ones_like(peak)
    return xp.where(peak > ABOVE, DOWN * one, xp.where(peak < BELOW, UP * one, one))


def _unscaled(result: Any, scale: Any) -> Any:
    if result.ndim < scale.ndim:
        scale = scale[..., 0]
    xp = namespace(result)
    most = LARGEST * xp.minimum(scale, 1.0)
    return xp.clip(result, -most, most) / scale


def like(vectors: Any, result: Any) -> Any:
    """The result in the library and type of the vectors.

    >>> like(np.array([[1.0]], dtype=np.float32), np.array([2.0]))
    array([2.], dtype=float32)
    """
    if _is_numpy(vectors):
        return result if result.dtype == vectors.dtype else result.astype(vectors.dtype)
    xp, size = array_namespace(vectors), vectors.dtype.itemsize
    if _is_numpy(result) and size > 2:
        return xp.from_numpy(result.astype(SINGLE if size == 4 else DOUBLE, copy=False))  # faster than asarray
    return xp.asarray(result, dtype=vectors.dtype)
