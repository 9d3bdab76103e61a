"""Work on wide rows in blocks of columns that fit a cache, on as many threads as there are cores.

The blocks are the same on every machine and their results are combined in order, so that threads change no bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from cyber0.threads import cores, run_in_threads

__all__ = ["in_blocks"]

COLUMNS = 2008  # an odd number of cache lines, so that rows do not fall on one another in the cache


def in_blocks(function: Callable[[slice], Any], k: int) -> list[Any]:
    """Return the results of a function for each block of k columns.

    >>> in_blocks(lambda block: block.stop - block.start, 5000)
    [2008, 2008, 984]
    """
    if k <= COLUMNS:
        return [function(slice(0, k))]
    blocks = (slice(first, min(first + COLUMNS, k)) for first in range(0, k, COLUMNS))
    return run_in_threads(cores(), [partial(function, block) for block in blocks])
