"""An audit by a canary: whoever reads the votes of a run bets on whether one sample is in the data, many times.

What the bets win is a lower bound on epsilon (Jagielski, Ullman and Oprea, 2020), by Clopper and Pearson's intervals.
It must lie below the budget that the client was given for the run, and far above it where a part of what makes the
votes private is switched off: the noise, its size, that it is fresh in each round, or the secret sampling.
"""

from dataclasses import replace
from math import log
from operator import itemgetter

import numpy as np
import pytest
import torch
from scipy.stats import beta

from cyber0.config import Agreement
from cyber0.network.private_data import PrivacyOptions, PrivateData
from cyber0.privacy.client_steps import PrivateSteps

GAMES, SAMPLES, BATCH, ROUNDS, EPSILON, DELTA = 200, 40, 2, 8, 1.0, 1e-3


class Run:
    """A client's small run, by the batches and steps that it votes with, for all rounds that its budget suffices for.

    Its slopes are its inputs. A sample without slopes is as good as none: so are all but the canary, which has as much
    as the clip allows, or is such a sample itself.
    """

    def __init__(self, folder):
        agreement = Agreement(clients=1, byzantine=0, batch=BATCH, rounds=ROUNDS, directions=1)
        options = PrivacyOptions(EPSILON, folder, delta=DELTA)
        self.private = PrivateData(options, agreement, torch.zeros(SAMPLES, 1), torch.zeros(SAMPLES))
        self.promise = self.private.begin(bytes(32))
        self.rate, self.rounds = self.private.rate, self.private.budget.left(self.private.step, 2 * ROUNDS)
        assert 0 < self.rate < 1
        assert self.rounds >= ROUNDS
        self.private.budget.close()

    def steps(self):
        return self.private.steps

    def sums(self, *, canary):
        """Return what it releases in all rounds, in clips."""
        self.private.inputs[0], steps = 9.0 * self.private.clip * canary, self.steps()
        played = [
            steps.vote(lambda part: part[0], self.private.batch(number, 0), 1, 1.0, number, 0)
            for number in range(self.rounds)
        ]
        return np.concatenate(played).astype(np.float64) * (self.private.mechanism.batch / self.promise.clip)


class WithoutNoise(Run):
    noise = 0.0

    def __init__(self, folder):
        super().__init__(folder)
        self.private.mechanism = replace(self.private.mechanism, noise=self.noise * self.promise.noise)


class WithATenthOfTheNoise(WithoutNoise):
    noise = 0.1


class WithTheSameNoiseInEachRound(Run):
    def steps(self):
        drawn = self.private.steps.noise(0, 0, 1)
        return PrivateSteps(self.private.mechanism, lambda *_: drawn)


class WithAllSamplesInEachBatch(Run):
    def __init__(self, folder):
        super().__init__(folder)
        self.private.rate = 1.0


def likelihood(run, sums):
    """The best bet on a client that keeps its promise: how much likelier the votes are with the canary."""
    in_batch = np.exp((2 * sums - 1) / (2 * run.promise.noise**2))
    return np.log(1 - run.rate + run.rate * in_batch).sum(axis=1)


def spread(_run, sums):
    """A bet on noise that is not fresh."""
    return np.ptp(sums, axis=1)


def lower_bound(run):
    """Return the largest epsilon that bets prove, at 95% confidence, by a bet that other games have chosen."""
    sums = {canary: np.stack([run.sums(canary=canary) for _ in range(GAMES)]) for canary in (False, True)}
    first, second = slice(0, GAMES // 2), slice(GAMES // 2, GAMES)
    best = []
    for score in (likelihood, spread):
        scores = {canary: score(run, sums[canary]) for canary in sums}
        known = np.concatenate([scores[canary][first] for canary in scores])
        thresholds = np.linspace(known.min(), known.max(), num=50, endpoint=False)
        bounds = [_bound(scores, first, threshold) for threshold in thresholds]
        chosen = np.flatnonzero(np.array(bounds) > max(bounds) - 0.2)  # the best may be best by luck
        best.append((max(bounds), _bound(scores, second, thresholds[chosen[(len(chosen) - 1) // 2]])))
    return max(best, key=itemgetter(0))[1]


def _bound(scores, games, threshold):
    right, wrong = (int((scores[canary][games] > threshold).sum()) for canary in (True, False))
    count = len(scores[True][games])
    least = beta.ppf(0.025, right, count - right + 1) if right else 0.0
    most = beta.ppf(0.975, wrong + 1, count - wrong) if wrong < count else 1.0
    return log((least - DELTA) / most) if least > DELTA else 0.0


def test_bets_on_a_canary_win_less_than_the_budget_allows(tmp_path):
    assert lower_bound(Run(tmp_path)) < EPSILON


@pytest.mark.parametrize(
    "broken", [WithoutNoise, WithATenthOfTheNoise, WithTheSameNoiseInEachRound, WithAllSamplesInEachBatch]
)
def test_a_client_that_does_less_than_it_promises_is_caught(tmp_path, broken):
    assert lower_bound(broken(tmp_path)) > EPSILON  # 1.7 to 2.8 in four audits of each
