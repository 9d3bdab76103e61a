"""Notice operations that add in no fixed order on a CUDA device, so that their sums are rounded anew each time.

A trial might meet the same order twice. So a private client asks which operations a model uses, and refuses these.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["UnorderedOperations"]

ALWAYS = {"scatter_add", "scatter_reduce", "index_reduce", "cumsum", "bincount", "histc", "segment_reduce"}
ACCUMULATING = {"index_put", "index_put_impl", "put"}  # if their fourth argument says so


class UnorderedOperations(TorchDispatchMode):
    """A context in which `names` collects the operations that may add in any order on a CUDA device.

    >>> with UnorderedOperations() as found:
    ...     _ = torch.zeros(3).index_add(0, torch.tensor([0, 1]), torch.ones(2)), torch.arange(3).cumsum(0)
    >>> found.names
    set()
    >>> with found:
    ...     _ = torch.zeros(3).index_add(0, torch.tensor([1, 1]), torch.ones(2)), torch.ones(3).cumsum(0)
    >>> sorted(found.names)
    ['cumsum', 'index_add']
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note its name."""
        output = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__).strip("_") if hasattr(func, "overloadpacket") else ""
        if (
            isinstance(output, torch.Tensor)
            and output.is_floating_point()
            and _adds_unordered(name, args, kwargs or {})
        ):
            self.names.add(name)
        return output


def _adds_unordered(name: str, args: Any, kwargs: Any) -> bool:
    if name in ACCUMULATING:
        return bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
    if name == "index_add":  # of which a place that is added to once is exact
        index = args[2]
        if index.is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # it was looked at before
        return len(index.unique()) < index.numel()
    return name in ALWAYS
