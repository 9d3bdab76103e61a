"""The transformed trimmed-mean attack, tailored to the coordinate-wise trimmed mean.

Egger, Bakshi, Bitar. Byzantine-Resilient Zero-Settings Optimization for Communication-Efficient Heterogeneous Federated
Learning. 2025.
"""
# ruff: noqa: ARG001 (attacks share one signature)

from typing import Any

from numpy.random import Generator

from cyber0.attacks.scene import Liars, Rule, namespace, observe

__all__ = ["tma"]


def tma(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator) -> Any:
    """All liars send, per coordinate, the b-th smallest honest value if the mean is positive, else the b-th largest.

    The mean is that of all n true values. Such a value is just inside what a trimmed mean keeps, on the side away from
    the mean. b = 0 counts as 1.

    >>> import numpy as np
    >>> tma(np.array([[1.0, -1.0], [2.0, -2.0], [3.0, -3.0], [4.0, -4.0]]), [3], None, 1, np.random.default_rng(0))
    array([[ 1., -1.]])
    """
    scene = observe(vectors, liars)
    xp, count = namespace(scene.mean), scene.honest.shape[-2]
    ascending = xp.sort(scene.honest, axis=-2)
    rank = min(max(byzantine, 1), count)
    positive = xp.mean(scene.vectors, axis=-2, keepdims=True) > 0
    return scene.sent(xp.where(positive, ascending[..., rank - 1 : rank, :], ascending[..., count - rank, None, :]))
