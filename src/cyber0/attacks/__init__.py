"""Attacks: what the Byzantine clients send instead of the truth.

An attack is a callable `attack(vectors, liars, rule, byzantine, rng, **options)`:

- `vectors` `[..., n, k]`, of NumPy or torch, is what all n clients would have sent honestly;
- `liars` are the rows of the Byzantine clients;
- `rule` is the rule that will aggregate, called `rule(vectors, byzantine)`, and `byzantine` the b it is called with;
- `rng` is a NumPy generator, the only source of chance.

It returns what the liars send, `[..., len(liars), k]`, and does not modify its input.

>>> import numpy as np
>>> from cyber0.aggregation import get_rule
>>> from cyber0.attacks import get_attack, mount
>>> rng, liars = np.random.default_rng(0), range(15, 20)
>>> votes = rng.normal(1.0, 1.0, (20, 8))
>>> for name in ("mean", "cwtm"):
...     rule = get_rule(name)
...     sent = mount(get_attack("foe(omega=20)"), votes, liars, rule, 5, rng)
...     print(name, "is moved by", np.linalg.norm(rule(sent, 5) - votes[:15].mean(axis=0)).round(1))
mean is moved by 15.7
cwtm is moved by 1.4

An attack may ask for more by keyword-only parameters of these names, which a run supplies and which are not options:

- `round` and `seed` of the run;
- `report(name, value)`, a function that adds to the history of the round; `alie` and `foe` report their `omega`;
- `model`, the global model, which is granted only where the attacker is declared to know it: `knows="model"`.

A class given as an attack is instantiated once per run, with its options as keyword-only parameters of `__init__`; the
instance is called like a function and may keep state. It can be resumed if it has the methods `state()` and
`restore(state)` of `AttackWithState`. `AttackRun` is an attack within one run, `mount` plays a single round.

An attack that changes the data of the liars rather than their votes has an attribute `corrupt_labels(labels, classes)`,
as `lf` has (`CorruptsLabels`), or `corrupt_samples(inputs, labels, classes, rng)`, as `backdoor` and `feature-noise`
have (`CorruptsSamples`). One that wants samples to be taken for something says so by `goal(inputs, labels, classes)`
(`HasGoal`): how often the model does is its success, which evaluations report.
"""

from cyber0.attacks.alie import alie, alie_nnm
from cyber0.attacks.foe import foe, foe_nnm
from cyber0.attacks.labels import lf
from cyber0.attacks.mimic import mimic
from cyber0.attacks.registry import ATTACKS, get_attack, name_of
from cyber0.attacks.run import AttackRun, AttackWithState, CorruptsLabels, CorruptsSamples, HasGoal, mount
from cyber0.attacks.samples import backdoor, feature_noise
from cyber0.attacks.scene import Attack
from cyber0.attacks.simple import noise, none, nonfinite, sf, zero
from cyber0.attacks.spread import min_max, min_sum
from cyber0.attacks.tma import tma

label_flip, sign_flip = lf, sf

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackRun",
    "AttackWithState",
    "CorruptsLabels",
    "CorruptsSamples",
    "HasGoal",
    "alie",
    "alie_nnm",
    "backdoor",
    "feature_noise",
    "foe",
    "foe_nnm",
    "get_attack",
    "label_flip",
    "lf",
    "mimic",
    "min_max",
    "min_sum",
    "mount",
    "name_of",
    "noise",
    "none",
    "nonfinite",
    "sf",
    "sign_flip",
    "tma",
    "zero",
]
