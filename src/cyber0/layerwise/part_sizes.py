"""How wide a private client pads its texts, and of how many samples it makes the parts that it measures.

All of it follows from public things, the expected size of a batch and samples that are not voted on, except how many
parts of which size there are: that follows from how many samples of a width are in the batch, and parts of all sizes
give a sample the same bits.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROWS", "best_part", "fixed_width", "part_sizes", "split", "widths_for"]

ROWS = 8  # kernels treat as many rows alike, and often not what is left over
FINEST = 16  # sizes are at most that part of themselves apart, or one step
FILLING = 1.5  # samples that fill up the last part of a width, about


def fixed_width(size: int, widest: int, widths: Sequence[int] = ()) -> int:
    """Return the width that a text of so many tokens is padded to: the next of a few widths, or its own beyond them.

    A text that is padded has at least one token of padding: models leave a mask out where nothing is padded.

    Args:
        size: How many tokens it has.
        widest: The largest width that the model can be padded to.
        widths: Those to choose from, in ascending order. For longer texts others are taken.

    >>> [fixed_width(size, widest=496) for size in (3, 8, 20, 100, 400, 490)]
    [8, 16, 24, 128, 400, 490]
    >>> [fixed_width(size, widest=496, widths=[16, 56]) for size in (3, 8, 20, 100, 400, 490)]
    [16, 16, 56, 128, 400, 490]

    """
    step = max(8, 1 << max(0, size.bit_length() - 2))
    width = next((each for each in widths if each > size), (size // step + 1) * step)
    return width if width <= widest else max(1, size)


def widths_for(sizes: NDArray[np.int64], expected: float, overhead: float, widest: int) -> tuple[int, ...]:
    """Return the widths, multiples of 8, at which batches of texts like these cost least.

    Args:
        sizes: How many tokens texts have that are not voted on.
        expected: The expected size of a batch.
        overhead: What a part costs besides its tokens, in tokens.
        widest: The largest width that the model can be padded to.

    >>> sizes = np.array([4] * 12 + [50] * 4)
    >>> [widths_for(sizes, 64, overhead, widest=496) for overhead in (10, 1000)], widths_for(sizes, 2, 10, widest=496)
    ([(8, 56), (8, 56)], (8, 56))
    >>> widths_for(np.arange(3, 49), 64, 100, widest=496)
    (16, 32, 48, 56)

    """
    needed = (sizes // ROWS + 1) * ROWS
    places = [0, *sorted({int(each) for each in needed if each <= widest})]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for end in range(1, len(places)):
        width = places[end]
        options: list[tuple[float, tuple[int, ...]]] = []
        for begin in range(end):
            held = expected * float(np.mean((needed > places[begin]) & (needed <= width)))
            one = -math.expm1(-held) * (overhead + FILLING * width)
            options.append((best[begin][0] + one + held * width, (*best[begin][1], width)))
        best.append(min(options))
    return best[-1][1]


def best_part(expected: float, overhead: float, step: int) -> int:
    """Return how many samples a part should have, one or a multiple of `step`, so that batches cost least.

    Args:
        expected: The expected size of a Poisson batch.
        overhead: What a part costs besides its samples, in samples.
        step: How many samples kernels treat alike.

    >>> [best_part(64, overhead, step=4) for overhead in (0.01, 0.1, 2, 100)], best_part(64, 100, step=32)
    ([1, 4, 16, 80], 96)

    """
    sizes = np.arange(1, _most(expected))
    factorials = np.cumsum(np.log(sizes))
    chances = np.exp(sizes * math.log(expected) - expected - factorials)
    parts = (1, *range(step, len(sizes) + step, step))
    costs = [(float(chances @ np.ceil(sizes / part)) * (overhead + part), part) for part in parts]
    return min(costs)[1]


def part_sizes(expected: float, most: float, step: int) -> tuple[int, ...]:
    """Return the sizes that parts may have where all of them give a sample the same bits: multiples of `step`.

    Args:
        expected: The expected size of a Poisson batch.
        most: Beyond so many samples a part saves nothing.
        step: What the sizes are multiples of.

    >>> part_sizes(5, 1000, step=4), part_sizes(64, 80, step=16)
    ((4, 8, 12, 16, 20, 24, 28, 32, 36), (16, 32, 48, 64, 80))

    """
    found, largest = [step], min(_most(expected), most)
    while found[-1] < largest:
        found.append(found[-1] + max(1, found[-1] // FINEST // step) * step)
    return tuple(found)


def _most(expected: float) -> int:
    """Return a number of samples that a Poisson batch hardly ever exceeds."""
    return math.ceil(expected + 6 * math.sqrt(expected) + 16)


@lru_cache(maxsize=1024)
def split(count: int, sizes: tuple[int, ...], overhead: float) -> tuple[int, ...]:
    """Return the sizes of parts that hold so many samples, of those given, at the least cost; the largest first.

    >>> split(21, (4, 8, 12, 16, 20, 24), overhead=3.0), split(21, (4, 8), overhead=0.5), split(0, (4,), overhead=1.0)
    ((24,), (8, 8, 8), ())
    """
    largest, unit = max(sizes), math.gcd(*sizes)
    whole = max(0, count // largest - 1)
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for held in range(1, -(-(count - whole * largest) // unit) + 1):
        left = [(best[max(0, held - size // unit)], size) for size in sizes]
        best.append(min((cost + overhead + size, (*parts, size)) for (cost, parts), size in left))
    return (largest,) * whole + tuple(sorted(best[-1][1], reverse=True))
