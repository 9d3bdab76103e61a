"""Run a module for both signs at once: the first half of the batch at w + mu z, the second half at w - mu z.

    handler(signs, module, *inputs) -> output           rows 0 .. N are the first half, rows N .. 2N the second

A module can bring its own handler, as a `SignPairModule`. A module of an unknown class is run once for each half, with
its parameters replaced by perturbed ones; if it has children, they are run with it, as one block.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as trees

from cyber0.errors import InvalidEstimate
from cyber0.layerwise.buffers import Buffers
from cyber0.layerwise.graphs import no_waiting
from cyber0.layerwise.protocols import SignPairModule, implements
from cyber0.layerwise.source import Pair, Source, affine, normed
from cyber0.layerwise.whole_model import in_arithmetic

__all__ = ["TOKENWISE", "Handler", "SignPair", "blocks", "handlers", "linear", "readers", "trained"]

Tensor = torch.Tensor
Handler = Callable[..., Any]
Product = Callable[[Tensor, Tensor, Tensor | None, Tensor], None]
EPS = ("eps", "variance_epsilon")
LISTS = nn.ParameterList, nn.ParameterDict


@dataclass(slots=True)
class SignPair:
    """What a handler needs to run a module for both signs.

    - `source`: where the perturbed weights come from.
    - `dtype`: the type of the activations.
    - `rows`: the rows of the batch, both halves together.
    - `unperturbed`: the batch is not doubled, and runs with the weights as they are.
    - `shared`: inputs that all samples share, as (id of the module, position), since they once had no batch dimension.
    - `read`: row and place of the tokens that are read after the last attention; None if all may be.
    - `may_wait`: whether modules that run by their own code may wait for the device; else that raises NotCapturable.
    - `buffers`: where large activations on a CPU get their memory; None: from torch.

    >>> SignPair(None, torch.float32, rows=6).halves(torch.zeros(6, 2))
    [slice(None, 3, None), slice(3, None, None)]
    """

    source: Source
    dtype: torch.dtype
    rows: int
    unperturbed: bool = False
    shared: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    buffers: Buffers | None = None
    may_wait: bool = True
    read: tuple[Tensor, Tensor] | None = None

    def empty(self, x: Tensor, width: int) -> Tensor:
        """Return a tensor like x, of another last dimension, whose values are not set."""
        shape, pool = (*x.shape[:-1], width), self.buffers if x.device.type == "cpu" else None
        return x.new_empty(shape) if pool is None else pool.empty(shape, x.dtype)

    def halves(self, x: Tensor) -> list[slice]:
        """Return the rows of each sign in a tensor that has the batch first, alone or merged with other dimensions."""
        if self.unperturbed:
            return [slice(None)]
        if not self.has_batch_first(x):
            raise InvalidEstimate(
                f"a tensor of shape {tuple(x.shape)} does not have the batch of {self.rows} rows as its first dimension"
            )
        half = len(x) // 2
        return [slice(None, half), slice(half, None)]

    def has_batch_first(self, x: Tensor) -> bool:
        """Return whether the first dimension of a tensor can be the batch, alone or merged with others."""
        return x.ndim > 0 and len(x) > 0 and len(x) % self.rows == 0

    def vector(self, parameter: Any, dtype: torch.dtype) -> Pair | tuple[None, None]:
        """Return both signs of a vector such as a bias; (None, None) for None."""
        return (None, None) if parameter is None else self.source.vector(parameter, dtype)


def linear(
    signs: SignPair, x: Tensor, weights: Pair, biases: Pair | tuple[None, None], product: Product = affine
) -> Tensor:
    """Return each half of x times its own matrix [outputs, inputs], plus its own bias.

    `product` computes a half, and may apply an activation to it.

    >>> signs = SignPair(None, torch.float32, rows=2)
    >>> linear(signs, torch.ones(2, 3), (torch.ones(1, 3), torch.zeros(1, 3)), (None, None))
    tensor([[3.],
            [0.]])
    """
    halves, (outputs, inputs) = signs.halves(x), weights[0].shape
    out = signs.empty(x, outputs)
    for half, weight, bias in zip(halves, weights, biases, strict=False):
        product(x[half].reshape(-1, inputs), weight, bias, out[half].view(-1, outputs))
    return out


def _linear(signs: SignPair, module: Any, x: Tensor, product: Product = affine) -> Tensor:
    return linear(signs, x, signs.source.matrix(module.weight, x.dtype), signs.vector(module.bias, x.dtype), product)


def _embedding(signs: SignPair, module: Any, ids: Tensor) -> Tensor:
    width: int = module.embedding_dim
    place: dict[str, Any] = {"dtype": signs.dtype, "device": ids.device}
    if signs.unperturbed:
        return nn.functional.embedding(ids, module.weight.detach()).to(signs.dtype)
    if ids.ndim > 1 and len(ids) == signs.rows:
        out = torch.empty(*ids.shape, width, **place)
        signs.source.rows(module.weight, ids[: signs.rows // 2], *(out[half] for half in signs.halves(out)))
        return out
    shape = ids.shape if ids.ndim == 1 else ids.shape[1:]  # positions, the same for all samples
    if ids.numel() != shape.numel():
        raise InvalidEstimate(
            f"ids of shape {tuple(ids.shape)} do not have the batch of {signs.rows} rows as their first dimension"
        )
    once, out = torch.empty(2, *shape, width, **place), torch.empty(signs.rows, *shape, width, **place)
    signs.source.rows(module.weight, ids.reshape(shape), once[0], once[1])
    for half, row in zip(signs.halves(out), once, strict=True):
        out[half] = row
    return out


def _norm(signs: SignPair, module: Any, x: Tensor) -> Tensor:
    signs.halves(x)  # raises if x has no batch dimension
    bias = getattr(module, "bias", None)
    biases = None if bias is None else signs.source.vector(bias, torch.float32)
    weights = signs.source.vector(module.weight, torch.float32)
    return signs.source.norm(x, weights, biases, _eps(module), centred=isinstance(module, nn.LayerNorm))


def _activated(signs: SignPair, module: Any, x: Tensor) -> Tensor:
    """Run a linear layer and its activation as one step."""
    dense, activation = _steps(module)
    return _linear(signs, dense, x, partial(signs.source.affine_gelu, approximate=_approximation(activation) or "none"))


def _summed(signs: SignPair, module: Any, x: Tensor, residual: Tensor) -> Tensor:
    """Run a linear layer, and the norm of its sum with a residual, as one step."""
    dense, norm = _steps(module)
    out = _linear(signs, dense, x)
    biases = signs.source.vector(norm.bias, torch.float32)
    weights = signs.source.vector(norm.weight, torch.float32)
    if (residual.shape, residual.dtype) != (out.shape, out.dtype):
        return signs.source.norm(out + residual, weights, biases, norm.eps, centred=True)
    return signs.source.norm(out, weights, biases, norm.eps, centred=True, residual=residual)


def _gated(signs: SignPair, module: Any, x: Tensor) -> Tensor:
    """Run a gated layer: what follows the product of the gate overwrites it."""
    gate, up, down, activation = _gated_steps(module)
    if any(step._forward_hooks or step._forward_pre_hooks for step in (gate, up, down, activation)):
        return module.__class__.forward(module, x)
    out = _overwriting(activation)(_linear(signs, gate, x))
    return _linear(signs, down, out.mul_(_linear(signs, up, x)))


def _leaf(signs: SignPair, module: Any, *inputs: Any, **named: Any) -> Any:
    """Run the code of a module without children: once for each half, or once in all if no parameter is trained."""
    pairs = {id(parameter): _pair(signs, parameter, signs.dtype) for parameter in module.parameters(recurse=False)}
    return _run_each_half(signs, module, [module], pairs, inputs, named)


def _block(signs: SignPair, module: Any, *inputs: Any, **named: Any) -> Any:
    """Run the code of a module and its descendants once for each half.

    Trained weights of one or two dimensions are perturbed in float32, since a norm or the rates of a state space may be
    among them; only matrix products are less precise. Those of more are the matrices of experts, or of a convolution.
    """
    pairs = {
        id(p): _pair(signs, p, signs.dtype if p.ndim > (2 if p.requires_grad else 1) else torch.float32)
        for p in module.parameters()
    }
    device = next(module.parameters()).device
    with in_arithmetic(device, signs.dtype):
        output = _run_each_half(signs, module, list(module.modules()), pairs, inputs, named)
    return trees.tree_map(partial(_cast, signs.dtype), output)


def _run_each_half(
    signs: SignPair, module: Any, owners: Sequence[Any], pairs: dict[int, Pair], inputs: Any, named: Any
) -> Any:
    """Return the output of a module's own code, run once for each half.

    Meanwhile each parameter of the modules `owners` is replaced by the one of its pair that belongs to the half.
    """
    apart = not signs.unperturbed and any(plus is not minus for plus, minus in pairs.values())
    kept = [dict(owner._parameters) for owner in owners]
    outputs: list[Any] = []
    leaves, tree = trees.tree_flatten((inputs, named))
    tensors = [(at, x) for at, x in enumerate(leaves) if apart and isinstance(x, Tensor)]
    signs.shared.update((id(module), at) for at, x in tensors if not signs.has_batch_first(x))
    try:
        for sign in range(2 if apart else 1):
            for owner, own in zip(owners, kept, strict=True):
                owner._parameters.update({name: pairs[id(p)][sign] for name, p in own.items() if p is not None})
            given = list(leaves)
            for at, x in tensors:
                if (id(module), at) not in signs.shared:
                    given[at] = x[signs.halves(x)[sign]]
            arguments, keywords = trees.tree_unflatten(given, tree)
            with nullcontext() if signs.may_wait else no_waiting():
                outputs.append(module.__class__.forward(module, *arguments, **keywords))
    finally:
        for owner, own in zip(owners, kept, strict=True):
            owner._parameters.update(own)
    return trees.tree_map(_concatenate, *outputs) if apart else outputs[0]


def _pair(signs: SignPair, parameter: Tensor, dtype: torch.dtype) -> Pair:
    if parameter.ndim < 2:
        return signs.source.vector(parameter, dtype)
    plus, minus = signs.source.matrix(parameter, dtype)
    return (plus, minus) if plus is minus else (plus.clone(), minus.clone())  # the next call overwrites them


def _cast(dtype: torch.dtype, x: Any) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def _concatenate(plus: Any, minus: Any) -> Any:
    if isinstance(plus, Tensor):
        return torch.cat([plus, minus])
    if plus is not minus and not (isinstance(plus, bool | int | float | str) and plus == minus):
        raise InvalidEstimate(f"a module returns a {type(plus).__name__}, and those of the two halves cannot be joined")
    return plus


TOKENWISE = frozenset[Handler](
    {_linear, _activated, _summed, _gated, _norm}
)  # what they compute of a token needs no other


def handlers(root: nn.Module, whole: Collection[nn.Module] = ()) -> list[tuple[nn.Module, Handler]]:
    """Return the modules of a model that hold parameters, each with its handler; those in `whole` are run as blocks.

    >>> [(type(module).__name__, run.__name__) for module, run in handlers(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))]
    [('Linear', '_linear')]
    """
    found: list[tuple[nn.Module, Handler]] = []
    inside: set[nn.Module] = set()
    for module in root.modules():  # parents before children
        handler = None if module in inside else _block if module in whole else _handler(module)
        if handler is _block:
            inside.update(module.modules())
            if 2 * trained(module) > trained(root):
                raise InvalidEstimate(f"most of its weights are in a {type(module).__name__}, which is not supported")
        if handler is not None:
            found.append((module, handler))
    return found


def trained(module: nn.Module) -> int:
    """Return the number of trained weights in a module and its descendants."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def blocks(found: Sequence[tuple[nn.Module, Handler]]) -> list[nn.Module]:
    """Return the modules that are run as blocks, of those that `handlers` has returned."""
    return [module for module, handler in found if handler is _block]


