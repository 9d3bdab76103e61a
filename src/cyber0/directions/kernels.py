# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false
"""The backend `triton`: the stream on a CUDA device, with one pass over memory for each operation.

Kernels are compiled without fused multiply-adds. They read directions from device memory rather than from their
arguments, so that a captured CUDA graph can be replayed with other rounds and coefficients. A tile is a power of
two of coordinates and starts at a multiple of its size, so that no tile crosses a block or a 2**32 boundary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from cyber0.directions.backend import Buffer, Packed

__all__ = ["Triton", "table"]

TILE, WARPS = 1024, 2
SIGNS_TILE = 4096  # of many random signs: a word has 32 of them, and a warp has a block of words for each thread
ROUNDING = tl.constexpr(0x524E4452)


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    for _ in tl.static_range(10):
        p0, p1 = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c2 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0, (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = p1.to(tl.uint32), p0.to(tl.uint32)
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _words(tile, k0, k1, t, l, r, LANES: tl.constexpr, TILE: tl.constexpr):  # noqa: E741
    """Return the four words of each block of a tile; a block has LANES coordinates."""
    first = tile * (TILE // LANES)
    c0 = (first & 0xFFFFFFFF).to(tl.uint32) + tl.arange(0, TILE // LANES).to(tl.uint32)
    zero = c0 * 0
    c1 = zero + ((first >> 32) << 16).to(tl.uint32) + r
    return _philox(c0, c1, zero + l, zero + t, zero + k0, zero + k1)


@triton.jit
def _in_order(a, b, c, d):
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def _log(u):
    bits = u.to(tl.int32, bitcast=True) + 0x004AFB0D  # so that mantissas from sqrt(1/2) to sqrt(2) share an exponent
    e = ((bits >> 23) - 127).to(tl.float32)
    x = ((bits & 0x007FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    z = x * x
    y = x * 7.0376836292e-2 + -1.1514610310e-1
    y = y * x + 1.1676998740e-1
    y = y * x + -1.2420140846e-1
    y = y * x + 1.4249322787e-1
    y = y * x + -1.6668057665e-1
    y = y * x + 2.0000714765e-1
    y = y * x + -2.4999993993e-1
    y = y * x + 3.3333331174e-1
    y = y * x * z
    y = y + e * -2.12194440e-4
    y = tl.fma(z, -0.5, y)  # fused where the product is exact
    return tl.fma(e, 0.693359375, x + y)


@triton.jit
def _box_muller(a, b):
    """Return what stream.box_muller does; octants and signs are taken from bits, and exact products are merged."""
    radius = tl.sqrt_rn(-2.0 * _log(((a >> 8).to(tl.int32) + 1).to(tl.float32) * 5.9604644775390625e-08))
    k = ((b >> 5) & 0xFFFFFF).to(tl.int32)
    k = tl.where((b & 0x20000000) != 0, 0x1000000 - k, k)
    t = k.to(tl.float32) * 4.6813379839250047e-08  # float32(pi / 4) * 2**-24
    z = t * t
    s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * t + t
    c = tl.fma(z, -0.5, ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z) + 1.0
    swap = ((b ^ (b << 1)) & 0x40000000) != 0
    sine, cosine = tl.where(swap, c, s), tl.where(swap, s, c)
    sine = (sine.to(tl.uint32, bitcast=True) ^ (b & 0x80000000)).to(tl.float32, bitcast=True)
    cosine = (cosine.to(tl.uint32, bitcast=True) ^ ((b ^ (b << 1)) & 0x80000000)).to(tl.float32, bitcast=True)
    return radius * cosine, radius * sine


@triton.jit
def _word(direction, i):
    return tl.load(direction + i).to(tl.uint32, bitcast=True)


@triton.jit
def read_float(direction, i):
    return tl.load(direction + i).to(tl.float32, bitcast=True)


@triton.jit
def direction_tile(direction, tile, BITS: tl.constexpr, TILE: tl.constexpr):
    """Return one tile of the direction whose eight words (key.PACKED) start at `direction` in the table."""
    k0, k1, t = _word(direction, 0), _word(direction, 1), _word(direction, 2)
    l, r = _word(direction, 3), _word(direction, 4)  # noqa: E741
    if BITS:
        a, b, c, d = _words(tile, k0, k1, t, l, r, 128, TILE)
        words = _in_order(a, b, c, d)
        bits = (words[:, None] >> tl.arange(0, 32)[None, :].to(tl.uint32)) & 1
        z = tl.reshape((bits.to(tl.int32) * 2 - 1).to(tl.float32), [TILE])
    else:
        a, b, c, d = _words(tile, k0, k1, t, l, r, 4, TILE)
        z0, z1 = _box_muller(a, b)
        z2, z3 = _box_muller(c, d)
        z = _in_order(z0, z1, z2, z3)
    return z * read_float(direction, 6)


@triton.jit
def step_tile(direction, tile, BITS: tl.constexpr, TILE: tl.constexpr):
    """Return one tile of coefficient times direction; of random signs it is the coefficient with their signs."""
    if BITS:
        k0, k1, t = _word(direction, 0), _word(direction, 1), _word(direction, 2)
        a, b, c, d = _words(tile, k0, k1, t, _word(direction, 3), _word(direction, 4), 128, TILE)
        minus = (-(read_float(direction, 6) * read_float(direction, 7))).to(tl.uint32, bitcast=True)
        places = (31 - tl.arange(0, 32)).to(tl.uint32)
        signs = (_in_order(a, b, c, d)[:, None] << places[None, :]) & 0x80000000
        return tl.reshape(signs ^ minus, [TILE]).to(tl.float32, bitcast=True)
    return direction_tile(direction, tile, BITS, TILE) * read_float(direction, 7)


@triton.jit
def _here(first_tile, shift, size, TILE: tl.constexpr):
    """Return this program's tile, the index of its first coordinate in the buffer, its lanes, and which are inside."""
    pid = tl.program_id(0).to(tl.int64)
    base = pid * TILE - shift
    lane = tl.arange(0, TILE)
    first, last = tl.maximum(-base, 0).to(tl.int32), tl.minimum(size - base, TILE).to(tl.int32)
    return pid + first_tile, base, lane, (lane >= first) & (lane < last)


