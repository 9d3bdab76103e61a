"""Measure how a client's loss changes along each direction.

For a unit direction z of dimension d (family `sphere`), with smoothing mu:

    g(w, z) = d (F(w + mu z) - F(w - mu z)) / (2 mu)     if mu > 0
    g(w, z) = d <grad F(w), z>                           if mu = 0

Gaussian and Rademacher directions have length sqrt(d) on average, and the factor d is absent. The vote is g / nu over
nu directions, so that the sum of vote[r] z_r has the gradient (of the smoothed loss) as its mean.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call, jvp  # pyright: ignore[reportUnknownVariableType]
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]
from torch.utils import _pytree as trees

from cyber0.directions import Backend, DirectionKey, Family, project, sample
from cyber0.directions.api import prepare
from cyber0.directions.select import device_of
from cyber0.errors import EmptyBatch, InvalidEstimate, NonFiniteLoss, UnknownName
from cyber0.parameters import Parameters

__all__ = [
    "DOUBLE_UP_TO",
    "Losses",
    "Method",
    "call_with",
    "computed_in_double",
    "estimate",
    "full_precision",
    "nonfinite_cause",
    "part_slopes",
    "refuse_random",
    "sample_slopes",
]

Losses = Callable[[Any, Any], torch.Tensor]
"""losses(model, batch) -> one loss for each sample, a tensor of shape [batch]."""

Method = Literal["auto", "forward", "backward"]
METHODS = ("auto", "forward", "backward")
DOUBLE_UP_TO = 2**22  # parameters of a model that is computed in float64: for larger ones that takes too much memory


def estimate(
    parameters: Parameters,
    losses: Losses,
    batch: Any,
    keys: Sequence[DirectionKey],
    *,
    mu: float = 1e-3,
    family: Family = "gaussian",
    method: Method = "auto",
    backend: str | Backend | None = None,
) -> NDArray[np.float32]:
    """Return a client's vote on its batch: one number for each direction. The weights are never written.

    With mu > 0, two forward passes per direction, at w + mu z and w - mu z; a model with up to 2**22 parameters, all of
    them float32, is computed in float64, if it can be. With mu = 0, the exact derivative:
    `forward` by forward-mode differentiation, without a backward pass; `backward` by one backward pass and a
    projection on each direction. `auto` is `backward`, which was faster in every case measured, even for one direction
    (benchmarks/estimate.py); `forward` needs no memory for activations.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.0)
    >>> def losses(model, batch):
    ...     return model(batch).square().squeeze(1)
    >>> batch = torch.tensor([[1.0, 0.0], [0.0, 2.0]])                  # so the gradient is (1, 4)
    >>> keys = [DirectionKey(seed=7, round=0, index=r) for r in range(1000)]
    >>> vote = estimate(Parameters.of(model), losses, batch, keys, family="sphere")
    >>> from cyber0.directions import combine
    >>> combine(keys, vote, 2, family="sphere").round(1)
    array([1., 4.], dtype=float32)
    """
    objective = _Objective(parameters, losses, batch)
    _check(objective, keys, mu, method)
    with full_precision():
        if mu > 0:
            values = _two_point(objective, keys, mu, family, backend)
        else:
            values = _derivative(objective, keys, family, method, backend)
    scale = parameters.size if family == "sphere" else 1
    return (values * (scale / len(keys))).astype(np.float32)


def sample_slopes(
    parameters: Parameters,
    losses: Losses,
    batch: Any,
    keys: Sequence[DirectionKey],
    *,
    mu: float = 1e-3,
    family: Family = "gaussian",
    backend: str | Backend | None = None,
) -> torch.Tensor:
    """Return how the loss of each sample changes along each direction, [samples, directions]: per unit of step.

    Their mean over samples is what `estimate` scales. With mu = 0 by forward-mode differentiation. A slope may be NaN,
    or infinite.

    >>> model = torch.nn.Linear(2, 1)
    >>> keys = [DirectionKey(seed=7, round=0, index=r) for r in range(3)]
    >>> of_one = lambda model, batch: model(batch).squeeze(1)
    >>> sample_slopes(Parameters.of(model), of_one, torch.ones(5, 2), keys).shape
    torch.Size([5, 3])
    """
    return part_slopes(parameters, losses, [batch], keys, mu=mu, family=family, backend=backend)[0]


def part_slopes(
    parameters: Parameters,
    losses: Losses,
    parts: Sequence[Any],
    keys: Sequence[DirectionKey],
    *,
    mu: float = 1e-3,
    family: Family = "gaussian",
    backend: str | Backend | None = None,
    double: bool | None = None,
) -> list[torch.Tensor]:
    """Return the `sample_slopes` of each part of a batch. Every direction is generated once for all of them.

    `double` says whether they are computed in float64, as `computed_in_double` has found; if it is None, the first part
    decides.

    >>> parts, keys = [torch.ones(5, 2), torch.ones(3, 2)], [DirectionKey(seed=7, round=0)]
    >>> of_one = lambda model, batch: model(batch).squeeze(1)
    >>> [len(slopes) for slopes in part_slopes(Parameters.of(torch.nn.Linear(2, 1)), of_one, parts, keys)]
    [5, 3]
    """
    objectives = [_Objective(parameters, losses, part) for part in parts]
    for objective in objectives[:1]:
        _check(objective, keys, mu, "forward")
    with full_precision():
        if mu == 0:
            columns = _along_each(objectives, keys, family, backend, check_finite=False)
            return [torch.stack(found, dim=1).double() for found in zip(*columns, strict=True)]
        step = 2 * float(np.float32(mu))
        found: list[list[torch.Tensor]] = [[] for _ in objectives]
        for pairs in _loss_pairs(objectives, keys, mu, family, backend, double):
            for differences, (above, below) in zip(found, pairs, strict=True):
                differences.append(above.double() - below.double())
        return [torch.stack(differences, dim=1) / step for differences in found]


@torch.no_grad()
def computed_in_double(parameters: Parameters, losses: Losses, batch: Any) -> bool:
    """Return whether a model is computed in float64 for differences, as this batch shows.

    >>> of_one = lambda model, batch: model(batch).squeeze(1)
    >>> computed_in_double(Parameters.of(torch.nn.Linear(2, 1)), of_one, torch.ones(5, 2))
    True
    """
    objective = _Objective(parameters, losses, batch)
    with full_precision():
        return _doubled([objective], None) is not None


def full_precision() -> AbstractContextManager[None]:
    """Return a context in which cuDNN computes in full float32, with deterministic algorithms.

    Its default, TF32, keeps three digits: fewer than the difference of two nearby losses needs.

    >>> with full_precision():
    ...     torch.backends.cudnn.allow_tf32
    False
    """
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


class _Objective(torch.nn.Module):
    """The per-sample losses on one batch, as a function of the weights."""

    def __init__(self, parameters: Parameters, losses: Losses, batch: Any) -> None:
        super().__init__()
        if parameters.module is None:
            raise InvalidEstimate("an estimate needs a torch module: build the parameters with Parameters.of(module)")
        self.model, self.parameters_, self.losses, self.batch = parameters.module, parameters, losses, batch
        self.buffers_: dict[str, torch.Tensor] = {}  # in place of the model's own, and of its frozen parameters

    def forward(self) -> torch.Tensor:
        losses = self.losses(self.model, self.batch)
        if losses.ndim != 1:
            raise InvalidEstimate(
                f"losses() gave shape {tuple(losses.shape)}: it must give one loss per sample, e.g. reduction='none'"
            )
        if len(losses) == 0:
            raise EmptyBatch("losses() gave no values: the batch has no samples")
        return losses

    def at(self, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the losses with `weights` in place of the model's own."""
        return call_with(self, {**{f"model.{name}": w for name, w in weights.items()}, **self.buffers_})


