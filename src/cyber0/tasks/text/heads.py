"""Heads: where a language model's logits are taken, and which of them are the scores of the classes."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidModel
from cyber0.layerwise.modules import SignPair, linear
from cyber0.tasks.text.prompts import Kind
from cyber0.tasks.text.tokens import lengths

__all__ = ["Head", "LabelRows", "restrict"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Head:
    """How a language model is made a classifier.

    masked, causal: scores are the logits of `label_ids` at the mask or at the last token; of a class that has several
    of these, by `counts`, their mean. That is their mean log-probability, up to a number that all classes share.
    pooled: they come from a linear layer over the mean of the last hidden states, or over the first (`cls`), scaled to
    length one if `normalise`; `scale` multiplies the logits, so that the layer learns in larger steps.

    >>> head = Head("masked", classes=2, label_ids=(50, 60), mask_id=4)
    >>> head.positions(torch.tensor([[0, 9, 4, 2], [4, 2, -1, -1]]))
    tensor([2, 0])
    >>> Head("causal", classes=2, label_ids=(50, 60)).positions(torch.tensor([[0, 9, 4, 2], [4, 2, -1, -1]]))
    tensor([3, 1])
    """

    kind: Kind
    classes: int
    label_ids: tuple[int, ...] = ()
    mask_id: int | None = None
    pooling: str = "mean"
    normalise: bool = False
    scale: float = 1.0
    counts: tuple[int, ...] = ()

    def average(self, logits: Tensor) -> Tensor:
        """Return the scores of classes [..., classes] from the logits of their words [..., words].

        >>> Head("causal", classes=2, label_ids=(5, 6, 7), counts=(2, 1)).average(torch.tensor([[1.0, 3.0, 5.0]]))
        tensor([[2., 5.]])
        """
        if max(self.counts, default=1) == 1 or logits.shape[-1] != sum(self.counts):
            return logits
        ends = list(accumulate(self.counts, initial=0))
        return torch.stack([logits[..., first:end].mean(-1) for first, end in pairwise(ends)], dim=-1)

    def positions(self, tokens: Tensor) -> Tensor:
        """Return where the logits of each prompt [batch, length] are taken: at its mask, or at its last token."""
        if self.kind == "masked":
            return (tokens == self.mask_id).int().argmax(1)
        return lengths(tokens) - 1

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the sentence embeddings [batch, hidden] of hidden states [batch, length, hidden]."""
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            weights = mask.to(hidden.dtype)[..., None]
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        return nn.functional.normalize(pooled, dim=1) if self.normalise else pooled


class LabelRows(nn.Module):
    """The rows of a model's output embeddings that belong to label words, in place of the whole matrix.

    It has the matrix and its bias as parameters, under the same names, and multiplies by the rows `ids` only.

    >>> full = nn.Linear(4, 100)
    >>> rows, x = LabelRows(full, (7, 30)), torch.ones(1, 4)
    >>> torch.equal(rows(x), full(x)[:, [7, 30]])
    True
    """

    ids: Tensor

    def __init__(self, full: nn.Linear, ids: tuple[int, ...]) -> None:
        super().__init__()
        self.weight, self.bias = full.weight, full.bias
        self.register_buffer("ids", torch.tensor(ids), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of the label words: [..., classes]."""
        bias: Any = self.bias
        return nn.functional.linear(features, self.weight[self.ids], None if bias is None else bias[self.ids])

    def rows_read(self) -> int:
        """Return how many rows of its weight it reads."""
        return len(self.ids)

    def forward_pair(self, signs: SignPair, features: Tensor) -> Tensor:
        """Return the same for both signs in a walk, with only these rows perturbed."""
        shape = 2, len(self.ids), self.weight.shape[1]
        plus, minus = torch.empty(shape, dtype=features.dtype, device=features.device)
        signs.source.rows(self.weight, self.ids, plus, minus)
        biases: Any = signs.vector(self.bias, features.dtype)
        chosen: Any = tuple(None if bias is None else bias[self.ids] for bias in biases)
        return linear(signs, features, (plus, minus), chosen)


def restrict(model: Any, ids: tuple[int, ...]) -> None:
    """Make a masked or causal transformers model compute the logits of label words only.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
    >>> restrict(model, (7, 30))
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 2])
    """
    decoder = model.get_output_embeddings()
    if not isinstance(decoder, nn.Linear):
        raise InvalidModel(f"the output embeddings are {type(decoder).__name__}, not Linear: use head='pooled'")
    name = next(name for name, module in model.named_modules() if module is decoder)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, LabelRows(decoder, ids))
