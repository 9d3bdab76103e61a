"""Micro-batches: the samples of a batch, sorted by size and cut into parts of similar size that fit into memory.

A batch of as many samples is cut at the same places in every round, so that few shapes occur.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cyber0.errors import InvalidEstimate
from cyber0.layerwise.batching import cuts, round_up, upload
from cyber0.layerwise.protocols import SizedInputs, implements

__all__ = ["AT_MOST", "GRAIN", "OVERHEAD", "Cutter", "MicroBatch", "is_out_of_memory", "most_tokens", "sizes_of"]

Tensor = torch.Tensor
GRAIN = 8  # tokens to whose multiples micro-batches are filled up, so that few shapes occur where each has a graph
AT_MOST = {"cpu": 2**17}  # tokens of a micro-batch; a GPU that runs out of memory says so
FEW = 1024  # tokens that a micro-batch on a CPU may have however small the model is
WEIGHTS_OF_A_TOKEN = 2**15  # or a token for so many weights, if that is more
OVERHEAD = {"cuda": 2048, "cpu": 64}  # what a micro-batch costs besides its tokens, in tokens


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Samples of similar size, and their places in the batch."""

    inputs: Tensor
    labels: Tensor
    order: Tensor
    padded: bool


class Cutter:
    """Cuts batches into micro-batches, of fewer tokens each once memory has run out.

    On a CPU a micro-batch has the fewer tokens the fewer `weights` the model has, if their number is given.

    >>> cutter = Cutter(torch.device("cpu"))
    >>> [len(part.labels) for part in cutter.split(torch.ones(5, 3), torch.zeros(5), None)]
    [5]
    """

    def __init__(self, device: torch.device, weights: int | None = None) -> None:
        self.device, self.weights = device, weights
        self.max_tokens: int | None = None
        self._cuts: dict[tuple[int, int | None], tuple[int, ...]] = {}

    def split(self, inputs: Tensor, labels: Tensor, sizes: NDArray[Any] | None, grain: int = 1) -> list[MicroBatch]:
        """Sort samples by size, and cut them at the places that were best for the first batch of this length.

        `sizes` says how many values of each sample are not padding; None: all are. Widths are filled up to multiples
        of `grain`.
        """
        known = np.full(len(labels), inputs[0].numel()) if sizes is None else sizes.ravel()
        order = np.argsort(known, kind="stable")
        most = self.max_tokens if sizes is None else self.max_tokens or most_tokens(self.device, self.weights)
        limits = len(labels), most
        if limits not in self._cuts:
            widths = np.array([round_up(int(size), 1 if sizes is None else grain) for size in known[order]])
            self._cuts[limits] = cuts(widths, OVERHEAD.get(self.device.type, 64), most)
        places = upload(order, self.device)
        return [
            _cut(inputs, labels, places[a:b], None if sizes is None else known[order[a:b]], grain)
            for a, b in pairwise(self._cuts[limits])
        ]

    def halve(self, parts: Sequence[MicroBatch], error: Exception) -> None:
        """Cut smaller from now on, since memory ran out on one of these parts; raise if that is not possible."""
        largest = max(part.inputs.numel() for part in parts)
        if max(len(part.labels) for part in parts) == 1:
            raise InvalidEstimate(
                f"one sample of {largest} values does not fit into the memory of {self.device}: use shorter texts "
                "(length=...), a smaller model, precision = 'bf16', or another device"
            ) from error
        self.max_tokens = min(largest, self.max_tokens or largest) // 2
        self._cuts.clear()
        warnings.warn(
            f"out of memory on {self.device}: micro-batches of at most {self.max_tokens} tokens from now on",
            stacklevel=5,
        )


def most_tokens(device: torch.device, weights: int | None = None) -> int | None:
    """Return how many tokens a micro-batch may have; None: as many as fit into the device's memory.

    Each costs a pass over all weights. So those of a model of few weights, for which such a pass takes little time,
    are small, and its activations take about as much memory as those of one plain forward pass.

    >>> most_tokens(torch.device("cpu"), 10**6), most_tokens(torch.device("cpu"), 10**9)
    (1024, 30517)
    """
    most = AT_MOST.get(device.type)
    return most if most is None or weights is None else min(most, max(FEW, weights // WEIGHTS_OF_A_TOKEN))


def sizes_of(module: nn.Module, inputs: Tensor, labels: Tensor, known: NDArray[Any] | None = None) -> Any:
    """Return how many values of each sample are not padding, as known or read back; None where inputs are not cut.

    >>> sizes_of(nn.Linear(3, 1), torch.ones(5, 3), torch.zeros(5))
    """
    tokens = inputs.shape[-1]  # not cut shorter than labels of tokens: whole numbers, or one number for each
    of_tokens = labels.ndim > 1 and (not labels.is_floating_point() or labels.shape[1] == tokens)
    if of_tokens or inputs.ndim != 2 or not implements(module, SizedInputs):
        return None
    return module.sizes(inputs).cpu().numpy() if known is None else known


def _cut(inputs: Tensor, labels: Tensor, order: Tensor, sizes: NDArray[Any] | None, grain: int) -> MicroBatch:
    chosen = inputs[order]
    if sizes is None:
        return MicroBatch(chosen, labels[order], order, padded=True)  # it may be
    width = round_up(int(sizes[-1]), grain)
    missing = width - chosen.shape[1]
    chosen = nn.functional.pad(chosen, (0, missing), value=-1) if missing > 0 else chosen[:, :width].contiguous()
    return MicroBatch(chosen, labels[order], order, padded=bool(sizes[0] < width))


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory has run out.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
