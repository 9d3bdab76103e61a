"""Attacks by name: `"foe"`, `"alie(omega=1.5)"`, `"my_package.my_module:my_attack"`."""

from functools import partial
from typing import Any

from numpy.random import Generator

from cyber0 import registry
from cyber0.attacks.alie import alie, alie_nnm
from cyber0.attacks.foe import foe, foe_nnm
from cyber0.attacks.labels import lf
from cyber0.attacks.mimic import mimic
from cyber0.attacks.scene import Attack, Liars, Rule, namespace, rows_of
from cyber0.attacks.simple import noise, none, nonfinite, sf, zero
from cyber0.attacks.spread import min_max, min_sum
from cyber0.attacks.tma import tma
from cyber0.errors import InvalidAttack

__all__ = ["ATTACKS", "get_attack", "mount", "searches"]

ATTACKS: dict[str, Attack] = {
    "alie": alie,
    "alie-nnm": alie_nnm,
    "foe": foe,
    "foe-nnm": foe_nnm,
    "lf": lf,
    "mimic": mimic,
    "min-max": min_max,
    "min-sum": min_sum,
    "noise": noise,
    "none": none,
    "nonfinite": nonfinite,
    "sf": sf,
    "tma": tma,
    "zero": zero,
}


def get_attack(name: str | Attack) -> Attack:
    """The attack of a name, its options in parentheses; a callable of yours as `package.module:object`, or itself.

    >>> get_attack("foe(omega=2)").keywords
    {'omega': 2}
    >>> get_attack("foe(omegas=2)")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown option of foe 'omegas': use one of omega, search, target (did you mean 'omega'?)
    """
    return registry.resolve("attack", name, ATTACKS)


def searches(attack: Attack) -> bool:
    """Whether an attack searches for its strength, as `alie` and `foe` do: it takes time, and draws nothing at random.

    >>> searches(get_attack("foe(search='line')")), searches(get_attack("noise"))
    (True, False)
    """
    return (attack.func if isinstance(attack, partial) else attack) in (alie, alie_nnm, foe, foe_nnm)


def mount(attack: str | Attack, vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator) -> Any:
    """A copy of the vectors `[..., n, k]` in which the liars' rows are their lies.

    >>> import numpy as np
    >>> from cyber0.aggregation import cwtm
    >>> mount("sf", np.array([[1.0], [2.0], [4.0]]), [1], cwtm, 1, np.random.default_rng(0))
    array([[ 1. ],
           [-2.5],
           [ 4. ]])
    """
    lying, _ = rows_of(vectors, liars)
    lies = get_attack(attack)(vectors, liars, rule, byzantine, rng)
    shape = (*vectors.shape[:-2], len(lying), vectors.shape[-1])
    if tuple(lies.shape) != shape or lies.dtype != vectors.dtype:
        raise InvalidAttack(
            f"attack {registry.name_of(get_attack(attack), ATTACKS)!r} gave {tuple(lies.shape)} of {lies.dtype}: "
            f"{len(lying)} liars send {shape} of {vectors.dtype}"
        )
    sent = namespace(vectors).asarray(vectors, copy=True)
    sent[..., lying, :] = lies
    return sent
