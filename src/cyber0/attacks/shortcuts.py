"""Two faster ways to compute what a rule returns when all liars send the same vector.

Both are exact up to rounding, to 1e-7 of the largest length.

Shapes: h honest vectors and L lies of k scalars, of which b are dropped at each end by `cwtm`.

- The trimmed mean: of h honest values in ascending order and L times the value x, it is the mean of
  clip(x, honest[i + b - L], honest[i + b]) over i = 0 .. h + L - 2b - 1. So values are sorted once for all strengths.
- A rule that depends on distances alone (`isometric`) commutes with rotations of its vectors. All honest vectors and a
  direction span at most h + 1 dimensions, however many scalars a vector has.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cyber0.aggregation import Composition, cwtm, to_numpy
from cyber0.attacks.scene import Rule, Scene, namespace

__all__ = ["in_few_dimensions", "is_cwtm", "trimmed_with_equal_lies"]


def in_few_dimensions(scene: Scene, direction: Any) -> tuple[Scene, Any]:
    """Return the scene, centred at its honest mean, and the direction in coordinates of their span, on the host.

    The honest rows and the direction keep their distances and angles; the liars' rows are zeros.

    >>> from cyber0.attacks.scene import observe
    >>> few, along = in_few_dimensions(observe(np.eye(50)[:4], [3]), np.eye(50)[7])
    >>> few.vectors.shape, round(float(along @ along), 9)
    ((4, 4), 1.0)
    """
    xp = namespace(scene.honest)
    centred = xp.concat([scene.honest - scene.mean[..., None, :], direction[..., None, :]], axis=-2)
    squares = xp.matmul(centred, xp.matrix_transpose(centred))
    values, vectors = np.linalg.eigh(to_numpy(squares))
    coordinates = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    honest = coordinates[..., :-1, :]
    lying: Any = to_numpy(scene.liars)
    others = [row for row in range(honest.shape[-2] + len(lying)) if row not in lying]
    rows = np.zeros((*honest.shape[:-2], len(others) + len(lying), honest.shape[-1]))
    rows[..., others, :] = honest
    zero = np.zeros_like(honest[..., 0, :])
    few = replace(scene, vectors=rows, honest=honest, mean=zero, scale=None, liars=lying, given=rows)
    return few, coordinates[..., -1, :]


def trimmed_with_equal_lies(scene: Scene, byzantine: int) -> Callable[[Any], Any] | None:
    """Return a function from lies `[c, ..., k]` to `cwtm` of them and the honest vectors; None for more than b liars.

    >>> from cyber0.attacks.scene import observe
    >>> scene = observe(np.array([[1.0], [2.0], [6.0], [0.0]]), [3])
    >>> trimmed_with_equal_lies(scene, 1)(np.array([[-9.0], [3.0], [99.0]])).ravel()
    array([1.5, 2.5, 4. ])
    """
    xp, (honest, liars) = namespace(scene.honest), (scene.honest.shape[-2], len(scene.liars))
    kept = honest + liars - 2 * byzantine
    if liars > byzantine or kept < 1:
        return None
    ascending = xp.sort(scene.honest, axis=-2)
    low = ascending[..., byzantine - liars : byzantine - liars + kept, :]
    high = ascending[..., byzantine : byzantine + kept, :]

    def trimmed(lies: Any) -> Any:
        return xp.mean(xp.minimum(xp.maximum(lies[..., None, :], low), high), axis=-2)

    return trimmed


def is_cwtm(rule: Rule) -> bool:
    """Return whether a rule is the trimmed mean without pre-aggregations.

    >>> from cyber0.aggregation import get_rule
    >>> is_cwtm(get_rule("cwtm")), is_cwtm(get_rule("nnm+cwtm"))
    (True, False)
    """
    return rule is cwtm or (isinstance(rule, Composition) and not rule.pre and rule.rule is cwtm)
