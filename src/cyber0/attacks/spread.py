"""Min-max and min-sum: lies as far from the honest mean as the distances between honest vectors allow.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021. The paper approximates the greatest admissible gamma by halving steps; here it is computed.
"""
# ruff: noqa: ARG001 (attacks share one signature)

from typing import Any

from numpy.random import Generator

from cyber0.attacks.scene import Liars, Rule, Scene, namespace, observe
from cyber0.errors import InvalidAttack

__all__ = ["DEVIATIONS", "min_max", "min_sum"]

DEVIATIONS = ("sign", "std", "unit")
TINY = 1e-300  # in place of zero in a denominator


def min_max(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator, *, deviation: str = "std") -> Any:
    """All liars send mean + gamma a, with the greatest gamma that keeps it within the diameter of the honest vectors.

    No lie is farther from any honest vector than two honest ones are from each other. The `deviation` says along which
    unit vector a to push: minus the honest standard deviation ('std'), the mean ('unit') or its signs ('sign').

    >>> import numpy as np
    >>> min_max(np.array([[1.0], [2.0], [3.0], [0.0]]), [3], None, 1, np.random.default_rng(0))
    array([[1.]])
    """
    scene = observe(vectors, liars)
    xp, along = namespace(scene.mean), _direction(scene, deviation)
    centred = scene.honest - scene.mean[..., None, :]
    products = xp.matmul(centred, xp.matrix_transpose(centred))
    squares = xp.linalg.diagonal(products)
    diameter = xp.max(squares[..., :, None] + squares[..., None, :] - 2 * products, axis=(-2, -1), keepdims=False)
    # For each honest v, |mean + gamma a - v| = diameter is quadratic in gamma; the nearest solution binds.
    slope = xp.sum(along[..., None, :] * centred, axis=-1)
    room = slope * slope + diameter[..., None] - squares
    gamma = xp.min(slope + xp.sqrt(xp.clip(room, 0.0, None)), axis=-1)
    return scene.sent((scene.mean + gamma[..., None] * along)[..., None, :])


def min_sum(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator, *, deviation: str = "std") -> Any:
    """All liars send mean + gamma a, with the sum of squared distances to honest vectors that the farthest of them has.

    That sum depends on the distance from the mean alone, so that a lie is as far from it as the farthest honest vector.
    The `deviation` is that of `min_max`.

    >>> import numpy as np
    >>> min_sum(np.array([[1.0], [2.0], [3.0], [0.0]]), [3], None, 1, np.random.default_rng(0))
    array([[1.]])
    """
    scene = observe(vectors, liars)
    xp, along = namespace(scene.mean), _direction(scene, deviation)
    centred = scene.honest - scene.mean[..., None, :]
    gamma = xp.sqrt(xp.max(xp.sum(centred * centred, axis=-1), axis=-1))
    return scene.sent((scene.mean + gamma[..., None] * along)[..., None, :])


def _direction(scene: Scene, deviation: str) -> Any:
    """Return the unit vector along which to push, `[..., k]`, or zeros where the deviation is zero."""
    if deviation not in DEVIATIONS:
        raise InvalidAttack(f"deviation = {deviation!r}: use one of {', '.join(DEVIATIONS)}")
    xp = namespace(scene.mean)
    away = scene.deviation if deviation == "std" else xp.sign(scene.mean) if deviation == "sign" else scene.mean
    length = xp.sqrt(xp.sum(away * away, axis=-1, keepdims=True))
    return -away / xp.clip(length, TINY, None)
