"""A walk: one forward pass at w + mu z and at w - mu z, layer by layer, for any number of clients.

    walk = Walk(parameters, losses)
    walk.slopes(x, y, key, mu)          # (F(w + mu z) - F(w - mu z)) / (2 mu) for each client

Before a module runs, its perturbed weights of both signs are written to scratch memory. The batch holds every sample
twice: the first half runs with w + mu z, the second with w - mu z. Peak memory is that of inference and a few matrices,
and the model's own weights, the masters, are not perturbed. On CUDA a walk is captured as a graph for each shape of
batch, and replayed along other directions.
"""

import warnings
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cyber0.directions import Backend, DirectionKey, Family
from cyber0.directions.select import get_backend
from cyber0.errors import EmptyBatch, InvalidEstimate
from cyber0.estimate import refuse_random
from cyber0.layerwise import modules, whole_model
from cyber0.layerwise.attention import attention_on_cpu, fast_attention
from cyber0.layerwise.buffers import Buffers
from cyber0.layerwise.frozen import supplies, weights_at_hand
from cyber0.layerwise.graphs import Graphs, NotCapturable
from cyber0.layerwise.micro_batches import GRAIN, Cutter, MicroBatch, is_out_of_memory, sizes_of
from cyber0.layerwise.modules import Handler, SignPair
from cyber0.layerwise.patched import patched
from cyber0.layerwise.proof import SMALL, ProofNotPossible, UnreadParameters, give_back_memory, prove
from cyber0.layerwise.protocols import Scorer, implements
from cyber0.layerwise.reading import at_tokens_read, tokens_read
from cyber0.layerwise.source import (
    CapturableSource,
    Layout,
    Perturbation,
    Source,
    TorchSource,
    Unperturbed,
    perturbation_of,
)
from cyber0.layerwise.whole_model import per_sample
from cyber0.parameters import Parameters

__all__ = ["Batch", "Walk"]

