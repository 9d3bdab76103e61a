"""The mechanism: of the slopes of single samples, what a client releases of a local step.

All slopes of a sample, one for each direction of the step, are one vector. In units in which its length is about that
of the sample's gradient, it is shortened to the clip, and rounded towards zero to a grid of clip / 2**20; that it
is no longer than 2**20 grid steps is checked in integers. The vectors are summed in integers, integer noise is added,
and the sum is divided by the expected size of the batch. So adding or removing one sample moves the sum by at most
2**20 grid steps, the noise is rounded Gaussian noise of `noise` times as many, and everything after the sum is
post-processing: what is released is as private as the Gaussian mechanism with that noise multiplier.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.directions.key import Family
from cyber0.errors import InvalidConfig

__all__ = ["LEVELS", "Mechanism", "gradient_unit", "grid_steps"]

LEVELS = 2**20  # grid steps that a sample's vector may be long
LARGEST = 2.0**32  # of a noise multiplier: beyond it a sum with its noise could leave the integers


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What a client does to the slopes of its samples before anything leaves it.

    Args:
        clip: The length to which each sample's vector of slopes is shortened, in units of its gradient's length.
        noise: The noise multiplier: the deviation of the noise, in clips. With 0 there is no privacy.
        batch: The expected size of a batch, by which sums are divided.

    >>> mechanism = Mechanism(clip=1.0, noise=0.5, batch=2.0)
    >>> slopes = torch.tensor([[3.0, 4.0], [0.1, 0.0], [float("nan"), 0.0]])
    >>> total = mechanism.total(slopes, unit=1.0)
    >>> mechanism.released(total, noise=0, unit=1.0).round(3)
    array([0.35, 0.4 ], dtype=float32)

    """

    clip: float
    noise: float
    batch: float

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf:
            raise InvalidConfig(f"clip = {self.clip}: it must be a length above 0, as 1.0; with 0 only noise is sent")
        if not 0 <= self.noise < LARGEST:
            raise InvalidConfig(f"noise = {self.noise}: it must be a number from 0 to {LARGEST:.0f}")
        if not 0 < self.batch < math.inf:
            raise InvalidConfig(f"batch = {self.batch}: the expected size of a batch must be above 0")

    @property
    def scale(self) -> int:
        """The deviation of the noise in grid steps, rounded up to an integer."""
        return math.ceil(self.noise * LEVELS)

    def total(self, slopes: torch.Tensor, unit: float) -> NDArray[np.int64]:
        """Return the sum of the clipped slopes [samples, directions], in grid steps: [directions]."""
        return grid_steps(slopes, self.clip, unit).sum(dim=0).cpu().numpy()

    def released(self, total: Any, noise: Any, unit: float) -> NDArray[np.float32]:
        """Return the vote of a sum of clipped slopes and noise, both in grid steps."""
        return ((np.asarray(total) + noise) * (self.clip / LEVELS / self.batch * unit)).astype(np.float32)


def gradient_unit(dimension: int, directions: int, family: Family) -> float:
    """Return the factor by which a vector of slopes gets about the length of the gradient; and its square a vote.

    >>> gradient_unit(dimension=400, directions=100, family="sphere")
    2.0
    """
    return math.sqrt((dimension if family == "sphere" else 1) / directions)


def grid_steps(slopes: torch.Tensor, clip: float, unit: float) -> torch.Tensor:
    """Return the vectors of slopes [..., directions] in grid steps, each at most `LEVELS` of them long.

    A slope that is not finite counts as 0: an error, or a vote that is left out, would tell of the sample. What floats
    meet here is rounded correctly by every kernel, so that a vector depends on its own slopes alone.

    >>> grid_steps(torch.tensor([[0.5, 0.0], [-8.0, float("inf")]]), clip=1.0, unit=1.0) / LEVELS
    tensor([[ 0.5000,  0.0000],
            [-1.0000,  0.0000]])
    """
    vectors = slopes.to(torch.float64, copy=True).mul_(unit / clip).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    lengths = _sums(vectors.square()).sqrt_().clamp_(min=1.0)
    vectors = vectors.mul_(LEVELS).div_(lengths)
    steps = vectors.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).to(torch.int64)
    too_long = _squares(steps) > LEVELS**2
    if too_long.any():  # by the rounding of what was computed so far
        steps = torch.where(too_long, steps - steps.sign(), steps)
        steps = torch.where(_squares(steps) > LEVELS**2, 0, steps)
    return steps


def _sums(values: torch.Tensor) -> torch.Tensor:
    """Return sums over the last dimension, added in an order that follows from its size alone: [..., 1].

    In what order `torch.sum` adds depends on the whole shape, and so on how many samples there are.

    >>> _sums(torch.arange(10.0).view(2, 5))
    tensor([[10.],
            [35.]])
    """
    while (width := values.shape[-1]) > 1:
        half = width // 2
        paired = values[..., :half] + values[..., half : 2 * half]
        values = paired if width % 2 == 0 else torch.cat([paired, values[..., -1:]], dim=-1)
    return values.clone()


def _squares(steps: torch.Tensor) -> torch.Tensor:
    return steps.square().sum(dim=-1, keepdim=True)
