"""The decorator of every rule and pre-aggregation: it checks the input and converts it to float64 and back.

The decorated function is given a contiguous float64 array `[..., n, k]` with 0 <= 2b < n: a NumPy array for NumPy
arrays and for tensors on the CPU (whose memory it shares), else a tensor on the same device. In float64 no square and
no sum of float32 numbers overflows. A float64 input beyond 2**400, or nowhere above 2**-400, is multiplied by a power
of two, which is exact, and the result is divided by it: every rule commutes with that.

A value that is not finite is refused. On a device, where asking would stall it, the result of such a set of vectors is
NaN throughout.
"""

import math
from collections.abc import Callable
from functools import wraps
from inspect import isroutine
from operator import index
from typing import Any
from weakref import WeakSet

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from cyber0.aggregation.rows import ABOVE, BELOW, namespace, safe_scale
from cyber0.aggregation.rule import Rule
from cyber0.errors import InvalidAggregation

__all__ = [
    "check_shape",
    "convert_like",
    "in_range",
    "is_isometric_step",
    "like",
    "on_host",
    "on_rows",
    "refuse_nonfinite",
    "widened",
]

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
LARGEST = float(np.finfo(np.float64).max)
ISOMETRIC: WeakSet[Rule] = WeakSet()  # functions declared so


def on_rows(*, squares: bool = True, lengths: tuple[str, ...] = (), isometric: bool = False) -> Callable[[Rule], Rule]:
    """Turn a function of float64 rows into a rule, or a pre-aggregation, that takes any floating-point array.

    `squares` says that the function squares or subtracts, so that its input must be scaled into the safe range (on a
    device, float64 input always is); `lengths` names the options that are lengths in the units of the vectors;
    `isometric` declares that the function commutes with rotations and translations, which speeds up the search for
    attacks on it.

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
            check_shape(rows.shape, byzantine)
            given = _given(lengths, options)
            host = _is_numpy(rows)
            if host:
                refuse_nonfinite(rows)
            scale = _scale(rows) if (squares if host else vectors.dtype.itemsize == 8) else None
            if scale is None:
                result = function(rows, byzantine, **options)
            else:
                options |= {name: length * scale for name, length in given.items()}
                result = _unscaled(function(rows * scale, byzantine, **options), scale)
            return like(vectors, result if host else _nan_if_nonfinite(rows, result))

        if isometric:
            ISOMETRIC.add(rule)
        return rule

    return decorate


def widened(vectors: Any) -> Any:
    """Return the vectors in float64, contiguous; those on the CPU as a NumPy array.

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


def refuse_nonfinite(vectors: Any) -> None:
    """Refuse vectors that hold a value that is not finite; those on a device are not looked at, which would stall it.

    >>> refuse_nonfinite(np.array([[1.0], [np.nan]]))
    Traceback (most recent call last):
    cyber0.errors.InvalidAggregation: vectors holds a value that is not finite: leave such vectors out
    """
    if not on_host(vectors) or not (vectors.dtype.kind == "f" if _is_numpy(vectors) else vectors.is_floating_point()):
        return
    rows: Any = widened(vectors)
    squares = float(np.vdot(rows, rows))  # pyright: ignore[reportUnknownArgumentType]
    if not math.isfinite(squares) and not np.isfinite(rows).all():  # the first is faster, and may overflow
        raise InvalidAggregation("vectors holds a value that is not finite: leave such vectors out")


def _nan_if_nonfinite(rows: Any, result: Any) -> Any:
    """Return a result that is NaN throughout for every set of vectors that holds a value that is not finite."""
    xp = namespace(rows)
    finite = xp.all(xp.all(xp.isfinite(rows), axis=-1), axis=-1)[..., None]
    return xp.where(finite if result.ndim < rows.ndim else finite[..., None], result, xp.nan)


def on_host(vectors: Any) -> bool:
    """Return whether rules compute with these vectors in NumPy.

    >>> on_host(np.zeros((2, 3)))
    True
    """
    return _is_numpy(vectors) or _is_host_tensor(vectors)


def _is_numpy(vectors: Any) -> bool:
    return isinstance(vectors, np.ndarray)


def _is_host_tensor(vectors: Any) -> bool:
    return is_torch_array(vectors) and vectors.device.type == "cpu"