def readers(root: nn.Module, tensors: Iterable[Tensor]) -> list[nn.Module]:
    """Return the parents of the modules that hold any of these tensors.

    >>> model = nn.Sequential(nn.Sequential(nn.Linear(3, 2)), nn.ReLU())
    >>> [reader is model[0] for reader in readers(model, [model[0][0].weight])]
    [True]
    """
    wanted = set(map(id, tensors))

    def holds(module: nn.Module) -> bool:
        return any(id(parameter) in wanted for parameter in module.parameters(recurse=False))

    return [module for module in root.modules() if any(map(holds, module.children()))]


def _handler(module: nn.Module) -> Handler | None:
    if implements(module, SignPairModule):
        return _own
    if not _held(module):
        return _gated if _is_gated(module) else _fused(module)
    if type(module) is nn.Linear:
        return _linear
    if type(module) is nn.Embedding and module.max_norm is None:
        return _embedding
    if _is_norm(module):
        return _norm
    has_children = next(module.children(), None) is not None
    return _block if has_children and any(p.requires_grad for p in _held(module)) else _leaf


def _fused(module: nn.Module) -> Handler | None:
    """Return the handler of a module that is two steps in one, as a trial of its code shows.

    In the layers of BERT and its relatives these are activation(dense(x)) and norm(dense(x) + residual). One after the
    other, each step would write all activations to new memory. The values are the same.
    """
    steps = _steps(module)
    if len(steps) != 2 or type(steps[0]) is not nn.Linear:
        return None
    dense, last = steps
    floats = {name: parameter.detach().float() for name, parameter in module.named_parameters()}
    x, residual = (
        torch.linspace(-1, 2, 3 * width, device=dense.weight.device).view(3, width)
        for width in (dense.in_features, dense.out_features)
    )
    try:
        with torch.no_grad():
            product = torch.func.functional_call(dense, _below(floats, module, dense), x)
            if (approximation := _approximation(last)) is not None:
                expected = nn.functional.gelu(product, approximate=approximation)
                return _activated if torch.allclose(torch.func.functional_call(module, floats, x), expected) else None
            if type(last) is nn.LayerNorm and [*dict(last.named_parameters())] == ["weight", "bias"]:
                expected = torch.func.functional_call(last, _below(floats, module, last), product + residual)
                own = torch.func.functional_call(module, floats, (x, residual))
                return _summed if torch.allclose(own, expected) else None
    except (TypeError, ValueError, RuntimeError):  # it takes other inputs
        pass
    return None


