"""Language models that are tuned to write texts, as the modules that clients train.

An input of `Completer` is a row of tokens, padded with PAD: how many tokens the completion has, then the prompt and the
completion. One of `WordScorer` is a prompt, and its outputs are the scores of classes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from cyber0.layerwise.modules import SignPair
from cyber0.tasks.text.classifier import AT_ONCE, arguments, numbers_per_token, widest
from cyber0.tasks.text.prompts import Kind
from cyber0.tasks.text.seq2seq import decoded, logit_scale, teach_relative_bias
from cyber0.tasks.text.tokens import PAD, lengths, padded, trimmed

__all__ = ["Completer", "CompletionLosses", "WordScorer", "Writer"]

Tensor = torch.Tensor
LOGITS = 2**24  # logits that are computed at a time, 64 MiB


class CompletionLosses(nn.Module):
    """The losses of completions, in the place of a model's output embeddings, whose weights it has under their names.

    Logits are computed for the completions' positions alone, and for some of them at a time: with all tokens of the
    vocabulary, those of a batch would take more memory than the rest of the model. Without targets, as the model's own
    code calls it to generate texts, it is the output embeddings.

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

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return two numbers for each sample, [batch, 2]: the mean loss of its tokens, and 1 if all are likeliest."""
        return _measured(hidden, targets, self.weight, self.bias)

    def forward_pair(self, signs: SignPair, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the same for both signs in a walk."""
        weights = signs.source.matrix(self.weight, hidden.dtype)
        biases: Any = signs.vector(self.bias, hidden.dtype)
        parts = [
            _measured(hidden[half], None if targets is None else targets[half], weight, bias)
            for half, weight, bias in zip(signs.halves(hidden), weights, biases, strict=False)
        ]
        return torch.cat(parts)


