"""A limit on how often a client may ask for something expensive: a whole ledger may follow a Hello."""

import time
from collections.abc import Callable

__all__ = ["RateLimit"]


class RateLimit:
    """Allow each name `burst` times at once, and one more time every so many seconds.

    >>> clock = iter([0.0, 0.0, 0.0, 1.0])
    >>> allowance = RateLimit(burst=2, seconds=1.0, now=lambda: next(clock))
    >>> [allowance.allow("alice") for _ in range(4)]
    [True, True, False, True]
    """

    def __init__(self, burst: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.burst, self.seconds, self.now = burst, seconds, now
        self._left: dict[str, tuple[float, float]] = {}

    def wait(self, name: str) -> float:
        """Count a name once more, and return how many seconds it must wait for its turn; 0 while it is allowed.

        >>> limit = RateLimit(burst=1, seconds=0.5, now=lambda: 0.0)
        >>> [limit.wait("alice") for _ in range(3)]
        [0.0, 0.5, 1.0]
        """
        now = self.now()
        left, then = self._left.get(name, (float(self.burst), now))
        left = min(self.burst, left + (now - then) / self.seconds) - 1
        self._left[name] = (left, now)
        return max(0.0, -left * self.seconds)

    def allow(self, name: str) -> bool:
        """Return whether a name is allowed once more, and count it."""
        now = self.now()
        left, then = self._left.get(name, (float(self.burst), now))
        left = min(self.burst, left + (now - then) / self.seconds)
        allowed = left >= 1
        self._left[name] = (left - allowed, now)
        return allowed
