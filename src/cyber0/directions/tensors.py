# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false
"""Move many tensors of a CUDA device in one launch: a model has hundreds, most of them small."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from cyber0.directions.backend import Buffer
from cyber0.directions.kernels import TILE, WARPS, _rounding_bits, step_tile

__all__ = ["Tensors", "descend_all", "descended", "gather", "load", "pair_all", "store"]

ALIGNED = 16  # bytes that one thread can load or store at a time if they are aligned


@triton.jit
def _here(place, pid, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """Return, of the tensor described at `place`: its address, this program's tile, where that begins, and the size."""
    address, start, size, first = tl.load(place), tl.load(place + 1), tl.load(place + 2), tl.load(place + 3)
    tile = start // TILE + (pid - first)
    base = (pid - first) * TILE - start % TILE
    if ALIGNED:
        address, base = tl.multiple_of(address, 16), tl.multiple_of(base, 16)
    return address, tile, base, size


@triton.jit
def load(at, base, size, TILE: tl.constexpr):
    """Return a tile in float32; a whole tile is read without a mask, which would prevent wide loads."""
    lane = tl.arange(0, TILE)
    if (base >= 0) & (base + TILE <= size):
        w = tl.load(at + base + lane)
    else:
        w = tl.load(at + base + lane, mask=(base + lane >= 0) & (base + lane < size), other=0.0)
    return w.to(tl.float32)


@triton.jit
def store(at, values, base, size, TILE: tl.constexpr):
    """Write values, which have the right type, to a tile."""
    lane = tl.arange(0, TILE)
    if (base >= 0) & (base + TILE <= size):
        tl.store(at + base + lane, values)
    else:
        tl.store(at + base + lane, values, mask=(base + lane >= 0) & (base + lane < size))


@triton.jit
def descended(w, table, count, tile, BITS: tl.constexpr, TILE: tl.constexpr):
    """Return the weights less the sum of c z over the directions in the table."""
    u = tl.zeros([TILE], dtype=tl.float32)
    for i in range(count):
        u = u + step_tile(table + 8 * i, tile, BITS, TILE)
    return w - u