@triton.jit
def _fill(out, table, first_tile, shift, size, BITS: tl.constexpr, TILE: tl.constexpr):
    tile, base, lane, inside = _here(first_tile, shift, size, TILE)
    row = tl.program_id(1)
    z = direction_tile(table + 8 * row, tile, BITS, TILE)
    tl.store(out + row.to(tl.int64) * size + base + lane, z, mask=inside)


@triton.jit
def _squared_lengths(totals, table, first_tile, shift, size, BITS: tl.constexpr, TILE: tl.constexpr):
    tile, _, _, inside = _here(first_tile, shift, size, TILE)
    row = tl.program_id(1)
    z = direction_tile(table + 8 * row, tile, BITS, TILE)
    parts = tl.where(inside, (z * z * 1048576.0).to(tl.int64), 0)
    tl.atomic_add(totals + row, tl.sum(parts))


@triton.jit
def _move(
    weights,
    plus,
    minus,
    table,
    first_tile,
    shift,
    size,
    BITS: tl.constexpr,
    BOTH: tl.constexpr,
    TILE: tl.constexpr,
):
    tile, base, lane, inside = _here(first_tile, shift, size, TILE)
    w = tl.load(weights + base + lane, mask=inside).to(tl.float32)
    step = step_tile(table, tile, BITS, TILE)
    tl.store(plus + base + lane, (w + step).to(plus.dtype.element_ty), mask=inside)
    if BOTH:
        tl.store(minus + base + lane, (w - step).to(minus.dtype.element_ty), mask=inside)


@triton.jit
def _rounding_bits(table, tile, TILE: tl.constexpr):
    k0, k1, t = _word(table, 0), _word(table, 1) ^ ROUNDING, _word(table, 2)
    a, b, c, d = _words(tile, k0, k1, t, t * 0, t * 0, 8, TILE)
    words = _in_order(a, b, c, d)
    return tl.interleave(words & 0xFFFF, words >> 16)


