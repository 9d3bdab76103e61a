"""The conditions and the bound of Theorem 2 of the CyBeR-0 paper, as functions.

Theorem 2 (Lipschitz objective functions) states a bound on the squared gradient of the honest clients' loss, averaged
over the rounds, with probability 1 - delta. As printed it is false: docs/theory.md has a counterexample. Its conditions
are (a) a small learning rate, at most `largest_lr`, and (b) many directions, at least `least_directions`; `theorem_2`
is the bound. It depends on the rule by its kappa (Definition 2), `proven_kappa`.

>>> least_directions(honest=30, rounds=400, local_epochs=1, delta=0.05)  # the MNIST study, which uses 64
836
>>> run = {"honest": 30, "rounds": 400, "local_epochs": 1, "delta": 0.05, "dimension": 7850, "lr": 0.01, "mu": 0.001}
>>> kappa = proven_kappa("cwtm", n=40, byzantine=10)
>>> round(theorem_2(Constants(), directions=3344, kappa=kappa, **run).total, 1)
75.0
"""

import math
from dataclasses import dataclass, fields
from numbers import Real
from operator import index
from sys import float_info
from typing import Any, NamedTuple

from cyber0.aggregation import Rule, cwtm, geometric_median, get_rule, krum, mean, median, nnm
from cyber0.errors import InvalidAggregation, InvalidConfig

