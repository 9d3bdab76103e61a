"""How a module runs for both signs: its batch is two halves, of which the first sees w + mu z, the second w - mu z.

    handler(both, module, *inputs) -> output           where both halves are rows 0 .. N and N .. 2N

A module may bring its own, as a method `both_signs(both, *inputs)`. One that is not known but has no children is run
once for each half, with its parameters exchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as trees

from cyber0.errors import InvalidEstimate
from cyber0.layerwise.source import Layout, Pair, Source, normed

__all__ = ["Both", "Handler", "handlers", "linear"]

Tensor = torch.Tensor
Handler = Callable[..., Any]
EPS = ("eps", "variance_epsilon")


@dataclass(slots=True)
class Both:
    """What handlers know: the source of weights, the type of the arithmetic, and how many rows both halves have.

    >>> Both(None, torch.float32, rows=6).parts(torch.zeros(6, 2))
    [slice(None, 3, None), slice(3, None, None)]
    """

    source: Source
    dtype: torch.dtype
    rows: int
    still: bool = False  # one sign only, and it is not perturbed
    shared: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])  # inputs that once were no batch

    def parts(self, x: Tensor) -> list[slice]:
        """The rows of each sign, of a tensor whose first dimension is the batch, or the batch and others as one."""
        if self.still:
            return [slice(None)]
        if not self.holds(x):
            raise InvalidEstimate(f"a tensor of shape {tuple(x.shape)} does not have the batch of {self.rows} first")
        half = len(x) // 2
        return [slice(None, half), slice(half, None)]

    def holds(self, x: Tensor) -> bool:
        """Whether a tensor has the batch first."""
        return x.ndim > 0 and len(x) > 0 and len(x) % self.rows == 0

    def vector(self, parameter: Any, dtype: torch.dtype) -> Pair | tuple[None, None]:
        """Both signs of a bias, if there is one."""
        return (None, None) if parameter is None else self.source.vector(parameter, dtype)


def linear(both: Both, x: Tensor, weights: Pair, biases: Pair | tuple[None, None]) -> Tensor:
    """Each half of x times its matrix [outputs, inputs], plus its bias.

    >>> both = Both(None, torch.float32, rows=2)
    >>> linear(both, torch.ones(2, 3), (torch.ones(1, 3), torch.zeros(1, 3)), (None, None))
    tensor([[3.],
            [0.]])
    """
    parts, (outputs, inputs) = both.parts(x), weights[0].shape
    out = x.new_empty(*x.shape[:-1], outputs)
    for part, weight, bias in zip(parts, weights, biases, strict=False):
        rows, into = x[part].reshape(-1, inputs), out[part].view(-1, outputs)
        if bias is None:
            torch.mm(rows, weight.t(), out=into)
        else:
            torch.addmm(bias, rows, weight.t(), out=into)
    return out


def _linear(both: Both, module: Any, x: Tensor) -> Tensor:
    return linear(both, x, both.source.matrix(module.weight, x.dtype), both.vector(module.bias, x.dtype))


def _embedding(both: Both, module: Any, ids: Tensor) -> Tensor:
    width: int = module.embedding_dim
    place: dict[str, Any] = {"dtype": both.dtype, "device": ids.device}
    if both.still:
        return nn.functional.embedding(ids, module.weight.detach()).to(both.dtype)
    if ids.ndim > 1 and len(ids) == both.rows:
        out = torch.empty(*ids.shape, width, **place)
        both.source.rows(module.weight, ids[: both.rows // 2], *(out[part] for part in both.parts(out)))
        return out
    shape = ids.shape if ids.ndim == 1 else ids.shape[1:]  # positions, the same for all samples
    if ids.numel() != shape.numel():
        raise InvalidEstimate(f"ids of shape {tuple(ids.shape)} do not have the batch of {both.rows} first")
    once, out = torch.empty(2, *shape, width, **place), torch.empty(both.rows, *shape, width, **place)
    both.source.rows(module.weight, ids.reshape(shape), once[0], once[1])
    for part, row in zip(both.parts(out), once, strict=True):
        out[part] = row
    return out


def _norm(both: Both, module: Any, x: Tensor) -> Tensor:
    both.parts(x)  # refuses what is not a batch
    bias = getattr(module, "bias", None)
    biases = None if bias is None else both.source.vector(bias, torch.float32)
    weights = both.source.vector(module.weight, torch.float32)
    return both.source.norm(x, weights, biases, _eps(module), centred=isinstance(module, nn.LayerNorm))


def _each(both: Both, module: Any, *inputs: Any, **named: Any) -> Any:
    """Any module without children: its own code, once for each half."""
    kept = dict(module._parameters)
    pairs = {name: _pair(both, parameter) for name, parameter in kept.items() if parameter is not None}
    outputs: list[Any] = []
    leaves, tree = trees.tree_flatten((inputs, named))
    both.shared.update(
        (id(module), at)
        for at, x in enumerate(leaves)
        if isinstance(x, Tensor) and not both.still and not both.holds(x)
    )
    try:
        for sign in range(1 if both.still else 2):
            module._parameters.update({name: pair[sign] for name, pair in pairs.items()})
            parts = [x if (id(module), at) in both.shared else _part(both, x, sign) for at, x in enumerate(leaves)]
            own = trees.tree_unflatten(parts, tree)
            outputs.append(module.__class__.forward(module, *own[0], **own[1]))
    finally:
        module._parameters.update(kept)
    return outputs[0] if both.still else trees.tree_map(_joined, *outputs)


def _pair(both: Both, parameter: Tensor) -> Pair:
    if parameter.ndim < 2:
        return both.source.vector(parameter, both.dtype)  # type: ignore[return-value]
    plus, minus = both.source.matrix(parameter, both.dtype)
    return plus.clone(), minus.clone()  # the module may have several


def _part(both: Both, x: Any, sign: int) -> Any:
    return x[both.parts(x)[sign]] if isinstance(x, Tensor) else x


def _joined(plus: Any, minus: Any) -> Any:
    return torch.cat([plus, minus]) if isinstance(plus, Tensor) else plus


def handlers(root: nn.Module, layout: Layout) -> list[tuple[nn.Module, Handler]]:
    """What runs each module of a model for both signs, of those that hold parameters.

    >>> from cyber0.parameters import Parameters
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> [(type(module).__name__, handler.__name__) for module, handler in handlers(model, Layout(Parameters.of(model)))]
    [('Linear', '_linear')]
    """
    found = [(module, handler) for module in root.modules() if (handler := _handler(module)) is not None]
    held = {id(parameter) for module, _ in found for parameter in module.parameters(recurse=False)}
    for name, parameter in root.named_parameters():
        if layout.trains(parameter) and id(parameter) not in held:
            raise InvalidEstimate(f"{name} belongs to a module with children, none of which holds it")
    return found


def _handler(module: nn.Module) -> Handler | None:
    if next(module.parameters(recurse=False), None) is None:
        return None
    if hasattr(module, "both_signs"):
        return _own
    if type(module) is nn.Linear:
        return _linear
    if type(module) is nn.Embedding and module.max_norm is None:
        return _embedding
    if _is_norm(module):
        return _norm
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return None  # it has no code: others read what it holds
    return _each if next(module.children(), None) is None else None


def _own(both: Both, module: Any, *inputs: Any, **named: Any) -> Any:
    return module.both_signs(both, *inputs, **named)


def _is_norm(module: Any) -> bool:
    """Whether a module is a layer norm, or, by trial, a root-mean-square norm with one weight."""
    if type(module) is nn.LayerNorm:
        return module.elementwise_affine and len(module.normalized_shape) == 1
    names = [name for name, _ in module.named_parameters()]
    if not type(module).__name__.endswith("RMSNorm") or names != ["weight"] or _eps(module) is None:
        return False
    weight = module.weight.detach().float()
    probe = torch.linspace(-1, 2, 3 * weight.numel(), device=weight.device).view(1, 3, -1)
    with torch.no_grad():
        own = module.__class__.forward(module, probe.to(module.weight.dtype)).float()
        return torch.allclose(own, normed(probe, weight, None, _eps(module), centred=False), rtol=1e-2, atol=1e-3)


def _eps(module: Any) -> Any:
    return next((value for name in EPS if isinstance(value := getattr(module, name, None), float)), None)
