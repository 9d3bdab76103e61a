"""The mean around the median.

Xie, Koyejo, Gupta. Generalized Byzantine-tolerant SGD. 2018. arXiv:1802.10116.
"""

from typing import Any

from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.rows import average, namespace

__all__ = ["around_median", "meamed"]


@on_rows()
def meamed(vectors: Any, byzantine: int) -> Any:
    """Return, for each coordinate, the mean of the n - b values nearest to the median.

    >>> import numpy as np
    >>> meamed(np.array([[1.0], [2.0], [4.0], [5.0], [90.0]]), 1)
    array([3.])
    """
    return around_median(vectors, vectors.shape[-2] - byzantine)


def around_median(vectors: Any, count: int) -> Any:
    """Return the mean of the `count` values nearest to the median of each coordinate; of two equally near, the lesser.

    >>> import numpy as np
    >>> around_median(np.array([[1.0], [2.0], [4.0], [5.0], [90.0]]), 2)
    array([4.5])
    """
    xp, n = namespace(vectors), vectors.shape[-2]
    ordered = xp.sort(vectors, axis=-2)
    median = average(ordered[..., (n - 1) // 2 : n // 2 + 1, :])[..., None, :]
    # The nearest values are consecutive in this order: skip the least while the next one above is nearer.
    farther = median - ordered[..., : n - count, :] > ordered[..., count:, :] - median
    first = xp.sum(xp.astype(farther, xp.int64), axis=-2)[..., None, :]
    place = first + xp.arange(count, dtype=xp.int64, device=vectors.device)[:, None]
    return average(xp.take_along_axis(ordered, place, axis=-2)) + 0.0
