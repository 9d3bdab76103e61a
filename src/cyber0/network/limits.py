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
        self._full: dict[str, float] = {}  # when a name is allowed `burst` times again
        self._many = 64  # names at which those that are, are forgotten

    def wait(self, name: str) -> float:
        """Count a name once more, and return how many seconds it must wait for its turn; 0 while it is allowed.

        >>> limit = RateLimit(burst=1, seconds=0.5, now=lambda: 0.0)
        >>> [limit.wait("alice") for _ in range(3)]
        [0.0, 0.5, 1.0]
        """
        now = self.now()
        full = self._set(name, max(now, self._full.get(name, now)) + self.seconds)
        return max(0.0, full - now - self.burst * self.seconds)

    def allow(self, name: str) -> bool:
        """Return whether a name is allowed once more, and count it."""
        now = self.now()
        full = max(now, self._full.get(name, now))
        allowed = round((full - now) / self.seconds, 6) <= self.burst - 1
        if allowed:
            self._set(name, full + self.seconds)
        return allowed

    def _set(self, name: str, full: float) -> float:
        self._full[name] = full
        if len(self._full) > self._many:
            now = self.now()
            self._full = {name: full for name, full in self._full.items() if full > now}
            self._many = 2 * len(self._full) + 64
        return full