@triton.jit
def _descend_all(
    tensors, owners, table, count,
    BITS: tl.constexpr, BF16: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    address, tile, base, size = _here(tensors + 5 * tl.load(owners + pid), pid, ALIGNED, TILE)
    if BF16:
        at = address.to(tl.pointer_type(tl.bfloat16))
        w = descended(load(at, base, size, TILE), table, count, tile, BITS, TILE)
        bits = (w.to(tl.uint32, bitcast=True) + _rounding_bits(table, tile, TILE)) >> 16
        store(at, bits.to(tl.uint16).to(tl.bfloat16, bitcast=True), base, size, TILE)
    else:
        at = address.to(tl.pointer_type(tl.float32))
        store(at, descended(load(at, base, size, TILE), table, count, tile, BITS, TILE), base, size, TILE)


@triton.jit
def _pair_all(
    tensors, owners, table, count, plus, minus,
    BITS: tl.constexpr, BF16: tl.constexpr, ALIGNED: tl.constexpr, WRITE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    place = tensors + 5 * tl.load(owners + pid)
    address, tile, base, size = _here(place, pid, ALIGNED, TILE)
    if BF16:
        at = address.to(tl.pointer_type(tl.bfloat16))
    else:
        at = address.to(tl.pointer_type(tl.float32))
    w = load(at, base, size, TILE)
    if count > 0:
        w = descended(w, table + 8, count, tile, BITS, TILE)
    if WRITE:
        if BF16:
            bits = w.to(tl.uint32, bitcast=True) + _rounding_bits(table + 8, tile, TILE)
            w = ((bits >> 16) << 16).to(tl.float32, bitcast=True)
        store(at, w.to(at.dtype.element_ty), base, size, TILE)
    step = step_tile(table, tile, BITS, TILE)
    out = tl.load(place + 4)
    if ALIGNED:
        out = tl.multiple_of(out, 16)
    store(plus + out, (w + step).to(plus.dtype.element_ty), base, size, TILE)
    store(minus + out, (w - step).to(minus.dtype.element_ty), base, size, TILE)


class Tensors:
    """Flat buffers of one type on one CUDA device, with their first coordinates, as a table that kernels read.

    In the outputs of `pair_all` they lie one after the other at `offsets`, which are multiples of 16 values.
    """

    def __init__(self, tensors: Sequence[tuple[Buffer, int]], tile: int = TILE, warps: int = WARPS) -> None:
        self.tile, self.warps = tile, warps
        flats, starts = [flat for flat, _ in tensors], np.array([start for _, start in tensors], dtype=np.int64)
        sizes = np.array([len(flat) for flat in flats], dtype=np.int64)
        programs = -(-(starts % tile + sizes) // tile)
        room = -(-sizes // 16) * 16
        self.offsets: list[int] = (np.cumsum(room) - room).tolist()
        self.room = int(room.sum())
        addresses = np.array([flat.data_ptr() for flat in flats], dtype=np.int64)
        table = np.stack([addresses, starts, sizes, np.cumsum(programs) - programs, np.array(self.offsets)], axis=1)
        self.device = flats[0].device
        self.bf16 = flats[0].dtype == torch.bfloat16
        self.aligned = not ((addresses % ALIGNED).any() or (starts % 16).any())
        self.table = torch.from_numpy(table).to(self.device)
        self.owners = torch.from_numpy(np.repeat(np.arange(len(flats), dtype=np.int32), programs)).to(self.device)

    def launch(self, kernel: Any, *arguments: Any, bits: bool, **flags: Any) -> None:
        """Launch a kernel on all tiles of all tensors."""
        flags |= {"BITS": bits, "BF16": self.bf16, "ALIGNED": self.aligned, "TILE": self.tile}
        with torch.cuda.device(self.device) if self.device.type == "cuda" else torch.no_grad():
            kernel[(len(self.owners),)](
                self.table, self.owners, *arguments, num_warps=self.warps, enable_fp_fusion=False, **flags
            )


@lru_cache(maxsize=8)
def _tensors_at(places: tuple[tuple[int, int, int], ...], bf16: bool, device: Any) -> Tensors:
    dtype = torch.bfloat16 if bf16 else torch.float32
    return Tensors([(_Place(address, size, dtype, device), start) for address, size, start in places])


class _Place:
    """The address, size, type and device of a buffer, for `Tensors`, without keeping the buffer alive."""

    def __init__(self, address: int, size: int, dtype: Any, device: Any) -> None:
        self.address, self.size, self.dtype, self.device = address, size, dtype, device

    def __len__(self) -> int:
        return self.size

    def data_ptr(self) -> int:
        return self.address


def gather(tensors: Sequence[tuple[Buffer, int]]) -> list[Tensors]:
    """Return flat buffers with their first coordinates, grouped by type and by whether wide loads can read them."""
    groups: dict[tuple[bool, bool], list[tuple[int, int, int]]] = {}
    for flat, start in tensors:
        wide = flat.data_ptr() % ALIGNED == 0 and start % 16 == 0
        groups.setdefault((flat.dtype == torch.bfloat16, wide), []).append((flat.data_ptr(), len(flat), start))
    return [_tensors_at(tuple(places), bf16, tensors[0][0].device) for (bf16, _), places in groups.items()]


def descend_all(groups: Sequence[Tensors], table: Any, *, bits: bool = False) -> None:
    """Descend many buffers in place, with one launch for each group; the directions are in device memory."""
    for tensors in groups:
        tensors.launch(_descend_all, table, table.numel() // 8, bits=bits)


def pair_all(tensors: Tensors, table: Any, plus: Any, minus: Any, *, bits: bool = False, write: bool = False) -> None:
    """Write both signs of all tensors along the first direction of the table, after descending by the others.

    With `write` the tensors themselves descend, too, as by `descend_all`.
    """
    tensors.launch(_pair_all, table, table.numel() // 8 - 1, plus, minus, bits=bits, WRITE=write)
