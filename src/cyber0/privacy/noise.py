"""Rounded Gaussian noise, drawn exactly: round(scale x N(0, 1)) in integers alone, without any floating point.

A Gaussian deviate in floating point is one of few numbers, and which ones can be reached tells what was added to it
(Mironov, "On significance of the least significant bits for differential privacy", 2012). Here the deviate is drawn by
Karney, "Sampling exactly from the normal distribution" (ACM TOMS 42, 2016), Algorithm N: a uniform deviate is a list of
digits that is made longer wherever a comparison or the rounding needs it. Since x + round(y) = round(x + y) for an
integer x, a sum of integers with this noise is the rounded outcome of the Gaussian mechanism: post-processing.
"""

import os
import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["RoundedGaussian", "system_digits"]

BITS = 64
AT_ONCE = 512  # digits that are asked of the operating system in one call


def system_digits() -> Iterator[int]:
    """Yield digits of 64 bits from the randomness of the operating system.

    >>> digits = system_digits()
    >>> 0 <= next(digits) < 2**64
    True
    """
    while True:
        yield from struct.unpack(f"<{AT_ONCE}Q", os.urandom(8 * AT_ONCE))


class RoundedGaussian:
    """Draws round(scale x N(0, 1)), exactly.

    Args:
        digits: Independent uniform integers below 2**bits; by default from the operating system.
        bits: Of a digit. The distribution does not depend on it.

    >>> draw = RoundedGaussian()
    >>> draw.many(3, scale=1000).dtype
    dtype('int64')
    >>> abs(draw(scale=1000)) < 100_000
    True

    """

    def __init__(self, digits: Iterator[int] | None = None, bits: int = BITS) -> None:
        self._next = (system_digits() if digits is None else digits).__next__
        self._bits = bits

    def many(self, count: int, scale: int) -> NDArray[np.int64]:
        """Return as many independent draws."""
        return np.array([self(scale) for _ in range(count)], dtype=np.int64)

    def __call__(self, scale: int) -> int:
        """Return one draw; `scale` is an integer of at least 0."""
        while True:
            k = 0
            while self._half():
                k += 1  # with probability exp(-k / 2) (1 - exp(-1 / 2))
            if not all(self._half() for _ in range(k * (k - 1))):
                continue
            x = [self._next()]  # the digits of a uniform deviate
            if all(self._kept(k, x) for _ in range(k + 1)):
                rounded = self._rounded(scale, k, x)
                return rounded if self._next() & 1 else -rounded

    def _half(self) -> bool:
        """Return True with probability exp(-1 / 2), by a trick of von Neumann's.

        The decreasing run 1/2 > u1 > u2 > ... has length n or more with probability 1 / (2**n n!), and so an even
        length with probability exp(-1 / 2).
        """
        last = [self._next()]
        if last[0] >> (self._bits - 1):
            return True
        even = False
        while True:
            u = [self._next()]
            if u[0] > last[0] or not self._less(u, last):
                return even
            last, even = u, not even

    def _kept(self, k: int, x: list[int]) -> bool:
        """Return True with probability exp(-x (2k + x) / (2k + 2)), by a run of uniforms as in `_half`."""
        last, even = x, True
        while True:
            u = [self._next()]
            if u[0] > last[0] or not self._less(u, last) or not self._passes(k, x):
                return even
            last, even = u, not even

    def _passes(self, k: int, x: list[int]) -> bool:
        """Return True with probability (2k + x) / (2k + 2)."""
        chosen = self._below(2 * k + 2)
        if chosen != 2 * k:
            return chosen < 2 * k
        return self._less([self._next()], x)

    def _below(self, limit: int) -> int:
        """Return a uniform integer below a limit."""
        while True:
            value, base = self._next(), 1 << self._bits
            while base < limit:
                value, base = (value << self._bits) | self._next(), base << self._bits
            if value < base - base % limit:
                return value % limit

    def _less(self, one: list[int], other: list[int]) -> bool:
        """Return whether one uniform deviate is less than another; digits are drawn until they differ."""
        place = 0
        while True:
            for deviate in (one, other):
                if place == len(deviate):
                    deviate.append(self._next())
            if one[place] != other[place]:
                return one[place] < other[place]
            place += 1

    def _rounded(self, scale: int, k: int, x: list[int]) -> int:
        """Return scale (k + x), rounded to the nearest integer; digits of x are drawn until that is decided."""
        known = bits = 0
        place = 0
        while True:
            if place == len(x):
                x.append(self._next())
            known, bits, place = (known << self._bits) | x[place], bits + self._bits, place + 1
            lowest = scale * ((k << bits) + known)  # in units of 2**-bits; x is above it by less than a unit
            half = 1 << bits
            least, most = (2 * lowest + half) >> (bits + 1), (2 * (lowest + scale) - 1 + half) >> (bits + 1)
            if least >= most:
                return least