def _measured(hidden: Tensor, targets: Tensor | None, weight: Tensor, bias: Any) -> Tensor:
    if targets is None:
        return nn.functional.linear(hidden, weight, bias)
    known, rows = targets != PAD, hidden.flatten(0, 1)
    wanted, step = targets.clamp(min=0).long().view(-1, 1), max(1, LOGITS // len(weight))
    losses, right = torch.zeros_like(rows[:, 0]), torch.ones_like(known).view(-1)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        logits = nn.functional.linear(rows[part], weight, bias)
        taken = logits.gather(1, wanted[part])[:, 0]
        losses[part] = logits.logsumexp(1) - taken
        right[part] = taken >= logits.amax(1)
    losses, right = losses.view_as(known), right.view_as(known)
    count = known.sum(1).clamp(min=1)
    return torch.stack([(losses * known).sum(1) / count, (right | ~known).all(1).to(losses.dtype)], dim=1)


class Writer(nn.Module):
    """A causal or sequence-to-sequence model that measures how likely texts are after a prompt.

    `whole` is the transformers model, and `slots` how many tokens such a text has at most.
    """

    whole: Any
    kind: Kind
    top_name: str

    def __init__(self, whole: Any, slots: int) -> None:
        super().__init__()
        whole.eval()
        self.slots = slots
        self.kind = "seq2seq" if whole.config.is_encoder_decoder else "causal"
        if self.kind == "seq2seq":
            teach_relative_bias(whole)
        self.logit_scale = logit_scale(whole)
        decoder = whole.get_output_embeddings()
        name = next(name for name, module in whole.named_modules() if module is decoder)
        parent, _, attribute = name.rpartition(".")
        setattr(whole.get_submodule(parent), attribute, CompletionLosses(decoder))
        self.__dict__["top_name"] = name
        for child_name, child in whole.named_children():
            self.add_module(child_name, child)
        self.__dict__["whole"] = whole  # registered by its children, so that parameters keep their names

    @abstractmethod
    def scores(self, rows: Tensor) -> Tensor:
        """Return the outputs of one batch at its full width: no shape depends on the values of tokens."""

    def head_module(self) -> nn.Module:
        """Return what `train = 'head'` trains: the output embeddings, which may be tied to the input's."""
        return self.whole.get_submodule(self.top_name)

    def embedding_module(self) -> nn.Module:
        """Return what looks up the embeddings of words."""
        return self.whole.get_input_embeddings()

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs of any number of rows, computed in parts that fit into memory."""
        sizes = lengths(rows)
        longest = int(sizes.max())
        if len(rows) * longest <= AT_ONCE:
            return self.scores(trimmed(rows))
        order = sizes.argsort(stable=True)
        step = max(1, AT_ONCE // longest)
        parts = [self.scores(trimmed(rows[order[first : first + step]])) for first in range(0, len(rows), step)]
        return torch.cat(parts)[order.argsort()]

    def measured(self, tokens: Tensor, count: Tensor) -> Tensor:
        """Return what `CompletionLosses` gives, [batch, 2], for the last `count` [batch, 1] tokens of each row."""
        slots = torch.arange(min(self.slots, tokens.shape[1]), device=tokens.device)
        begin = lengths(tokens)[:, None] - count
        places = (begin + slots).clamp(max=tokens.shape[1] - 1).long()
        targets = torch.where(slots < count, tokens.gather(1, places), PAD)
        if self.kind == "seq2seq":
            inside = torch.arange(tokens.shape[1], device=tokens.device) < begin
            hidden = decoded(self.whole, arguments(self.whole, torch.where(inside, tokens, PAD)), targets)
            return self.head_module()(hidden.float() * self.logit_scale, targets)
        hidden = self.whole.base_model(**arguments(self.whole, tokens), use_cache=False).last_hidden_state
        before = (places - 1).clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])
        return self.head_module()(hidden.gather(1, before).float(), targets)

    def sizes(self, rows: Tensor) -> Tensor:
        """Return how many values of each row are not padding."""
        return lengths(rows)

    def widest(self) -> int:
        """Return how wide rows may be padded."""
        return widest(self.whole)

    def numbers_per_token(self) -> int:
        """Return how many numbers a layer holds at once for each token, roughly."""
        return numbers_per_token(self.whole)

    def tokens_at_once(self) -> int:
        """Return how many tokens `forward` takes at a time."""
        return AT_ONCE


class Completer(Writer):
    """Maps rows of tokens [batch, 1 + length] to the loss of their completions, and whether they are the likeliest.

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

    def scores(self, rows: Tensor) -> Tensor:
        """Return the losses of completions, and whether each is the likeliest: [batch, 2]."""
        return self.measured(rows[:, 1:], rows[:, :1])

    def generate(self, rows: Tensor, limit: int) -> list[list[int]]:
        """Return what the model itself writes after each prompt, always the likeliest token, up to `limit` of them.

        Rows are those of `forward`; their completions are not shown to the model. Prompts of one length are continued
        together, so that none is padded.

        >>> import tempfile
        >>> from cyber0.tasks.text import checkpoint, tiny
        >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
        >>> [len(text) for text in Completer(model, slots=2).generate(torch.tensor([[2, 5, 6, 7, 8]]), limit=3)]
        [3]
        """
        found: list[list[int]] = [[] for _ in rows]
        sizes = (lengths(rows) - 1 - rows[:, 0]).cpu()
        for size in sizes.unique().tolist():
            places = (sizes == size).nonzero().flatten()
            for some in places.split(max(1, AT_ONCE // (size + limit))):
                prompts = rows[some.to(rows.device), 1 : 1 + size].long()
                for place, text in zip(some.tolist(), self._continued(prompts, limit), strict=True):
                    found[place] = text
        return found

    def _continued(self, prompts: Tensor, limit: int) -> list[list[int]]:
        known = self.whole.generation_config
        ends = known.eos_token_id if known.eos_token_id is not None else self.whole.config.eos_token_id
        stops: set[int] = {int(end) for end in np.atleast_1d(ends)} if ends is not None else set()
        pad = min(stops, default=0)
        options: dict[str, Any] = {"max_new_tokens": limit, "do_sample": False, "num_beams": 1, "pad_token_id": pad}
        with torch.no_grad():
            said = self.whole.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
        begin = 1 if self.kind == "seq2seq" else prompts.shape[1]
        return [_until(row, stops) for row in said[:, begin:].tolist()]


def _until(tokens: list[int], stops: set[int]) -> list[int]:
    """Return tokens up to the first that ends a text, without it."""
    end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


class WordScorer(Writer):
    """Maps prompts [batch, length] to the scores of classes: the mean log-probability of the tokens of their words.

    `words` has the tokens of each word, and `owners` the class of each; the score of a class is the mean of its words'.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
    >>> logits = model(torch.tensor([[5, 6, 9]])).logits[0].log_softmax(1)
    >>> scorer = WordScorer(model, words=[[7], [9, 8]], owners=[0, 1])
    >>> found = scorer(torch.tensor([[5, 6]]))[0]
    >>> torch.allclose(found, torch.stack([logits[1, 7], (logits[1, 9] + logits[2, 8]) / 2]), atol=1e-5)
    True
    """

    words: Tensor
    means: Tensor

    def __init__(self, whole: Any, words: Sequence[Sequence[int]], owners: Sequence[int]) -> None:
        super().__init__(whole, slots=max(map(len, words)))
        self.register_buffer("words", torch.as_tensor(padded(words)), persistent=False)
        owned = nn.functional.one_hot(torch.tensor(owners)).float()
        self.register_buffer("means", owned / owned.sum(0), persistent=False)

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of classes: [batch, classes]."""
        longer = nn.functional.pad(rows, (0, self.words.shape[1]), value=PAD)
        places = lengths(rows)[:, None] + torch.arange(self.words.shape[1], device=rows.device)
        counts = lengths(self.words)
        found = [
            -self.measured(
                longer.scatter(1, places, word.to(rows.dtype).expand(len(rows), -1)), count.expand(len(rows), 1)
            )
            for word, count in zip(self.words, counts, strict=True)
        ]
        return torch.stack([each[:, 0] for each in found], dim=1) @ self.means
