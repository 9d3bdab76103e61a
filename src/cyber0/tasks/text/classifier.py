"""A language model as a classifier of prompts: the module that clients train.

Its parameters have the names they have in transformers, so that a run's weights load there, and a pretrained file is
the base of a run.
"""

from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidModel
from cyber0.layerwise.patched import in_float32
from cyber0.tasks.text.heads import Head, restrict
from cyber0.tasks.text.prompts import Kind
from cyber0.tasks.text.seq2seq import teach_relative_bias
from cyber0.tasks.text.tokens import PAD, lengths, trimmed

__all__ = ["AT_ONCE", "Classifier", "arguments", "numbers_per_token", "widest", "zeros"]

Tensor = torch.Tensor
AT_ONCE = 2**15  # tokens of a batch, from which on it is taken in parts, shortest prompts first
SPARE = 16  # positions of a model that are left free: some count from 2, and some tasks write words after a prompt
WIDE = 8  # vectors of a token's width that a layer of a transformer holds at once


class Classifier(nn.Module):
    """A module that maps prompts [batch, length], padded with PAD, to the scores of their classes [batch, classes].

    `whole` is the transformers model, `base` its part without a head, and `top` the head, or None where calling the two
    one after the other does not give what `whole` gives. `label_head` says where logits are taken.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
    >>> classifier = Classifier(model, Head("causal", classes=2, label_ids=(7, 30)))
    >>> classifier(torch.tensor([[5, 6, 7], [8, PAD, PAD]])).shape
    torch.Size([2, 2])
    >>> next(iter(dict(classifier.named_parameters())))
    'model.embed_tokens.weight'
    """

    whole: Any
    top_name: str | None
    classifier: nn.Linear

    def __init__(self, whole: Any, head: Head, classifier: nn.Linear | None = None) -> None:
        super().__init__()
        self.label_head = head
        whole.eval()
        teach_relative_bias(whole)
        if head.kind != "pooled":
            restrict(whole, head.label_ids)
        for name, child in whole.named_children():
            self.add_module(name, child)
        # Registered by its children instead, so that parameters keep their names in transformers.
        self.__dict__["whole"] = whole
        self.__dict__["top_name"] = None
        if head.kind == "pooled":
            self.classifier = classifier or zeros(whole.config.hidden_size, head.classes)
            for name, parameter in whole.named_parameters():
                if name.startswith("pooler."):  # no score depends on it
                    parameter.requires_grad_(False)
        else:
            self.__dict__["top_name"] = _top_name(whole)
            self._prove()

    @property
    def kind(self) -> Kind:
        """What it is used as: masked, causal or pooled."""
        return self.label_head.kind

    @property
    def base(self) -> Any:
        """Return the model without its head."""
        return self.whole if self.label_head.kind == "pooled" else self.whole.base_model

    @property
    def top(self) -> Any:
        """Return the head, hidden states [..., hidden] -> [..., classes]; None where the whole model must be called."""
        return None if self.top_name is None else self.get_submodule(self.top_name)

    def head_module(self) -> nn.Module:
        """Return what `train = 'head'` trains: a pooled model's linear layer, else what stands over the base model."""
        if self.label_head.kind == "pooled":
            return self.classifier
        others = [child for child in self.whole.children() if child is not self.whole.base_model]
        return nn.ModuleList(others)

    def embedding_module(self) -> nn.Module:
        """Return what looks up the embeddings of words."""
        return self.whole.get_input_embeddings()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of any number of prompts, computed in parts that fit into memory."""
        sizes = lengths(tokens)
        longest = int(sizes.max())
        if len(tokens) * longest <= AT_ONCE:
            return self.scores(trimmed(tokens))
        order = sizes.argsort(stable=True)
        step = max(1, AT_ONCE // longest)
        parts = [self.scores(trimmed(tokens[order[first : first + step]])) for first in range(0, len(tokens), step)]
        return torch.cat(parts)[order.argsort()]

    def scores(self, tokens: Tensor) -> Tensor:
        """Return the scores of one batch at its full width: no shape depends on the values of tokens."""
        if self.label_head.kind != "pooled" and self.top_name is None:
            logits = _taken(self.whole(**self.inputs(tokens)).logits, self.label_head.positions(tokens))
            return self.label_head.average(logits)
        return self.read(self.base(**self.inputs(tokens)).last_hidden_state.float(), tokens)

    def sizes(self, tokens: Tensor) -> Tensor:
        """Return how many tokens each prompt has."""
        return lengths(tokens)

    def token_read(self, tokens: Tensor) -> Tensor | None:
        """Return where the hidden states of each prompt are read; None if they are pooled."""
        return None if self.label_head.kind == "pooled" else self.label_head.positions(tokens)

    def widest(self) -> int:
        """Return how wide prompts may be padded."""
        return widest(self.whole)

    def numbers_per_token(self) -> int:
        """Return how many numbers a layer holds at once for each token, roughly."""
        return numbers_per_token(self.whole)

    def tokens_at_once(self) -> int:
        """Return how many tokens `forward` takes at a time."""
        return AT_ONCE

    def inputs(self, tokens: Tensor) -> dict[str, Any]:
        """Return the arguments of the transformers model; PAD becomes a token it knows, which attention leaves out."""
        return arguments(self.whole, tokens) | ({"use_cache": False} if self.label_head.kind == "causal" else {})

    def read(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return the scores [batch, classes] from the last hidden states [batch, length, hidden] of `base`."""
        if self.label_head.kind == "pooled":
            return self.classifier(self.label_head.pool(hidden, tokens != PAD)) * self.label_head.scale
        return self.label_head.average(self.top(_taken(hidden, self.label_head.positions(tokens))))

    def _prove(self) -> None:
        """Keep calling `base` and `top` apart only if that gives the same scores as the whole model."""
        probe = torch.tensor([[3, 5, 4, 6], [4, 6, 5, PAD]])
        name = self.top_name
        if self.label_head.mask_id is not None:
            probe[:, 1] = self.label_head.mask_id
        with torch.no_grad(), in_float32(self):
            self.__dict__["top_name"] = None
            own = self.scores(probe)
            if own.shape[-1] != self.label_head.classes:
                raise InvalidModel(
                    f"{type(self.whole).__name__} reads its output embeddings beside their module, and cannot be asked "
                    "for the logits of label words alone: use head='pooled', or another model"
                )
            try:
                self.__dict__["top_name"] = name
                same = name is not None and torch.allclose(self.scores(probe), own, rtol=1e-4, atol=1e-5)
            except (TypeError, ValueError, RuntimeError, IndexError):
                same = False
        self.__dict__["top_name"] = name if same else None


