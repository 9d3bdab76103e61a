"""Losses at the worst place near a text's word embeddings: adversarial training.

Miyato, Dai, Goodfellow. Adversarial Training Methods for Semi-Supervised Text Classification. ICLR 2017.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidEstimate
from cyber0.estimate import Losses
from cyber0.layerwise.protocols import Embedding, implements

__all__ = ["Nearby"]

Tensor = torch.Tensor
TINY = 1e-30  # a slope that is shorter moves nothing


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
    >>> nearby.worst(model, batch, module=model)                  # both numbers of a word moved by 0.5 / sqrt(2)
    tensor([1.7071, 1.7071])
    """

    losses: Losses
    radius: float

    def __call__(self, model: Any, batch: Any) -> Tensor:  # noqa: ARG002
        """Refuse: a model is not known by its outputs alone here."""
        raise InvalidEstimate(
            f"radius = {self.radius:g} moves word embeddings, for exact slopes of a language model: leave it out"
        )

    def worst(self, model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor], module: nn.Module) -> Tensor:
        """Return the losses of samples whose embeddings, which `module` has, are moved."""
        if not implements(module, Embedding):
            raise InvalidEstimate(
                f"radius = {self.radius:g} moves word embeddings, and {type(module).__name__} names none: give it a "
                "method embedding_module() that returns the module that looks them up"
            )
        words, outputs = module.embedding_module(), list[Tensor]()

        def kept(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            outputs.append(output.detach().requires_grad_())
            return outputs[-1]

        with _hook(words, kept):
            losses = self.losses(model, batch)
        if not outputs or any(len(each) != len(batch[1]) for each in outputs):
            raise InvalidEstimate(
                f"radius = {self.radius:g} moves the word embeddings of each sample, and {type(module).__name__} looks "
                f"up {[tuple(each.shape) for each in outputs]} for {len(batch[1])} samples: leave it out"
            )
        slopes = [each.float() for each in torch.autograd.grad(losses.sum(), outputs)]
        squares = torch.stack([each.flatten(1).square().sum(1) for each in slopes]).sum(0)
        factors = self.radius / squares.sqrt().clamp(min=TINY)
        moves = iter([each * factors.view(-1, *[1] * (each.ndim - 1)) for each in slopes])

        def moved(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            return output + next(moves).to(output.dtype)

        with _hook(words, moved):
            return self.losses(model, batch)


@contextmanager
def _hook(module: nn.Module, function: Callable[..., Tensor]) -> Generator[None]:
    """Let a function replace the outputs of a module within the context."""
    handle = module.register_forward_hook(function)
    try:
        yield
    finally:
        handle.remove()
