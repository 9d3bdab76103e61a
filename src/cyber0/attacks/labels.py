"""Label flipping: the liars train on wrong labels and send what they measure.

Allen-Zhu, Ebrahimianghazani, Li, Alistarh. Byzantine-Resilient Non-Convex SGD. ICLR 2021.
"""

from typing import Any, cast

from numpy.random import Generator

from cyber0.attacks.scene import Liars, Rule
from cyber0.attacks.simple import none

__all__ = ["corrupt_labels", "lf"]


def lf(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator) -> Any:
    """Label flipping: the liars send what they measure on wrong labels, those of `lf.corrupt_labels`.

    >>> import numpy as np
    >>> lf(np.array([[1.0], [2.0]]), [1], None, 0, np.random.default_rng(0))
    array([[2.]])
    >>> lf.corrupt_labels(np.array([0, 3, 9]), classes=10)
    array([9, 6, 0])
    """
    return none(vectors, liars, rule, byzantine, rng)


def corrupt_labels(labels: Any, classes: int) -> Any:
    """Return classes - 1 - y for each label y.

    >>> corrupt_labels(3, classes=10)
    6
    """
    return classes - 1 - labels


cast("Any", lf).corrupt_labels = corrupt_labels
