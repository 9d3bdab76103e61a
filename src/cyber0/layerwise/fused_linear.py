# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""A linear layer and its activation as one kernel of a CUDA device, in bf16.

As two kernels, the second reads and writes everything that the first has just written. Products agree with those of
cuBLAS to rounding; on an H200 they had the same bits for the shapes that were tried.
"""

from contextlib import suppress
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

TensorDescriptor: Any = None  # of an older Triton
with suppress(ImportError):
    from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["affine_gelu", "gelu", "supports"]

ROWS, COLUMNS, DEPTH = 128, 128, 64  # of a tile of the product
BAND = 8  # tiles of rows that are computed before the next columns are, so that what they read stays in the cache
AT_ONCE = 2  # programs on a multiprocessor: one computes the activation while the other multiplies
FEWEST_ROWS = 1024


@triton.jit
def gelu(x):
    """Return x Phi(x) as x / (1 + 2 ** -q), where q, the log-odds of Phi(x) in bits, is an odd polynomial up to 4.5.

    Rounded to bf16, it is the exact value, correctly rounded, for all but one of the values of bf16 whose result is
    beyond 0.001, as is torch's for all but one; and closer than 4e-6 for the others.
    """
    s = tl.minimum(x * x, 20.25)
    q = 3.584366359277169e-09 * s - 2.899278968016006e-07
    q = q * s + 9.387705176777672e-06
    q = q * s - 0.0001385364303132519
    q = q * s - 0.0001953573082573712
    q = q * s + 0.10503916442394257
    q = q * s + 2.302093267440796
    return x / (1.0 + tl.exp2(-x * q))


@triton.jit
def _finished(product, bias):
    """Return the activation of a product with its bias added; both are rounded, as two kernels would."""
    return gelu((product + bias[None, :]).to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _affine_gelu(
    rows, weight, out, bias, count, outputs, inputs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(count, ROWS), outputs // COLUMNS
    half: tl.constexpr = COLUMNS // 2
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        first = tile // (BAND * across) * BAND
        height = tl.minimum(down - first, BAND)
        row = (first + tile % (BAND * across) % height) * ROWS
        column = tile % (BAND * across) // height * COLUMNS
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in range(inputs // DEPTH):
            left, right = rows.load([row, step * DEPTH]), weight.load([column, step * DEPTH])
            product = tl.dot(left, right.T, product)
        pair = tl.permute(tl.reshape(product, (ROWS, 2, half)), (0, 2, 1))
        one, other = tl.split(pair)  # finished one after the other: all at once would need too many registers
        at = bias + column + tl.arange(0, half)
        out.store([row, column], _finished(one, tl.load(at).to(tl.float32)))
        out.store([row, column + half], _finished(other, tl.load(at + half).to(tl.float32)))


@cache
def _processors(device: Any) -> int:
    """Return the multiprocessors of a device that copies tiles by itself, from Hopper on; 0 for an older one."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


def supports(rows: Any, weight: Any, bias: Any, out: Any, approximate: str) -> bool:
    """Return whether `affine_gelu` can take these, and is faster than two kernels."""
    if approximate != "none" or bias is None or TensorDescriptor is None or not _processors(rows.device):
        return False
    given = rows, weight, out
    return (
        all(each.dtype == torch.bfloat16 for each in (*given, bias))
        and all(each.is_contiguous() and each.data_ptr() % 16 == 0 for each in given)
        and len(rows) >= FEWEST_ROWS
        and (weight.shape[0] % COLUMNS, weight.shape[1] % DEPTH) == (0, 0)
    )


def affine_gelu(rows: Any, weight: Any, bias: Any, out: Any) -> None:
    """Write GELU(rows times the transpose of a matrix [outputs, inputs], plus a bias) to `out`."""
    (count, inputs), outputs = rows.shape, len(weight)
    tiles = triton.cdiv(count, ROWS) * (outputs // COLUMNS)
    _affine_gelu[(min(tiles, AT_ONCE * _processors(rows.device)),)](
        TensorDescriptor.from_tensor(rows, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight, [COLUMNS, DEPTH]),
        TensorDescriptor.from_tensor(out, [ROWS, COLUMNS // 2]),
        *(bias, count, outputs, inputs),
        ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, BAND=BAND, num_warps=4, num_stages=3,
    )  # fmt: skip
