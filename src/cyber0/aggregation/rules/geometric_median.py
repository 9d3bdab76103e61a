"""The geometric median.

Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing, 2022.
Found by Newton's method beside Weiszfeld's iteration, which is corrected at data points as by Vardi and Zhang (PNAS
2000). With `smoothing`, by Weiszfeld's iteration alone.
"""

from typing import Any

import numpy as np

from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.distances import squared_distances
from cyber0.aggregation.rows import TINY, median_row, namespace, norms, starting_point, total

__all__ = ["geometric_median", "geometric_median_1"]

STEPS = (1.0, 0.5, 0.25, 0.0625)  # parts of Newton's step that are tried
WIDEST = 256  # clients, or scalars if they are fewer, up to which Newton's equations are solved
RIDGE = 1e-12  # keeps them solvable where all vectors lie on a line
CLEARLY = 1e-12  # in units of n median distances: what makes a difference
SLOW = 1e-3  # an iteration that gains less than so many tolerances is the last


@on_rows(lengths=("smoothing",))
def geometric_median(
    vectors: Any,
    byzantine: int,  # noqa: ARG001
    *,
    tolerance: float | None = None,
    iterations: int = 200,
    smoothing: float | None = None,
    start: str = "median",
) -> Any:
    """Return the point with the least sum of distances to all vectors.

    Its sum is above the least by at most `tolerance` (1e-8) times n median distances from the start, unless there are
    too few `iterations`. Where all vectors lie on a line, several points may have the least sum: then it is the start,
    if that is one of them. `start` is 'median' (of each coordinate) or 'zero'.

    With `smoothing`, it is Weiszfeld's iteration: distances below `smoothing` count as `smoothing`, and it stops when a
    step is shorter than `tolerance` (1e-6) times the median distance from the start.

    >>> import numpy as np
    >>> geometric_median(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 9e9]]), 1).round(3)
    array([1.   , 0.577])
    """
    if smoothing is not None:
        return _weiszfeld(vectors, 1e-6 if tolerance is None else tolerance, iterations, smoothing, start)
    xp, point = namespace(vectors), starting_point(vectors, start)
    scale = vectors.shape[-2] * median_row(norms(vectors - point))[..., None, :]  # that liars cannot inflate
    point = _beginning(vectors, point, scale)
    least, moving = SLOW * (1e-8 if tolerance is None else tolerance) * scale, None
    for _ in range(iterations):
        step, change = _best_step(vectors - point, CLEARLY * scale)
        better = change < 0 if moving is None else moving & (change < 0)
        point = xp.where(better, point + step, point)
        moving = better & (-change > least)
        if not moving.any():
            break
    return point[..., 0, :]


def _beginning(vectors: Any, start: Any, scale: Any) -> Any:
    """Return the vector with the least sum of distances to the others, or the start if that is no worse."""
    xp = namespace(vectors)
    sums = total(xp.sqrt(squared_distances(vectors)), axis=-1)
    nearest = xp.take_along_axis(vectors, xp.argmin(sums, axis=-1)[..., None, None], axis=-2)
    return xp.where(_change(vectors - start, nearest - start) < -CLEARLY * scale, nearest, start)


def _change(offset: Any, step: Any) -> Any:
    """Return by how much a step changes the sum of distances `[..., 1, 1]`: by quotients, so that large ones cancel."""
    xp, sum_of = namespace(offset), norms(offset - step) + norms(offset)
    product = total(step * (step - 2 * offset), axis=-1)[..., None]
    return total(product / xp.maximum(sum_of, TINY))[..., None, :]


def _best_step(offset: Any, near: Any) -> tuple[Any, Any]:
    """Return the best of some steps, and how it changes the sum: Weiszfeld's, and parts of Newton's.

    Vectors nearer than `near` count as the point itself.
    """
    xp = namespace(offset)
    best = _step(offset, near, None)
    least = _change(offset, best)
    if min(offset.shape[-2:]) <= WIDEST:
        newton = _newton(offset, near)
        for part in STEPS:
            change = _change(offset, part * newton)
            better = change < least
            best, least = xp.where(better, part * newton, best), xp.where(better, change, least)
    return best, least


