"""Theorems 1 and 2 as the CyBeR-0 paper prints them: their conditions, their constants, their formulas.

Both are false as printed: docs/theory.md has a counterexample, and `cyber0.theory` a bound that is proven. They are
here to be compared with it.

>>> from cyber0.theory import proven_kappa
>>> run = {"honest": 30, "rounds": 400, "local_epochs": 1, "delta": 0.05, "dimension": 7850, "lr": 0.01, "mu": 0.001}
>>> kappa = proven_kappa("cwtm", n=40, byzantine=10)
>>> round(theorem_2(Constants(), directions=3344, kappa=kappa, **run).total, 1)
75.0
"""

import math
from typing import Any, NamedTuple

from cyber0.errors import InvalidConfig
from cyber0.theory import Constants, distortion, integer, least_directions, real

__all__ = ["FirstConstants", "Printed", "first_constants", "largest_lr", "largest_lr_1", "theorem_1", "theorem_2"]


class Printed(NamedTuple):
    """The four terms of Theorem 2 as printed."""

    start: float
    drift: float
    variance: float
    bias: float

    @property
    def total(self) -> float:
        """Return the sum of the terms."""
        return sum(self)


class FirstConstants(NamedTuple):
    """The constants of Theorem 1, which the paper calls L, M, N, O and P; condition (c) is N + O L <= 1/2."""

    local: float
    local_rest: float
    global_: float
    factor: float
    rest: float

    @property
    def condition_c(self) -> float:
        """Return N + O L."""
        return self.global_ + self.factor * self.local


def largest_lr(constants: Constants, local_epochs: int) -> float:
    """Return the largest learning rate of Theorem 2: eta <= 1 / (26 K L) and eta <= 1 / (4 K sqrt(D^2 + zeta^2)).

    >>> largest_lr(Constants(gradient_lipschitz=2.0), local_epochs=1) == 1 / 52
    True
    """
    root = math.hypot(constants.average_lipschitz, math.sqrt(constants.divergence))
    steepest = max(26 * constants.gradient_lipschitz, 4 * root)
    return 1 / (integer("local_epochs", local_epochs) * steepest)


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
) -> Printed:
    """Return what Theorem 2 says, for directions on the sphere and mu > 0.

    It is no bound: its proof loses a factor 4 / (lr K) of the last three terms, and more; see docs/theory.md.

    >>> run = {"rounds": 100, "local_epochs": 1, "dimension": 100, "lr": 0.01, "mu": 0.5, "delta": 0.05}
    >>> bound = theorem_2(Constants(divergence=0.0), honest=10, directions=1000, kappa=0.0, **run)
    >>> [round(term, 4) for term in bound]
    [4.0, 1.054, 0.0002, 0.06]
    >>> theorem_2(Constants(), honest=10, directions=64, kappa=0.0, **run)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: directions = 64: condition (b) of Theorem 2 asks for at least 672
    """
    _check(lr, mu, kappa)
    epsilon = _epsilon("Theorem 2", directions, honest, rounds, local_epochs, delta)
    if lr > (largest := largest_lr(constants, local_epochs)):
        raise InvalidConfig(f"lr = {lr}: condition (a) of Theorem 2 asks for at most {largest:.6g}")
    liars = (1 + epsilon) / (1 - epsilon) * kappa  # epsilon' kappa
    per_direction = integer("dimension", dimension) / directions  # d / nu
    smooth, average = constants.gradient_lipschitz, constants.average_lipschitz * constants.average_lipschitz  # L, D^2
    slope = constants.numerical * constants.objective_lipschitz  # varphi G
    return Printed(
        start=4 * constants.loss_gap / (lr * rounds * local_epochs),
        drift=(2 * lr * local_epochs * (slope / smooth * (slope / smooth) * per_direction + 3 / smooth))
        # D^2 (13 K + 24 epsilon' kappa (1 + zeta^2 / D^2) + 4), without dividing by D
        * (13 * local_epochs * average + 24 * liars * (average + constants.divergence) + 4 * average),
        variance=(2 * lr * slope * slope * per_direction)
        * (1 / (5 * honest) + 8 / honest**2 + 2 * local_epochs * liars),
        bias=12 * local_epochs * smooth * lr * (liars + mu),
    )


def largest_lr_1(constants: Constants, *, honest: int, local_epochs: int, directions: int, dimension: int) -> float:
    """Return the largest learning rate by condition (a) of Theorem 1.

    >>> run = {"honest": 10, "local_epochs": 1, "dimension": 100}
    >>> [round(largest_lr_1(Constants(), directions=directions, **run), 4) for directions in (64, 6400)]
    [0.1179, 0.1179]
    """
    smooth, epochs = constants.gradient_lipschitz, integer("local_epochs", local_epochs)
    per_direction = integer("dimension", dimension) / integer("directions", directions)
    spread = 6 * constants.average_lipschitz**2 + 6 * constants.divergence + 32 * per_direction * smooth**2
    least = min(1 / (72 * epochs**2 * smooth), honest / (96 * epochs * per_direction * smooth**2), spread / epochs**2)
    return math.sqrt(least)


