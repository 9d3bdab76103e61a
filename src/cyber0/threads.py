"""Run functions that release the interpreter's lock on several threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import TypeVar

__all__ = ["cores", "run_in_threads"]

T = TypeVar("T")


def cores() -> int:
    """Return how many cores this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
