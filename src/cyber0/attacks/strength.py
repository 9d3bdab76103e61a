"""Lies of the form mean + omega direction, with the omega that moves the aggregate farthest from the honest mean."""

import math
from collections.abc import Callable
from typing import Any

from cyber0.aggregation import Composition, compose, is_isometric
from cyber0.attacks.scene import Report, Rule, Scene, check_factor, namespace, unreported
from cyber0.attacks.search import DEFAULT, SEARCHES
from cyber0.attacks.shortcuts import in_few_dimensions, is_cwtm, trimmed_with_equal_lies
from cyber0.errors import InvalidAttack

__all__ = ["TARGETS", "distance_of", "pushed", "unit_of"]

TARGETS = ("composition", "rule")
HOST_BLOCK, DEVICE_BLOCK = 2**20, 2**25  # the most numbers in one call of a rule: what fits a cache, or a device
WIDE = 4  # with more than so many scalars per vector and client, it is faster to reduce the dimension first
LEAST = 1e-9  # the shortest length of a direction, in units of the spread of the honest vectors
TINY = 1e-300  # in place of zero in a denominator


def pushed(
    scene: Scene,
    direction: Any,
    rule: Rule,
    byzantine: int,
    omega: float | None,
    search: str | None,
    range: float | None,  # noqa: A002
    target: str,
    report: Report = unreported,
) -> Any:
    """Return what the liars send: mean + omega direction, with the omega given or the one that a search finds.

    A search with a `range` stops there: it tries no omega above. The omega used is reported, `[...]`: one for each
    scene of the batch.

    >>> import numpy as np
    >>> from cyber0.aggregation import cwtm
    >>> from cyber0.attacks.scene import observe
    >>> pushed(observe(np.array([[1.0], [3.0], [0.0]]), [2]), np.array([1.0]), cwtm, 1, 5.0, None, None, "rule")
    array([[7.]])
    """
    if target not in TARGETS:
        raise InvalidAttack(f"target = {target!r}: attack the 'rule' alone, or the whole 'composition'")
    attacked = compose(rule.rule) if target == "rule" and isinstance(rule, Composition) else rule
    _check(omega, search, range)
    if len(scene.liars) == 0:
        return scene.sent(scene.mean[..., None, :])
    if omega is None:
        found = _searched(scene, direction, attacked, byzantine, search, range)
        report("omega", found[..., 0])
    else:
        found, xp = float(omega), namespace(scene.mean)
        report("omega", xp.full(scene.mean.shape[:-1], found, dtype=xp.float64, device=scene.mean.device))
    return scene.sent((scene.mean + found * direction)[..., None, :])


def _searched(scene: Scene, direction: Any, rule: Rule, byzantine: int, search: str | None, limit: float | None) -> Any:
    """Return the strength that a search finds, `[..., 1]`."""
    n, k = scene.vectors.shape[-2:]
    seen, along = in_few_dimensions(scene, direction) if k > WIDE * n and is_isometric(rule) else (scene, direction)
    distance = distance_of(seen, along, rule, byzantine)

    def limited(omegas: Any) -> Any:
        return omegas if limit is None else namespace(omegas).clip(omegas, None, limit)

    omega, _ = SEARCHES[search or DEFAULT](lambda omegas: distance(limited(omegas)), unit_of(seen, along))
    omega, xp = limited(omega), namespace(scene.mean)
    return xp.asarray(omega, dtype=xp.float64, device=scene.mean.device)[..., None]


def distance_of(scene: Scene, direction: Any, rule: Rule, byzantine: int) -> Callable[[Any], Any]:
    """Return the function that a search maximises: how far omegas `[c, ...]` move the rule from the honest mean.

    >>> import numpy as np
    >>> from cyber0.aggregation import mean
    >>> from cyber0.attacks.scene import observe
    >>> distance = distance_of(observe(np.array([[1.0], [3.0], [0.0]]), [2]), np.array([3.0]), mean, 1)
    >>> distance(np.array([0.0, 1.0, 2.0]))
    array([0., 1., 2.])
    """
    xp = namespace(scene.vectors)
    block = HOST_BLOCK if str(scene.vectors.device) == "cpu" else DEVICE_BLOCK
    step = max(1, block // math.prod(scene.vectors.shape))
    trimmed = trimmed_with_equal_lies(scene, byzantine) if is_cwtm(rule) else None
    true = scene.vectors if scene.scale is None else xp.astype(scene.given, xp.float64)
    scale = 1.0 if scene.scale is None else scene.scale[..., 0]

    def of_block(omegas: Any) -> Any:
        lie = scene.mean + omegas[..., None] * direction
        if trimmed is not None:
            return _length(trimmed(lie) - scene.mean)
        votes = xp.asarray(xp.broadcast_to(true, (len(omegas), *true.shape)), copy=True)
        votes[..., scene.liars, :] = scene.in_range(lie[..., None, :])
        return _length(rule(votes, byzantine) * scale - scene.mean)

    def distance(omegas: Any) -> Any:
        blocks = [of_block(omegas[first : first + step]) for first in range(0, len(omegas), step)]
        return blocks[0] if len(blocks) == 1 else xp.concat(blocks)

    return distance


def unit_of(scene: Scene, direction: Any) -> Any:
    """Return the omega, `[...]`, that pushes a lie as far from the mean as honest vectors are on average; or 1.

    >>> import numpy as np
    >>> from cyber0.attacks.scene import observe
    >>> float(unit_of(observe(np.array([[1.0], [3.0], [0.0]]), [2]), np.array([0.1])).round(2))
    14.14
    """
    spread, reach = _length(scene.deviation), _length(direction)
    xp = namespace(spread)
    unit = spread / xp.maximum(xp.maximum(reach, spread * LEAST), xp.full_like(spread, TINY))
    return xp.where(unit > 0, unit, xp.ones_like(unit))


def _length(vectors: Any) -> Any:
    xp = namespace(vectors)
    return xp.sqrt(xp.sum(vectors * vectors, axis=-1))


def _check(omega: float | None, search: str | None, limit: float | None) -> None:
    if search is not None and search not in SEARCHES:
        raise InvalidAttack(f"search = {search!r}: use one of {', '.join(sorted(SEARCHES))}")
    if limit is not None:
        check_factor("range", limit)
        if limit <= 0:
            raise InvalidAttack(f"range = {limit!r}: the largest omega to try must be above 0")
    if omega is None:
        return
    for name, given in (("search", search), ("range", limit)):
        if given is not None:
            raise InvalidAttack(f"omega = {omega!r} and {name} = {given!r}: give one of them")
    check_factor("omega", omega)