def first_constants(
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
) -> FirstConstants:
    """Return the constants of Theorem 1; L as in its Lemma (the summary of the proof has lost a factor d).

    >>> run = {"honest": 10, "rounds": 100, "local_epochs": 1, "lr": 0.01, "mu": 0.001, "delta": 0.05, "kappa": 0.5}
    >>> [first_constants(Constants(), directions=nu, dimension=100, **run).condition_c <= 0.5 for nu in (10**3, 10**6)]
    [False, True]
    """
    _check(lr, mu, kappa)
    epsilon = _epsilon("Theorem 1", directions, honest, rounds, local_epochs, delta)
    K, H, d = local_epochs, honest, integer("dimension", dimension) / directions  # noqa: N806 (as printed); d is d / nu
    L, D = constants.gradient_lipschitz, constants.average_lipschitz  # noqa: N806
    liars, L2, eta2 = (1 + epsilon) / (1 - epsilon) * kappa, L * L, lr * lr  # noqa: N806
    noise = 32 * constants.divergence + 8 * constants.gradient_variance + L2 * mu * mu * dimension
    votes = 8 * K / H + 8 * K * K * liars
    grown = 80 * 24 * d * L2 * eta2 * K * K * L * mu
    shared = d / 2 + 80 * d * d / H * L2 * K * eta2
    return FirstConstants(
        local=4 * eta2 * K**3 * 16 * d + 16 * d * L2 * 160 * eta2 * K * (K + d / H),
        local_rest=4 * eta2 * K**3 * (shared * noise + grown) + 12 * eta2 * K**3 * L,
        global_=4 * K * K * L2 * 160 * eta2 * K * (K + d / H)
        + votes * (16 * d + 80 * 32 * d * L2 * eta2 * K * (K + d / H)),
        factor=640 * K * K * L2 * eta2 * (K * D * D + d / H * L2) * (K + 4 * d)
        + 8 * K * liars * (3 * D * D + 3 * constants.divergence + 16 * d * L2)
        + 4 * K * D * D
        + 8 / H * 16 * d * L2,
        rest=noise * (20 * K**3 * L2 * eta2 * d / H + votes * shared)
        + 480 * K**4 * L2 * eta2 * L * mu
        + 24 * K * K * liars * L
        + 8 * K * K * L * mu
        + votes * grown,
    )


def theorem_1(constants: Constants, *, lr: float, **run: Any) -> float:
    """Return what Theorem 1 says, 4 gap / (eta K T) + eta / (2 K) (O M + P), where its three conditions hold.

    The arguments are those of `first_constants`.

    >>> run = {"honest": 10, "rounds": 100, "local_epochs": 1, "mu": 0.001, "delta": 0.05, "kappa": 0.5}
    >>> round(theorem_1(Constants(), lr=0.01, directions=10**6, dimension=100, **run), 2)
    4.06
    >>> theorem_1(Constants(), lr=0.01, directions=10**3, dimension=100, **run)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: directions = 1000: condition (c) of Theorem 1 asks for 0.5 or less, and it is 75.1
    """
    found = first_constants(constants, lr=lr, **run)
    shape = {name: run[name] for name in ("honest", "local_epochs", "directions", "dimension")}
    if lr > (largest := largest_lr_1(constants, **shape)):
        raise InvalidConfig(f"lr = {lr}: condition (a) of Theorem 1 asks for at most {largest:.6g}")
    if found.condition_c > 0.5:
        raise InvalidConfig(
            f"directions = {run['directions']}: condition (c) of Theorem 1 asks for 0.5 or less, and it is "
            f"{found.condition_c:.3g}"
        )
    epochs = run["local_epochs"]
    start = 4 * constants.loss_gap / (lr * run["rounds"] * epochs)
    return start + lr / (2 * epochs) * (found.factor * found.local_rest + found.rest)


def _check(lr: float, mu: float, kappa: float) -> None:
    for name, value in {"lr": lr, "mu": mu, "kappa": kappa}.items():
        real(name, value, above_zero=name != "kappa")


def _epsilon(theorem: str, directions: int, honest: int, rounds: int, local_epochs: int, delta: float) -> float:
    epsilon = distortion(directions, honest, rounds, local_epochs, delta)
    if epsilon >= 1:
        least = least_directions(honest, rounds, local_epochs, delta)
        raise InvalidConfig(f"directions = {directions}: condition (b) of {theorem} asks for at least {least}")
    return epsilon
