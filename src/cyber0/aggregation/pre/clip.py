"""Clipping, to a given length or adaptively.

Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan. Adaptive Gradient Clipping for Robust Federated Learning. ICLR 2025.
"""

from typing import Any

from cyber0.aggregation.decorators import on_rows
from cyber0.aggregation.rows import namespace, norms, shortened

__all__ = ["clip"]


@on_rows(lengths=("radius",))
def clip(vectors: Any, byzantine: int, *, radius: float | None = None) -> Any:
    """Shorten each vector to `radius`; by default the 2b (n - b) / n longest to the length of the next.

    >>> import numpy as np
    >>> clip(np.array([[3.0, 4.0], [0.0, 1.0]]), 0, radius=1.0)
    array([[0.6, 0.8],
           [0. , 1. ]])
    >>> clip(np.array([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]), 1)
    array([[0.6, 0.8],
           [0. , 1. ],
           [1. , 0. ]])
    """
    if radius is None:
        n = vectors.shape[-2]
        clipped = 2 * byzantine * (n - byzantine) // n
        radius = namespace(vectors).sort(norms(vectors), axis=-2)[..., n - clipped - 1 : n - clipped, :]
    return shortened(vectors, radius)
