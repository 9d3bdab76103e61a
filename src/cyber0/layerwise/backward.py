"""The gradient of a language model's loss by one backward pass, for exact slopes along any number of directions.

With mu = 0 a client takes the memory of backpropagation instead of that of inference, and time for about three forward
passes, or five with a radius (`Nearby`); each further direction costs one inner product.
"""

from contextlib import ExitStack
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as trees

from cyber0.errors import EmptyBatch, InvalidEstimate
from cyber0.estimate import Losses, refuse_random
from cyber0.layerwise import modules
from cyber0.layerwise.attention import fast_attention
from cyber0.layerwise.frozen import supplies
from cyber0.layerwise.graphs import MAX_GRAPHS, no_garbage_collection
from cyber0.layerwise.micro_batches import GRAIN, Cutter, MicroBatch, is_out_of_memory, sizes_of
from cyber0.layerwise.nearby import Nearby
from cyber0.layerwise.protocols import Scorer, implements
from cyber0.layerwise.whole_model import in_arithmetic, per_sample
from cyber0.parameters import Parameters

__all__ = ["Gradient"]

Tensor = torch.Tensor
SUMMED: set[
    Any
] = {  # functions whose weights get a sum over all tokens as their gradient, as nn and as torch have them
    getattr(where, name)
    for where in (nn.functional, torch)
    for name in ("layer_norm", "rms_norm", "group_norm", "batch_norm", "embedding")
}


class Gradient:
    """Computes gradients of a model's mean loss, in micro-batches that fit into memory.

    `arithmetic` is the type of activations and products; scores and losses are float32.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.0)
    >>> gradient = Gradient(Parameters.of(model), lambda model, batch: model(batch[0]).square().squeeze(1))
    >>> gradient(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2))
    tensor([1., 4.])
    """

    def __init__(self, parameters: Parameters, losses: Losses, arithmetic: torch.dtype = torch.float32) -> None:
        if parameters.module is None:
            raise InvalidEstimate("a gradient needs a torch module: build the parameters with Parameters.of(module)")
        self.parameters, self.losses, self.arithmetic = parameters, losses, arithmetic
        self.module: Any = parameters.module
        self.device: torch.device = parameters.device
        self.scores = self.module.scores if implements(self.module, Scorer) else self.module
        self.cutter = Cutter(self.device)
        self._total = torch.zeros(parameters.size, device=self.device)
        entries = parameters.manifest.entries
        self._parts = [self._total[each.start : each.start + each.size].view(each.shape) for each in entries]
        self._graphs: dict[tuple[object, ...], _Graph] | None = {} if self._capturable else None
        if self._graphs is not None:  # graphs run one after the other, in the same memory: that of one stream
            self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device)

    def __call__(self, inputs: Tensor, labels: Tensor, sizes: NDArray[Any] | None = None) -> Tensor:
        """Return the gradient of the mean loss of some samples, flat, in float32, with a NaN if a loss is not finite.

        `sizes` says how many values of each sample are not padding; giving it saves reading it back from the device.
        The next call overwrites what is returned.
        """
        refuse_random(self.module)
        if len(labels) == 0:
            raise EmptyBatch(f"inputs have shape {tuple(inputs.shape)}: there are no samples in them")
        sizes = sizes_of(self.module, inputs, labels, sizes)
        share = torch.full((), 1 / len(labels), device=self.device)
        while True:
            parts = self.cutter.split(inputs, labels, sizes, 1 if self._graphs is None else GRAIN)
            try:
                self._total.zero_()
                for part in parts:
                    self._add(part, share)
                return self._total
            except Exception as error:  # the model's own code may fail in any way
                if not is_out_of_memory(error):
                    raise
                self.cutter.halve(parts, error)
                if self._graphs is not None:
                    self._graphs.clear()
                    self.pool = torch.cuda.graph_pool_handle()
                    torch.cuda.empty_cache()

    def run(self, inputs: Tensor, labels: Tensor, share: Tensor, *, padded: bool) -> None:
        """Add the gradient of the sum of some samples' losses, times a share, to the total."""
        with ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(fast_attention(self.module, padded=padded))
            elif self.arithmetic != torch.float32:
                stack.enter_context(_InFloat32())
            stack.enter_context(torch.enable_grad())
            with in_arithmetic(self.device, self.arithmetic):
                losses = per_sample(self._losses(inputs, labels, stack), len(labels))
            if not losses.requires_grad:
                raise InvalidEstimate(
                    "torch finds no way from the losses back to a weight that is trained: use mu > 0, or let "
                    f"{type(self.module).__name__} compute its outputs without torch.no_grad() or detach()"
                )
            tensors = list(self.parameters.tensors.values())
            found: Any = torch.autograd.grad(losses.sum() * share, tensors, allow_unused=True)
        for part, each in zip(self._parts, found, strict=True):
            if each is not None:
                part += each
        self._total[:1] += losses.detach().sum() * 0  # NaN, if a loss is not finite but its gradient is

    def _add(self, part: MicroBatch, share: Tensor) -> None:
        if self._graphs is None:
            self.run(part.inputs, part.labels, share, padded=part.padded)
            return
        key = (*part.inputs.shape, *part.labels.shape[1:], part.padded)
        if key not in self._graphs:
            if len(self._graphs) >= MAX_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = _Graph(self, part)
        self._graphs[key].replay(part, share)

    def _losses(self, inputs: Tensor, labels: Tensor, stack: ExitStack) -> Tensor:
        """Return losses; what they were computed with is undone when the stack is closed."""
        if not isinstance(self.losses, Nearby):
            return self.losses(self._called, (inputs, labels))
        stack.enter_context(self.losses.moved(self._called, (inputs, labels), self.module))
        return self.losses.losses(self._called, (inputs, labels))

    def _called(self, inputs: Tensor) -> Tensor:
        return self.scores(inputs).float()

    @property
    def _capturable(self) -> bool:
        """Return whether one graph serves every batch of a shape, as for a walk."""
        module: Any = self.module
        if self.device.type != "cuda" or supplies(module) or not implements(module, Scorer):
            return False
        try:
            return not modules.blocks(modules.handlers(self.module))
        except InvalidEstimate:
            return False


class _InFloat32(TorchFunctionMode):
    """Computes norms and embeddings in float32, since a CPU would sum their gradients over tokens in bf16.

    >>> with _InFloat32():
    ...     nn.LayerNorm(2)(torch.ones(1, 2, dtype=torch.bfloat16)).dtype
    torch.float32
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function."""
        named: Any = kwargs or {}
        if func in SUMMED:
            args, named = trees.tree_map(_widened, (tuple(args), named))
        return func(*args, **named)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


class _Graph:
    """A captured forward and backward pass over micro-batches of one shape. All graphs add to the same total."""

    def __init__(self, gradient: Gradient, part: MicroBatch) -> None:
        self.inputs, self.labels = part.inputs.clone(), part.labels.clone()
        self.share = torch.zeros((), device=gradient.device)  # so that what is run on the way adds nothing
        stream = gradient.stream
        stream.wait_stream(torch.cuda.current_stream())
        arguments = self.inputs, self.labels, self.share
        with torch.cuda.stream(stream):
            for _ in range(2):  # chooses algorithms and sets up libraries, which a capture cannot
                gradient.run(*arguments, padded=part.padded)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.graph(self.graph, pool=gradient.pool, stream=stream):
            gradient.run(*arguments, padded=part.padded)

    def replay(self, part: MicroBatch, share: Tensor) -> None:
        self.inputs.copy_(part.inputs)
        self.labels.copy_(part.labels)
        self.share.copy_(share)
        self.graph.replay()
