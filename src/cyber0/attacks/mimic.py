"""Mimic: all liars copy one honest client, which then counts many times.

Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR 2022. The paper finds
the client to copy in a warm-up; here it is found anew in each round, unless it is given.
"""
# ruff: noqa: ARG001 (attacks share one signature)

from typing import Any

from numpy.random import Generator

from cyber0.attacks.scene import Liars, Rule, Scene, namespace, observe
from cyber0.errors import InvalidAttack

__all__ = ["mimic"]

SQUARINGS = 10  # of the 1024th power only the principal direction remains
TINY = 1e-300  # in place of zero in a denominator


def mimic(vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator, *, client: int | None = None) -> Any:
    """All liars send what one honest client sends.

    By default it is the one farthest from the mean along the direction in which the honest vectors vary most;
    `client` names another, counted from 0 among the honest.

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
    """Return the honest vector with the largest entry in the principal eigenvector of the Gram matrix."""
    xp, centred = namespace(scene.mean), scene.honest - scene.mean[..., None, :]
    products = xp.matmul(centred, xp.matrix_transpose(centred))
    for _ in range(SQUARINGS):
        products = products / xp.clip(xp.linalg.trace(products), TINY, None)[..., None, None]
        products = xp.matmul(products, products)
    chosen = xp.argmax(xp.linalg.diagonal(products), axis=-1)[..., None, None]
    return xp.take_along_axis(scene.honest, xp.broadcast_to(chosen, scene.mean[..., None, :].shape), axis=-2)