def _gated_steps(module: nn.Module) -> list[Any]:
    """Return the gate, the layer that it multiplies, the one after both, and the activation; or nothing."""
    steps = _steps(module)
    ordered = sorted(steps, key=lambda step: type(step) is not nn.Linear)  # stable: an activation comes last
    known = [type(step) is nn.Linear for step in ordered] == [True, True, True, False]
    return ordered if known and _overwriting(ordered[3]) is not None else []


def _is_gated(module: nn.Module) -> bool:
    """Return whether a module is down(activation(gate(x)) * up(x)), by a trial with few weights, not its own."""
    if not (steps := _gated_steps(module)):
        return False
    shapes = {id(step): shape for step, shape in zip(steps, [(5, 3), (5, 3), (3, 5)], strict=False)}
    x, few = torch.linspace(-2, 1, 30).view(1, 10, 3), dict[str, Tensor]()
    for name, child in module.named_children():
        for own, parameter in child.named_parameters():
            shape = shapes[id(child)][: parameter.ndim]
            few[f"{name}.{own}"] = torch.linspace(-1 - len(few), 2, torch.Size(shape).numel()).view(shape)
    gate, up, down = (partial(torch.func.functional_call, step, _below(few, module, step)) for step in steps[:3])
    try:
        with torch.no_grad():  # large inputs too, which some clamp
            for given in (x, 1e2 * x, 1e4 * x, x[0]):
                own = torch.func.functional_call(module, few, given)
                if not torch.allclose(own, down(_overwriting(steps[3])(gate(given)) * up(given))):
                    return False
            return True
    except (TypeError, ValueError, RuntimeError):  # it takes other inputs
        return False


