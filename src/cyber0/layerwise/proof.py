"""What a model must show before it is walked: that a walk over it gives what the model itself gives.

The batch is tried in two sizes, so that no other dimension can pass for it. Every trained weight must be asked for, and
be read nowhere else. A model small enough is compared, perturbed, with two whole copies; a large one, unperturbed, with
itself. In less precise arithmetic it must run.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from cyber0.directions import DirectionKey
from cyber0.errors import InvalidEstimate
from cyber0.layerwise import whole_model
from cyber0.layerwise.source import Pair, Perturbation, Source, perturbation_of

if TYPE_CHECKING:
    from cyber0.layerwise.walk import Part, Walk

__all__ = ["UnreadParameters", "prove"]

Tensor = torch.Tensor
SMALL = 2**26  # parameters of which two more copies are no burden
SAMPLES = (3, 5)


class UnreadParameters(InvalidEstimate):
    """Tensors that are trained, and that no module which is walked asks for.

    >>> UnreadParameters({"last.weight": torch.ones(2)}).tensors["last.weight"]
    tensor([1., 1.])
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(f"{next(iter(tensors))} is trained, but no module that can be walked asks for it")
        self.tensors = tensors


def prove(walk: "Walk", part: "Part") -> None:
    """Raise InvalidEstimate where a walk in float32 over some of these samples is not what the model gives.

    >>> from cyber0.layerwise.walk import Walk
    >>> from cyber0.parameters import Parameters
    >>> from cyber0.tasks.task import cross_entropy
    >>> walk = Walk(Parameters.of(torch.nn.Linear(3, 2)), cross_entropy)
    >>> prove(walk, walk.batch(torch.rand(1, 4, 3), torch.zeros(1, 4, dtype=torch.int64)).parts[0])
    """
    small = walk.parameters.size <= SMALL
    perturbation = perturbation_of(walk.parameters, DirectionKey(0, 0), 1e-2 if small else 0.0, backend=walk.backend)
    tries = [torch.arange(samples, device=walk.device) % len(part.labels) for samples in SAMPLES]
    arithmetic, walk.arithmetic = walk.arithmetic, torch.float32
    try:
        for chosen in tries:
            inputs, labels = part.inputs[chosen], part.labels[chosen]
            found = _walked(walk, perturbation, inputs, labels)
            own = whole_model.run(walk, inputs, labels) if small else _own(walk, inputs, labels)
            if not torch.allclose(found, own, rtol=1e-3, atol=1e-4 if small else 1e-3):
                raise InvalidEstimate(f"its losses differ by up to {float((found - own).abs().max()):.2g}")
        if arithmetic != torch.float32:
            walk.arithmetic = arithmetic
            _walked(walk, perturbation, part.inputs[tries[0]], part.labels[tries[0]])
    finally:
        walk.arithmetic = arithmetic


def _walked(walk: "Walk", perturbation: Perturbation, inputs: Tensor, labels: Tensor) -> Tensor:
    """The losses of both signs, if all that is trained was asked for."""
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
    if not found.isfinite().all():
        raise InvalidEstimate("its losses are not finite, or a weight is read beside the modules that are walked")
    return found


@contextmanager
def _hidden(tensors: Iterable[Tensor]) -> Generator[None]:
    """No number in the tensors of a model: a source has its own view of them, and nobody else should read them."""
    kept = [(tensor, tensor.data) for tensor in tensors]
    try:
        for tensor, data in kept:
            tensor.data = torch.full((), torch.nan, dtype=data.dtype, device=data.device).expand(data.shape)
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


def _own(walk: "Walk", inputs: Tensor, labels: Tensor) -> Tensor:
    low = any(flat.dtype != torch.float32 for _, flat in walk.parameters)
    return walk.losses(walk.unperturbed if low else walk.scores, (inputs, labels)).expand(2, -1)


class _Recorder:
    """A source that takes note of what it is asked for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.asked: set[int] = set()
        self.set_perturbation, self.begin, self.norm = source.set_perturbation, source.begin, source.norm

    def matrix(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        self.asked.add(id(parameter))
        return self.source.matrix(parameter, dtype)

    def vector(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        self.asked.add(id(parameter))
        return self.source.vector(parameter, dtype)

    def rows(self, parameter: Tensor, ids: Any, plus: Tensor, minus: Tensor) -> None:
        self.asked.add(id(parameter))
        self.source.rows(parameter, ids, plus, minus)
