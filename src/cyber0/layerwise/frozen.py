"""Linear layers whose weights are not trained, and are kept in another way than as a matrix on the device.

Both halves of a batch have the same weights there, so a walk needs no perturbed copies of them: `PackedLinear` unpacks
its matrix for a product, and `StreamedLinear` has it brought to the device for one. A backward pass does that again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from cyber0.errors import InvalidModel
from cyber0.layerwise.mapped import release
from cyber0.layerwise.modules import SignPair, linear
from cyber0.layerwise.packing import BLOCK, pack, unpack

__all__ = [
    "FrozenLinear",
    "PackedLinear",
    "StreamedLinear",
    "Supply",
    "is_packed",
    "is_streamed",
    "pack_linears",
    "replace_linears",
    "supplies",
    "weights_at_hand",
]

Tensor = torch.Tensor


class Supply(Protocol):
    """Brings the weights of layers to the device."""

    def tensors(self, place: int) -> tuple[Tensor, ...]:
        """Return what a layer's weights are made of, where it lies."""
        ...

    def fetch(self, place: int) -> tuple[Tensor, ...]:
        """Return the same on the device, until another layer's is fetched."""
        ...

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can bring them."""
        ...

    def rest(self) -> None:
        """Let what is queued after this find nothing under way, before and after a graph runs that fetches."""
        ...

    def capture(self) -> AbstractContextManager[None]:
        """Make all that is fetched inside a part of the graph that is being captured."""
        ...


class FrozenLinear(nn.Linear):
    """A linear layer that gets its weights when it runs, made of tensors that it holds itself, or a supply does."""

    names: tuple[str, ...] = ()

    def __init__(self, full: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = full.in_features, full.out_features
        bias: Any = full.bias
        self.bias = bias
        if bias is not None:
            bias.requires_grad_(False)
        self.__dict__["supply"] = None

    def attach(self, supply: Supply, place: int) -> None:
        """Get the weights from a supply from now on, as its layer of this number, and hold none."""
        self.__dict__["supply"] = supply, place
        for name in self.names:
            self._buffers.pop(name, None)
            self.__dict__.pop(name, None)

    def stored(self) -> dict[str, Tensor]:
        """Return what its weights are made of, by name, wherever it lies."""
        known: Any = self.__dict__["supply"]
        if known is not None:
            return dict(zip(self.names, known[0].tensors(known[1]), strict=True))
        held: Any = self._buffers | self.__dict__
        return {name: held[name] for name in self.names}

    def made(self, *stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weights [outputs, inputs] in a type."""
        raise NotImplementedError

    def in_type(self, dtype: torch.dtype) -> Tensor:
        """Return the weights in a type, on the device; they may be overwritten when another layer asks for its own."""
        known: Any = self.__dict__["supply"]
        return self.made(*(self.stored().values() if known is None else known[0].fetch(known[1])), dtype=dtype)

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Its weights, in float32: a copy."""
        return self.in_type(torch.float32).clone()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return what a linear layer with these weights returns."""
        if torch.is_grad_enabled() and input.requires_grad:
            product: Any = _Product
            return product.apply(input, self)
        return self.product(input)

    def product(self, x: Tensor) -> Tensor:
        """Return the same; a backward pass through it would keep the weights."""
        bias: Any = self.bias
        return nn.functional.linear(x, self.in_type(x.dtype), None if bias is None else bias.to(x.dtype))

    def forward_pair(self, signs: SignPair, x: Tensor) -> Tensor:
        """Return the same for both signs in a walk: half after half, as other linear layers run."""
        weight = self.in_type(x.dtype)
        return linear(signs, x, (weight, weight), signs.vector(self.bias, x.dtype))


class _Product(torch.autograd.Function):
    """The product of a frozen layer. Its backward pass gets the weights anew: others may lie in their place by then."""

    @staticmethod
    def forward(x: Tensor, layer: FrozenLinear) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return layer.product(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, FrozenLinear], output: Tensor) -> None:  # noqa: ARG004
        ctx.dtype, ctx.layer = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (gradient @ ctx.layer.in_type(gradient.dtype)).to(ctx.dtype), None