def _below(weights: dict[str, Tensor], module: nn.Module, child: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a child, by their names in it."""
    prefix = next(f"{name}." for name, found in module.named_children() if found is child)
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _steps(module: nn.Module) -> list[Any]:
    """Return the children of a module, without dropout, which does nothing here."""
    return [child for child in module.children() if not isinstance(child, nn.Dropout)]


def _overwriting(module: nn.Module) -> Any:
    """Return a function that writes what an activation returns over its input; None for one that is not known."""
    if type(module).__name__ in ("SiLU", "SiLUActivation"):
        return torch.ops.aten.silu_
    return (how := _approximation(module)) and partial(torch.ops.aten.gelu_, approximate=how)


def _approximation(module: nn.Module) -> str | None:
    """Return how a module approximates the Gaussian error linear unit; None if it is another activation."""
    if type(module) is nn.GELU:
        return module.approximate
    exact = type(module).__name__ == "GELUActivation" and getattr(module, "act", None) is nn.functional.gelu
    return "none" if exact else None


def _held(module: nn.Module) -> list[nn.Parameter]:
    """Return a module's own parameters, and those in its parameter lists, except any that a child module holds too."""
    lists = [child for child in module.children() if isinstance(child, LISTS)]
    below = {id(p) for child in module.children() if child not in lists for p in child.parameters()}
    own = (p for owner in (module, *lists) for p in owner.parameters(recurse=False))
    return [] if isinstance(module, LISTS) else [p for p in own if id(p) not in below]


def _own(signs: SignPair, module: SignPairModule, *inputs: Any, **named: Any) -> Any:
    return module.forward_pair(signs, *inputs, **named)


def _is_norm(module: Any) -> bool:
    """Return whether a module is a layer norm or, as a trial shows, a root-mean-square norm with one weight."""
    if type(module) is nn.LayerNorm:
        return module.elementwise_affine and len(module.normalized_shape) == 1
    names = [name for name, _ in module.named_parameters()]
    if not type(module).__name__.endswith("RMSNorm") or names != ["weight"] or _eps(module) is None:
        return False
    if module.weight.ndim != 1:
        return False
    weight = module.weight.detach().float()
    probe = torch.linspace(-1, 2, 3 * weight.numel(), device=weight.device).view(1, 3, -1)
    try:
        with torch.no_grad():
            own = module.__class__.forward(module, probe.to(module.weight.dtype)).float()
            return torch.allclose(own, normed(probe, weight, None, _eps(module), centred=False), rtol=1e-2, atol=1e-3)
    except (TypeError, ValueError, RuntimeError):  # it takes other inputs
        return False


def _eps(module: Any) -> Any:
    return next((value for name in EPS if isinstance(value := getattr(module, name, None), float)), None)
