"""Losses at the worst place near a text's word embeddings: adversarial training.

Miyato, Dai, Goodfellow. Adversarial Training Methods for Semi-Supervised Text Classification. ICLR 2017.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidEstimate
from cyber0.estimate import Losses
from cyber0.layerwise.protocols import Embedding, implements

__all__ = ["Nearby", "lookups_of"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Nearby:
    """Losses where each sample's word embeddings are moved by `radius` along the slope of its own loss.

    The move is found at the weights of the moment, by a backward pass of its own, and is no function of them: what is
    differentiated is the loss at the place that was found.

    >>> class Sum(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words = nn.Embedding.from_pretrained(torch.zeros(5, 2))
    ...     def embedding_module(self):
    ...         return self.words
    ...     def forward(self, tokens):
    ...         return self.words(tokens).sum(dim=(1, 2))
    >>> model, batch = Sum(), (torch.tensor([[3], [4]]), torch.zeros(2))
    >>> nearby = Nearby(lambda model, batch: model(batch[0]) + 1.0, radius=0.5)
    >>> with nearby.moved(model, batch, module=model):            # both numbers of a word by 0.5 / sqrt(2)
    ...     nearby.losses(model, batch)
    tensor([1.7071, 1.7071])
    """

    losses: Losses
    radius: float

    def __call__(self, model: Any, batch: Any) -> Tensor:  # noqa: ARG002
        """Refuse: without the module itself, its word embeddings cannot be moved."""
        raise InvalidEstimate(
            f"radius = {self.radius:g} moves word embeddings, for exact slopes of a language model: leave it out"
        )

    @contextmanager
    def moved(
        self, model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor], module: nn.Module
    ) -> Generator[None]:
        """Move the word embeddings that `module` looks up, in one forward pass over a batch and its way back."""
        lookups, name, calls = lookups_of(module), type(module).__name__, 0
        moves = self._moves(model, batch, lookups, name)

        def move(_lookup: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls > len(moves) or output.shape != moves[calls - 1].shape:
                raise InvalidEstimate(_otherwise(self.radius, name))
            return output + moves[calls - 1].to(output.dtype)

        with _hooks(lookups, move):
            yield
        if calls != len(moves):
            raise InvalidEstimate(_otherwise(self.radius, name))

    def _moves(
        self, model: Callable[[Tensor], Tensor], batch: Any, lookups: Sequence[nn.Module], name: str
    ) -> list[Tensor]:
        """Return by how much what each lookup gives is to be moved, in their order."""
        outputs: list[Tensor] = []

        def keep(_lookup: nn.Module, _inputs: Any, output: Any) -> Tensor:
            if not isinstance(output, Tensor):
                raise InvalidEstimate(f"the word embeddings of {name} are {type(output).__name__}: return a tensor")
            outputs.append(output.detach().requires_grad_())
            return outputs[-1].clone()  # which the model may change in place

        with _hooks(lookups, keep):
            losses = self.losses(model, batch)
            found = list(outputs)
            if not found or any(len(each) != len(batch[1]) for each in found):
                shapes = ", ".join(str(tuple(each.shape)) for each in found) or "nothing"
                raise InvalidEstimate(
                    f"radius = {self.radius:g} moves the word embeddings of each sample, and {name} looks up {shapes} "
                    f"for {len(batch[1])} samples: leave it out"
                )
            slopes: Any = (
                torch.autograd.grad(losses.sum(), found, allow_unused=True) if losses.requires_grad else (None,)
            )
        if len(outputs) != len(found):
            raise InvalidEstimate(_otherwise(self.radius, name))
        if all(slope is None for slope in slopes):
            raise InvalidEstimate(
                f"radius = {self.radius:g}: torch finds no way from the losses back to the word embeddings of {name}: "
                "leave it out, or let the model compute its outputs without torch.no_grad() or detach()"
            )
        return _scaled(
            [
                torch.zeros_like(each).float() if slope is None else slope.float()
                for each, slope in zip(found, slopes, strict=True)
            ],
            self.radius,
        )


def _scaled(slopes: list[Tensor], radius: float) -> list[Tensor]:
    """Return slopes [samples, ...], those of each sample together as long as `radius`, or zero.

    >>> _scaled([torch.tensor([[3e-30], [0.0]]), torch.tensor([[4e-30], [0.0]])], radius=5.0)
    [tensor([[3.],
            [0.]]), tensor([[4.],
            [0.]])]
    """
    largest = torch.stack([each.flatten(1).abs().amax(1) for each in slopes]).amax(0)
    safe = torch.where(largest > 0, largest, 1.0)  # so that no square is too small or too large for float32
    units = [each / safe.view(-1, *[1] * (each.ndim - 1)) for each in slopes]
    lengths = torch.stack([each.flatten(1).square().sum(1) for each in units]).sum(0).sqrt().clamp(min=1.0)
    return [each * (radius / lengths).view(-1, *[1] * (each.ndim - 1)) for each in units]


def lookups_of(module: nn.Module) -> list[nn.Module]:
    """Return the modules that look up the word embeddings of a model: that which it names, and those that share it.

    >>> lookups_of(nn.Linear(3, 2))
    Traceback (most recent call last):
    cyber0.errors.InvalidEstimate: Linear names no word embeddings to move: give it a method embedding_module() that \
returns the module that looks them up, or leave the radius out
    """
    owner: Any = module
    try:
        words: Any = owner.embedding_module() if implements(owner, Embedding) else None
    except NotImplementedError:  # by a model of transformers that does not say which it is
        words = None
    if not isinstance(words, nn.Module):
        raise InvalidEstimate(
            f"{type(module).__name__} names no word embeddings to move: give it a method embedding_module() that "
            "returns the module that looks them up, or leave the radius out"
        )
    inside, weight = set(words.modules()), getattr(words, "weight", None)
    others = [
        each
        for each in module.modules()
        if isinstance(each, nn.Embedding) and each not in inside and each.weight is weight
    ]
    return [words, *others]


def _otherwise(radius: float, name: str) -> str:
    return (
        f"radius = {radius:g}: {name} looks up its words again on the way back, as activation checkpointing does, or "
        "in another order where they are moved: turn that off, or leave the radius out"
    )


@contextmanager
def _hooks(modules: Sequence[nn.Module], function: Callable[..., Tensor]) -> Generator[None]:
    """Let a function replace the outputs of modules within the context."""
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(function).remove)
        yield