def _newton(offset: Any, near: Any) -> Any:
    """Return Newton's step `[..., 1, k]` for the sum of distances; vectors nearer than `near` are left out.

    With the unit vectors u_i to the vectors and their distances r_i, the Hessian is a I - B'B, where a is the sum of
    1/r_i and B has the rows u_i / sqrt(r_i). It is solved for in k dimensions, or in n where these are fewer.
    """
    xp, distance = namespace(offset), norms(offset)
    weight = xp.where(distance > near, 1 / xp.maximum(distance, TINY), 0.0 * distance)
    unit = offset * weight
    pull, a = total(unit)[..., None, :], xp.maximum(total(weight)[..., None, :], TINY)
    rows = unit * xp.sqrt(weight / a)  # B / sqrt(a)
    n, k = offset.shape[-2:]
    with np.errstate(all="ignore"):  # a step that cannot be computed is worse than any other
        if k <= n:
            columns = rows.swapaxes(-1, -2)
            return _solved(_identity(k, offset) - _gram(columns), pull.swapaxes(-1, -2)).swapaxes(-1, -2) / a
        inner = _solved(_identity(n, offset) - _gram(rows), total(rows * pull, axis=-1)[..., None])
        return (pull + total(rows * inner)[..., None, :]) / a


def _identity(size: int, like: Any) -> Any:
    xp = namespace(like)
    return (1 + RIDGE) * (xp.eye(size) if xp is np else xp.eye(size, dtype=like.dtype, device=like.device))


def _gram(rows: Any) -> Any:
    """Return the products of rows, `[..., m, m]`, without BLAS, whose sums have no fixed order."""
    xp = namespace(rows)
    return xp.stack([total(rows * rows[..., i : i + 1, :], axis=-1) for i in range(rows.shape[-2])], axis=-2)


def _solved(matrix: Any, right: Any) -> Any:
    """Return the solution `[..., m, 1]` of a positive definite system, by elimination."""
    xp, m = namespace(matrix), matrix.shape[-1]
    table = xp.concat([matrix, right], axis=-1)
    for j in range(m - 1):
        factor = table[..., j + 1 :, j : j + 1] / table[..., j : j + 1, j : j + 1]
        table[..., j + 1 :, j:] = table[..., j + 1 :, j:] - factor * table[..., j : j + 1, j:]
    solution = right * 0.0
    for j in reversed(range(m)):
        known = total(table[..., j : j + 1, j + 1 : m] * solution[..., j + 1 :, :].swapaxes(-1, -2), axis=-1)
        solution[..., j, :] = (table[..., j, m:] - known) / table[..., j, j : j + 1]
    return solution


@on_rows(lengths=("smoothing",))
def geometric_median_1(
    vectors: Any,
    byzantine: int,  # noqa: ARG001
    *,
    tolerance: float = 1e-6,
    iterations: int = 200,
    smoothing: float | None = None,
    start: str = "median",
) -> Any:
    """Return what `geometric_median` was in version 1 of the semantics of rules, for ledgers that began with it.

    >>> import numpy as np
    >>> geometric_median_1(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 9e9]]), 1).round(3)
    array([1.   , 0.577])
    """
    return _weiszfeld(vectors, tolerance, iterations, smoothing, start)


def _weiszfeld(vectors: Any, tolerance: float, iterations: int, smoothing: float | None, start: str) -> Any:
    point = starting_point(vectors, start)
    near = tolerance * median_row(norms(vectors - point))[..., None, :] if tolerance else 0.0
    moving = None
    for _ in range(iterations):
        step = _step(vectors - point, near, smoothing)
        point = point + (step if moving is None else step * moving)
        if tolerance:
            moving = norms(step) > near if moving is None else moving & (norms(step) > near)
            if not moving.any():
                break
    return point[..., 0, :]


def _step(offset: Any, near: Any, smoothing: Any) -> Any:
    """Return a step towards the vectors, weighted by 1/distance.

    Without smoothing, vectors nearer than `near` count as the point itself (Vardi and Zhang) and shorten the step.
    """
    xp, distance = namespace(offset), norms(offset)
    weight = 1 / xp.maximum(distance, TINY if smoothing is None else smoothing)
    if smoothing is not None:
        return (total(weight * offset) / total(weight))[..., None, :]
    away = distance > near
    weight = weight * away
    pull = total(weight * offset)[..., None, :]
    held = total(xp.astype(~away, offset.dtype))[..., None, :]
    free = xp.maximum(1 - held / xp.maximum(norms(pull), TINY), 0.0)
    return free * pull / xp.maximum(total(weight)[..., None, :], TINY)
