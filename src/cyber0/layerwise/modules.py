"""How a module runs for both signs: its batch is two halves, of which the first sees w + mu z, the second w - mu z.

    handler(both, module, *inputs) -> output           where both halves are rows 0 .. N and N .. 2N

A module may bring its own, as a `SignPairModule`. One that is not known is run once for each half,
with its parameters exchanged; where it has children, they are run with it: a block.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as trees

from cyber0.errors import InvalidEstimate
from cyber0.layerwise.protocols import SignPairModule, implements
from cyber0.layerwise.source import Pair, Source, normed
from cyber0.layerwise.whole_model import in_arithmetic

__all__ = ["Handler", "SignPair", "blocks", "handlers", "linear", "readers", "trained"]

Tensor = torch.Tensor
Handler = Callable[..., Any]
EPS = ("eps", "variance_epsilon")
LISTS = nn.ParameterList, nn.ParameterDict


@dataclass(slots=True)
class SignPair:
    """What handlers know: the source of weights, the type of the arithmetic, and how many rows both halves have.

    >>> SignPair(None, torch.float32, rows=6).parts(torch.zeros(6, 2))
    [slice(None, 3, None), slice(3, None, None)]
    """

    source: Source
    dtype: torch.dtype
    rows: int
    unperturbed: bool = False  # one sign only, and it is not perturbed
    shared: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])  # inputs that once were no batch

    def parts(self, x: Tensor) -> list[slice]:
        """The rows of each sign, of a tensor whose first dimension is the batch, or the batch and others as one."""
        if self.unperturbed:
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


def linear(both: SignPair, x: Tensor, weights: Pair, biases: Pair | tuple[None, None]) -> Tensor:
    """Each half of x times its matrix [outputs, inputs], plus its bias.

    >>> both = SignPair(None, torch.float32, rows=2)
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


def _linear(both: SignPair, module: Any, x: Tensor) -> Tensor:
    return linear(both, x, both.source.matrix(module.weight, x.dtype), both.vector(module.bias, x.dtype))


def _embedding(both: SignPair, module: Any, ids: Tensor) -> Tensor:
    width: int = module.embedding_dim
    place: dict[str, Any] = {"dtype": both.dtype, "device": ids.device}
    if both.unperturbed:
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


def _norm(both: SignPair, module: Any, x: Tensor) -> Tensor:
    both.parts(x)  # refuses what is not a batch
    bias = getattr(module, "bias", None)
    biases = None if bias is None else both.source.vector(bias, torch.float32)
    weights = both.source.vector(module.weight, torch.float32)
    return both.source.norm(x, weights, biases, _eps(module), centred=isinstance(module, nn.LayerNorm))


def _leaf(both: SignPair, module: Any, *inputs: Any, **named: Any) -> Any:
    """A module and its own parameters: its own code, once for each half; once for both where they are not trained."""
    pairs = {id(parameter): _pair(both, parameter, both.dtype) for parameter in module.parameters(recurse=False)}
    return _exchanged(both, module, [module], pairs, inputs, named)


def _block(both: SignPair, module: Any, *inputs: Any, **named: Any) -> Any:
    """A module with all that is below it: their own code, once for each half.

    What is trained is perturbed in float32, since it may be a norm's weight, and only products are less precise.
    """
    pairs = {
        id(parameter): _pair(both, parameter, both.dtype if _is_frozen_matrix(parameter) else torch.float32)
        for parameter in module.parameters()
    }
    device = next(module.parameters()).device
    with in_arithmetic(device, both.dtype):
        output = _exchanged(both, module, list(module.modules()), pairs, inputs, named)
    return trees.tree_map(partial(_cast, both.dtype), output)


