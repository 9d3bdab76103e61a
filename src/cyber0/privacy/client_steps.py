"""A client's private local steps: clipped and noised before they are applied or sent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.errors import InvalidEstimate
from cyber0.privacy.mechanism import Mechanism
from cyber0.privacy.noise import RoundedGaussian

__all__ = ["PrivateSteps", "system_noise"]

Noise = Callable[[int, int, int], NDArray[np.int64]]
"""noise(round, epoch, directions) -> the noise of a step, in grid steps: [directions]."""


@dataclass(frozen=True, slots=True)
class PrivateSteps:
    """How a client makes a private step of the slopes of single samples.

    Args:
        mechanism: What is done to the slopes.
        noise: Where the noise of a step comes from: of a client, from its operating system.
        probes: Inputs and labels of samples that are not voted on, with which the client tries out how many samples it
            can measure together; without them it measures one by one.

    >>> steps = PrivateSteps(mechanism := Mechanism(clip=1.0, noise=0.5, batch=2.0), system_noise(mechanism))
    >>> empty = torch.ones(0, 3), torch.ones(0)
    >>> steps.vote(lambda batch: batch[0], empty, directions=3, unit=1.0, round=0, epoch=0).shape     # noise alone
    (3,)

    """

    mechanism: Mechanism
    noise: Noise
    probes: tuple[torch.Tensor, torch.Tensor] | None = None

    def vote(
        self,
        slopes: Callable[[Any], torch.Tensor],
        batch: tuple[torch.Tensor, torch.Tensor],
        directions: int,
        unit: float,
        round: int,  # noqa: A002
        epoch: int,
    ) -> NDArray[np.float32]:
        """Return what is released of a step; `slopes` gives those of the samples of a batch.

        A batch without samples gives noise alone.
        """
        found = slopes(batch)
        if found.shape != (len(batch[1]), directions):
            raise InvalidEstimate(
                f"losses() gave {len(found)} losses for {len(batch[1])} samples: privacy needs one for each, or a "
                "sample could count more than once"
            )
        total = self.mechanism.total(found, unit)
        return self.mechanism.released(total, self.noise(round, epoch, directions), unit)


def system_noise(mechanism: Mechanism) -> Noise:
    """Return noise from the randomness of the operating system, drawn exactly.

    >>> system_noise(Mechanism(clip=1.0, noise=0.0, batch=1.0))(0, 0, 2)
    array([0, 0])
    """
    draw = RoundedGaussian()

    def noise(round: int, epoch: int, directions: int) -> NDArray[np.int64]:  # noqa: A002, ARG001
        return draw.many(directions, mechanism.scale)

    return noise
