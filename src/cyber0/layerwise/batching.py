"""How a batch of prompts is cut into parts of about one length, so that little is computed for padding.

Cuts lie at the same places of the sorted batch in every round, so that few shapes occur, and few graphs are captured.
"""

from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray

__all__ = ["cuts", "pinned", "rounded", "upload"]

PLACES = 16  # where a batch may be cut


def pinned(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array in memory that a device fetches from by itself, later: a copy from any other waits for the device.

    >>> import numpy as np
    >>> pinned(np.arange(3), torch.device("cpu"))
    tensor([0, 1, 2])
    """
    tensor = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    return tensor.pin_memory() if device.type == "cuda" else tensor


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array in the memory of a device, without waiting for what the device is doing.

    >>> import numpy as np
    >>> upload(np.arange(3), torch.device("cpu"))
    tensor([0, 1, 2])
    """
    return pinned(array, device).to(device, non_blocking=True)


def rounded(size: int, multiple: int) -> int:
    """A width, up to the next multiple.

    >>> rounded(13, 8)
    16
    """
    return max(1, -(-size // multiple)) * multiple


def cuts(sizes: NDArray[Any], fixed: int, most: int | None = None) -> tuple[int, ...]:
    """Where to cut a batch of samples of ascending sizes; each part costs `fixed` tokens, then what it holds.

    No part holds more than `most` tokens, unless it is of one sample.

    >>> import numpy as np
    >>> cuts(np.array([4] * 12 + [50] * 4), fixed=64)
    (0, 12, 16)
    >>> cuts(np.array([4] * 16), fixed=64)
    (0, 16)
    >>> cuts(np.array([4] * 16), fixed=64, most=32)
    (0, 8, 16)
    """
    return _cuts(tuple(map(int, sizes)), fixed, most)


@lru_cache(maxsize=8)
def _cuts(sizes: tuple[int, ...], fixed: int, most: int | None) -> tuple[int, ...]:
    count, widest = len(sizes), max(1, sizes[-1])
    step = max(1, -(-count // PLACES) if most is None else min(-(-count // PLACES), most // widest))
    places = [*range(0, count, step), count]
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(places)):
        options = [
            (best[begin][0] + _cost(sizes, places[begin], places[end], fixed, most, step), begin)
            for begin in range(end)
        ]
        best.append(min(options))
    found, end = [count], len(places) - 1
    while end > 0:
        end = best[end][1]
        found.append(places[end])
    return tuple(reversed(found))


def _cost(sizes: tuple[int, ...], begin: int, end: int, fixed: int, most: int | None, step: int) -> float:
    held = (end - begin) * max(1, sizes[end - 1])
    too_many = most is not None and held > most and end - begin > step
    return float("inf") if too_many else fixed + held
