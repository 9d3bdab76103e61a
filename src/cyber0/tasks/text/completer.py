"""A causal language model that is tuned to complete prompts: the module that clients train.

An input is a row of tokens, padded with PAD: how many tokens the completion has, then the prompt and the completion.
"""

from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidModel
from cyber0.layerwise.modules import SignPair
from cyber0.tasks.text.classifier import AT_ONCE, arguments, numbers_per_token
from cyber0.tasks.text.prompts import Kind
from cyber0.tasks.text.tokens import PAD, lengths, trimmed

__all__ = ["Completer", "CompletionLosses"]

Tensor = torch.Tensor
LOGITS = 2**24  # logits that are computed at a time, 64 MiB


class CompletionLosses(nn.Module):
    """The losses of completions, in the place of a model's output embeddings, whose weights it has under their names.

    Logits are computed for the completions' positions alone, and for some of them at a time: with all tokens of the
    vocabulary, those of a batch would take more memory than the rest of the model.

    >>> full = nn.Linear(4, 100, bias=False)
    >>> hidden, targets = torch.randn(2, 3, 4), torch.tensor([[5, 6, 7], [8, PAD, PAD]])
    >>> found = CompletionLosses(full)(hidden, targets)
    >>> own = nn.functional.cross_entropy(full(hidden[0]), targets[0])
    >>> torch.allclose(found[0, 0], own)
    True
    """

    def __init__(self, full: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = full.weight, full.bias

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return two numbers for each sample, [batch, 2]: the mean loss of its tokens, and 1 if all are likeliest."""
        return _measured(hidden, targets, self.weight, self.bias)

    def forward_pair(self, signs: SignPair, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the same for both signs in a walk."""
        weights = signs.source.matrix(self.weight, hidden.dtype)
        biases: Any = signs.vector(self.bias, hidden.dtype)
        parts = [
            _measured(hidden[half], targets[half], weight, bias)
            for half, weight, bias in zip(signs.halves(hidden), weights, biases, strict=False)
        ]
        return torch.cat(parts)


def _measured(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Any) -> Tensor:
    known = targets != PAD
    step = max(1, LOGITS // (len(hidden) * len(weight)))
    losses, right = torch.zeros_like(hidden[..., 0]), torch.ones_like(known)
    for first in range(0, hidden.shape[1], step):
        part = slice(first, first + step)
        logits, wanted = nn.functional.linear(hidden[:, part], weight, bias), targets[:, part].clamp(min=0).long()
        taken = logits.gather(2, wanted[..., None])[..., 0]
        losses[:, part] = logits.logsumexp(2) - taken
        right[:, part] = taken >= logits.amax(2)
    count = known.sum(1).clamp(min=1)
    return torch.stack([(losses * known).sum(1) / count, (right | ~known).all(1).to(losses.dtype)], dim=1)


class Completer(nn.Module):
    """A module that maps rows of tokens [batch, 1 + length] to what `CompletionLosses` gives, [batch, 2].

    `slots` is how many tokens a completion has at most.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
    >>> rows = torch.tensor([[2, 5, 6, 7, 8], [1, 5, 6, PAD, PAD]])   # "5 6", then "7 8"; "5", then "6"
    >>> logits = model(torch.tensor([[5, 6, 7, 8]])).logits[0]
    >>> completer = Completer(model, slots=2)
    >>> own = nn.functional.cross_entropy(logits[1:3], torch.tensor([7, 8]))
    >>> torch.allclose(completer(rows)[0, 0], own, atol=1e-5)
    True
    """

    whole: Any
    kind: Kind = "causal"

    def __init__(self, whole: Any, slots: int) -> None:
        super().__init__()
        self.slots = slots
        whole.eval()
        _check_logits(whole)
        decoder = whole.get_output_embeddings()
        name = next(name for name, module in whole.named_modules() if module is decoder)
        parent, _, attribute = name.rpartition(".")
        setattr(whole.get_submodule(parent), attribute, CompletionLosses(decoder))
        self.__dict__["top_name"] = name
        for child_name, child in whole.named_children():
            self.add_module(child_name, child)
        self.__dict__["whole"] = whole  # registered by its children, so that parameters keep their names

    def head_module(self) -> nn.Module:
        """Return what `train = 'head'` trains: the output embeddings, which may be tied to the input's."""
        return self.whole.get_submodule(self.__dict__["top_name"])

    def forward(self, rows: Tensor) -> Tensor:
        """Return the losses of any number of rows, computed in parts that fit into memory."""
        sizes = lengths(rows)
        longest = int(sizes.max())
        if len(rows) * longest <= AT_ONCE:
            return self.scores(trimmed(rows))
        order = sizes.argsort(stable=True)
        step = max(1, AT_ONCE // longest)
        parts = [self.scores(trimmed(rows[order[first : first + step]])) for first in range(0, len(rows), step)]
        return torch.cat(parts)[order.argsort()]

    def scores(self, rows: Tensor) -> Tensor:
        """Return the losses of one batch at its full width: no shape depends on the values of tokens."""
        count, tokens = rows[:, :1], rows[:, 1:]
        hidden = self.whole.base_model(**self.inputs(tokens)).last_hidden_state.float()
        slots = torch.arange(min(self.slots, tokens.shape[1]), device=rows.device)
        places = (lengths(tokens)[:, None] - count + slots).clamp(max=tokens.shape[1] - 1).long()
        targets = torch.where(slots < count, tokens.gather(1, places), PAD)
        before = (places - 1).clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])
        return self.head_module()(hidden.gather(1, before), targets)

    def sizes(self, rows: Tensor) -> Tensor:
        """Return how many values of each row are not padding."""
        return lengths(rows)

    def numbers_per_token(self) -> int:
        """Return how many numbers a layer holds at once for each token, roughly."""
        return numbers_per_token(self.whole)

    def tokens_at_once(self) -> int:
        """Return how many tokens `forward` takes at a time."""
        return AT_ONCE

    def inputs(self, tokens: Tensor) -> dict[str, Any]:
        """Return the arguments of the transformers model; PAD becomes a token it knows, which attention leaves out."""
        return arguments(self.whole, tokens) | {"use_cache": False}


def _check_logits(whole: Any) -> None:
    """Refuse a model whose logits are not its output embeddings times the last hidden states."""
    decoder, probe = whole.get_output_embeddings(), torch.tensor([[3, 5, 4, 6]])
    if not isinstance(decoder, nn.Linear):
        raise InvalidModel(f"the output embeddings are {type(decoder).__name__}, not Linear: use another model")
    with torch.no_grad():
        own = whole(input_ids=probe, use_cache=False).logits
        ours = decoder(whole.base_model(input_ids=probe, use_cache=False).last_hidden_state)
    if own.shape != ours.shape or not torch.allclose(own, ours, rtol=1e-4, atol=1e-5):
        raise InvalidModel(
            f"{type(whole).__name__} changes its logits after the output embeddings, which is not supported: use "
            "another model"
        )