class PackedLinear(FrozenLinear):
    """A linear layer whose weights have 4 or 8 bits each.

    >>> full = nn.Linear(64, 3)
    >>> small = PackedLinear(full, bits=8)
    >>> torch.allclose(small(torch.ones(1, 64)), full(torch.ones(1, 64)), atol=0.05)
    True
    >>> {name: tensor.dtype for name, tensor in small.stored().items()}
    {'codes': torch.int8, 'scales': torch.bfloat16}
    """

    names = ("codes", "scales")

    def __init__(self, full: nn.Linear, bits: int) -> None:
        super().__init__(full)
        codes, scales = pack(full.weight, bits)
        self.bits = bits
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)

    def made(self, *stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weights, unpacked."""
        return unpack(stored[0], stored[1], (self.out_features, self.in_features), dtype)

    def extra_repr(self) -> str:
        """Return what is printed of it."""
        return f"{super().extra_repr()}, bits={self.bits}, block={BLOCK}"


class StreamedLinear(FrozenLinear):
    """A linear layer whose matrix lies in memory of the host, or in a file, until it is needed.

    >>> full = nn.Linear(64, 3)
    >>> torch.equal(StreamedLinear(full)(torch.ones(1, 64)), full(torch.ones(1, 64)))
    True
    """

    names = ("matrix",)

    def __init__(self, full: nn.Linear) -> None:
        super().__init__(full)
        self.__dict__["matrix"] = full.weight.detach()  # no parameter: it does not move with the module

    def made(self, *stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the matrix."""
        return stored[0].to(dtype)


def replace_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Linear | None]) -> int:
    """Replace the linear layers of a model by what is made of them, unless that is None; return how many were.

    Output embeddings, and layers that share their weights with another module, stay as they are.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> replace_linears(model, lambda full: PackedLinear(full, bits=4)), type(model[0]).__name__
    (1, 'PackedLinear')
    """
    holders: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    outputs: Any = getattr(model, "get_output_embeddings", None)
    kept = outputs() if callable(outputs) else None
    done = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if not isinstance(child, nn.Linear) or child is kept:
                continue
            shared = any(holders[id(each)] > 1 for each in child.parameters(recurse=False))
            made = None if shared else make(child)
            if made is not None:
                module.add_module(name, made)
                done += 1
    return done


def pack_linears(model: Any, bits: int) -> None:
    """Pack the weights of all linear layers of a model, one after the other; but for its output embeddings.

    >>> pack_linears(nn.Sequential(nn.Embedding(3, 2)), bits=4)
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: Sequential has no linear layers whose weights could be packed in 4 bits: leave bits out
    """

    def make(full: nn.Linear) -> nn.Linear | None:
        if type(full) is not nn.Linear:
            return None
        made = PackedLinear(full, bits)
        release(full.weight.data)
        return made

    if replace_linears(model, make) == 0:
        raise InvalidModel(
            f"{type(model).__name__} has no linear layers whose weights could be packed in {bits} bits: leave bits out"
        )


def is_streamed(model: nn.Module) -> bool:
    """Return whether some of a model's weights are brought to the device when they are needed.

    >>> is_streamed(nn.Sequential(StreamedLinear(nn.Linear(3, 2))))  # it has no supply yet
    False
    """
    return bool(supplies(model))


def supplies(model: nn.Module) -> list[Supply]:
    """Return what brings weights of a model to the device.

    >>> supplies(nn.Linear(3, 2))
    []
    """
    frozen = (module.__dict__["supply"] for module in model.modules() if isinstance(module, FrozenLinear))
    return list({id(known[0]): known[0] for known in frozen if known}.values())


def is_packed(model: nn.Module) -> bool:
    """Return whether some of a model's weights are packed.

    >>> is_packed(nn.Linear(3, 2)), is_packed(nn.Sequential(PackedLinear(nn.Linear(3, 2), bits=4)))
    (False, True)
    """
    return any(isinstance(module, PackedLinear) for module in model.modules())


def weights_at_hand(model: nn.Module) -> int | None:
    """Return how many weights a forward pass reads; None if some are unpacked or brought to the device for it.

    >>> weights_at_hand(nn.Linear(3, 2)), weights_at_hand(nn.Sequential(PackedLinear(nn.Linear(3, 2), bits=4)))
    (8, None)
    """
    if any(isinstance(module, FrozenLinear) for module in model.modules()):
        return None
    return sum(parameter.numel() for parameter in model.parameters())
