"""Centered clipping.

Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021. There the centre is the last
round's aggregate; a rule has no memory, so here it is the median, and the radius follows the vectors unless given.
"""

from typing import Any

from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.rows import median_row, norms, shortened, starting_point, total

__all__ = ["centered_clipping"]


@on_rows(lengths=("radius",))
def centered_clipping(
    vectors: Any,
    byzantine: int,  # noqa: ARG001
    *,
    radius: float | None = None,
    iterations: int = 3,
    start: str = "median",
) -> Any:
    """From a starting point, move by the mean of the differences to all vectors, each shortened to `radius`.

    By default the radius is the median of the distances. `start` is 'median' (of each coordinate) or 'zero'.

    >>> import numpy as np
    >>> centered_clipping(np.array([[0.0], [1.0], [2.0], [3.0], [9e9]]), 1).round(2)
    array([2.])
    """
    point = starting_point(vectors, start)
    for done in range(iterations):
        offset = vectors if start == "zero" and done == 0 else vectors - point
        reach = median_row(norms(offset))[..., None] if radius is None else radius
        point = point + total(shortened(offset, reach))[..., None, :] / vectors.shape[-2]
    return point[..., 0, :]