def _taken(values: Tensor, positions: Tensor) -> Tensor:
    """Return one row of each sample: [batch, length, width] -> [batch, width]."""
    return values[torch.arange(len(values), device=values.device), positions]


def _top_name(whole: Any) -> str | None:
    """Return the name of the one child beside the base model, if there is exactly one."""
    others = [name for name, child in whole.named_children() if child is not whole.base_model]
    return others[0] if len(others) == 1 else None


def zeros(inputs: int, classes: int) -> nn.Linear:
    """Return a linear layer whose weights are zero, without drawing random numbers."""
    layer = nn.Linear(inputs, classes, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer


def numbers_per_token(whole: Any) -> int:
    """Return how many numbers a layer of a transformers model holds at once for each token, roughly."""
    return 2 * getattr(whole.config, "intermediate_size", 0) + WIDE * getattr(whole.config, "hidden_size", 0)


def widest(whole: Any) -> int:
    """Return how wide texts may be padded for a transformers model; 0 where it does not say how many positions it has.

    >>> from types import SimpleNamespace
    >>> widest(SimpleNamespace(config=SimpleNamespace(max_position_embeddings=512)))
    496
    """
    return max(0, (getattr(whole.config, "max_position_embeddings", None) or 0) - SPARE)


def arguments(whole: Any, tokens: Tensor) -> dict[str, Any]:
    """Return the arguments of a transformers model; PAD becomes a token it knows, which attention leaves out."""
    pad = getattr(whole.config, "pad_token_id", None)
    ids = torch.where(tokens == PAD, 0 if pad is None or pad < 0 else pad, tokens).long()
    return {"input_ids": ids, "attention_mask": (tokens != PAD).long()}