Tensor = torch.Tensor
Losses = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of some clients, cut into micro-batches.

    >>> walk = Walk(Parameters.of(nn.Linear(3, 1)), lambda model, batch: model(batch[0]).squeeze(1))
    >>> batch = walk.batch(torch.ones(2, 5, 3), torch.zeros(2, 5))
    >>> batch.clients, [len(part.labels) for part in batch.micro_batches]
    (2, [10])
    """

    clients: int
    inputs: Tensor
    labels: Tensor
    sizes: NDArray[Any] | None
    micro_batches: list[MicroBatch]
    fixed: bool = False  # whether its micro-batches stay as they are, whatever memory holds


class Walk:
    """Measures how the losses of a model's clients change along a direction, a layer at a time.

    `losses(model, batch)` returns one loss for each sample. `arithmetic` is the type of activations and of perturbed
    matrices; norms, biases, scores and losses stay float32. A module is measured faster if its class is a `Scorer` or
    has `SizedInputs`.

    >>> from cyber0.tasks.task import cross_entropy, mnist_mlp
    >>> model = mnist_mlp(source="embedded", hidden=4).build(0)
    >>> walk = Walk(Parameters.of(model), cross_entropy)
    >>> x, y = torch.rand(3, 5, 784), torch.zeros(3, 5, dtype=torch.int64)
    >>> walk.slopes(x, y, DirectionKey(seed=1, round=0), mu=1e-3).shape
    torch.Size([3])
    """

    def __init__(
        self,
        parameters: Parameters,
        losses: Losses,
        arithmetic: torch.dtype = torch.float32,
        backend: str | Backend | None = None,
    ) -> None:
        if parameters.module is None:
            raise InvalidEstimate("a walk needs a torch module: build the parameters with Parameters.of(module)")
        self.parameters, self.losses, self.arithmetic, self.backend = parameters, losses, arithmetic, backend
        self.module: nn.Module = parameters.module
        self.device: torch.device = parameters.device
        self.layout = Layout(parameters)
        self.source: Source = _source(self.layout, backend)
        if isinstance(self.source, CapturableSource):
            self.backend = get_backend(backend, self.device)  # looked up once
        self.handlers: list[tuple[nn.Module, Handler]] | None = self._handlers()
        self.supplies = supplies(self.module)
        self.cutter = Cutter(self.device, weights_at_hand(self.module))
        self._buffers = Buffers()
        self._graphs = Graphs(self) if self._capturable else None
        self._proven, self._shared = False, set[tuple[int, int]]()

    @property
    def layered(self) -> bool:
        """Return whether the model is measured layer by layer, rather than in two whole copies."""
        return self.handlers is not None

    @property
    def proven(self) -> bool:
        """Return whether it is decided how the model is measured."""
        return self._proven

    def prove_for_good(self, batch: Batch) -> None:
        """Decide by this batch how the model is measured: in whole copies, if the batch decides nothing."""
        with torch.no_grad():
            if not self._prove(batch):
                self.handlers = self._graphs = None
                _fall_back(InvalidEstimate("its losses on samples to try it with are not finite"))
        self._proven = True

    def slopes(
        self,
        x: Tensor,
        y: Tensor,
        key: DirectionKey,
        mu: float,
        family: Family = "gaussian",
        drift: tuple[Sequence[DirectionKey], Any] | None = None,
    ) -> Tensor:
        """Return the central difference of each client's mean loss along a direction, [clients] in float64.

        The samples are x [clients, batch, ...] with labels y [clients, batch, ...]. `drift` has keys and a coefficient
        for each: what the clients' local model has descended by from the model's own weights.
        """
        return self.along(self.batch(x, y), key, mu, family, drift)

    def batch(self, x: Tensor, y: Tensor, sizes: NDArray[Any] | None = None) -> Batch:
        """Return samples x [clients, batch, ...] with labels y [clients, batch, ...], for any number of directions.

        `sizes` says how many values of each sample are not padding; giving it saves reading it back from the device.
        """
        refuse_random(self.module)
        self.parameters.check()
        inputs, labels = x.flatten(0, 1), y.flatten(0, 1)
        if len(labels) == 0:
            raise EmptyBatch(f"x has shape {tuple(x.shape)}: there are no samples in it")
        sizes = sizes_of(self.module, inputs, labels, sizes)
        return Batch(len(x), inputs, labels, sizes, self._split(inputs, labels, sizes))

    def fixed_batch(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        """Return a batch whose micro-batches are the given ones, (inputs, labels) each, neither sorted nor cut.

        >>> walk = Walk(Parameters.of(nn.Linear(3, 1)), lambda model, batch: model(batch[0]).squeeze(1))
        >>> [part.order.tolist() for part in walk.fixed_batch([(torch.ones(3, 3), torch.zeros(3))]).micro_batches]
        [[0, 1, 2]]
        """
        refuse_random(self.module)
        self.parameters.check()
        ends = [*accumulate((len(y) for _, y in parts), initial=0)]
        orders = [torch.arange(a, b, device=self.device) for a, b in pairwise(ends)]
        cut = [MicroBatch(x, y, order, padded=True) for (x, y), order in zip(parts, orders, strict=True)]
        return Batch(1, parts[0][0], torch.cat([y for _, y in parts]), None, cut, fixed=True)

    def along(
        self,
        batch: Batch,
        key: DirectionKey,
        mu: float,
        family: Family = "gaussian",
        drift: tuple[Sequence[DirectionKey], Any] | None = None,
    ) -> Tensor:
        """Return the `slopes` on a batch that `batch` has returned.

        A pending commit is applied: during the walk if the device allows that, else before it.
        """
        difference = self.differences(batch, key, mu, family, drift)
        return difference.view(batch.clients, -1).mean(dim=1) / (2 * float(np.float32(mu)))

    def differences(
        self,
        batch: Batch,
        key: DirectionKey,
        mu: float,
        family: Family = "gaussian",
        drift: tuple[Sequence[DirectionKey], Any] | None = None,
    ) -> Tensor:
        """Return F(w + mu z) - F(w - mu z) of each sample of a batch, in float64: [samples]."""
        step = float(np.float32(mu))
        if not 0 < step < np.inf:
            raise InvalidEstimate(f"mu = {mu} must be a positive number that float32 can hold")
        first = not self._proven
        with torch.no_grad():
            if first:
                self._proven = self._prove(batch)
            if not self._applies(family, drift):
                self.parameters.settle()
            pairs = self._loss_pairs(
                batch, partial(perturbation_of, self.parameters, key, step, family, drift, self.backend)
            )
        if first and self.device.type == "cpu":
            give_back_memory()  # of the holes that the proof has left, in which the first walk lies scattered
        return pairs[0].double() - pairs[1].double()  # per sample: two losses share most digits

    def unperturbed(self, inputs: Tensor, *, attention: bool = True) -> Tensor:
        """Return the scores of the unperturbed model, in the arithmetic of the walk.

        Without `attention`, the model's own computes them where ours would.
        """
        if self.handlers is None:
            return self.model(inputs)
        self.parameters.check_settled()
        signs = SignPair(Unperturbed(), self.arithmetic, len(inputs), unperturbed=True)
        with torch.no_grad(), self._patched(signs, padded=True, attention=attention):
            return self.scores(inputs)

    def model(self, inputs: Tensor) -> Tensor:
        """Call the unperturbed module in the arithmetic of the walk, to evaluate it."""
        outputs = self.call(self.module, inputs)
        return outputs if self.handlers is None else outputs.float()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that runs the module, unperturbed, in the arithmetic of the walk."""
        self.parameters.check_settled()
        if self.handlers is None:
            with torch.no_grad(), whole_model.in_arithmetic(self.device, self.arithmetic):
                return function(*arguments)
        with torch.no_grad(), self._patched(SignPair(Unperturbed(), self.arithmetic, 0, unperturbed=True), padded=True):
            return function(*arguments)

    def run(self, inputs: Tensor, labels: Tensor, *, padded: bool, may_wait: bool = True) -> Tensor:
        """Return the losses [2, samples] of a micro-batch, at w + mu z and at w - mu z.

        Raise NotCapturable if a module waits for the device and may not.
        """
        both = torch.cat([inputs, inputs]), torch.cat([labels, labels])
        signs = SignPair(
            *(self.source, self.arithmetic, 2 * len(inputs)),
            shared=self._shared,
            buffers=self._buffers,
            may_wait=may_wait,
        )

        def scores(inputs: Tensor) -> Tensor:
            signs.read = tokens_read(self.module, inputs)  # a loss may call the model on other inputs than these
            return self.scores(inputs)

        self.source.begin()
        self._buffers.begin()
        with self._patched(signs, padded=padded):
            losses = self.losses(scores, both)
        return per_sample(losses, 2 * len(inputs)).view(2, -1)

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the scores of the module, in float32."""
        scores = self.module.scores if implements(self.module, Scorer) else self.module
        return scores(inputs).float()

    def _loss_pairs(self, batch: Batch, perturbation: Callable[..., Perturbation]) -> Tensor:
        """Return the losses [2, samples] of a batch; if memory runs out, in smaller micro-batches.

        A pending commit is applied by the walk over the first micro-batch.
        """
        out, parts = torch.empty(2, len(batch.labels), device=self.device), list(batch.micro_batches)
        self.source.keeps = batch.fixed and self.parameters.size <= SMALL  # its parts are many
        self.source.set_perturbation(perturbation(commit=self.parameters.pending))
        while parts:
            part = parts.pop(0)
            try:
                found = self._measure(part)
                if self.parameters.pending is not None:
                    self.parameters.mark_applied()
                    if parts:
                        self.source.set_perturbation(perturbation())
                out[:, part.order] = found
            except NotCapturable:
                self._graphs, self.source = None, _source(self.layout, self.backend)
                self.parameters.settle()
                self.source.set_perturbation(perturbation())
                parts.insert(0, part)
            except Exception as error:
                if batch.fixed or not is_out_of_memory(error):
                    raise
                self.cutter.halve([part], error)
                if self._graphs is not None:
                    self._graphs.clear()
                parts = batch.micro_batches[:] = self._split(batch.inputs, batch.labels, batch.sizes)
                self.source.set_perturbation(perturbation(commit=self.parameters.pending))
        return out

    def _measure(self, part: MicroBatch) -> Tensor:
        if self.handlers is None or not self._proven:
            return whole_model.run(self, part.inputs, part.labels)
        if self._graphs is not None:
            return self._graphs.run(part.inputs, part.labels, padded=part.padded)
        return self.run(part.inputs, part.labels, padded=part.padded)

    def _split(self, inputs: Tensor, labels: Tensor, sizes: NDArray[Any] | None) -> list[MicroBatch]:
        return self.cutter.split(inputs, labels, sizes, self._grain)

    @property
    def _grain(self) -> int:
        """Return to multiples of what micro-batches are filled up, so that few shapes occur where each has a graph."""
        return 1 if self._graphs is None else GRAIN

    def _handlers(self, whole: Collection[nn.Module] = ()) -> list[tuple[nn.Module, Handler]] | None:
        try:
            return modules.handlers(self.module, whole)
        except InvalidEstimate as error:
            _fall_back(error)
            return None

    @property
    def _capturable(self) -> bool:
        """Return whether a walk may be captured, so that one graph serves every batch of a shape."""
        ready = self.layered and all(each.capturable for each in self.supplies)
        return ready and isinstance(self.source, CapturableSource) and implements(self.module, Scorer)

    @property
    def _writes(self) -> bool:
        """Return whether a walk can apply a commit as it reads the weights."""
        return self._graphs is not None and self.layered

    def _applies(self, family: Family, drift: object) -> bool:
        """Return whether a walk along a direction of this family applies the pending commit."""
        pending = self.parameters.pending
        return self._writes and drift is None and pending is not None and pending.family == family

    def _prove(self, batch: Batch) -> bool:
        """Check that a walk gives the model's own losses; a module that reads a child's weights becomes a block.

        A model for which it does not is measured in whole copies from now on. Return False if the batch decides
        nothing, since its losses are not finite.
        """
        self.parameters.settle()
        handlers = self.handlers
        blocks: list[nn.Module] = []
        while (every_token := self.handlers) is not None:
            try:
                self._prove_handlers(every_token, batch.micro_batches)
                break
            except ProofNotPossible:
                self.handlers = handlers
                return False
            except Exception as error:  # the model's own code may fail on half a batch in any way
                if is_out_of_memory(error):
                    raise
                unread = error.tensors.values() if isinstance(error, UnreadParameters) else ()
                more = [each for each in modules.readers(self.module, unread) if each not in blocks]
                if more:
                    blocks += more
                    self.handlers = self._handlers(blocks)
                else:
                    self.handlers = None
                    _fall_back(error)
            finally:
                self.source = _source(self.layout, self.backend)  # without the scratch of the proof
                self._buffers = Buffers()
                give_back_memory()
        if not self._capturable:
            self._graphs = None
        return True

    def _prove_handlers(self, every_token: list[tuple[nn.Module, Handler]], parts: Sequence[MicroBatch]) -> None:
        """Check handlers that compute only the tokens that are read; if that fails, or there are none, the others.

        Those that leave tokens out are tried with the shortest texts and with the longest.
        """
        self.handlers = at_tokens_read(self, every_token, parts[0])
        if self.handlers != every_token:
            try:
                for part in parts[:: max(1, len(parts) - 1)]:
                    prove(self, part)
                return
            except ProofNotPossible:
                raise
            except Exception as error:  # the model's own code may fail in any way
                if is_out_of_memory(error):
                    raise
            self.handlers = every_token
        prove(self, parts[0])

    @contextmanager
    def _patched(self, signs: SignPair, *, padded: bool, attention: bool = True) -> Generator[None]:
        with ExitStack() as stack:
            if attention:
                cuda = self.device.type == "cuda"
                stack.enter_context(fast_attention(self.module, padded=padded) if cuda else attention_on_cpu())
            stack.enter_context(patched(self.handlers or [], signs))
            yield


def _source(layout: Layout, backend: str | Backend | None) -> Source:
    if get_backend(backend, layout.parameters.device).name == "triton":
        from cyber0.layerwise.cuda import CudaSource

        return CudaSource(layout)
    return TorchSource(layout)


def _fall_back(error: Exception) -> None:
    warnings.warn(
        f"this model cannot be walked layer by layer ({error}): it is measured in two whole copies", stacklevel=5
    )