__all__ = ["Bound", "Constants", "distortion", "largest_lr", "least_directions", "proven_kappa", "theorem_2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants that Theorem 2 assumes of the honest clients' losses.

    - `loss_gap`: F_H(w_1) - F_H*, how far the first model's loss is above the least one.
    - `gradient_lipschitz`: L of Assumption 1, how fast a client's gradient changes.
    - `divergence`: zeta^2 of Assumption 3, the squared distance of a client's gradient from the honest clients' one.
    - `average_lipschitz`: D of Assumption 4, how fast the average of gradients leaves the gradient at the average.
    - `objective_lipschitz`: G of Assumption 5, how fast a client's loss changes.
    - `numerical`: varphi, a numerical constant in the variance varphi^2 G^2 d of one estimate, to which the paper
      gives no value.

    >>> Constants(gradient_lipschitz=0.0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: gradient_lipschitz = 0.0: it must be a finite number above 0
    """

    loss_gap: float = 1.0
    gradient_lipschitz: float = 1.0
    divergence: float = 1.0
    average_lipschitz: float = 1.0
    objective_lipschitz: float = 1.0
    numerical: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _real(field.name, getattr(self, field.name), above_zero=field.name == "gradient_lipschitz")


class Bound(NamedTuple):
    """The four terms of Theorem 2; their sum bounds the average over the rounds of E |grad F_H|^2."""

    start: float
    """From the loss of the first model."""
    drift: float
    """From local models that drift apart during a round, and from Byzantine clients."""
    variance: float
    """From estimating many parameters by few directions."""
    bias: float
    """From Byzantine clients, and from finite differences in place of derivatives."""

    @property
    def total(self) -> float:
        """Return the bound, the sum of the four terms."""
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
    return math.sqrt(_least(honest, rounds, local_epochs, delta) / _integer("directions", directions))


def largest_lr(constants: Constants, local_epochs: int) -> float:
    """Return the largest learning rate by condition (a): eta <= 1 / (26 K L) and eta <= 1 / (4 K sqrt(D^2 + zeta^2)).

    >>> largest_lr(Constants(gradient_lipschitz=2.0), local_epochs=1) == 1 / 52
    True
    """
    root = math.hypot(constants.average_lipschitz, math.sqrt(constants.divergence))
    steepest = max(26 * constants.gradient_lipschitz, 4 * root)
    return 1 / (_integer("local_epochs", local_epochs) * steepest)


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
    delta: float,
) -> Bound:
    """Return the bound of Theorem 2 as the paper prints it, for directions on the sphere and mu > 0.

    It is no bound: its proof loses a factor 4 / (lr K) of the last three terms, see docs/theory.md.

    >>> run = {"rounds": 100, "local_epochs": 1, "dimension": 100, "lr": 0.01, "mu": 0.5, "delta": 0.05}
    >>> bound = theorem_2(Constants(divergence=0.0), honest=10, directions=1000, kappa=0.0, **run)
    >>> [round(term, 4) for term in bound]
    [4.0, 1.054, 0.0002, 0.06]
    >>> theorem_2(Constants(), honest=10, directions=64, kappa=0.0, **run)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: directions = 64: condition (b) of Theorem 2 asks for at least 672
    """
    for name, value in {"lr": lr, "mu": mu, "kappa": kappa}.items():
        _real(name, value, above_zero=name != "kappa")
    epsilon = distortion(directions, honest, rounds, local_epochs, delta)
    if epsilon >= 1:
        least = least_directions(honest, rounds, local_epochs, delta)
        raise InvalidConfig(f"directions = {directions}: condition (b) of Theorem 2 asks for at least {least}")
    if lr > (largest := largest_lr(constants, local_epochs)):
        raise InvalidConfig(f"lr = {lr}: condition (a) of Theorem 2 asks for at most {largest:.6g}")
    liars = (1 + epsilon) / (1 - epsilon) * kappa  # epsilon' kappa
    per_direction = _integer("dimension", dimension) / directions  # d / nu
    smooth, average = constants.gradient_lipschitz, constants.average_lipschitz * constants.average_lipschitz  # L, D^2
    slope = constants.numerical * constants.objective_lipschitz  # varphi G
    return Bound(
        start=4 * constants.loss_gap / (lr * rounds * local_epochs),
        drift=(2 * lr * local_epochs * (slope / smooth * (slope / smooth) * per_direction + 3 / smooth))
        # D^2 (13 K + 24 epsilon' kappa (1 + zeta^2 / D^2) + 4), without dividing by D
        * (13 * local_epochs * average + 24 * liars * (average + constants.divergence) + 4 * average),
        variance=(2 * lr * slope * slope * per_direction)
        * (1 / (5 * honest) + 8 / honest**2 + 2 * local_epochs * liars),
        bias=12 * local_epochs * smooth * lr * (liars + mu),
    )


def proven_kappa(rule: str | Rule, n: int, byzantine: int) -> float | None:
    """Return a kappa for which the rule is proven (b, kappa)-robust (Definition 2); None if we know of no proof.

    From Allouah et al., Fixing by Mixing (AISTATS 2023): Table 1 and, for nnm before any rule, Lemma 1. Krum is the one
    with squared distances to n - b - 1 neighbours, the default; the geometric median is the exact one.

    >>> proven_kappa("cwtm", n=40, byzantine=10), proven_kappa("nnm+krum", n=40, byzantine=10)
    (4.5, 26.666666666666664)
    >>> proven_kappa("mean", n=40, byzantine=10), proven_kappa("meamed", n=40, byzantine=10)
    (inf, None)
    """
    n, b = _integer("n", n), _integer("byzantine", byzantine, least=0)
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
    pairs = 2 * (_integer("honest", honest, least=2) - 1)
    steps = _integer("rounds", rounds) * _integer("local_epochs", local_epochs)
    if not _is_real(delta) or not 0 < delta < 1:
        raise InvalidConfig(f"delta = {delta!r}: it must be a probability above 0 and below 1")
    return 64 * (math.log(pairs * steps) - math.log(delta))


def _integer(name: str, value: Any, *, least: int = 1) -> int:
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < 2**63:
        raise InvalidConfig(f"{name} = {value!r}: it must be an integer from {least} to 2**63 - 1")
    return number


def _real(name: str, value: Any, *, above_zero: bool = False) -> None:
    if not _is_real(value) or not 0 <= value <= float_info.max or (above_zero and value == 0):
        raise InvalidConfig(f"{name} = {value!r}: it must be a finite number {'above 0' if above_zero else 'from 0'}")


def _is_real(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)
