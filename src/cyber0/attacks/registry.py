"""Look up attacks by name: `"foe"`, `"alie(omega=1.5)"`, `"my_package.my_module:my_attack"`."""

from functools import partial

from cyber0 import registry
from cyber0.attacks.alie import alie, alie_nnm
from cyber0.attacks.foe import foe, foe_nnm
from cyber0.attacks.labels import lf
from cyber0.attacks.mimic import mimic
from cyber0.attacks.samples import backdoor, feature_noise
from cyber0.attacks.scene import CONTEXT, Attack
from cyber0.attacks.simple import noise, none, nonfinite, sf, zero
from cyber0.attacks.spread import min_max, min_sum
from cyber0.attacks.tma import tma

__all__ = ["ALIASES", "ATTACKS", "get_attack", "name_of", "searches"]

ATTACKS: dict[str, Attack] = {
    "alie": alie,
    "alie-nnm": alie_nnm,
    "backdoor": backdoor,
    "feature-noise": feature_noise,
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
ALIASES = {"label_flip": "lf", "sign_flip": "sf"}


def get_attack(name: str | Attack | type) -> Attack:
    """Return the attack of a name, with its options in parentheses; yours as `package.module:object`, or as it is.

    >>> get_attack("foe(omega=2)").keywords
    {'omega': 2}
    >>> get_attack("sign_flip") is sf
    True
    >>> get_attack("foe(omegas=2)")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown option 'omegas' of foe: use one of ... (did you mean 'omega'?)
    """
    return registry.resolve("attack", name, ATTACKS, aliases=ALIASES, reserved=CONTEXT)


def name_of(attack: str | Attack | type) -> str:
    """Return the text by which an attack is found; of an instance or a local function, a text to print.

    >>> name_of("sign_flip"), name_of(get_attack("foe(omega=2)"))
    ('sf', 'foe(omega=2)')
    """
    return registry.name_of(get_attack(attack), ATTACKS)


def searches(attack: Attack) -> bool:
    """Return whether an attack searches for its strength, as `alie` and `foe` do.

    Such an attack takes time, draws nothing at random and keeps no state, so that one call can serve several runs.

    >>> searches(get_attack("foe(search='line')")), searches(get_attack("noise"))
    (True, False)
    """
    function = attack.func if isinstance(attack, partial) else attack
    return any(function is searching for searching in (alie, alie_nnm, foe, foe_nnm))
