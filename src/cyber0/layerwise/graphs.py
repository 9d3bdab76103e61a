"""CUDA graphs of walks, one for each shape of micro-batch: one launch for a whole walk instead of a thousand."""

import gc
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch

from cyber0.errors import InvalidEstimate
from cyber0.layerwise.micro_batches import is_out_of_memory

if TYPE_CHECKING:
    from cyber0.layerwise.frozen import Supply
    from cyber0.layerwise.source import CapturableSource
    from cyber0.layerwise.walk import Walk

__all__ = ["MAX_GRAPHS", "Graphs", "NotCapturable", "no_garbage_collection", "no_waiting"]

Tensor = torch.Tensor
MAX_GRAPHS = 96


class NotCapturable(InvalidEstimate):
    """What a walk launches depends on values, so that no graph of it serves other batches."""


class Graphs:
    """The captured graphs of a walk. They share one memory pool: copy a result before another graph runs."""

    def __init__(self, walk: "Walk") -> None:
        self._walk = walk
        self._stream = torch.cuda.Stream(walk.device, priority=-1)
        self._pool = torch.cuda.graph_pool_handle()
        self._known: dict[tuple[object, ...], _Graph] = {}

    def run(self, inputs: Tensor, labels: Tensor, *, padded: bool) -> Tensor:
        """Return the losses [2, samples] of a micro-batch; the next call overwrites them."""
        source = cast("CapturableSource", self._walk.source)  # a walk has graphs only where its source can be captured
        key = (*inputs.shape, *labels.shape[1:], padded, *source.graph_key)
        if key not in self._known:
            if len(self._known) >= MAX_GRAPHS:
                self._known.pop(next(iter(self._known)))
            self._known[key] = _Graph(self._walk, inputs, labels, padded, self._stream, self._pool)
        return self._known[key].replay(inputs, labels)

    def clear(self) -> None:
        """Drop all graphs and free their memory."""
        self._known.clear()
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()


class _Graph:
    def __init__(self, walk: Any, inputs: Tensor, labels: Tensor, padded: bool, stream: Any, pool: Any) -> None:
        self.inputs, self.labels = inputs.clone(), labels.clone()
        self._supplies: list[Supply] = walk.supplies
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), walk.source.warm_up() as passes:
            for as_captured in passes:  # compiles kernels, which a capture cannot
                walk.run(self.inputs, self.labels, padded=padded, may_wait=not as_captured)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        self._rest()
        try:
            with ExitStack() as within:
                within.enter_context(no_garbage_collection())
                within.enter_context(torch.cuda.graph(self.graph, pool=pool, stream=stream))
                for supply in self._supplies:
                    within.enter_context(supply.capture())
                self.losses = walk.run(self.inputs, self.labels, padded=padded)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise NotCapturable("a module does what cannot be captured") from error

    def replay(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self._rest()
        self.graph.replay()
        self._rest()
        return self.losses

    def _rest(self) -> None:
        for supply in self._supplies:
            supply.rest()


@contextmanager
def no_waiting() -> Generator[None]:
    """Raise NotCapturable if code within the context waits for the device, to read a value there."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch may not notice everything: a capture does
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise NotCapturable("a module reads a value from the device") from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def no_garbage_collection() -> Generator[None]:
    """Keep the collector from destroying another graph, of a walk that is gone: that would invalidate the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