def call_with(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], *inputs: Any) -> Any:
    """Call a module with other tensors in place of its parameters and buffers, wherever these are used.

    >>> call_with(torch.nn.Linear(2, 1), {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, torch.ones(2)).item()
    2.0
    """
    root: Any = module
    held = (*root.named_parameters(), *root.named_buffers())
    found = {id(tensor): weights[name] for name, tensor in held if name in weights}
    places: dict[str, torch.Tensor] = {
        f"{path}.{name}" if path else name: found[id(tensor)]
        for path, owner in root.named_modules()  # each once: torch restores a module that has two names wrongly
        for named in (owner.named_parameters, owner.named_buffers)
        for name, tensor in named(recurse=False, remove_duplicate=False)
        if id(tensor) in found
    }
    return functional_call(module, places, inputs, tie_weights=False)


def _check(objective: _Objective, keys: Sequence[DirectionKey], mu: float, method: str) -> None:
    if not (mu == 0 or 0 < np.float32(mu) < np.inf):
        raise InvalidEstimate(f"mu = {mu} must be 0, or a positive number that float32 can hold")
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    if len(keys) == 0:
        raise InvalidEstimate("there are no directions to measure along: give at least one key")
    refuse_random(objective.model)


def refuse_random(model: torch.nn.Module) -> None:
    """Raise InvalidEstimate if a model has random layers in training mode, so that its losses cannot be compared.

    >>> refuse_random(torch.nn.Dropout(0.5))
    Traceback (most recent call last):
    cyber0.errors.InvalidEstimate: Dropout '' is in training mode, so losses cannot be compared: call model.eval()
    """
    modules = cast("Iterator[tuple[str, torch.nn.Module]]", model.named_modules())
    for name, module in modules:
        if module.training and _is_random(module):
            raise InvalidEstimate(
                f"{type(module).__name__} {name!r} is in training mode, so losses cannot be compared: call model.eval()"
            )


