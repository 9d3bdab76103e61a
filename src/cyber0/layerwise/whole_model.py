"""Measure a model that cannot be walked: with two whole perturbed copies, one for each sign."""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from cyber0.errors import InvalidEstimate
from cyber0.estimate import call_with
from cyber0.layerwise.batching import round_up
from cyber0.layerwise.micro_batches import is_out_of_memory

if TYPE_CHECKING:
    from cyber0.layerwise.walk import Walk

__all__ = ["in_arithmetic", "per_sample", "run"]

Tensor = torch.Tensor
ALIGNED = 64  # weights to whose multiples the tensors of a copy are placed: some kernels want aligned addresses


def run(walk: "Walk", inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the losses [2, samples] at w + mu z and at w - mu z.

    >>> from cyber0.directions import DirectionKey
    >>> from cyber0.layerwise import Walk
    >>> from cyber0.layerwise.source import perturbation_of
    >>> from cyber0.parameters import Parameters
    >>> parameters = Parameters.of(torch.nn.Linear(3, 1))
    >>> walk = Walk(parameters, lambda model, batch: model(batch[0]).squeeze(1))
    >>> walk.source.set_perturbation(perturbation_of(parameters, DirectionKey(seed=1, round=0), mu=1e-3))
    >>> run(walk, torch.ones(5, 3), torch.zeros(5)).shape
    torch.Size([2, 5])
    """
    walk.source.begin()
    copies: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    tensors = walk.parameters.tensors
    starts = [*accumulate((round_up(each.numel(), ALIGNED) for each in tensors.values()), initial=0)]
    rooms = [torch.empty(starts[-1], device=walk.device) for _ in copies]  # each in one piece: no holes in the heap
    for start, (name, tensor) in zip(starts, tensors.items(), strict=False):
        source = walk.source.matrix if tensor.ndim > 1 else walk.source.vector
        for copy, room, perturbed in zip(copies, rooms, source(tensor, torch.float32), strict=True):
            copy[name] = room[start : start + tensor.numel()].view(tensor.shape).copy_(perturbed)
    for name, tensor in walk.module.named_parameters():
        if not walk.layout.is_trained(tensor):
            copies[0][name] = copies[1][name] = walk.layout.frozen(tensor, torch.float32)

    def losses(weights: dict[str, Tensor]) -> Tensor:
        def model(x: Tensor) -> Tensor:
            return call_with(walk.module, weights, x).float()

        return walk.losses(model, (inputs, labels))

    with in_arithmetic(walk.device, walk.arithmetic):
        return torch.stack([per_sample(losses(weights), len(inputs)) for weights in copies])


def per_sample(losses: Tensor, samples: int) -> Tensor:
    """Return losses as float32; raise InvalidEstimate unless there is one for each sample.

    >>> per_sample(torch.tensor(0.5), samples=2)
    Traceback (most recent call last):
    cyber0.errors.InvalidEstimate: losses() gave shape () for 2 samples: it must give one loss for each, ...
    """
    if losses.shape != (samples,):
        raise InvalidEstimate(
            f"losses() gave shape {tuple(losses.shape)} for {samples} samples: it must give one loss for each, e.g. "
            "reduction='none'"
        )
    return losses.float()


@contextmanager
def in_arithmetic(device: torch.device, dtype: torch.dtype) -> Generator[None]:
    """Compute matrix products in bf16 within the context, unless `dtype` is float32.

    >>> with in_arithmetic(torch.device("cpu"), torch.bfloat16):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.bfloat16
    """
    if dtype == torch.float32:
        yield
        return
    try:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise InvalidEstimate(f"the model's own code fails in bf16 ({error}): use precision = 'float32'") from error
