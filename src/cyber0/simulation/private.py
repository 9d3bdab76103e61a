"""Private clients in a simulation: their batches and noise are drawn by seed, so that a run can be repeated.

Whoever knows the seed knows both, so a simulation gives no guarantee: it shows what privacy costs.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.config import DELTA, RunConfig
from cyber0.layerwise.batching import upload
from cyber0.privacy.accounting import Step, check_delta, epsilon_of, noise_for
from cyber0.privacy.client_steps import PrivateSteps
from cyber0.privacy.mechanism import LEVELS, Mechanism, gradient_unit, grid_steps
from cyber0.privacy.sampling import sampling_rate
from cyber0.simulation.population import Population

__all__ = ["PrivateClients"]

Indices = NDArray[np.int64]
COINS, NOISE = 0x434F494E, 0x4E4F4953  # "COIN", "NOIS"
FINENESS = 1.05  # clients whose rates differ by less are calibrated together, for the largest


class PrivateClients:
    """The mechanisms of all simulated clients, and what they draw.

    Args:
        config: A run with `epsilon` or `noise`.
        population: Who holds which samples.
        dimension: The parameters of the model.

    """

    def __init__(self, config: RunConfig, population: Population, dimension: int) -> None:
        counts = [len(share) for share in population.shares]
        delta = DELTA if config.delta is None else config.delta
        check_delta(delta, max(counts))
        self.config, self.population, self.delta = config, population, delta
        self.unit = gradient_unit(dimension, config.directions, config.family)
        self.rates = np.array([sampling_rate(config.batch, count) for count in counts])
        noises = [config.noise if config.epsilon is None else _noise(config, rate) for rate in self.rates]
        self.mechanisms = [
            Mechanism(config.clip_length, noise or 0.0, rate * count)
            for noise, rate, count in zip(noises, self.rates, counts, strict=True)
        ]
        self._coins = np.repeat(self.rates, counts).astype(np.float32)
        self._owners = np.repeat(np.arange(len(counts)), counts)
        self._samples = np.concatenate(population.shares)
        self._scales = np.array([each.scale for each in self.mechanisms])
        self._factors = np.array([each.clip / LEVELS / each.batch for each in self.mechanisms])

    def facts(self) -> dict[str, Any]:
        """Return what the clients have spent at the end of the run, as a summary says it."""
        config = self.config
        noises = [each.noise for each in self.mechanisms]
        epsilon = config.epsilon
        if epsilon is None:
            worst = Step(noises[0], float(self.rates.max()))
            epsilon = epsilon_of([(worst, config.private_steps)], self.delta)
        return {
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": self.delta,
            "clip": config.clip_length,
            "least_noise_of_clients": min(noises),
            "most_noise_of_clients": max(noises),
            "privacy": "simulated with seeded noise: it gives no guarantee",
        }

    def batch(self, t: int, epoch: int, present: Indices) -> tuple[Indices, Indices]:
        """Return the Poisson batches of all present clients: samples, and the place of each one's owner in `present`.

        They are in the order of the clients.
        """
        config = self.config
        rng = np.random.default_rng([config.seed, t, epoch, COINS])
        chosen = np.flatnonzero(rng.random(len(self._coins), dtype=np.float32) < self._coins)
        owners = self._owners[chosen]
        if len(present) < config.clients:
            places = np.full(config.clients, -1)
            places[present] = np.arange(len(present))
            kept = places[owners] >= 0
            chosen, owners = chosen[kept], places[owners[kept]]
        return self._samples[chosen], owners

    def noise(self, t: int, epoch: int) -> Indices:
        """Return the noise of all clients in a step, in grid steps: [clients, directions]."""
        rng = np.random.default_rng([self.config.seed, t, epoch, NOISE])
        normals = rng.standard_normal((self.config.clients, self.config.directions))
        return np.rint(normals * self._scales[:, None]).astype(np.int64)

    def totals(self, slopes: torch.Tensor, owners: torch.Tensor, clients: int) -> torch.Tensor:
        """Return the sums of clipped slopes [samples, directions] of each client: [clients, directions].

        A sample whose owner is `clients` belongs to nobody.
        """
        steps = grid_steps(slopes, self.config.clip_length, self.unit)
        sums = torch.zeros(clients + 1, steps.shape[-1], dtype=torch.int64, device=steps.device)
        return sums.index_add_(0, owners, steps)[:clients]

    def released(self, totals: torch.Tensor, t: int, epoch: int, present: Indices) -> torch.Tensor:
        """Return the step of each present client: [clients, directions]."""
        noise = upload(self.noise(t, epoch)[present], totals.device)
        factors = upload(self._factors[present] * self.unit, totals.device)
        return ((totals + noise) * factors[:, None]).float()

    def steps_of(self, client: int, probes: tuple[torch.Tensor, torch.Tensor] | None = None) -> PrivateSteps:
        """Return a client's own steps, for the code that a client of a real federation runs."""

        def noise(t: int, epoch: int, directions: int) -> Indices:  # noqa: ARG001
            return self.noise(t, epoch)[client]

        return PrivateSteps(self.mechanisms[client], noise, probes)


def _noise(config: RunConfig, rate: float) -> float:
    """Return the noise multiplier of a client, for the next larger one of a grid of rates."""
    on_grid = min(1.0, FINENESS ** math.ceil(round(math.log(rate, FINENESS), 9)))
    delta = DELTA if config.delta is None else config.delta
    return _calibrated(config.epsilon or 0.0, delta, on_grid, config.private_steps)


@lru_cache(maxsize=1024)
def _calibrated(epsilon: float, delta: float, rate: float, steps: int) -> float:
    return noise_for(epsilon, delta, rate, steps)