def _is_random(module: torch.nn.Module) -> bool:
    """Return whether a module in training mode gives other outputs when it is called again."""
    if isinstance(module, torch.nn.MultiheadAttention | torch.nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def _two_point(
    objective: _Objective,
    keys: Sequence[DirectionKey],
    mu: float,
    family: Family,
    backend: str | Backend | None,
) -> NDArray[np.float64]:
    """(F(w + mu z) - F(w - mu z)) / (2 mu) for each direction."""
    values: list[float] = []
    for index, [(above, below)] in enumerate(_loss_pairs([objective], keys, mu, family, backend)):
        _check_finite(objective, above.float(), index)  # what float32 cannot hold is no loss to learn from
        _check_finite(objective, below.float(), index)
        # The mean over samples of differences formed per sample: the two losses share most of their digits.
        values.append(float((above.double() - below.double()).mean()))
    return np.array(values) / (2 * float(np.float32(mu)))


@torch.no_grad()
def _loss_pairs(
    objectives: Sequence[_Objective],
    keys: Sequence[DirectionKey],
    mu: float,
    family: Family,
    backend: str | Backend | None,
    double: bool | None = None,
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield the losses of each objective's samples at w + mu z and at w - mu z, for one direction after the other.

    The objectives differ in their samples alone. In float64, if `double`; the first decides, if that is None.
    """
    doubled = None if double is False else _doubled(objectives, double)
    measured, perturbed = (objectives, _perturbed) if doubled is None else (doubled, _perturbed_doubles)
    for plus, minus in perturbed(objectives[0].parameters_, keys, mu, family, backend):
        yield [(each.at(plus), each.at(minus)) for each in measured]


def _doubled(objectives: Sequence[_Objective], known: bool | None) -> "list[_Objective] | None":
    """Return the same objectives on inputs and buffers in float64; None where they are to be computed as they are.

    The first of them is tried, unless it is known that they can be computed so.

    Two losses at w + mu z and w - mu z share most of their digits. In float32 what is left of a loss of 50 at mu = 1e-3
    has an error of 1%, which grows with the loss. So small models are computed in float64. A model that has numbers of
    its own in float32 may refuse that, and is left as it is.
    """
    parameters = objectives[0].parameters_
    small = parameters.size <= DOUBLE_UP_TO and parameters.device.type != "mps"  # which has no float64
    if not small or any(flat.dtype != torch.float32 for _, flat in parameters):
        return None
    found = [_Objective(parameters, each.losses, trees.tree_map(_in_double, each.batch)) for each in objectives]
    frozen = (
        (name, each)
        for name, each in found[0].named_parameters()
        if name.removeprefix("model.") not in parameters.tensors
    )
    others = (*found[0].named_buffers(), *frozen)
    buffers = {name: _in_double(each.detach()) for name, each in others if each.dtype == torch.float32}
    for each in found:
        each.buffers_ = buffers
    if known:
        return found
    weights = {name: tensor.detach().double() for name, tensor in parameters.tensors.items()}
    try:
        return found if found[0].at(weights).dtype == torch.float64 else None
    except Exception:  # whatever it is: if it has another cause, float32 meets it too
        return None


def _in_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def _perturbed_doubles(
    parameters: Parameters, keys: Sequence[DirectionKey], mu: float, family: Family, backend: str | Backend | None
) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Return w + mu z and w - mu z in float64, for one direction after the other."""
    step = float(np.float32(mu))
    weights = [(entry, flat.detach().double()) for entry, flat in parameters]
    for key in keys:
        z = sample(key, parameters.size, family=family, backend=backend, device=parameters.device)
        moved = [(e, w, step * z[e.start : e.start + e.size].to(w.device).double()) for e, w in weights]
        yield (
            {entry.name: (w + move).view(entry.shape) for entry, w, move in moved},
            {entry.name: (w - move).view(entry.shape) for entry, w, move in moved},
        )


def _perturbed(
    parameters: Parameters, keys: Sequence[DirectionKey], mu: float, family: Family, backend: str | Backend | None
) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Return w + mu z and w - mu z in two sets of scratch tensors, for one direction after the other."""
    plus, minus = ({name: torch.empty_like(tensor) for name, tensor in parameters.tensors.items()} for _ in range(2))
    devices = {device_of(flat) for _, flat in parameters}
    prepared = {device: prepare(keys, [mu] * len(keys), family, parameters.size, backend, device) for device in devices}
    for index in range(len(keys)):
        for entry, flat in parameters:
            chosen, packed = prepared[device_of(flat)]
            up, down = plus[entry.name].view(-1), minus[entry.name].view(-1)
            chosen.move(flat, packed[index : index + 1], entry.start, up, down)
        yield plus, minus


def _check_finite(objective: _Objective, losses: torch.Tensor, index: int | None = None) -> None:
    losses = losses.detach()
    finite = losses.isfinite()
    if not finite.all():
        sample = int((~finite).nonzero()[0])
        where = "" if index is None else f" along direction {index}"
        cause = nonfinite_cause(objective.parameters_, objective.batch)
        raise NonFiniteLoss(f"the loss of sample {sample}{where} is {float(losses[sample])}: {cause}")


def nonfinite_cause(parameters: Parameters, batch: Any) -> str:
    """Return why losses on a batch are NaN or infinite, and what to do about it, to end an error message with.

    The data are looked at first, then the weights. `batch` is what `losses` was called with: tensors, in tuples, lists
    or dictionaries, each with the samples as its first dimension.

    >>> parameters = Parameters.of(torch.nn.Linear(2, 1))
    >>> inputs = torch.tensor([[1.0, 2.0], [torch.nan, 1.0]])
    >>> nonfinite_cause(parameters, (inputs, torch.zeros(2)))
    'the inputs of sample 1 contain nan: correct or drop them'
    >>> nonfinite_cause(parameters, (torch.ones(2, 2), torch.zeros(2)))
    'inputs and weights are finite, so the loss is too large for its type: lower the learning rate'
    """
    named = zip(("inputs", "targets"), batch, strict=True) if _is_pair(batch) else [("data", batch)]
    for name, part in named:
        for tensor in trees.tree_leaves(part):
            if isinstance(tensor, torch.Tensor) and not (finite := tensor.isfinite()).all():
                place = (~finite).nonzero()[0]
                of_sample = f" of sample {int(place[0])}" if tensor.ndim > 0 else ""
                value = float(tensor[tuple(place)])
                return f"the {name}{of_sample} contain {value}: correct or drop them"
    for entry, flat in parameters:
        if not flat.isfinite().all():
            return f"the weights {entry.name!r} are no longer finite: lower the learning rate"
    return "inputs and weights are finite, so the loss is too large for its type: lower the learning rate"


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, tuple | list) and len(cast("Sequence[Any]", batch)) == 2


def _derivative(
    objective: _Objective,
    keys: Sequence[DirectionKey],
    family: Family,
    method: Method,
    backend: str | Backend | None,
) -> NDArray[np.float64]:
    """<grad F(w), z> for each direction: a forward-mode pass for each, or one backward pass for all."""
    if method != "forward":
        return _backward_mode(objective, keys, family, backend)
    return np.array(
        [
            float(derivatives.double().mean())
            for [derivatives] in _along_each([objective], keys, family, backend, check_finite=True)
        ]
    )


def _along_each(
    objectives: Sequence[_Objective],
    keys: Sequence[DirectionKey],
    family: Family,
    backend: str | Backend | None,
    *,
    check_finite: bool,
) -> Iterator[list[torch.Tensor]]:
    """Yield the derivative of each sample's loss along a direction, [samples], for one direction after the other."""
    parameters = objectives[0].parameters_
    weights = {name: tensor.detach() for name, tensor in parameters.tensors.items()}
    for index, key in enumerate(keys):
        z = sample(key, parameters.size, family=family, backend=backend, device=parameters.device)
        tangents = {
            entry.name: z[entry.start : entry.start + entry.size].view(entry.shape).to(flat.device, flat.dtype)
            for entry, flat in parameters
        }
        try:
            with sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward-mode derivative
                results: list[Any] = [jvp(each.at, (weights,), (tangents,)) for each in objectives]
        except NotImplementedError as error:
            raise InvalidEstimate(
                f"the model has no forward-mode derivative: use method='backward', or mu > 0 with privacy ({error})"
            ) from error
        if check_finite:
            for each, (losses, _) in zip(objectives, results, strict=True):
                _check_finite(each, losses, index)
        yield [derivatives for _, derivatives in results]


def _backward_mode(
    objective: _Objective, keys: Sequence[DirectionKey], family: Family, backend: str | Backend | None
) -> NDArray[np.float64]:
    parameters = objective.parameters_
    with torch.enable_grad():
        losses = objective()
        _check_finite(objective, losses)
        gradients = torch.autograd.grad(losses.mean(), list(parameters.tensors.values()), allow_unused=True)
    parts = [
        torch.zeros(entry.size, device=losses.device) if gradient is None else gradient.float().flatten()
        for (entry, _), gradient in zip(parameters, cast("tuple[torch.Tensor | None, ...]", gradients), strict=True)
    ]
    flat = torch.cat([part.to(parameters.device) for part in parts])
    return project(flat, keys, family=family, backend=backend).cpu().numpy()
