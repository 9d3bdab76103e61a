"""A language model that gives each word of a text a label: the module that clients train."""

from typing import Any

import torch
from torch import nn

from cyber0.tasks.text.classifier import AT_ONCE, arguments, numbers_per_token, zeros
from cyber0.tasks.text.prompts import Kind
from cyber0.tasks.text.seq2seq import teach_relative_bias
from cyber0.tasks.text.tokens import lengths, trimmed

__all__ = ["Tagger"]

Tensor = torch.Tensor


class Tagger(nn.Module):
    """A module that maps texts [batch, length], padded with PAD, to the scores of labels [batch, length, labels].

    A linear layer, zero at the start, reads the last hidden state of each token.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "encoder"))).load()
    >>> Tagger(model, labels=3)(torch.tensor([[5, 6, 7, -1], [8, -1, -1, -1]])).shape
    torch.Size([2, 4, 3])
    """

    whole: Any
    kind: Kind = "pooled"

    def __init__(self, whole: Any, labels: int) -> None:
        super().__init__()
        whole.eval()
        teach_relative_bias(whole)
        for name, child in whole.named_children():
            self.add_module(name, child)
        self.__dict__["whole"] = whole  # registered by its children, so that parameters keep their names
        self.classifier = zeros(whole.config.hidden_size, labels)
        for name, parameter in whole.named_parameters():
            if name.startswith("pooler."):  # no score depends on it
                parameter.requires_grad_(False)

    def head_module(self) -> nn.Module:
        """Return what `train = 'head'` trains: the linear layer."""
        return self.classifier

    def embedding_module(self) -> nn.Module:
        """Return what looks up the embeddings of words."""
        return self.whole.get_input_embeddings()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of any number of texts, as wide as they are, computed in parts that fit into memory."""
        step = max(1, AT_ONCE // max(1, int(lengths(tokens).max())))
        parts = [self.scores(trimmed(tokens[first : first + step])) for first in range(0, len(tokens), step)]
        width = tokens.shape[1]
        return torch.cat([nn.functional.pad(part, (0, 0, 0, width - part.shape[1])) for part in parts])

    def scores(self, tokens: Tensor) -> Tensor:
        """Return the scores of one batch at its full width: no shape depends on the values of tokens."""
        return self.classifier(self.whole(**arguments(self.whole, tokens)).last_hidden_state.float())

    def sizes(self, tokens: Tensor) -> Tensor:
        """Return how many tokens each text has."""
        return lengths(tokens)

    def numbers_per_token(self) -> int:
        """Return how many numbers a layer holds at once for each token, roughly."""
        return numbers_per_token(self.whole)

    def tokens_at_once(self) -> int:
        """Return how many tokens `forward` takes at a time."""
        return AT_ONCE
