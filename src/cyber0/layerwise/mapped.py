"""Tensors that lie in a file which is mapped into memory, as safetensors has them: their pages can be given back.

Where the system does not say what is mapped, nothing counts as mapped.
"""

import ctypes
import mmap
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

import torch

__all__ = ["advise", "is_mapped", "release"]

MAPS = Path("/proc/self/maps")
WILL_NEED, NOT_NEEDED = 3, 21  # MADV_WILLNEED, MADV_PAGEOUT, which loses nothing that was written


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in a mapped file.

    >>> is_mapped(torch.ones(3))
    False
    """
    if tensor.device.type != "cpu" or not MAPS.exists():
        return False
    mappings = sorted(_mappings())
    at = bisect_right(mappings, (tensor.data_ptr(), float("inf"))) - 1
    return at >= 0 and tensor.data_ptr() + tensor.nbytes <= mappings[at][1]


def release(tensor: torch.Tensor) -> None:
    """Give the pages of a mapped tensor back to the system; when they are read again, they come from the file.

    Where the system cannot, it keeps them until it needs the memory. What was written to the tensor is kept.

    >>> release(torch.ones(3))
    """
    if is_mapped(tensor):
        advise(tensor, NOT_NEEDED)


def advise(tensor: torch.Tensor, what: int) -> None:
    """Tell the system that the pages of a mapped tensor will be needed, or will not."""
    page = mmap.PAGESIZE
    first, end = -(-tensor.data_ptr() // page) * page, (tensor.data_ptr() + tensor.nbytes) // page * page
    if end > first:
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), what)


def _mappings() -> list[tuple[int, int]]:
    """Return where files are mapped for this process alone: first and last address."""
    found: list[tuple[int, int]] = []
    for line in MAPS.read_text().splitlines():
        place, rights, _, _, inode, *_ = line.split()
        if inode != "0" and rights.endswith("p"):
            first, _, end = place.partition("-")
            found.append((int(first, 16), int(end, 16)))
    return found
