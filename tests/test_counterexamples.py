"""A search for counterexamples: it finds them against the theorems as printed, and none against ours."""

import math
from functools import cache

import numpy as np
import pytest

from cyber0.aggregation import cwtm, get_rule
from cyber0.attacks import mount
from cyber0.theory import Constants, amplification, largest_lr, least_directions, odd_variance, proven_kappa, theorem_2
from cyber0.theory_as_printed import largest_lr as printed_lr
from cyber0.theory_as_printed import theorem_1 as printed_theorem_1
from cyber0.theory_as_printed import theorem_2 as printed_theorem_2

ROUNDS = 10**15  # so many that the start does not count: once nothing moves, all rounds to come are alike


def huber(x, width):
    """A loss with slopes from -1 to 1, of curvature 1 / width."""
    return np.where(abs(x) <= width, x * x / (2 * width), abs(x) - width / 2)


def draw(rng):
    """One weight, n clients with Huber losses of one height and width, b of whom copy an honest client."""
    n = int(rng.integers(3, 8))
    liars = int(rng.integers(1, (n - 1) // 2 + 1))
    centres = rng.uniform(-10, 10, n - liars)
    steep, width = 10.0 ** rng.uniform(-3, 6), 10.0 ** rng.uniform(-1, 0.5)
    return {"n": n, "liars": liars, "centres": centres, "steep": steep, "width": width, "copied": centres[0]}


def constants_of(case):
    """What the theorems assume, for these losses."""
    places = np.linspace(-30, 30, 6001)[:, None]
    slopes = case["steep"] * np.clip((places - case["centres"]) / case["width"], -1, 1)
    losses = case["steep"] * huber(places - case["centres"], case["width"]).mean(axis=1)
    first = case["steep"] * huber(case["copied"] - case["centres"], case["width"]).mean()
    return Constants(
        loss_gap=float(first - losses.min() + 0.01 * case["steep"]),  # places are 0.01 apart
        gradient_lipschitz=case["steep"] / case["width"],
        average_lipschitz=case["steep"] / case["width"],
        objective_lipschitz=case["steep"],
        divergence=float(np.max((slopes - slopes.mean(axis=1, keepdims=True)) ** 2)),
        gradient_variance=0.0,
    )


def played(case, lr, mu, steps=1000):
    """The squared gradient at the end, and whether nothing moves any more.

    With one weight a direction is 1 or -1, and the votes along it are the same but for the sign: all directions agree.
    """
    w = case["copied"]
    for _ in range(steps):
        ends = [case["steep"] * huber(w + side * mu - case["centres"], case["width"]) for side in (1, -1)]
        votes = (ends[0] - ends[1]) / (2 * mu)
        sent = np.concatenate([votes, np.repeat(votes[:1], case["liars"])])
        moved = w - lr * float(cwtm(sent[:, None], case["liars"])[0])
        if abs(moved - w) <= 1e-12:
            break
        w = moved
    slopes = case["steep"] * np.clip((w - case["centres"]) / case["width"], -1, 1)
    return slopes.mean() ** 2, abs(moved - w) <= 1e-12


@cache
def cases(count=120):
    """Random cases that came to rest: constants, the arguments of a theorem, and the squared gradient in the end."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        case, slow, many = draw(rng), 10.0 ** rng.uniform(-3, 0), int(rng.choice([4, 64, 1024]))
        constants, mu = constants_of(case), 1e-4
        run = {"honest": case["n"] - case["liars"], "rounds": ROUNDS, "local_epochs": 1}
        run["directions"] = many * least_directions(**run, delta=0.05)
        lr = slow * min(printed_lr(constants, 1), largest_lr(constants, 1))
        run |= {"dimension": 1, "lr": lr, "mu": mu, "kappa": proven_kappa("cwtm", case["n"], case["liars"])}
        reached, rests = played(case, lr, mu)
        if rests:
            found.append((constants, run, reached))
    assert len(found) > count / 3
    return found


def counterexamples(bound):
    """How many cases have a larger squared gradient than a bound."""
    return sum(reached > bound(constants, run) * (1 + 1e-9) for constants, run, reached in cases())


def test_there_are_none_against_our_theorem():
    assert counterexamples(lambda constants, run: theorem_2(constants, **run).total) == 0


def test_there_are_many_against_theorem_2_as_printed():
    assert counterexamples(lambda constants, run: printed_theorem_2(constants, **run, delta=0.05).total) > 20


def test_a_factor_does_not_mend_theorem_2():
    def mended(constants, run):
        start, *others = printed_theorem_2(constants, **run, delta=0.05)
        return start + 4 / run["lr"] * sum(others)

    assert counterexamples(mended) > 0


def test_there_are_some_against_theorem_1_as_printed():
    """Its condition (c) asks for many directions, which with one weight cost nothing."""

    def first(constants, run):
        try:
            return printed_theorem_1(constants, **{**run, "directions": 2**50}, delta=0.05)
        except ValueError:  # outside its conditions
            return math.inf

    assert counterexamples(first) > 0


def test_every_term_of_ours_that_liars_cause_is_needed():
    assert counterexamples(lambda constants, run: theorem_2(constants, **{**run, "kappa": 0.0}).total) > 20


@pytest.mark.parametrize("attack", ["foe", "alie", "mimic", "sf", "noise(scale=100)"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_there_are_none_with_several_weights_few_directions_and_local_epochs(attack, epochs):
    """The algorithm itself, on losses sqrt(1 + |w - c|^2): G = L = 1. One run each: the bound is far above."""
    rng = np.random.default_rng([epochs, len(attack)])
    for d, nu in ((1, 1), (2, 3), (4, 2), (6, 12)):
        n, liars, mu = 7, 2, 0.1
        centres, w = rng.normal(0, 3, (n, d)), np.zeros(d)
        lr, rounds, squared = 1 / (12 * epochs), 60, []

        def gradient(at, centres=centres):
            away = at - centres
            return away / np.sqrt(1 + (away**2).sum(axis=-1, keepdims=True))

        def loss(at, centres=centres):
            return np.sqrt(1 + ((at - centres) ** 2).sum(axis=-1))

        for _ in range(rounds):
            squared.append(float((gradient(w)[: n - liars].mean(axis=0) ** 2).sum()))
            local, update = np.tile(w, (n, 1)), np.zeros(d)
            for _ in range(epochs):
                z = rng.normal(size=(nu, d))
                z /= np.linalg.norm(z, axis=1, keepdims=True)
                votes = np.stack([(loss(local + mu * each) - loss(local - mu * each)) / (2 * mu) for each in z], axis=1)
                votes *= d / nu
                sent = mount(attack, votes, range(n - liars, n), get_rule("cwtm"), liars, rng)
                update += cwtm(sent, liars) @ z
                local -= lr * votes @ z
            w = w - lr * update
        constants = Constants(
            loss_gap=float(loss(np.zeros(d))[: n - liars].mean() - 1),
            divergence=4.0,
            gradient_variance=0.0,
        )
        run = {"honest": n - liars, "rounds": rounds, "local_epochs": epochs, "directions": nu, "dimension": d}
        bound = theorem_2(constants, **run, lr=lr, mu=mu, kappa=proven_kappa("cwtm", n, liars))
        assert np.mean(squared) <= bound.total
        assert bound.byzantine >= 4.5 * odd_variance(d) * amplification(nu, d)  # kappa and zeta^2 are above 1