@triton.jit
def _descend(
    weights, out, table, count, first_tile, shift, size,
    BITS: tl.constexpr, SUM: tl.constexpr, BF16: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile, base, lane, inside = _here(first_tile, shift, size, TILE)
    u = tl.zeros([TILE], dtype=tl.float32)
    for i in range(count):
        u = u + step_tile(table + 8 * i, tile, BITS, TILE)
    if not SUM:
        u = tl.load(weights + base + lane, mask=inside).to(tl.float32) - u
    if BF16:
        bits = (u.to(tl.uint32, bitcast=True) + _rounding_bits(table, tile, TILE)) >> 16
        tl.store(out + base + lane, bits.to(tl.uint16).to(tl.bfloat16, bitcast=True), mask=inside)
    else:
        tl.store(out + base + lane, u, mask=inside)


@triton.jit
def _fold(
    weights, table, commits, width, first_tile, shift, size,
    BITS: tl.constexpr, BF16: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile, base, lane, inside = _here(first_tile, shift, size, TILE)
    w = tl.load(weights + base + lane, mask=inside).to(tl.float32)
    for _ in range(commits):
        u = tl.zeros([TILE], dtype=tl.float32)
        for i in range(width):
            u = u + step_tile(table + 8 * i, tile, BITS, TILE)
        w = w - u
        if BF16:
            bits = w.to(tl.uint32, bitcast=True) + _rounding_bits(table, tile, TILE)
            w = ((bits >> 16) << 16).to(tl.float32, bitcast=True)
        table += 8 * width
    if BF16:
        half = (w.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16)
        tl.store(weights + base + lane, half.to(tl.bfloat16, bitcast=True), mask=inside)
    else:
        tl.store(weights + base + lane, w, mask=inside)


@triton.jit
def _fingerprint(weights, total, first_tile, shift, size, TILE: tl.constexpr):
    tile, base, lane, inside = _here(first_tile, shift, size, TILE)
    p = (tile * TILE + lane).to(tl.uint64)
    bits = tl.load(weights + base + lane, mask=inside).to(tl.float32).to(tl.uint32, bitcast=True)
    x = p * 0x9E3779B97F4A7C15 + bits.to(tl.uint64)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = (x ^ (x >> 31)).to(tl.int64, bitcast=True)
    tl.atomic_add(total, tl.sum(tl.where(inside, x, 0)))


def table(packed: Packed, device: Any) -> Any:
    """Return directions in new memory of a device, as kernels read them; a captured graph's may be overwritten."""
    return torch.frombuffer(bytearray(packed.tobytes()), dtype=torch.int32).to(device)


def _cached(packed: Packed, device: Any) -> Any:
    return _table(packed.tobytes(), device)


@lru_cache(maxsize=64)
def _table(words: bytes, device: Any) -> Any:
    return torch.frombuffer(bytearray(words), dtype=torch.int32).to(device)


def _rows(packed: Packed) -> list[slice]:
    """Return slices of the directions with as many as a grid can have rows."""
    return [slice(first, first + 65_535) for first in range(0, len(packed), 65_535)]


@dataclass(frozen=True, slots=True)
class Triton:
    """The CUDA backend."""

    name: str = "triton"

    def fill(self, out: Buffer, packed: Packed, start: int) -> None:
        for part in _rows(packed):
            arguments = out[part], _cached(packed[part], out.device)
            _launch(_fill, arguments, start, out.shape[1], out.device, rows=len(packed[part]), BITS=_bits(packed))

    def squared_lengths(self, packed: Packed, dimension: int, device: Any) -> list[int]:
        totals = torch.zeros(len(packed), dtype=torch.int64, device=device)
        for part in _rows(packed):
            arguments = totals[part], _cached(packed[part], device)
            _launch(_squared_lengths, arguments, 0, dimension, device, rows=len(packed[part]), BITS=_bits(packed))
        return totals.tolist()

    def move(self, weights: Buffer, packed: Packed, start: int, plus: Buffer, minus: Buffer | None) -> None:
        move(weights, _cached(packed, weights.device), start, plus, minus, bits=_bits(packed))

    def descend(self, weights: Buffer | None, packed: Packed, start: int, out: Buffer) -> None:
        descend(weights, _cached(packed, out.device), start, out, bits=_bits(packed))

    def descend_all(self, tensors: Sequence[tuple[Buffer, int]], packed: Packed) -> None:
        from cyber0.directions import tensors as many

        many.descend_all(many.gather(tensors), _cached(packed, tensors[0][0].device), bits=_bits(packed))

    def fold(self, weights: Buffer, packed: Packed, start: int) -> None:
        commits, width = packed.shape
        arguments = weights, table(packed, weights.device), commits, width
        bits = bool(packed["bits"][0, 0])
        flags = {"BITS": bits, "BF16": weights.dtype == torch.bfloat16}
        shape = (SIGNS_TILE, 1) if bits else (TILE, WARPS)
        _launch(_fold, arguments, start, weights.numel(), weights.device, shape=shape, **flags)

    def fingerprint(self, weights: Buffer, start: int) -> int:
        total = torch.zeros(1, dtype=torch.int64, device=weights.device)
        _launch(_fingerprint, (weights, total), start, weights.numel(), weights.device)
        return int(total.item()) % 2**64


def move(weights: Any, table: Any, start: int, plus: Any, minus: Any, *, bits: bool = False) -> None:
    """Do what `Backend.move` does, with the direction already in device memory, so that a graph can be captured."""
    both = minus is not None
    pointers = (weights, plus, minus if both else plus, table)
    _launch(_move, pointers, start, plus.numel(), plus.device, BITS=bits, BOTH=both)


def descend(weights: Any, table: Any, start: int, out: Any, *, bits: bool = False) -> None:
    """Do what `Backend.descend` does, with the directions already in device memory."""
    pointers = (out if weights is None else weights, out, table, table.numel() // 8)
    flags = {"BITS": bits, "SUM": weights is None, "BF16": out.dtype == torch.bfloat16}
    _launch(_descend, pointers, start, out.numel(), out.device, **flags)


def _bits(packed: Packed) -> bool:
    return bool(packed["bits"][0])


def _launch(
    kernel: Any,
    arguments: tuple[Any, ...],
    start: int,
    size: int,
    device: Any,
    rows: int = 1,
    shape: tuple[int, int] = (TILE, WARPS),
    **flags: Any,
) -> None:
    tile, warps = shape
    shift = start % tile
    grid = (-(-(shift + size) // tile), rows)
    with torch.cuda.device_of(arguments[0]) if device.type == "cuda" else torch.no_grad():
        kernel[grid](
            *arguments, start // tile, shift, size, TILE=tile, num_warps=warps, enable_fp_fusion=False, **flags
        )
