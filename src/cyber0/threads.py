"""How many threads this process computes on, and functions that run on them, which release the interpreter's lock."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import TypeVar

__all__ = ["cores", "limit_threads", "run_in_threads", "share_of_cores"]

T = TypeVar("T")
_most: int | None = None  # threads that this process may compute on, if it was told


def cores() -> int:
    """Return how many cores this process may use: those that the system lets it have, or as many as it was told.

    >>> cores() >= 1
    True
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return found if _most is None else min(found, _most)


def share_of_cores(processes: int) -> int | None:
    """Return how many threads each of so many processes should compute on; None if OMP_NUM_THREADS has said it.

    >>> share_of_cores(10**6) in (1, None)
    True
    """
    return None if os.environ.get("OMP_NUM_THREADS") else max(1, cores() // processes)


def limit_threads(threads: int) -> None:
    """Let this process compute on so many threads at most; torch is to be told by itself."""
    global _most
    _most = threads


def run_in_threads(threads: int, functions: Iterable[Callable[[], T]]) -> list[T]:
    """Call functions on a pool of threads, and return their results in order.

    None is left running when this returns or raises, Ctrl-C included: they may write to memory that the caller frees.

    >>> run_in_threads(2, [lambda: 1, lambda: 2, lambda: 3])
    [1, 2, 3]
    """
    futures: list[Future[T]] = []
    try:
        futures.extend(_pool(threads).submit(function) for function in functions)
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="cyber0")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
