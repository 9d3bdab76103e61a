# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""CUDA kernels of a walk: both signs of some rows of a matrix, norms of both halves of a batch, packed weights.

The first direction of the table is the one to perturb along, the others are the drift. The table is read from device
memory, so that one captured graph serves every round.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from cyber0.directions.kernels import step_tile
from cyber0.directions.tensors import descended, load, store

__all__ = ["norm", "rows", "unpack"]

ROW_TILE = 256
UNPACKED = 2048  # weights that a program unpacks


@triton.jit
def _rows(
    weights, ids, plus, minus, table, count, start, width,
    BITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    token, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(ids + token).to(tl.int64) * width
    tile = (start + row) // TILE + chunk
    base = tile * TILE - (start + row)
    w = load(weights + row, base, width, TILE)
    if count > 0:
        w = descended(w, table + 8, count, tile, BITS, TILE)
    step = step_tile(table, tile, BITS, TILE)
    store(plus + token * width, (w + step).to(plus.dtype.element_ty), base, width, TILE)
    store(minus + token * width, (w - step).to(minus.dtype.element_ty), base, width, TILE)


def rows(weights: Any, ids: Any, table: Any, start: int, plus: Any, minus: Any, *, bits: bool) -> None:
    """Write both signs of the rows `ids` of a matrix [rows, width], whose first coordinate is `start`."""
    width = weights.shape[1]
    chunks = -(-width // ROW_TILE) + (1 if (start % ROW_TILE or width % ROW_TILE) else 0)
    _rows[(ids.numel(), chunks)](
        *(weights, ids, plus, minus, table, table.numel() // 8 - 1, start, width),
        BITS=bits, TILE=ROW_TILE, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _norm(
    x, residual, out, weight_plus, weight_minus, bias_plus, bias_minus, half, width, eps,
    CENTRED: tl.constexpr, BIASED: tl.constexpr, SUMMED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    inside = lane < width
    values = tl.load(x + row * width + lane, mask=inside, other=0.0).to(tl.float32)
    if SUMMED:  # rounded, as a sum of its own would be
        values += tl.load(residual + row * width + lane, mask=inside, other=0.0).to(tl.float32)
        values = values.to(x.dtype.element_ty).to(tl.float32)
    if CENTRED:
        values = tl.where(inside, values - tl.sum(values) / width, 0.0)
    values = values * tl.rsqrt(tl.sum(values * values) / width + eps)
    if row < half:
        values = values * tl.load(weight_plus + lane, mask=inside)
        if BIASED:
            values += tl.load(bias_plus + lane, mask=inside)
    else:
        values = values * tl.load(weight_minus + lane, mask=inside)
        if BIASED:
            values += tl.load(bias_minus + lane, mask=inside)
    tl.store(out + row * width + lane, values.to(out.dtype.element_ty), mask=inside)


def norm(x: Any, weight: Any, bias: Any, eps: float, *, centred: bool, residual: Any = None) -> Any:
    """Return the norm over the last dimension of both halves of x, each with its own float32 weight and bias.

    With a residual of the same shape and type it is the norm of the sum, and is written over x.
    """
    x, width = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x) if residual is None else x
    total = x.numel() // width
    warps = min(8, max(1, triton.next_power_of_2(width) // 256))
    _norm[(total,)](
        *(x, x if residual is None else residual.contiguous(), out),
        *(*weight, *(weight if bias is None else bias), total // 2, width, eps),
        CENTRED=centred, BIASED=bias is not None, SUMMED=residual is not None,
        WIDTH=triton.next_power_of_2(width), num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
def _unpack(codes, scales, out, levels, count, FOUR: tl.constexpr, TILE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = place < count
    scale = tl.load(scales + place // 64, mask=inside, other=0.0).to(tl.float32)
    if FOUR:
        code = tl.load(codes + place // 2, mask=inside, other=0).to(tl.int32)
        code = (code >> ((place % 2) * 4).to(tl.int32)) & 15
        value = tl.load(levels + code)
    else:
        value = tl.load(codes + place, mask=inside, other=0).to(tl.float32)
    tl.store(out + place, (value * scale).to(out.dtype.element_ty), mask=inside)


def unpack(codes: Any, scales: Any, out: Any, levels: Any) -> Any:
    """Write packed weights (see `cyber0.layerwise.packing`) to a matrix, and return it."""
    count = out.numel()
    _unpack[(triton.cdiv(count, UNPACKED),)](
        *(codes, scales, out, levels, count), FOUR=codes.dtype == torch.uint8, TILE=UNPACKED, num_warps=8,
    )  # fmt: skip
    return out
