"""The geometric median.

Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing, 2022.
By Weiszfeld's iteration, corrected at data points as by Vardi and Zhang (PNAS 2000).
"""

from typing import Any

from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.rows import TINY, median_row, namespace, norms, starting_point, total

__all__ = ["geometric_median"]


@on_rows(lengths=("smoothing",))
def geometric_median(
    vectors: Any,
    byzantine: int,  # noqa: ARG001
    *,
    tolerance: float = 1e-6,
    iterations: int = 200,
    smoothing: float | None = None,
    start: str = "median",
) -> Any:
    """Return the point with the least sum of distances to all vectors, by Weiszfeld's iteration.

    It stops when a step is shorter than `tolerance` times the median distance from the start, or after `iterations`.
    Distances below `smoothing` count as `smoothing`. `start` is 'median' (of each coordinate) or 'zero'.

    >>> import numpy as np
    >>> geometric_median(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 9e9]]), 1).round(3)
    array([1.   , 0.577])
    """
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
