"""Mimic: every lie is true, and one client's voice is heard many times.

Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR 2022. The paper finds
the client to copy over a warm-up; here each round finds its own, from its own vectors, unless you name one.
"""
# ruff: noqa: ARG001 (attacks share one signature)

from typing import Any

from numpy.random import Generator

from cyber0.attacks.scene import Liars, Rule, Scene, namespace, observe
from cyber0.errors import InvalidAttack

__all__ = ["mimic"]

SQUARINGS = 10  # to the power 1024, all but the principal direction is gone
TINY = 1e-300  # divides instead of zero


def mimic(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator, *, client: int | None = None) -> Any:
    """All liars send what one honest client sends.

    By default the one farthest from the mean along the direction in which the honest vectors vary most; or `client`,
    counted from 0 among the honest.

    >>> import numpy as np
    >>> mimic(np.array([[1.0, 5.0], [2.0, 5.1], [9.0, 5.0], [0.0, 0.0]]), [3], None, 1, np.random.default_rng(0))
    array([[9., 5.]])
    """
    scene = observe(vectors, liars)
    count = scene.honest.shape[-2]
    if client is None:
        return scene.sent(_extreme(scene))
    if not 0 <= client < count:
        raise InvalidAttack(f"client = {client} of {count} honest ones: it must be from 0 to {count - 1}")
    return scene.sent(scene.honest[..., client : client + 1, :])


def _extreme(scene: Scene) -> Any:
    """The honest vector of the largest entry of the principal eigenvector of their inner products, `[..., 1, k]`."""
    xp, centred = namespace(scene.mean), scene.honest - scene.mean[..., None, :]
    products = xp.matmul(centred, xp.matrix_transpose(centred))
    for _ in range(SQUARINGS):
        products = products / xp.clip(xp.linalg.trace(products), TINY, None)[..., None, None]
        products = xp.matmul(products, products)
    chosen = xp.argmax(xp.linalg.diagonal(products), axis=-1)[..., None, None]
    return xp.take_along_axis(scene.honest, xp.broadcast_to(chosen, scene.mean[..., None, :].shape), axis=-2)