def _exchanged(
    both: SignPair, module: Any, owners: Sequence[Any], pairs: dict[int, Pair], inputs: Any, named: Any
) -> Any:
    """What a module's own code gives for each half, with the parameters of the owners exchanged for one of a pair."""
    apart = not both.unperturbed and any(plus is not minus for plus, minus in pairs.values())
    kept = [dict(owner._parameters) for owner in owners]
    outputs: list[Any] = []
    leaves, tree = trees.tree_flatten((inputs, named))
    tensors = [(at, x) for at, x in enumerate(leaves) if apart and isinstance(x, Tensor)]
    both.shared.update((id(module), at) for at, x in tensors if not both.holds(x))
    try:
        for sign in range(2 if apart else 1):
            for owner, own in zip(owners, kept, strict=True):
                owner._parameters.update({name: pairs[id(p)][sign] for name, p in own.items() if p is not None})
            given = list(leaves)
            for at, x in tensors:
                if (id(module), at) not in both.shared:
                    given[at] = x[both.parts(x)[sign]]
            arguments, keywords = trees.tree_unflatten(given, tree)
            outputs.append(module.__class__.forward(module, *arguments, **keywords))
    finally:
        for owner, own in zip(owners, kept, strict=True):
            owner._parameters.update(own)
    return trees.tree_map(_joined, *outputs) if apart else outputs[0]


def _pair(both: SignPair, parameter: Tensor, dtype: torch.dtype) -> Pair:
    if parameter.ndim < 2:
        return both.source.vector(parameter, dtype)
    plus, minus = both.source.matrix(parameter, dtype)
    return (plus, minus) if plus is minus else (plus.clone(), minus.clone())  # the module may have several


def _cast(dtype: torch.dtype, x: Any) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def _is_frozen_matrix(parameter: Tensor) -> bool:
    return parameter.ndim > 1 and not parameter.requires_grad


def _joined(plus: Any, minus: Any) -> Any:
    if isinstance(plus, Tensor):
        return torch.cat([plus, minus])
    if plus is not minus and not (isinstance(plus, bool | int | float | str) and plus == minus):
        raise InvalidEstimate(f"two {type(plus).__name__} of a module cannot be put together")
    return plus


def handlers(root: nn.Module, whole: Collection[nn.Module] = ()) -> list[tuple[nn.Module, Handler]]:
    """What runs each module of a model for both signs, of those that hold parameters; those in `whole` as blocks.

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
                raise InvalidEstimate(f"most of it is in {type(module).__name__}, which is no kind that is known")
        if handler is not None:
            found.append((module, handler))
    return found


def trained(module: nn.Module) -> int:
    """How many numbers are trained in a module and below it.

    >>> trained(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def blocks(found: Sequence[tuple[nn.Module, Handler]]) -> list[nn.Module]:
    """Those modules that are run as blocks.

    >>> blocks([(nn.ReLU(), _block), (nn.Linear(1, 1), _linear)])
    [ReLU()]
    """
    return [module for module, handler in found if handler is _block]


def readers(root: nn.Module, tensors: Iterable[Tensor]) -> list[nn.Module]:
    """The modules right above those that hold some tensors.

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
        return None
    if type(module) is nn.Linear:
        return _linear
    if type(module) is nn.Embedding and module.max_norm is None:
        return _embedding
    if _is_norm(module):
        return _norm
    return _block if _is_block(module) else _leaf


def _held(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module that none of its children takes care of; a list of parameters has no code."""
    lists = [child for child in module.children() if isinstance(child, LISTS)]
    below = {id(p) for child in module.children() if child not in lists for p in child.parameters()}
    own = (p for owner in (module, *lists) for p in owner.parameters(recurse=False))
    return [] if isinstance(module, LISTS) else [p for p in own if id(p) not in below]


def _is_block(module: nn.Module) -> bool:
    """Whether a module with children has to run apart: what is frozen is the same for both halves."""
    return next(module.children(), None) is not None and any(p.requires_grad for p in _held(module))


def _own(both: SignPair, module: SignPairModule, *inputs: Any, **named: Any) -> Any:
    return module.forward_pair(both, *inputs, **named)


def _is_norm(module: Any) -> bool:
    """Whether a module is a layer norm, or, by trial, a root-mean-square norm with one weight."""
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
