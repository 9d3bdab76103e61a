"""The check, before a model is first measured, that walking it gives the losses that the model itself gives.

Batches of two sizes are tried, so that no other dimension is mistaken for the batch. Every trained weight must be read
through the modules that are walked, and nowhere else. A small model is perturbed and compared with two whole copies of
it; a large one is not perturbed, and is compared with itself. In bf16, the walk must run and its losses be finite.
"""

import ctypes
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cyber0.directions import DirectionKey
from cyber0.errors import InvalidEstimate
from cyber0.layerwise import whole_model
from cyber0.layerwise.source import Pair, Perturbation, Source, perturbation_of

if TYPE_CHECKING:
    from cyber0.layerwise.walk import MicroBatch, Walk

__all__ = ["SMALL", "ProofNotPossible", "UnreadParameters", "give_back_memory", "prove"]

Tensor = torch.Tensor
SMALL = 2**26  # parameters up to which two more copies of a model are affordable
SAMPLES = (3, 5)


class UnreadParameters(InvalidEstimate):
    """Some trained tensors, kept as `tensors`, are read by no module that is walked."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(f"{next(iter(tensors))} is trained, but no module that is walked reads it")
        self.tensors = tensors


class ProofNotPossible(InvalidEstimate):
    """The model's own losses are not finite, so there is nothing to compare a walk with."""


def prove(walk: "Walk", part: "MicroBatch") -> None:
    """Raise InvalidEstimate if walking some of these samples in float32 does not give the model's own losses.

    Samples with inputs or labels that are not finite are left out. Raise ProofNotPossible if no other is left, or if
    the model's own losses are not finite.

    >>> from cyber0.layerwise.walk import Walk
    >>> from cyber0.parameters import Parameters
    >>> from cyber0.tasks.task import cross_entropy
    >>> walk = Walk(Parameters.of(torch.nn.Linear(3, 2)), cross_entropy)
    >>> prove(walk, walk.batch(torch.rand(1, 4, 3), torch.zeros(1, 4, dtype=torch.int64)).micro_batches[0])
    """
    small = walk.parameters.size + _to_be_copied(walk) <= SMALL
    perturbation = perturbation_of(walk.parameters, DirectionKey(0, 0), 1e-2 if small else 0.0, backend=walk.backend)
    finite = (_finite_rows(part.inputs) & _finite_rows(part.labels)).nonzero().flatten()
    if len(finite) == 0:
        raise ProofNotPossible("no sample of the batch is finite")
    tries = [finite[torch.arange(samples, device=walk.device) % len(finite)] for samples in SAMPLES]
    arithmetic, walk.arithmetic = walk.arithmetic, torch.float32
    try:
        for chosen in tries:
            inputs, labels = part.inputs[chosen], part.labels[chosen]
            found = _walked(walk, perturbation, inputs, labels)
            own = whole_model.run(walk, inputs, labels) if small else _own(walk, inputs, labels)
            if not own.isfinite().all():
                raise ProofNotPossible("the model's own losses are not finite")
            _check_finite(found)
            if not torch.allclose(found, own, rtol=1e-3, atol=1e-4 if small else 1e-3):
                raise InvalidEstimate(f"its losses differ by up to {float((found - own).abs().max()):.2g}")
        if arithmetic != torch.float32:
            walk.arithmetic = arithmetic
            _check_finite(_walked(walk, perturbation, part.inputs[tries[0]], part.labels[tries[0]]))
    finally:
        walk.arithmetic = arithmetic


def give_back_memory() -> None:
    """Give memory that is free back to the system, where MKL and the C library, as glibc does, would keep it.

    The whole copies of a proof are the largest thing that a process ever holds, and MKL's buffers for its products in
    float32 lie among them.

    >>> give_back_memory()
    """
    with suppress(OSError, AttributeError):  # a torch without MKL
        ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so")).mkl_serv_free_buffers()
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _walked(walk: "Walk", perturbation: Perturbation, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the losses of both signs; raise UnreadParameters if some trained tensor was not read."""
    source = walk.source
    recorder = walk.source = _Recorder(source)
    try:
        source.set_perturbation(perturbation)
        with _hidden(walk.parameters.tensors.values()):
            found = walk.run(inputs, labels, padded=True)
    finally:
        walk.source = source
    if missed := {name: each for name, each in walk.parameters.tensors.items() if id(each) not in recorder.asked}:
        raise UnreadParameters(missed)
    return found


def _check_finite(found: Tensor) -> None:
    if not found.isfinite().all():
        raise InvalidEstimate("its code reads a weight outside the modules that are walked, or its losses overflow")


def _finite_rows(x: Tensor) -> Tensor:
    return x.isfinite().flatten(1).all(dim=1) if x.ndim > 1 else x.isfinite()


@contextmanager
def _hidden(tensors: Iterable[Tensor]) -> Generator[None]:
    """Replace tensors by NaN within the context, so that reading them other than through the source is noticed."""
    kept = [(tensor, tensor.data) for tensor in tensors]
    try:
        for tensor, data in kept:
            tensor.data = torch.full((), torch.nan, dtype=data.dtype, device=data.device).expand(data.shape)
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


def _own(walk: "Walk", inputs: Tensor, labels: Tensor) -> Tensor:
    low = any(parameter.dtype != torch.float32 for parameter in walk.module.parameters())
    own = partial(walk.unperturbed, attention=False) if low else walk.scores
    return walk.losses(own, (inputs, labels)).expand(2, -1)


def _to_be_copied(walk: "Walk") -> int:
    """Return how many frozen weights whole copies in float32 would add to those that are trained."""
    frozen = (each for each in walk.module.parameters() if not walk.layout.is_trained(each))
    return sum(each.numel() for each in frozen if each.dtype != torch.float32)


class _Recorder:
    """A source that records which parameters it is asked for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.asked: set[int] = set()
        self.keeps = False
        self.set_perturbation, self.begin = source.set_perturbation, source.begin
        self.norm, self.affine_gelu = source.norm, source.affine_gelu

    def matrix(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        self.asked.add(id(parameter))
        return self.source.matrix(parameter, dtype)

    def vector(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        self.asked.add(id(parameter))
        return self.source.vector(parameter, dtype)

    def rows(self, parameter: Tensor, ids: Any, plus: Tensor, minus: Tensor) -> None:
        self.asked.add(id(parameter))
        self.source.rows(parameter, ids, plus, minus)
