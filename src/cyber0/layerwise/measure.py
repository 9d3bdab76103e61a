"""Choose how clients measure: by `estimate`, or layer by layer if the model is a language model."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.directions import Backend, DirectionKey, Family, project
from cyber0.errors import InvalidConfig, InvalidEstimate, NonFiniteLoss
from cyber0.estimate import Losses, estimate, nonfinite_cause, part_slopes
from cyber0.layerwise.backward import Gradient
from cyber0.layerwise.frozen import is_packed
from cyber0.layerwise.protocols import Scorer, implements, is_layerwise
from cyber0.layerwise.walk import Walk
from cyber0.parameters import Parameters, to_bf16

__all__ = [
    "LayerwiseEstimate",
    "Measure",
    "PartSlopes",
    "Precision",
    "evaluation_model",
    "in_precision",
    "measure_of",
    "part_slopes_of",
]

Precision = Literal["float32", "mixed", "bf16"]
"""float32: weights and arithmetic; mixed: float32 weights, bf16 arithmetic; bf16: both."""


class Measure(Protocol):
    """The function a client measures with: `cyber0.estimate.estimate`, or one that agrees with it up to rounding."""

    def __call__(
        self,
        parameters: Parameters,
        losses: Losses,
        batch: Any,
        keys: Sequence[DirectionKey],
        *,
        mu: float,
        family: Family,
        backend: str | Backend | None = None,
    ) -> NDArray[np.float32]:
        """Return the vote of a client: one scalar for each key."""
        ...


class PartSlopes(Protocol):
    """`cyber0.estimate.part_slopes`, or a function that agrees with it up to rounding."""

    def __call__(
        self,
        parameters: Parameters,
        losses: Losses,
        parts: Sequence[Any],
        keys: Sequence[DirectionKey],
        *,
        mu: float,
        family: Family,
        backend: str | Backend | None = None,
    ) -> list[torch.Tensor]:
        """Return how the loss of each sample of each part changes along each direction: [samples, directions]."""
        ...


class LayerwiseEstimate:
    """`estimate`, one layer at a time. Keeps a `Walk` for each model, with the CUDA graphs it has captured.

    With mu = 0 by one backward pass over the whole model.

    >>> from cyber0.tasks.task import cross_entropy, mnist_mlp
    >>> task = mnist_mlp(source="embedded", hidden=4)
    >>> parameters = Parameters.of(task.build(0))
    >>> batch = torch.linspace(0, 1, 3920).view(5, 784), torch.zeros(5, dtype=torch.int64)
    >>> options = {"keys": [DirectionKey(seed=1, round=0)], "mu": 1e-3, "family": "sphere"}
    >>> walked = LayerwiseEstimate()(parameters, cross_entropy, batch, **options)
    >>> np.allclose(walked, estimate(parameters, cross_entropy, batch, **options), rtol=1e-3, atol=1e-2)
    True
    """

    def __init__(self, arithmetic: torch.dtype = torch.float32) -> None:
        self.arithmetic = arithmetic
        self._walks: dict[int, Walk] = {}
        self._gradients: dict[int, Gradient] = {}

    def walk(self, parameters: Parameters, losses: Losses, backend: str | Backend | None = None) -> Walk:
        """Return the walk of a model. A commit that is pending when its first walk is built is applied."""
        known = self._walks.get(id(parameters))
        if known is None or known.losses != losses:
            parameters.settle()
            known = self._walks[id(parameters)] = Walk(parameters, losses, self.arithmetic, backend)
        return known

    def __call__(
        self,
        parameters: Parameters,
        losses: Losses,
        batch: Any,
        keys: Sequence[DirectionKey],
        *,
        mu: float,
        family: Family,
        backend: str | Backend | None = None,
    ) -> NDArray[np.float32]:
        """Return the vote of a client, as `estimate` does. A commit that is pending is applied."""
        if len(keys) == 0:
            raise InvalidEstimate("there are no directions to measure along: give at least one key")
        scale = (parameters.size if family == "sphere" else 1) / len(keys)
        if mu == 0:
            flat = self.gradient(parameters, losses)(*batch)
            if not flat.isfinite().all():
                raise NonFiniteLoss(f"a loss, or its gradient, is not finite: {nonfinite_cause(parameters, batch)}")
            return (
                (project(flat[None], keys, family=family, backend=backend)[0] * scale).cpu().numpy().astype(np.float32)
            )
        walk = self.walk(parameters, losses, backend)
        samples = walk.batch(batch[0][None], batch[1][None])
        values = torch.cat([walk.along(samples, key, mu, family) for key in keys]).cpu().numpy()
        if not np.isfinite(values).all():
            index = int(np.flatnonzero(~np.isfinite(values))[0])
            raise NonFiniteLoss(f"the loss along direction {index} is not finite: {nonfinite_cause(parameters, batch)}")
        return (values * scale).astype(np.float32)

    def gradient(self, parameters: Parameters, losses: Losses) -> Gradient:
        """Return what computes the gradients of a model. A commit that is pending is applied."""
        parameters.settle()
        known = self._gradients.get(id(parameters))
        if known is None or known.losses != losses:
            known = self._gradients[id(parameters)] = Gradient(parameters, losses, self.arithmetic)
        return known

    def part_slopes(
        self,
        parameters: Parameters,
        losses: Losses,
        parts: Sequence[Any],
        keys: Sequence[DirectionKey],
        *,
        mu: float,
        family: Family,
        backend: str | Backend | None = None,
    ) -> list[torch.Tensor]:
        """Return how the loss of each sample changes along each direction, as `cyber0.estimate.part_slopes` does.

        Every part is measured as it is, at its full width.
        """
        if mu == 0:
            if self.arithmetic != torch.float32:
                raise InvalidEstimate("mu = 0 with privacy needs precision = 'float32': use that, or mu > 0")
            parameters.settle()
            wide = _at_full_width(losses) if implements(parameters.module, Scorer) else losses
            return part_slopes(parameters, wide, parts, keys, mu=mu, family=family, backend=backend)
        walk = self.walk(parameters, losses, backend)
        batch = walk.fixed_batch(parts)
        found = torch.stack([walk.differences(batch, key, mu, family) for key in keys], dim=1)
        return [found[part.order] / (2 * float(np.float32(mu))) for part in batch.micro_batches]


def _at_full_width(losses: Losses) -> Losses:
    """Return losses that call a model by its `scores`, since calling it cuts texts to the longest of them."""
    return lambda model, batch: losses(model.scores, batch)


def part_slopes_of(measure: Measure) -> PartSlopes:
    """Return the function that gives the slopes of single samples, for a way to measure.

    >>> part_slopes_of(estimate) is part_slopes
    True
    """
    if isinstance(measure, LayerwiseEstimate):
        return measure.part_slopes
    if measure is estimate:
        return part_slopes
    raise InvalidEstimate(
        f"{measure!r} gives no losses of single samples, which privacy needs: use cyber0.estimate.estimate, or leave "
        "epsilon out"
    )


def measure_of(module: Any, precision: Precision = "float32") -> Measure:
    """Return the function that clients measure a model with.

    >>> measure_of(torch.nn.Linear(3, 2)) is estimate
    True
    """
    return LayerwiseEstimate(arithmetic_of(precision)) if is_layerwise(module) else estimate


def evaluation_model(measure: Measure, parameters: Parameters, losses: Losses) -> Any:
    """Return the model to evaluate: the module itself, or a call to it in the arithmetic its clients measure in.

    >>> model = torch.nn.Linear(3, 2)
    >>> evaluation_model(estimate, Parameters.of(model), torch.nn.functional.cross_entropy) is model
    True
    """
    if isinstance(measure, LayerwiseEstimate) and measure.arithmetic != torch.float32:
        return _InArithmetic(measure.walk(parameters, losses))
    return parameters.module


class _InArithmetic:
    """A module in the arithmetic of a walk."""

    def __init__(self, walk: Walk) -> None:
        self._walk, self.parameters = walk, walk.module.parameters

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._walk.model(inputs)

    def generate(self, *arguments: Any) -> Any:
        """Generate texts, by a module that can."""
        module: Any = self._walk.module
        return self._walk.call(module.generate, *arguments)


def arithmetic_of(precision: Precision) -> torch.dtype:
    """Return the type of activations at a precision."""
    return torch.float32 if precision == "float32" else torch.bfloat16


def in_precision(module: Any, precision: Precision) -> Any:
    """Convert the weights of a module, in place, to the type that a precision asks for, and return the module.

    What is trained beside packed weights stays float32.

    >>> in_precision(torch.nn.Linear(3, 2), "bf16")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: precision = 'bf16' is for language models: Linear is trained in float32, unless it is \
declared by layerwise=True
    """
    if precision not in get_args(Precision):
        raise InvalidConfig(f"precision = {precision!r}: use one of {', '.join(get_args(Precision))}")
    if precision != "float32" and not is_layerwise(module):
        raise InvalidConfig(
            f"precision = {precision!r} is for language models: {type(module).__name__} is trained in float32, unless "
            "it is declared by layerwise=True"
        )
    if precision == "bf16":
        to_bf16(module, frozen_only=is_packed(module))
    return module
