"""A captured CUDA graph for each shape of a walk: one launch instead of a thousand."""

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from cyber0.layerwise.source import CapturableSource
    from cyber0.layerwise.walk import Walk

__all__ = ["Graphs", "is_out_of_memory"]

Tensor = torch.Tensor
MOST = 96  # graphs that are kept


class Graphs:
    """The graphs of a walk. All share one pool of memory: what one leaves is copied before another runs."""

    def __init__(self, walk: "Walk") -> None:
        self._walk = walk
        self._stream = torch.cuda.Stream(walk.device, priority=-1)
        self._pool = torch.cuda.graph_pool_handle()
        self._known: dict[tuple[object, ...], _Graph] = {}

    def run(self, inputs: Tensor, labels: Tensor, *, padded: bool) -> Tensor:
        """The losses [2, samples] of a part; good until the next call."""
        source = cast("CapturableSource", self._walk.source)  # a walk has graphs only where its source can be captured
        shape = (*inputs.shape, padded, *source.kind)
        if shape not in self._known:
            if len(self._known) >= MOST:
                self._known.pop(next(iter(self._known)))
            self._known[shape] = _Graph(self._walk, inputs, labels, padded, self._stream, self._pool)
        return self._known[shape].replay(inputs, labels)

    def clear(self) -> None:
        """Forget all graphs, and give back their memory."""
        self._known.clear()
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()


class _Graph:
    def __init__(self, walk: Any, inputs: Tensor, labels: Tensor, padded: bool, stream: Any, pool: Any) -> None:
        self.inputs, self.labels = inputs.clone(), labels.clone()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), walk.source.warm_up() as passes:
            for _ in passes:  # compiles kernels, which a capture cannot
                walk.run(self.inputs, self.labels, padded=padded)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.losses = walk.run(self.inputs, self.labels, padded=padded)

    def replay(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.losses


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory is not enough.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
