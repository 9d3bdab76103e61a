"""Cut a batch of prompts into micro-batches of similar length, so that little time is spent on padding.

The sorted batch is cut at the same places in every round, so that few shapes occur and few graphs are captured.
"""

from functools import lru_cache
from math import inf
from typing import Any

import torch
from numpy.typing import NDArray

__all__ = ["cuts", "pinned", "round_up", "upload"]

PLACES = 16  # the places where a batch may be cut


def pinned(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor; for a CUDA device in pinned memory, from where it copies while the host goes on."""
    tensor = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    return tensor.pin_memory() if device.type == "cuda" else tensor


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device, without waiting for work that is queued there."""
    return pinned(array, device).to(device, non_blocking=True)


def round_up(size: int, multiple: int) -> int:
    """Round a width up to the next multiple.

    >>> round_up(13, 8)
    16
    """
    return max(1, -(-size // multiple)) * multiple


def cuts(sizes: NDArray[Any], overhead: int, max_tokens: int | None = None) -> tuple[int, ...]:
    """Return where to cut a batch of samples of ascending sizes, so that the total cost is least.

    A micro-batch costs `overhead` tokens plus those it holds, padding included. It holds at most `max_tokens`, unless
    it is a single sample; then, of cuts that cost the same, those are taken whose largest micro-batch is smallest.

    >>> import numpy as np
    >>> cuts(np.array([4] * 12 + [50] * 4), overhead=64)
    (0, 12, 16)
    >>> cuts(np.array([4] * 16), overhead=64)
    (0, 16)
    >>> cuts(np.array([4] * 16), overhead=64, max_tokens=32)
    (0, 8, 16)
    >>> cuts(np.array([4] * 16), overhead=64, max_tokens=56)
    (0, 8, 16)
    """
    return _cuts(tuple(map(int, sizes)), overhead, max_tokens)


@lru_cache(maxsize=8)
def _cuts(sizes: tuple[int, ...], overhead: int, max_tokens: int | None) -> tuple[int, ...]:
    count, widest = len(sizes), max(1, sizes[-1])
    step = max(1, -(-count // PLACES) if max_tokens is None else min(-(-count // PLACES), max_tokens // widest))
    places = [*range(0, count, step), count]
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # the cost up to a place, the largest part, where it begins
    for end in range(1, len(places)):
        options: list[tuple[float, int, int]] = []
        for begin in range(end - 1, -1, -1):
            added = _cost(sizes, places[begin], places[end], overhead, max_tokens, step)
            if options and added == inf:  # so it is of what begins earlier
                break
            cost = best[begin][0] + added
            held = 0 if max_tokens is None else (places[end] - places[begin]) * sizes[places[end] - 1]
            options.append((cost, max(best[begin][1], held), begin))
        best.append(min(options))
    found, end = [count], len(places) - 1
    while end > 0:
        end = best[end][2]
        found.append(places[end])
    return tuple(reversed(found))


def _cost(sizes: tuple[int, ...], begin: int, end: int, overhead: int, max_tokens: int | None, step: int) -> float:
    held = (end - begin) * max(1, sizes[end - 1])
    too_many = max_tokens is not None and held > max_tokens and end - begin > step
    return inf if too_many else overhead + held