def check_shape(shape: tuple[int, ...], byzantine: int) -> None:
    """Refuse vectors of this shape, or this number of liars among them.

    >>> check_shape((4, 2), byzantine=2)
    Traceback (most recent call last):
    cyber0.errors.InvalidAggregation: byzantine = 2: it must be from 0 to 1, since fewer than half of the n = 4 \
vectors may be Byzantine
    """
    if len(shape) < 2 or 0 in shape:
        raise InvalidAggregation(f"vectors has shape {tuple(shape)}: it must be [..., n, k], with n and k at least 1")
    if not hasattr(byzantine, "__index__"):
        raise InvalidAggregation(f"byzantine = {byzantine!r} must be an integer")
    if not 0 <= 2 * index(byzantine) < shape[-2]:
        most = (shape[-2] - 1) // 2
        raise InvalidAggregation(
            f"byzantine = {byzantine}: it must be from 0 to {most}, since fewer than half of the n = {shape[-2]} "
            "vectors may be Byzantine"
        )


def _given(lengths: tuple[str, ...], options: dict[str, Any]) -> dict[str, float]:
    """Return those options that are lengths; refuse one that is negative or not finite."""
    given = {name: options[name] for name in lengths if options.get(name) is not None} if lengths else {}
    for name, length in given.items():
        if not 0 <= length < math.inf:
            raise InvalidAggregation(f"{name} = {length} must be a length, finite and not negative")
    return given


def in_range(rows: Any) -> Any:
    """Return the rows, multiplied by a power of two where their squares would overflow or underflow.

    On a device the decorator has done that already.

    >>> in_range(np.array([[1e300, 2e300]])) < 1e150
    array([[ True,  True]])
    """
    scale = _scale(rows) if _is_numpy(rows) else None
    return rows if scale is None else rows * scale


def _scale(rows: Any) -> Any:
    """Return a power of two for each set of vectors, `[..., 1, 1]`, or None where none is needed."""
    xp = namespace(rows)
    if rows.ndim == 2 and xp is np and rows.size * BELOW**2 < np.vdot(rows, rows) < ABOVE**2:
        return None  # fastest: where the sum of squares is in this range, so is the largest value
    peak = xp.max(xp.abs(rows), axis=(-2, -1), keepdims=True)
    return safe_scale(peak)


def _unscaled(result: Any, scale: Any) -> Any:
    if result.ndim < scale.ndim:
        scale = scale[..., 0]
    xp = namespace(result)
    most = LARGEST * xp.minimum(scale, 1.0)
    return xp.clip(result, -most, most) / scale


def like(vectors: Any, result: Any) -> Any:
    """Return a rule's result in the library and type of the vectors.

    >>> like(np.array([[1.0]], dtype=np.float32), np.array([2.0]))
    array([2.], dtype=float32)
    """
    if _is_numpy(vectors):
        return result if result.dtype == vectors.dtype else result.astype(vectors.dtype)
    xp, size = array_namespace(vectors), vectors.dtype.itemsize
    if _is_numpy(result) and size > 2:
        return xp.from_numpy(result.astype(SINGLE if size == 4 else DOUBLE, copy=False))  # faster than asarray
    return xp.asarray(result, dtype=vectors.dtype)


def convert_like(vectors: Any, result: Any) -> Any:
    """Return what a user's function gave as an array in the library, on the device and in the type of the vectors.

    Takes arrays and tensors of any real type on any device, and nested lists; raises TypeError or ValueError otherwise.

    >>> convert_like(np.array([[1.0]], dtype=np.float32), [2])
    array([2.], dtype=float32)
    """
    if is_torch_array(result):
        result = result.detach()
        if is_torch_array(vectors):
            return result.to(device=vectors.device, dtype=vectors.dtype)
        result = result.cpu().double().numpy()
    if _is_numpy(result) and _is_numpy(vectors) and result.dtype == vectors.dtype:
        return result
    result = np.asarray(result)
    if result.dtype.kind not in "fiub":
        raise TypeError(f"it returned {result.dtype} values, not numbers")
    if _is_numpy(vectors):
        return result.astype(vectors.dtype)
    return array_namespace(vectors).asarray(result, dtype=vectors.dtype, device=vectors.device)


def is_isometric_step(function: Rule) -> bool:
    """Return whether a function was declared `isometric` to `on_rows`."""
    return isroutine(function) and function in ISOMETRIC
