"""The strengths omega that may move `nnm+krum` far, found without calling the rule.

All liars send x = mean + omega direction. Then mixing makes h + 1 different vectors: one of each honest vector, and one
of the lies. Between two turns of mixing (`shortcuts.turns`) each of them is linear in omega, so that its distance from
the mean is convex: Krum is moved farthest at an end of a piece, where mixing turns or where Krum's choice changes.
Turns are known. Krum's choice may change and change back within a percent of omega; before it does, a vector that is
farther away comes near to the least score. So scores of all h + 1 vectors are computed at all turns and on a grid, and
then again in those gaps between two of these omegas in which a far vector may have the least score.

With few clients different vectors may have equal scores, which the rule decides by rounding. So what is found here is
only proposed: omegas that move Krum far however it decides, and omegas that do so if it decides for the farthest.

It takes about a tenth of the time of the rule, which adds in an order that makes its bits the same on every machine.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cyber0.aggregation import Composition, krum, nnm
from cyber0.attacks.scene import Rule, Scene, namespace
from cyber0.attacks.shortcuts import geometry, turns

__all__ = ["is_mixed_krum", "mixed_krum", "promising"]

GRID = np.geomspace(0.02, 30, 300)  # in units
GAPS, WITHIN = 16, np.linspace(0, 1, 10)[1:-1]  # gaps to look into, and where
PROPOSED = 16  # omegas of either kind
EQUAL = 1e-9  # scores that differ by less, relative to the largest, may be equal
HOST_BLOCK, DEVICE_BLOCK = 2**18, 2**25  # the most distances at once: what fits a cache, or a device


def promising(scene: Scene, direction: Any, byzantine: int, unit: Any) -> Any:
    """Return omegas `[c, ...]` that probably move `nnm+krum` farthest from the honest mean.

    >>> from cyber0.aggregation import get_rule
    >>> from cyber0.attacks.scene import observe
    >>> from cyber0.attacks.strength import distance_of, unit_of
    >>> scene = observe(np.random.default_rng(5).normal(size=(20, 4)), range(15, 20))
    >>> distance, unit = distance_of(scene, scene.deviation, get_rule("nnm+krum"), 5), unit_of(scene, scene.deviation)
    >>> dense, few = np.linspace(0, 30, 3000), promising(scene, scene.deviation, 5, unit)
    >>> len(few), bool(distance(few).max() > 0.999 * distance(dense).max())
    (32, True)
    """
    xp, distances_and_scores = namespace(unit), mixed_krum(scene, direction, byzantine)
    grid, within = (
        xp.asarray(values, device=unit.device).reshape(-1, *(1,) * axes)
        for values, axes in ((GRID, unit.ndim), (WITHIN, unit.ndim + 1))
    )
    ends = turns(scene, direction, byzantine)
    ends = ends[int(xp.min(xp.sum(xp.astype(ends == 0, xp.int64), axis=0))) :]  # about half of them are below 0
    omegas = xp.sort(xp.concat([grid * unit, ends]), axis=0)
    distances, scores = distances_and_scores(omegas)
    gaps = xp.argsort(-_within_reach(distances, scores), axis=0)[:GAPS]
    low, high = (xp.take_along_axis(omegas, gaps + step, axis=0) for step in (0, 1))
    finer = (low + (high - low) * within).reshape(-1, *unit.shape)
    both = zip(_moved(distances, scores), _moved(*distances_and_scores(finer)), strict=True)
    best = xp.concat([xp.argsort(-xp.concat(moved), axis=0)[:PROPOSED] for moved in both])
    return xp.take_along_axis(xp.concat([omegas, finer]), best, axis=0)


def mixed_krum(scene: Scene, direction: Any, byzantine: int) -> Callable[[Any], tuple[Any, Any]]:
    """Return a function from omegas `[c, ...]` to distances from the honest mean and Krum's scores after mixing.

    Both are `[c, ..., h + 1]`: of what mixing makes of each honest vector, and, last, of the lies.

    >>> from cyber0.attacks.scene import observe
    >>> scene = observe(np.array([[0.0], [4.0], [5.0], [0.0]]), [3])
    >>> distances, scores = mixed_krum(scene, np.array([1.0]), 1)(np.array([1.5, 9.0]))
    >>> distances.round(2)
    array([[0.17, 1.5 , 1.5 , 1.5 ],
           [0.  , 0.  , 0.  , 4.  ]])
    >>> scores.argmin(axis=-1)
    array([1, 0])
    """
    xp, (honest, liars) = namespace(scene.honest), (scene.honest.shape[-2], len(scene.liars))
    count = honest + liars - byzantine
    centred = scene.honest - scene.mean[..., None, :]
    lengths, slopes, squares = geometry(scene, direction)
    reach = xp.sum(direction * direction, axis=-1)
    order = xp.argsort(xp.argsort(squares, axis=-1), axis=-1)  # 0 is the vector itself, 1 the nearest other
    window = xp.sort(squares, axis=-1)[
        ..., max(count - liars, 1) : min(count, honest)
    ]  # the lies may come before these
    block = HOST_BLOCK if str(scene.honest.device) == "cpu" else DEVICE_BLOCK
    step = max(1, block // (math.prod(scene.mean.shape[:-1]) * (honest + 1) * (honest + liars)))

    def of_block(omegas: Any) -> tuple[Any, Any]:
        to_lie = lengths - 2 * omegas[..., None] * slopes + (omegas * omegas * reach)[..., None]
        lies = xp.sum(xp.astype(window >= to_lie[..., None], xp.int64), axis=-1) + max(count - honest, 0)
        lies = xp.concat([xp.clip(lies, 0, liars), xp.full_like(lies[..., :1], min(liars, count))], axis=-1)
        near = xp.concat(
            [
                xp.broadcast_to(order, (*lies.shape[:-1], honest, honest)),
                xp.argsort(xp.argsort(to_lie, axis=-1), axis=-1)[..., None, :],
            ],
            axis=-2,
        )
        sums = xp.matmul(xp.astype(near < (count - lies)[..., None], xp.float64), centred)
        mixed = (sums + (omegas[..., None] * lies)[..., None] * direction[..., None, :]) / count
        own = xp.sum(mixed * mixed, axis=-1)
        between = own[..., :, None] + own[..., None, :] - 2 * xp.matmul(mixed, xp.matrix_transpose(mixed))
        to_lies = xp.broadcast_to(between[..., honest:], (*between.shape[:-1], liars))
        votes = xp.clip(xp.concat([between[..., :honest], to_lies], axis=-1), 0.0, None)
        return xp.sqrt(own), xp.sum(xp.sort(votes, axis=-1)[..., :count], axis=-1)

    def distances_and_scores(omegas: Any) -> tuple[Any, Any]:
        blocks = [of_block(omegas[first : first + step]) for first in range(0, len(omegas), step)]
        distances, scores = (xp.concat(parts) for parts in zip(*blocks, strict=True))
        return distances, scores

    return distances_and_scores


def is_mixed_krum(rule: Rule) -> bool:
    """Return whether a rule is `krum` by default after nearest-neighbour mixing alone.

    >>> from cyber0.aggregation import get_rule
    >>> [is_mixed_krum(get_rule(name)) for name in ("nnm+krum", "nnm+krum(power=1)", "krum", "nnm+cwtm")]
    [True, False, False, False]
    """
    return isinstance(rule, Composition) and tuple(rule.pre) == (nnm,) and rule.rule is krum


def _within_reach(distances: Any, scores: Any) -> Any:
    """Return, for each gap between two omegas, the distance of the farthest vector that may be picked in it.

    That is one whose score, at either end, is above the least by no more than scores change from end to end.
    """
    xp = namespace(scores)
    least = xp.min(scores, axis=-1, keepdims=True)
    above = scores - least
    change = xp.abs(scores[1:] - scores[:-1]) + xp.abs(least[1:] - least[:-1])
    farther = xp.maximum(distances[1:], distances[:-1])
    may_win = xp.maximum(above[1:], above[:-1]) <= change
    return xp.max(xp.where(may_win, farther, xp.zeros_like(farther)), axis=-1)


def _moved(distances: Any, scores: Any) -> tuple[Any, Any]:
    """Return how far Krum is moved at the least and at the most, `[c, ...]`: of equal scores it may pick any."""
    xp = namespace(scores)
    least = xp.min(scores, axis=-1, keepdims=True)
    tied = scores - least <= EQUAL * xp.max(scores, axis=-1, keepdims=True)
    most = xp.max(distances, axis=-1, keepdims=True)
    return (
        xp.min(xp.where(tied, distances, most), axis=-1),
        xp.max(xp.where(tied, distances, xp.zeros_like(distances)), axis=-1),
    )
