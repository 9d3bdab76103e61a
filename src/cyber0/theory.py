"""What is proven of a run: our repaired Theorem 2 of the CyBeR-0 paper, and kappas of rules.

`theorem_2` bounds the squared gradient of the honest clients' loss, averaged over the rounds, in expectation, whatever
the Byzantine clients do. It asks for a small learning rate, at most `largest_lr`, and nothing else: it holds for every
number of directions. It depends on the rule by its kappa (Definition 2), `proven_kappa`. The paper's own statements,
which are false as printed, are in `cyber0.theory_as_printed`; their condition (b) is `least_directions`.

>>> run = {"honest": 30, "rounds": 400, "local_epochs": 1, "dimension": 7850, "lr": 0.01, "mu": 0.001}
>>> kappa = proven_kappa("cwtm", n=40, byzantine=10)
>>> theorem_2(Constants(loss_gap=2.3), directions=64, kappa=kappa, **run).start  # the MNIST study
2.3
>>> least_directions(honest=30, rounds=400, local_epochs=1, delta=0.05)  # what the paper asks for
836
"""

import math
from dataclasses import dataclass, fields
from numbers import Real
from operator import index
from sys import float_info
from typing import Any, NamedTuple

from cyber0.aggregation import Rule, cwtm, geometric_median, get_rule, krum, mean, median, nnm
from cyber0.errors import InvalidAggregation, InvalidConfig

