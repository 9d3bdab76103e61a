"""Wide rows, a block of columns at a time on as many threads as there are cores: a block fits a cache.

The blocks are the same on every machine, and what comes of them is put together in order: threads change no bit.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

__all__ = ["in_blocks"]

COLUMNS = 2008  # an odd number of cache lines, so that rows do not fall on one another in the cache


def in_blocks(function: Callable[[slice], Any], k: int) -> list[Any]:
    """What the function makes of each block of k columns.

    >>> in_blocks(lambda block: block.stop - block.start, 5000)
    [2008, 2008, 984]
    """
    if k <= COLUMNS:
        return [function(slice(0, k))]
    return list(_pool().map(function, (slice(first, min(first + COLUMNS, k)) for first in range(0, k, COLUMNS))))


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores, thread_name_prefix="cyber0")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
