"""Nearest-neighbour mixing.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan. Fixing by Mixing: A Recipe for Optimal Byzantine ML under
Heterogeneity. AISTATS 2023.
"""

from typing import Any

from cyber0.aggregation.choice import smallest
from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.distances import chosen_sums, squared_distances

__all__ = ["nnm"]


@on_rows(isometric=True)
def nnm(vectors: Any, byzantine: int) -> Any:
    """Replace each vector by the mean of the n - b vectors nearest to it, itself included.

    >>> import numpy as np
    >>> nnm(np.array([[1.0], [2.0], [9.0]]), 1)
    array([[1.5],
           [1.5],
           [5.5]])
    """
    count = vectors.shape[-2] - byzantine
    sums = chosen_sums(smallest(squared_distances(vectors), count, vectors), vectors)
    sums /= count  # in place: another array of this size would cost as much as the sums
    return sums