__all__ = [
    "Bound",
    "Constants",
    "amplification",
    "distortion",
    "integer",
    "largest_lr",
    "least_directions",
    "odd_variance",
    "proven_kappa",
    "real",
    "theorem_2",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants that the theorems assume of the honest clients' losses.

    - `loss_gap`: F_H(w_1) - F_H*, how far the first model's loss is above the least one.
    - `gradient_lipschitz`: L of Assumption 1, how fast a client's gradient changes.
    - `divergence`: zeta^2 of Assumption 3, the squared distance of a client's gradient from the honest clients' one.
    - `average_lipschitz`: D of Assumption 4, how fast the average of gradients leaves the gradient at the average.
    - `objective_lipschitz`: G of Assumption 5, how fast a client's loss changes.
    - `gradient_variance`: sigma^2 of Assumption 2, the variance of a client's gradient on a batch.
    - `numerical`: varphi, a numerical constant in the variance varphi^2 G^2 d of one estimate, to which the paper
      gives no value. It and D are in the paper's statements alone; ours has a value for it, and needs no D.

    >>> Constants(gradient_lipschitz=0.0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: gradient_lipschitz = 0.0: it must be a finite number above 0
    """

    loss_gap: float = 1.0
    gradient_lipschitz: float = 1.0
    divergence: float = 1.0
    average_lipschitz: float = 1.0
    objective_lipschitz: float = 1.0
    gradient_variance: float = 1.0
    numerical: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            real(field.name, getattr(self, field.name), above_zero=field.name == "gradient_lipschitz")


class Bound(NamedTuple):
    """The five terms of our Theorem 2; their sum bounds the average over the rounds of E |grad F_H|^2."""

    start: float
    """From the loss of the first model."""
    drift: float
    """From local models that leave the global one during a round; none with one local epoch."""
    variance: float
    """From estimating many parameters by few directions, and from batches."""
    bias: float
    """From finite differences in place of derivatives."""
    byzantine: float
    """From Byzantine clients: neither more rounds nor a smaller learning rate make it less."""

    @property
    def total(self) -> float:
        """Return the bound, the sum of the terms."""
        return sum(self)


def least_directions(honest: int, rounds: int, local_epochs: int, delta: float) -> int:
    """Return the least number of directions by condition (b) of both theorems: nu >= 64 log(2 (|H| - 1) T K / Delta).

    >>> least_directions(honest=9, rounds=20_000, local_epochs=1, delta=0.05)  # the language models
    1003
    >>> least_directions(honest=9, rounds=20_000, local_epochs=1, delta=0.0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: delta = 0.0: it must be a probability above 0 and below 1
    """
    return math.ceil(_least(honest, rounds, local_epochs, delta))


def distortion(directions: int, honest: int, rounds: int, local_epochs: int, delta: float) -> float:
    """Return how much nu directions may distort squared distances: the paper's epsilon, below 1 under condition (b).

    >>> round(distortion(4 * 836, honest=30, rounds=400, local_epochs=1, delta=0.05), 2)
    0.5
    """
    return math.sqrt(_least(honest, rounds, local_epochs, delta) / integer("directions", directions))


def largest_lr(constants: Constants, local_epochs: int) -> float:
    """Return the largest learning rate of our Theorem 2: eta <= 1 / (12 K L).

    >>> largest_lr(Constants(gradient_lipschitz=2.0), local_epochs=1) == 1 / 24
    True
    """
    return 1 / (12 * integer("local_epochs", local_epochs) * constants.gradient_lipschitz)


def theorem_2(
    constants: Constants,
    *,
    honest: int,
    rounds: int,
    local_epochs: int,
    directions: int,
    dimension: int,
    lr: float,
    mu: float,
    kappa: float,
) -> Bound:
    """Return our bound: the paper's Theorem 2, repaired, for any number of directions on the sphere, `unbiased`.

    docs/theory.md derives it, a line for each step.

    >>> run = {"rounds": 100, "local_epochs": 1, "dimension": 100, "lr": 0.01, "mu": 0.5}
    >>> bound = theorem_2(Constants(gradient_variance=0.0), honest=10, directions=64, kappa=0.5, **run)
    >>> [round(term, 3) for term in bound]
    [4.0, 0.0, 0.095, 1.25, 15.012]
    >>> theorem_2(Constants(gradient_lipschitz=10.0), honest=10, directions=64, kappa=0.5, **run)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: lr = 0.01: our Theorem 2 asks for at most 0.00833333
    """
    real("lr", lr, above_zero=True)
    real("mu", mu)
    real("kappa", kappa)
    rounds, epochs, honest = integer("rounds", rounds), integer("local_epochs", local_epochs), integer("honest", honest)
    if lr > (largest := largest_lr(constants, epochs)):
        raise InvalidConfig(f"lr = {lr}: our Theorem 2 asks for at most {largest:.6g}")
    smooth, steep, noise = constants.gradient_lipschitz, constants.objective_lipschitz**2, constants.gradient_variance
    spread = odd_variance(dimension) * dimension / integer("directions", directions)  # phi^2 d / nu
    liars = kappa * odd_variance(dimension) * amplification(directions, dimension)  # kappa phi^2 B
    twice = 1 if epochs == 1 else 2
    moved = lr * lr * (1 + spread) * (steep + noise) * (epochs - 1) * (2 * epochs - 1) / 6
    return Bound(
        start=4 * constants.loss_gap / (lr * rounds * epochs),
        drift=(10 + 9 * liars) * smooth * smooth * moved,
        variance=6 * smooth * lr * (spread * steep + (1 + spread) * noise / honest),
        bias=5 * twice * (smooth * mu) ** 2,
        byzantine=4.5 * liars * (twice * constants.divergence + noise),
    )


def odd_variance(dimension: int) -> float:
    """Return phi^2 = d / (d - 1), or 1 for d = 1: d times the variance of a 1-Lipschitz odd function on the sphere.

    >>> odd_variance(1), odd_variance(2), round(odd_variance(7850), 4)
    (1.0, 2.0, 1.0001)
    """
    d = integer("dimension", dimension)
    return 1.0 if d == 1 else d / (d - 1)


def amplification(directions: int, dimension: int) -> float:
    """Return B = (1 + S) d / nu: how much the squared error of a rule may grow from scalars to the model.

    S bounds the mean of the largest eigenvalue of Z Z^T for nu - 1 directions on the sphere.

    >>> [round(amplification(directions, 7850), 1) for directions in (1, 64, 836, 7850)]
    [7850.0, 268.3, 25.9, 5.0]
    >>> amplification(5, dimension=1)
    1.0
    """
    nu, d = integer("directions", directions), integer("dimension", dimension)
    largest = ((math.sqrt(d) + math.sqrt(nu - 1)) ** 2 + 1) / d
    return (1 + min(nu - 1, largest)) * d / nu


def proven_kappa(rule: str | Rule, n: int, byzantine: int) -> float | None:
    """Return a kappa for which the rule is proven (b, kappa)-robust (Definition 2); None if we know of no proof.

    From Allouah et al., Fixing by Mixing (AISTATS 2023): Table 1 and, for nnm before any rule, Lemma 1. Krum is the one
    with squared distances to n - b - 1 neighbours, the default; the geometric median is the exact one.

    >>> proven_kappa("cwtm", n=40, byzantine=10), proven_kappa("nnm+krum", n=40, byzantine=10)
    (4.5, 26.666666666666664)
    >>> proven_kappa("mean", n=40, byzantine=10), proven_kappa("meamed", n=40, byzantine=10)
    (inf, None)
    """
    n, b = integer("n", n), integer("byzantine", byzantine, least=0)
    if 2 * b >= n:
        raise InvalidAggregation(
            f"byzantine = {b}: it must be from 0 to {(n - 1) // 2}, since fewer than half of the n = {n} vectors may "
            "be Byzantine"
        )
    found, ratio = get_rule(rule), b / (n - 2 * b)
    proven: list[tuple[Rule, float]] = [
        (mean, math.inf if b else 0.0),
        (cwtm, 6 * ratio * (1 + ratio)),
        (krum, 6 * (1 + ratio)),
        (median, 4 * (1 + ratio) ** 2),
        (geometric_median, 4 * (1 + ratio) ** 2),
    ]
    kappa = next((bound for rule, bound in proven if rule is found.rule), None)
    if kappa is None or any(step is not nnm for step in found.pre):
        return None
    for _ in found.pre:
        kappa = 8 * b / (n - b) * (1 + kappa)
    return kappa


def _least(honest: int, rounds: int, local_epochs: int, delta: float) -> float:
    """Return 64 log(2 (|H| - 1) T K / Delta); it is never an integer, so that >= and > are the same for nu."""
    pairs = 2 * (integer("honest", honest, least=2) - 1)
    steps = integer("rounds", rounds) * integer("local_epochs", local_epochs)
    if not _isreal(delta) or not 0 < delta < 1:
        raise InvalidConfig(f"delta = {delta!r}: it must be a probability above 0 and below 1")
    return 64 * (math.log(pairs * steps) - math.log(delta))


def integer(name: str, value: Any, *, least: int = 1) -> int:
    """Return an integer, or say what it must be."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < 2**63:
        raise InvalidConfig(f"{name} = {value!r}: it must be an integer from {least} to 2**63 - 1")
    return number


def real(name: str, value: Any, *, above_zero: bool = False) -> None:
    """Refuse what is not a finite number from 0 on."""
    if not _isreal(value) or not 0 <= value <= float_info.max or (above_zero and value == 0):
        raise InvalidConfig(f"{name} = {value!r}: it must be a finite number {'above 0' if above_zero else 'from 0'}")


def _isreal(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)
