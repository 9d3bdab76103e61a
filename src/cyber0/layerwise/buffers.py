"""Large activations in memory that is used again, on a CPU.

Allocated anew for every layer, they leave holes among what the C library keeps, or are given back to the system, which
clears each page before it hands it out again.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

__all__ = ["Buffers"]

Tensor = torch.Tensor
LARGE = {torch.float32: 2**21, torch.bfloat16: 2**22}  # bytes from which a tensor has a buffer: others fit into holes
SPARE = 1.25  # how many times larger than a tensor its buffer may be
_references: Callable[[int], int] | None = getattr(vars(torch)["_C"], "_storage_Use_Count", None)


class Buffers:
    """Gives memory for tensors, the same again once no tensor refers to it.

    >>> buffers = Buffers()
    >>> buffers.begin()
    >>> first = buffers.empty((1024, 1024), torch.float32)
    >>> second = buffers.empty((1024, 1024), torch.float32)
    >>> at = first.data_ptr()
    >>> del first
    >>> buffers.empty((2048, 512), torch.float32).data_ptr() == at
    True
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []  # storages
        self._used = set[int]()

    def begin(self) -> None:
        """Note that a walk begins: a buffer that it has not used yet makes room for another size."""
        self._used.clear()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor on the CPU, whose values are not set."""
        size = prod(shape) * dtype.itemsize
        if _references is None or size < LARGE.get(dtype, size + 1):
            return torch.empty(shape, dtype=dtype)
        storage = self._free(size, _references)
        if storage is None:
            self._kept = [each for each in self._kept if each.data_ptr() in self._used]
            storage = torch.UntypedStorage(size)
            self._kept.append(storage)
        self._used.add(storage.data_ptr())
        out: Any = torch.empty(0, dtype=dtype)
        return out.set_(storage, 0, tuple(shape))

    def _free(self, size: int, references: Callable[[int], int]) -> Any:
        """Return the smallest buffer of at least this size that no tensor refers to; None if there is none."""
        fitting = (each for each in self._kept if size <= each.nbytes() <= SPARE * size)
        free = [each for each in fitting if references(each._cdata) == 1]
        return min(free, key=lambda storage: storage.nbytes(), default=None)
