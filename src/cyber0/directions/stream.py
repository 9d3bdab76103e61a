"""The definition of the direction stream, version 1, in operations that every array library has.

It runs on NumPy and torch, on any device, and gives the same bits everywhere, because it uses only integer arithmetic
and the float32 operations that IEEE 754 rounds correctly (+, -, *, square root, comparison), one at a time and in this
order: no fused multiply-add, no library logarithm, sine or cosine. `docs/stream.md` is the same definition in words.

`xp` is an array namespace (array_api_compat.numpy or .torch). 32-bit words travel in int64 arrays, whose products wrap
modulo 2**64, which keeps every bit a 32 x 32 -> 64 bit product needs.
"""

from typing import Any

import numpy as np

from cyber0.directions.key import ROUNDING

__all__ = ["box_muller", "gaussian", "halves", "philox4x32", "rademacher"]

Array = Any  # an array of the namespace xp
MASK = 0xFFFFFFFF
SQRT_HALF = float(np.float32(0.70710678))
# Cephes' logf, its nine coefficients rounded to float32.
LOG_POLYNOMIAL = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


def philox4x32(counter: list[Array], key: tuple[int, int]) -> list[Array]:
    """Return four random words from four counter words and two key words: Philox4x32-10 (Salmon et al., 2011).

    >>> zero = np.zeros(1, dtype=np.int64)
    >>> [hex(word[0]) for word in philox4x32([zero] * 4, (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def words(xp: Any, packed: np.void, first: int, count: int, device: Any, *, rounding: bool = False) -> list[Array]:
    """Return the four words of `count` blocks from `first` on: counter (block, r | block >> 32 << 16, l, t)."""
    block = xp.arange(first, first + count, dtype=xp.int64, device=device)
    one = xp.ones_like(block)
    k0, k1, t, l, r = (int(packed[name]) for name in ("k0", "k1", "t", "l", "r"))  # noqa: E741 (the paper's l)
    if rounding:
        k1, l, r = k1 ^ ROUNDING, 0, 0  # noqa: E741
    return philox4x32([block & MASK, ((block >> 32) << 16) | r, one * l, one * t], (k0, k1))


def box_muller(xp: Any, a: Array, b: Array) -> tuple[Array, Array]:
    """Return two independent normals from two words: sqrt(-2 log u) times the cosine and the sine of an angle."""
    radius = _sqrt(xp, _log(xp, (xp.astype(a >> 8, xp.float32) + 1.0) * 2.0**-24) * -2.0)  # u in (0, 1], exact
    octant = b >> 29
    t = xp.astype((b >> 5) & 0xFFFFFF, xp.float32) * 2.0**-24  # where in the octant: [0, 1), exact
    t = xp.where((octant & 1) == 1, 1.0 - t, t) * 0.78539816339744831
    z = t * t
    s = ((z * -1.9515295891e-4 + 8.3321608736e-3) * z - 1.6666654611e-1) * z * t + t
    c = ((z * 2.443315711809948e-5 - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - z * 0.5 + 1.0
    swap = ((octant + 1) & 2) == 2
    sine, cosine = xp.where(swap, c, s), xp.where(swap, s, c)
    sine = xp.where((octant & 4) != 0, -sine, sine)
    cosine = xp.where(((octant + 2) & 4) != 0, -cosine, cosine)
    return radius * cosine, radius * sine


def _log(xp: Any, u: Array) -> Array:
    """Return the natural logarithm of u in (0, 1], as Cephes does: exponent, and a polynomial in the mantissa."""
    bits = u.view(xp.int32)
    mantissa = ((bits & 0x007FFFFF) | 0x3F000000).view(xp.float32)  # [0.5, 1)
    low = mantissa < SQRT_HALF
    e = xp.astype((bits >> 23) - 126 - xp.astype(low, xp.int32), xp.float32)
    x = xp.where(low, mantissa + mantissa, mantissa) - 1.0
    z = x * x
    y = xp.full_like(x, LOG_POLYNOMIAL[0])
    for coefficient in LOG_POLYNOMIAL[1:]:
        y = y * x + coefficient
    y = y * x * z
    y = y + e * -2.12194440e-4
    y = y - z * 0.5
    return (x + y) + e * 0.693359375


def _sqrt(xp: Any, x: Array) -> Array:
    """Return the correctly rounded square root, by way of float64: torch's in float32 is off by an ulp on some CPUs."""
    return xp.astype(xp.sqrt(xp.astype(x, xp.float64)), xp.float32)


def gaussian(xp: Any, packed: np.void, start: int, size: int, device: Any) -> Array:
    """Return coordinates start .. start + size - 1 of a Gaussian direction: p is value p mod 4 of block p div 4."""
    first, last = start // 4, (start + size + 3) // 4
    w = words(xp, packed, first, last - first, device)
    lanes = xp.stack([*box_muller(xp, w[0], w[1]), *box_muller(xp, w[2], w[3])], axis=1)
    return xp.reshape(lanes, (-1,))[start - 4 * first :][:size]


def rademacher(xp: Any, packed: np.void, start: int, size: int, device: Any) -> Array:
    """Return coordinates start .. start + size - 1 of a Rademacher direction.

    Coordinate p is +1 if bit p mod 32 (lowest first) of word (p mod 128) div 32 of block p div 128 is set, else -1.
    """
    first, last = start // 128, (start + size + 127) // 128
    w = xp.stack(words(xp, packed, first, last - first, device), axis=1)
    bits = (w[..., None] >> xp.arange(32, dtype=xp.int64, device=device)) & 1
    signs = xp.astype(2 * bits - 1, xp.float32)
    return xp.reshape(signs, (-1,))[start - 128 * first :][:size]


def halves(xp: Any, packed: np.void, start: int, size: int, device: Any) -> Array:
    """Return the 16 bits that round each coordinate p: half p mod 8 (low half of a word first) of block p div 8."""
    first, last = start // 8, (start + size + 7) // 8
    w = xp.stack(words(xp, packed, first, last - first, device, rounding=True), axis=1)
    pairs = xp.stack([w & 0xFFFF, w >> 16], axis=2)
    return xp.reshape(pairs, (-1,))[start - 8 * first :][:size]
