"""Attacks that need no search: no attack, sign flipping, noise, zeros, and values that are not finite."""
# ruff: noqa: ARG001 (attacks share one signature)

import math
from typing import Any

import numpy as np
from numpy.random import Generator

from cyber0.attacks.scene import Liars, Rule, check_factor, namespace, observe, rows, rows_of

__all__ = ["noise", "none", "nonfinite", "sf", "zero"]

NONFINITE = (math.nan, math.inf, -math.inf)


def none(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator) -> Any:
    """No attack: the liars send the truth.

    >>> none(np.array([[1.0], [2.0]]), [1], None, 0, np.random.default_rng(0))
    array([[2.]])
    """
    return rows(vectors, rows_of(vectors, liars)[0])


def sf(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator) -> Any:
    """Sign flipping: the liars send minus the mean of the honest vectors.

    Allen-Zhu, Ebrahimianghazani, Li, Alistarh. Byzantine-Resilient Non-Convex SGD. ICLR 2021.

    >>> sf(np.array([[1.0], [2.0], [4.0]]), [1], None, 1, np.random.default_rng(0))
    array([[-2.5]])
    """
    scene = observe(vectors, liars)
    return scene.sent(-scene.mean[..., None, :])


def noise(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator, *, scale: float = 10.0) -> Any:
    """Each liar sends the honest mean plus Gaussian noise, `scale` times the standard deviation of the honest vectors.

    >>> noise(np.array([[1.0], [2.0], [4.0]]), [0], None, 1, np.random.default_rng(0)).round(3)
    array([[4.778]])
    """
    check_factor("scale", scale)
    scene = observe(vectors, liars)
    xp, shape = namespace(scene.mean), (*vectors.shape[:-2], len(scene.liars), vectors.shape[-1])
    drawn: Any = rng.standard_normal(shape)
    drawn = drawn if xp is np else xp.asarray(drawn, device=scene.mean.device)
    return scene.sent(scene.mean[..., None, :] + float(scale) * scene.deviation[..., None, :] * drawn)


def zero(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator) -> Any:
    """The liars send zeros.

    >>> zero(np.array([[1.0], [2.0]]), [1], None, 0, np.random.default_rng(0))
    array([[0.]])
    """
    return namespace(vectors).zeros_like(none(vectors, liars, rule, byzantine, rng))


def nonfinite(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator) -> Any:
    """The liars send, in turn, NaN, infinity and minus infinity; a federator's admission drops such votes.

    >>> nonfinite(np.ones((4, 2)), [0, 2], None, 1, np.random.default_rng(0))
    array([[nan, nan],
           [inf, inf]])
    """
    lies = zero(vectors, liars, rule, byzantine, rng)
    for first, value in enumerate(NONFINITE):
        lies[..., first :: len(NONFINITE), :] = value
    return lies
