"""An audit by a canary: whoever reads the votes bets on whether one sample is in the data, many times.

What the bets win is a lower bound on epsilon (Jagielski, Ullman and Oprea, 2020), by Clopper and Pearson's intervals.
It must lie below what the accountant says, and far above it where the noise is switched off.
"""

from functools import cache
from math import log

import numpy as np
import torch
from scipy.stats import beta

from cyber0.client import Client
from cyber0.parameters import Parameters
from cyber0.plan import Plan
from cyber0.privacy.accounting import Step, epsilon_of
from cyber0.privacy.client_steps import PrivateSteps, system_noise
from cyber0.privacy.mechanism import Mechanism
from cyber0.privacy.sampling import poisson_batch

GAMES, ROUNDS, SAMPLES, RATE, NOISE, DELTA = 300, 1, 5, 1.0, 2.0, 1e-5
PLAN = Plan(seed=3, directions=2, local_epochs=1, scheme="unbiased", mu=1e-3, lr=0.1)


def losses(model, batch):
    return model(batch[0]).square().squeeze(1)


@cache
def model():
    module = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.constant_(module.weight, 1.0)
    return Parameters.of(module)


def votes(noise, *, canary):
    """Return what a client sends in all rounds: its other samples have no slopes, the canary as much as is allowed."""
    inputs = torch.zeros(SAMPLES, 3)
    if canary:
        inputs = torch.cat([inputs, torch.full((1, 3), 9.0)])

    def batch(_round, _epoch):
        chosen = poisson_batch(len(inputs), RATE)
        return inputs[chosen], torch.zeros(len(chosen))

    mechanism = Mechanism(clip=1.0, noise=noise, batch=RATE * SAMPLES)
    client = Client(model(), losses, batch, PLAN, private=PrivateSteps(mechanism, system_noise(mechanism)))
    return np.concatenate([client.vote(t)[0] for t in range(ROUNDS)])


def canary_alone():
    """Return the direction in which the canary moves the votes, which everybody can compute."""
    batch = torch.full((1, 3), 9.0), torch.zeros(1)
    mechanism = Mechanism(clip=1.0, noise=0.0, batch=1.0)
    alone = Client(model(), losses, lambda *_: batch, PLAN, private=PrivateSteps(mechanism, system_noise(mechanism)))
    return np.concatenate([alone.vote(t)[0] for t in range(ROUNDS)])


def lower_bound(noise):
    """Return the largest epsilon that bets prove, at 95% confidence, by a threshold that other games have chosen."""
    direction = canary_alone()
    scores = {
        canary: np.array([votes(noise, canary=canary) @ direction for _ in range(GAMES)]) for canary in (False, True)
    }
    half = GAMES // 2
    thresholds = np.quantile(np.concatenate([scores[False][:half], scores[True][:half]]), np.linspace(0.05, 0.99, 40))
    bounds = [_bound(scores, slice(0, half), threshold) for threshold in thresholds]
    best = [threshold for threshold, bound in zip(thresholds, bounds, strict=True) if bound == max(bounds)]
    return _bound(scores, slice(half, GAMES), best[(len(best) - 1) // 2])


def _bound(scores, games, threshold):
    right, wrong = (int((scores[canary][games] > threshold).sum()) for canary in (True, False))
    count = len(scores[True][games])
    least = beta.ppf(0.025, right, count - right + 1) if right else 0.0
    most = beta.ppf(0.975, wrong + 1, count - wrong) if wrong < count else 1.0
    return log((least - DELTA) / most) if least > DELTA else 0.0


def test_bets_on_a_canary_win_less_than_the_accountant_allows_and_far_more_without_noise():
    allowed = epsilon_of([(Step(NOISE, RATE), ROUNDS)], DELTA)
    assert lower_bound(NOISE) < allowed
    assert lower_bound(0.0) > 1.5 * allowed
    assert lower_bound(NOISE / 10) > allowed  # a client that adds less than it promises is caught, too
