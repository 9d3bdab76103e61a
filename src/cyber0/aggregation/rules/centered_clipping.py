"""Centered clipping.

Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021. There the centre is the
previous round's aggregate, as in `centered_clipping_previous`; `centered_clipping` needs no memory and starts from the
median. In both the radius follows the vectors unless it is given.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.aggregation.decorators import check_shape, like, on_rows, widened
from cyber0.aggregation.rows import median_row, namespace, norms, shortened, starting_point, total

__all__ = ["CenteredClippingPrevious", "centered_clipping"]


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

    >>> centered_clipping(np.array([[0.0], [1.0], [2.0], [3.0], [9e9]]), 1).round(2)
    array([2.])
    """
    point = starting_point(vectors, start)
    for done in range(iterations):
        offset = vectors if start == "zero" and done == 0 else vectors - point
        reach = median_row(norms(offset))[..., None] if radius is None else radius
        point = point + total(shortened(offset, reach))[..., None, :] / vectors.shape[-2]
    return point[..., 0, :]


class CenteredClippingPrevious:
    """Centered clipping that starts from the previous commit, or from zero before the first one, as in the paper.

    The memory is the previous commit, `[rows, k]`. Its error is bounded by how far the previous commit is from the
    honest mean; it has no kappa of its own.

    >>> rule = CenteredClippingPrevious(radius=1.0)
    >>> votes, memory = np.array([[4.0], [5.0], [6.0], [9e9]]), rule.begin()
    >>> rule(votes, 1, memory=memory)
    array([1.])
    >>> rule(votes, 1, memory=rule.after(memory, np.array([5.0], dtype=np.float32)))
    array([5.25])
    """

    def __init__(self, *, radius: float | None = None, iterations: int = 1) -> None:
        self.radius, self.iterations = radius, iterations

    def begin(self) -> NDArray[np.float32]:
        """Return zero, along every coordinate."""
        return np.zeros(1, dtype=np.float32)

    def after(self, memory: NDArray[np.float32], scalars: NDArray[np.float32], /) -> NDArray[np.float32]:  # noqa: ARG002
        """Return the scalars of the commit."""
        return np.array(scalars, dtype=np.float32)

    def __call__(self, vectors: Any, byzantine: int, /, *, memory: NDArray[np.float32]) -> Any:
        """Aggregate votes `[..., rows, n, k]`, starting from the memory."""
        rows = widened(vectors)
        check_shape(rows.shape, byzantine)
        xp = namespace(rows)
        centre = xp.asarray(memory, dtype=xp.float64, device=rows.device)[..., None, :]
        # About the centre, so that the squares are kept in range where the differences are small or large.
        moved = centered_clipping(
            rows - centre, byzantine, radius=self.radius, iterations=self.iterations, start="zero"
        )
        return like(vectors, centre[..., 0, :] + moved)
