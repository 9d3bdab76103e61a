"""Methods that the class of a module can have, so that the module is measured faster.

None of them is needed: without them the same numbers are measured. `Embedding` alone is for something else, a radius.
"""

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import torch

if TYPE_CHECKING:
    from cyber0.layerwise.modules import SignPair

__all__ = [
    "Embedding",
    "OneTokenReader",
    "PaddableInputs",
    "Scorer",
    "SignPairModule",
    "SizedInputs",
    "declare_layerwise",
    "implements",
    "is_layerwise",
]

DECLARED = "_cyber0_layerwise"  # an attribute of modules
P = TypeVar("P")


@runtime_checkable
class Scorer(Protocol):
    """A model with a forward pass of fixed shapes, as language models have; it is measured layer by layer."""

    def scores(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what calling the module returns, by operations whose shapes do not depend on the inputs' values."""
        ...


@runtime_checkable
class SizedInputs(Protocol):
    """A model whose inputs [samples, width] are padded, so that short samples can be measured apart from long ones."""

    def sizes(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return how many values of each sample are not padding: [samples]."""
        ...


@runtime_checkable
class PaddableInputs(Protocol):
    """A model with `SizedInputs` whose inputs may be padded with -1 beyond the longest of them."""

    def widest(self) -> int:
        """Return how wide inputs may be padded."""
        ...


@runtime_checkable
class OneTokenReader(Protocol):
    """A model with `SizedInputs` whose scores are taken from the hidden states of one token of each sample."""

    def token_read(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the place of that token in each sample, [samples]; None if there is more than one."""
        ...


@runtime_checkable
class Embedding(Protocol):
    """A model that looks up an embedding for each token of a text."""

    def embedding_module(self) -> torch.nn.Module:
        """Return the module that looks them up; its outputs are [samples, tokens, width]."""
        ...


@runtime_checkable
class SignPairModule(Protocol):
    """A module that runs both halves of a batch itself, the first at w + mu z and the second at w - mu z."""

    def forward_pair(self, signs: "SignPair", *inputs: Any, **named: Any) -> Any:
        """Return the output for a batch of two halves; `signs` gives the perturbed weights of each."""
        ...


def implements(value: object, protocol: type[P]) -> TypeGuard[P]:
    """Return whether the class of a value has the methods of a protocol.

    `isinstance` would also accept a child module or an attribute of that name.

    >>> model = torch.nn.Sequential()
    >>> model.scores = torch.nn.Linear(3, 2)
    >>> implements(model, Scorer)
    False
    """
    return issubclass(type(value), protocol)


def declare_layerwise(module: torch.nn.Module) -> None:
    """Declare that a module is to be measured layer by layer, whatever its class.

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    >>> declare_layerwise(model)
    >>> is_layerwise(model), is_layerwise(torch.nn.Linear(3, 2))
    (True, False)
    """
    module.__dict__[DECLARED] = True


def is_layerwise(module: object) -> bool:
    """Return whether a model is measured layer by layer: if it is a `Scorer`, as language models are, or declared."""
    return implements(module, Scorer) or DECLARED in vars(module)
