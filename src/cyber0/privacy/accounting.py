"""What steps of the mechanism cost, by the accountant of dp-accounting: epsilon at a given delta.

Steps are those of the Poisson-subsampled Gaussian mechanism; two data sets are neighbours if one has one sample more
than the other. Epsilons come from privacy loss distributions (`dp_accounting.pld`), rounded so that they are never too
small.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cyber0.errors import InvalidConfig
from cyber0.extras import require

__all__ = ["NO_NOISE", "Step", "check_delta", "check_epsilon", "epsilon_of", "most_steps", "noise_for"]

NO_NOISE = math.inf  # the epsilon of steps without noise
INTERVAL = 1e-2  # at most: of the discretised privacy loss
FINEST = 1e-4
LEAST, MOST = 0.05, 2.0**12  # noise multipliers that are searched


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """A local step, for the accountant: its noise multiplier, and how likely a sample is in its batch.

    >>> round(epsilon_of([(Step(noise=1.0, rate=0.01), 1000)], delta=1e-5), 1)
    1.8
    """

    noise: float
    rate: float


def epsilon_of(steps: Iterable[tuple[Step, int]], delta: float) -> float:
    """Return what steps cost together, each so many times: their epsilon at a delta.

    >>> epsilon_of([], delta=1e-5)
    0.0
    """
    counts: dict[Step, int] = {}
    for step, count in steps:
        counts[step] = counts.get(step, 0) + count
    return _epsilon(tuple(sorted((step, count) for step, count in counts.items() if count)), delta)


@lru_cache(maxsize=4096)
def _epsilon(counts: tuple[tuple[Step, int], ...], delta: float) -> float:
    if not counts:
        return 0.0
    if any(step.noise <= 0 for step, _ in counts):
        return NO_NOISE
    dp = require("dp_accounting", extra="privacy")
    pld = require("dp_accounting.pld", extra="privacy")
    accountant: Any = pld.PLDAccountant(
        neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=_interval(counts)
    )
    for step, count in counts:
        noise = dp.GaussianDpEvent(step.noise)
        accountant.compose(noise if step.rate >= 1 else dp.PoissonSampledDpEvent(step.rate, noise), count)
    return float(accountant.get_epsilon(delta))


def _interval(counts: tuple[tuple[Step, int], ...]) -> float:
    """Return how finely privacy losses are discretised: finer where many steps cost little each.

    Each step is charged up to half an interval too much on average, so an interval must be small beside the deviation
    of a step's loss, about rate / noise.
    """
    least = min(step.rate / step.noise for step, _ in counts)
    return min(INTERVAL, max(FINEST, least / 20))


def noise_for(epsilon: float, delta: float, rate: float, steps: int, spent: Iterable[tuple[Step, int]] = ()) -> float:
    """Return the least noise multiplier with which so many steps fit into a budget, beside what was spent before.

    It is rounded up to three digits.

    >>> noise_for(epsilon=8, delta=1e-5, rate=64 / 1500, steps=400)
    0.848
    """
    known = tuple(spent)
    if known and (before := epsilon_of(known, delta)) >= epsilon:
        raise InvalidConfig(
            f"epsilon = {epsilon:g} at delta = {delta:g}, of which {before:.3g} is spent: nothing is left; give a "
            "larger epsilon, or other data"
        )

    def cost(noise: float) -> float:
        return epsilon_of([*known, (Step(noise, rate), steps)], delta)

    low, high = LEAST, 1.0
    costs = math.inf, cost(high)  # of both
    while costs[1] > epsilon:
        low, high = high, 2 * high
        costs = costs[1], cost(high)
        if high > MOST:
            raise InvalidConfig(
                f"epsilon = {epsilon:g} at delta = {delta:g}: {steps:,} steps cost more than is left of it, even with "
                f"noise {MOST:g} times as large as what one sample can change; give a larger epsilon"
            )
    while high > 1.002 * low and costs[1] < 0.995 * epsilon:
        middle = _between(low, high, costs, epsilon)
        found = cost(middle)
        low, high, costs = (low, middle, (costs[0], found)) if found <= epsilon else (middle, high, (found, costs[1]))
    digits = 2 - math.floor(math.log10(high))
    return max(high, math.ceil(high * 10.0**digits) / 10.0**digits)


def _between(low: float, high: float, costs: tuple[float, float], epsilon: float) -> float:
    """Return where to look next: where a power law would meet epsilon, a little above, well within both ends."""
    if math.isinf(costs[0]):
        return math.sqrt(low * high)
    share = math.log(costs[0] / (0.998 * epsilon)) / math.log(costs[0] / costs[1])
    return low * (high / low) ** min(0.95, max(0.05, share))


def most_steps(
    epsilon: float, delta: float, step: Step, spent: Iterable[tuple[Step, int]] = (), limit: int = 10_000
) -> int:
    """Return how many such steps fit into a budget, beside what was spent before; at most `limit`.

    >>> most_steps(8, 1e-5, Step(0.848, 64 / 1500)) >= 400
    True
    """
    known = tuple(spent)

    def fits(count: int) -> bool:
        return epsilon_of([*known, (step, count)], delta) <= epsilon

    if fits(limit):
        return limit
    low, high = 0, 1
    while high < limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is no budget.

    >>> check_epsilon(0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: epsilon = 0: it must be a number above 0, as 8
    """
    if not 0 < epsilon < math.inf:
        raise InvalidConfig(f"epsilon = {epsilon}: it must be a number above 0, as 8")


def check_delta(delta: float, samples: int) -> None:
    """Refuse a delta at which a mechanism may publish whole samples.

    >>> check_delta(0.01, samples=1500)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: delta = 0.01: it must be above 0 and below 1 / samples = 0.000667, or publishing a \
sample as it is would count as private
    """
    if not 0 < delta < 1 / max(1, samples):
        raise InvalidConfig(
            f"delta = {delta:g}: it must be above 0 and below 1 / samples = {1 / max(1, samples):.3g}, or publishing a "
            "sample as it is would count as private"
        )
