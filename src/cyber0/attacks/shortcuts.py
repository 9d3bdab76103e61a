"""Faster ways to compute what a rule returns when all liars send the same vector, and where it turns.

They are exact up to rounding, to 1e-7 of the largest length.

Shapes: h honest vectors and L lies of k scalars, of which b are dropped at each end by `cwtm`.

- The trimmed mean: of h honest values in ascending order and L times the value x, it is the mean of
  clip(x, honest[i + b - L], honest[i + b]) over i = 0 .. h + L - 2b - 1. So values are sorted once for all strengths.
- Krum: the distance of a lie from an honest vector is quadratic in the strength, and the distances between honest ones
  are sorted once for all strengths.
- Nearest-neighbour mixing turns where a lie becomes, or ceases to be, one of the n - b vectors nearest to an honest
  one: at the roots of a quadratic equation.
- A rule that depends on distances alone (`isometric`) commutes with rotations of its vectors. All honest vectors and a
  direction span at most h + 1 dimensions, however many scalars a vector has.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cyber0.aggregation import Composition, cwtm, krum, nnm, to_numpy
from cyber0.attacks.scene import Rule, Scene, namespace

__all__ = [
    "geometry",
    "in_few_dimensions",
    "is_cwtm",
    "is_krum",
    "krum_distances",
    "mixes",
    "trimmed_with_equal_lies",
    "turns",
]

TINY = 1e-300  # in place of zero in a denominator
BESIDE = 1e-6  # so far beside a turn, relative to it, are two omegas to try: one before it and one after


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


def krum_distances(scene: Scene, direction: Any, byzantine: int) -> Callable[[Any], Any]:
    """Return a function from omegas `[c, ...]` to how far `krum` of lies mean + omega direction is from the mean.

    >>> from cyber0.attacks.scene import observe
    >>> scene = observe(np.array([[0.0], [4.0], [5.0], [0.0]]), [3])
    >>> krum_distances(scene, np.array([1.0]), 1)(np.array([0.0, 1.5, 9.0]))
    array([1. , 1.5, 1. ])
    """
    xp, (honest, liars) = namespace(scene.honest), (scene.honest.shape[-2], len(scene.liars))
    neighbours = honest + liars - byzantine - 1
    lengths, slopes, squares = geometry(scene, direction)
    between = xp.sort(squares, axis=-1)
    sums = xp.cumulative_sum(between, axis=-1)  # of the distances to itself, 0, and to the nearest others
    reach = xp.sum(direction * direction, axis=-1)
    window = between[..., max(neighbours - liars, 0) + 1 : neighbours + 1]  # the lies may come before these

    def distance(omegas: Any) -> Any:
        squares = lengths - 2 * omegas[..., None] * slopes + (omegas * omegas * reach)[..., None]
        lies = xp.sum(xp.astype(window >= squares[..., None], xp.int64), axis=-1) + max(neighbours - honest + 1, 0)
        lies = xp.clip(lies, 0, liars)
        kept = xp.take_along_axis(xp.broadcast_to(sums, (*lies.shape, honest)), neighbours - lies[..., None], axis=-1)
        scores = kept[..., 0] + lies * squares
        own = xp.sum(xp.sort(squares, axis=-1)[..., : max(neighbours - liars + 1, 0)], axis=-1)
        best = xp.argmin(scores, axis=-1)[..., None]
        least = xp.take_along_axis(scores, best, axis=-1)[..., 0]
        far = xp.take_along_axis(xp.broadcast_to(lengths, scores.shape), best, axis=-1)[..., 0]
        return xp.sqrt(xp.where(own < least, omegas * omegas * reach, far))

    return distance


def turns(scene: Scene, direction: Any, byzantine: int) -> Any:
    """Return the omegas, `[c, ...]` in ascending order, just before and after which nearest-neighbour mixing turns.

    >>> from cyber0.attacks.scene import observe
    >>> scene = observe(np.array([[1.0], [2.0], [6.0], [0.0]]), [3])
    >>> turns(scene, np.array([1.0]), 1).round(3)
    array([0., 0., 0., 0., 0., 0., 3., 3., 3., 3., 8., 8.])
    """
    xp, (honest, liars) = namespace(scene.honest), (scene.honest.shape[-2], len(scene.liars))
    count = honest + liars - byzantine
    lengths, slopes, squares = geometry(scene, direction)
    radii = xp.sort(squares, axis=-1)[..., max(count - liars, 0) : min(count, honest)]
    reach = xp.clip(xp.sum(direction * direction, axis=-1), TINY, None)[..., None, None]
    middle = slopes[..., None] / reach
    room = xp.sqrt(xp.clip(middle * middle - (lengths[..., None] - radii) / reach, 0.0, None))
    roots = xp.concat([middle - room, middle + room], axis=-1)
    roots = xp.clip(xp.moveaxis(roots.reshape(*scene.mean.shape[:-1], -1), -1, 0), 0.0, None)
    return xp.sort(xp.concat([roots * (1 - BESIDE), roots * (1 + BESIDE)]), axis=0)


def geometry(scene: Scene, direction: Any) -> tuple[Any, Any, Any]:
    """Return squared distances of honest vectors from their mean, products with the direction, and squared distances.

    The first two are `[..., h]`, the last, between the honest vectors, `[..., h, h]`.

    >>> from cyber0.attacks.scene import observe
    >>> lengths, slopes, squares = geometry(observe(np.array([[1.0], [3.0], [0.0]]), [2]), np.array([5.0]))
    >>> lengths, slopes, squares.tolist()
    (array([1., 1.]), array([-5.,  5.]), [[0.0, 4.0], [4.0, 0.0]])
    """
    xp, centred = namespace(scene.honest), scene.honest - scene.mean[..., None, :]
    products = xp.matmul(centred, xp.matrix_transpose(centred))
    lengths = xp.sum(centred * centred, axis=-1)
    squares = xp.clip(lengths[..., :, None] + lengths[..., None, :] - 2 * products, 0.0, None)
    return lengths, xp.sum(centred * direction[..., None, :], axis=-1), squares


def is_krum(rule: Rule) -> bool:
    """Return whether a rule is `krum` by default, without pre-aggregations.

    >>> from cyber0.aggregation import get_rule
    >>> is_krum(get_rule("krum")), is_krum(get_rule("nnm+krum")), is_krum(get_rule("krum(power=1)"))
    (True, False, False)
    """
    return rule is krum or (isinstance(rule, Composition) and not rule.pre and rule.rule is krum)


def mixes(rule: Rule) -> bool:
    """Return whether a rule begins with nearest-neighbour mixing.

    >>> from cyber0.aggregation import get_rule
    >>> mixes(get_rule("nnm+cwtm")), mixes(get_rule("cwtm"))
    (True, False)
    """
    return isinstance(rule, Composition) and bool(rule.pre) and rule.pre[0] is nnm
