"""Block coordinates: a round moves one block of a model's tensors, and leaves the others as they are (MeZO-BCD).

All parties derive the block from what they agreed on, so this is the definition. A model trains d coordinates, in
tensors one after the other. Cut them into B parts of d / B coordinates each. A tensor that begins at coordinate s and
has n of them belongs to the part in which its middle is, number

    B (2 s + n) div (2 d)    in integers

Parts to which no tensor belongs are left out. The others are the blocks, C of them, numbered from 0. Round t of a run
with seed k moves block

    (k + t) mod C

In that round the block is treated as a whole model: its tensors in their order, with coordinates counted from 0. So its
directions, the length of a sphere, the factor d of a sphere's vote, and the bits that round bf16 weights are those of
a model that has the tensors of the block alone.
"""

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["cut"]


def cut(sizes: Sequence[int], parts: int) -> list[range]:
    """Return the blocks of tensors with these numbers of coordinates: the places of each block's tensors.

    >>> cut([10, 2, 8, 30, 10], parts=3)                   # parts of 20; the fourth tensor's middle is at 35
    [range(0, 3), range(3, 4), range(4, 5)]
    >>> cut([10, 2, 8, 30, 10], parts=100) == [range(i, i + 1) for i in range(5)]
    True
    """
    total = sum(sizes)
    starts = accumulate(sizes, initial=0)
    numbers = [parts * (2 * start + size) // (2 * total) for start, size in zip(starts, sizes, strict=False)]
    ends = [place for place in range(1, len(sizes)) if numbers[place] != numbers[place - 1]]
    return [range(first, last) for first, last in zip([0, *ends], [*ends, len(sizes)], strict=True)]
