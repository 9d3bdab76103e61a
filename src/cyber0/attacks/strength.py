"""Lies of the form mean + omega direction, with the omega that moves the aggregate farthest from the honest mean."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cyber0.aggregation import Composition, compose, is_isometric
from cyber0.attacks.mixed_krum import is_mixed_krum, promising
from cyber0.attacks.scene import Report, Rule, Scene, check_factor, namespace, unreported
from cyber0.attacks.search import DEFAULT, MORE, MORE_2, SEARCHES
from cyber0.attacks.shortcuts import (
    in_few_dimensions,
    is_cwtm,
    is_krum,
    krum_distances,
    mixes,
    trimmed_with_equal_lies,
    turns,
)
from cyber0.errors import InvalidAttack

__all__ = ["SIGNS", "TARGETS", "distance_of", "pushed", "unit_of", "worth_a_try"]

TARGETS = ("composition", "rule")
SIGNS = {"+": (1.0,), "-": (-1.0,), "worse": (1.0, -1.0)}
HOST_BLOCK, DEVICE_BLOCK = 2**20, 2**25  # the most numbers in one call of a rule: what fits a cache, or a device
WIDE = 4  # with more than so many scalars per vector and client, it is faster to reduce the dimension first
LEAST = 1e-9  # the shortest length of a direction, in units of the spread of the honest vectors
TINY = 1e-300  # in place of zero in a denominator
DENSE = np.geomspace(0.02, 30, 1500)  # omegas to try against Krum, in units: there each takes no time
TRIES = 2**19  # the most numbers that a rule is to look at for all turns in one scene


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
    sign: str = "+",
) -> Any:
    """Return what the liars send: mean + omega direction, with the omega given or the one that a search finds.

    A search with a `range` stops there: it tries no omega above. The `sign` '-' turns the direction round; 'worse'
    tries both, and takes the one that moves the aggregate farther. The omega used is reported, `[...]`: one for each
    scene of the batch; so is the sign, 1 or -1, where it was chosen.

    >>> import numpy as np
    >>> from cyber0.aggregation import cwtm
    >>> from cyber0.attacks.scene import observe
    >>> scene = observe(np.array([[1.0], [3.0], [9.0], [0.0]]), [3])
    >>> [pushed(scene, np.ones(1), cwtm, 1, 4.0, None, None, "rule", sign=sign).item() for sign in ("+", "-", "worse")]
    [8.333333333333332, 0.33333333333333304, 0.33333333333333304]
    """
    if target not in TARGETS:
        raise InvalidAttack(f"target = {target!r}: attack the 'rule' alone, or the whole 'composition'")
    if sign not in SIGNS:
        raise InvalidAttack(f"sign = {sign!r}: use one of {', '.join(map(repr, SIGNS))}")
    attacked = compose(rule.rule) if target == "rule" and isinstance(rule, Composition) else rule
    _check(omega, search, range)
    if len(scene.liars) == 0:
        return scene.sent(scene.mean[..., None, :])
    if omega is None or len(SIGNS[sign]) > 1:
        found = [_found(scene, each * direction, attacked, byzantine, omega, search, range) for each in SIGNS[sign]]
        strength, signs = _worse(found, SIGNS[sign])
        if len(found) > 1:
            report("sign", signs)
    else:
        strength, signs = _filled(scene, float(omega)), SIGNS[sign][0]
    report("omega", strength)
    return scene.sent((scene.mean + (signs * strength)[..., None] * direction)[..., None, :])


def _found(
    scene: Scene,
    direction: Any,
    rule: Rule,
    byzantine: int,
    omega: float | None,
    search: str | None,
    limit: float | None,
) -> tuple[Any, Any]:
    """Return a strength, the one given or the one that a search finds, and how far it moves the rule: both `[...]`."""
    n, k = scene.vectors.shape[-2:]
    seen, along = in_few_dimensions(scene, direction) if k > WIDE * n and is_isometric(rule) else (scene, direction)
    distance = distance_of(seen, along, rule, byzantine)

    def limited(omegas: Any) -> Any:
        return omegas if limit is None else namespace(omegas).clip(omegas, None, limit)

    if omega is None:
        name = search or DEFAULT
        unit, also = unit_of(seen, along), worth_a_try(seen, along, rule, byzantine, name)
        strength, moved = SEARCHES[name](lambda omegas: distance(limited(omegas)), unit, also)
    else:
        strength = _filled(seen, float(omega))
        moved = distance(strength[None])[0]
    xp, where = namespace(scene.mean), scene.mean.device
    strength, moved = (xp.asarray(each, dtype=xp.float64, device=where) for each in (limited(strength), moved))
    return strength, moved


def _worse(found: Sequence[tuple[Any, Any]], signs: Sequence[float]) -> tuple[Any, Any]:
    """Return the strength that moves the rule farthest, and its sign: both `[...]`; of equals, the first."""
    (strength, moved), sign = found[0], signs[0] * namespace(found[0][0]).ones_like(found[0][0])
    xp = namespace(strength)
    for (other, farther), turned in zip(found[1:], signs[1:], strict=True):
        better = farther > moved
        strength, moved = xp.where(better, other, strength), xp.where(better, farther, moved)
        sign = xp.where(better, turned * xp.ones_like(sign), sign)
    return strength, sign


def _filled(scene: Scene, omega: float) -> Any:
    xp = namespace(scene.mean)
    return xp.full(scene.mean.shape[:-1], omega, dtype=xp.float64, device=scene.mean.device)


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
    chosen = krum_distances(scene, direction, byzantine) if _is_quick(rule, scene, byzantine) else None
    true = scene.vectors if scene.scale is None else xp.astype(scene.given, xp.float64)
    scale = 1.0 if scene.scale is None else scene.scale[..., 0]

    def of_block(omegas: Any) -> Any:
        if chosen is not None:
            return chosen(omegas)
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


def worth_a_try(scene: Scene, direction: Any, rule: Rule, byzantine: int, search: str = DEFAULT) -> Any:
    """Return omegas `[c, ...]` where the rule may turn, so that a grid could miss its peaks.

    None where the rule does not, or where the search tries no such omegas. Against mixing these are its turns, evenly
    thinned out in large scenes; against Krum, where they cost nothing, many; against Krum after mixing those few that a
    `promising` model of both finds.

    >>> import numpy as np
    >>> from cyber0.aggregation import get_rule
    >>> from cyber0.attacks.scene import observe
    >>> scene = observe(np.random.default_rng(0).normal(size=(40, 64)), range(30, 40))
    >>> [len(worth_a_try(scene, scene.deviation, get_rule(name), 10)) for name in ("nnm+cwtm", "krum", "nnm+krum")]
    [120, 2700, 32]
    """
    xp = namespace(scene.mean)
    if search not in (*MORE, *MORE_2):
        return None
    if _is_quick(rule, scene, byzantine):
        unit = unit_of(scene, direction)
        many = xp.asarray(DENSE, device=unit.device).reshape(-1, *(1,) * unit.ndim) * unit
        return xp.concat([many, turns(scene, direction, byzantine)])
    if not mixes(rule):
        return None
    if search in MORE and is_mixed_krum(rule):
        return promising(scene, direction, byzantine, unit_of(scene, direction))
    found, (n, k) = turns(scene, direction, byzantine), scene.vectors.shape[-2:]
    most = max(TRIES // (n * (n + k)), 2)
    return found if len(found) <= most else found[:: -(-len(found) // most)]


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


def _is_quick(rule: Rule, scene: Scene, byzantine: int) -> bool:
    """Return whether the rule is Krum with two neighbours or more; with one, two vectors share a score, by rounding."""
    return is_krum(rule) and scene.vectors.shape[-2] - byzantine - 1 >= 2


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
