"""The mean, the median and the trimmed mean of each coordinate.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
"""

from typing import Any

from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.rows import average, median_row, trimmed

__all__ = ["cwtm", "mean", "median"]


@on_rows(squares=False, isometric=True)
def mean(vectors: Any, byzantine: int) -> Any:  # noqa: ARG001
    """Return the mean of all vectors: the best rule if nobody lies, but a single liar can move it anywhere.

    >>> import numpy as np
    >>> mean(np.array([[1.0, 2.0], [3.0, 6.0]]), 0)
    array([2., 4.])
    """
    return average(vectors)


@on_rows(squares=False)
def median(vectors: Any, byzantine: int) -> Any:  # noqa: ARG001
    """Return the median of each coordinate; of an even number of vectors, the mean of the middle two.

    >>> import numpy as np
    >>> median(np.array([[1.0, 2.0], [3.0, 6.0], [9e9, 0.0]]), 1)
    array([3., 2.])
    """
    return median_row(vectors)


@on_rows(squares=False)
def cwtm(vectors: Any, byzantine: int) -> Any:
    """Return the trimmed mean of each coordinate: drop the b largest and the b smallest values, average the rest.

    >>> import numpy as np
    >>> cwtm(np.array([[1.0, 2.0], [3.0, 6.0], [9e9, 0.0], [2.0, 5.0]]), 1)
    array([2.5, 3.5])
    """
    return trimmed(vectors, byzantine)
