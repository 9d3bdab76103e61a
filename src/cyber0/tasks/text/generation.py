"""Metrics of the texts that a model writes: functions of all texts and of the completions in the data.

    metric(texts, references) -> float

One is found by name, or as `package.module:object`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from cyber0 import registry
from cyber0.errors import InvalidUserCode
from cyber0.tasks.task import ModelMetric
from cyber0.tasks.text.tokens import lengths
from cyber0.user_code import calling, label_of

__all__ = ["METRICS", "TextMetric", "generated_metric", "rouge_l", "word_f1"]

TextMetric = Callable[[Sequence[str], Sequence[str]], float]


def word_f1(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean F1 of the words that each text shares with its reference, as SQuAD measures answers.

    >>> word_f1(["the red house"], ["a red house"])
    0.6666666666666666
    """
    return sum(map(_word_f1, texts, references)) / len(references)


def _word_f1(text: str, reference: str) -> float:
    said, wanted = text.lower().split(), reference.lower().split()
    return _f1((Counter(said) & Counter(wanted)).total(), len(said), len(wanted))


def rouge_l(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean ROUGE-L (Lin, 2004): the F1 of the longest words in common, in their order.

    >>> rouge_l(["red the house"], ["the red house"])
    0.6666666666666666
    """
    return sum(map(_rouge_l, texts, references)) / len(references)


def _rouge_l(text: str, reference: str) -> float:
    said, wanted = text.lower().split(), reference.lower().split()
    best = [0] * (len(wanted) + 1)
    for word in said:
        before = 0
        for place, other in enumerate(wanted, 1):
            before, best[place] = best[place], before + 1 if word == other else max(best[place], best[place - 1])
    return _f1(best[-1], len(said), len(wanted))


def _f1(shared: int, said: int, wanted: int) -> float:
    return 2 * shared / (said + wanted) if shared else float(said == wanted == 0)


METRICS: dict[str, TextMetric] = {"rouge-l": rouge_l, "word-f1": word_f1}


def generated_metric(name: str, tokenizer: Any, limit: int) -> tuple[str, ModelMetric]:
    """Return a metric of generated texts by its name, and what reports call it.

    >>> from cyber0.tasks.text.tiny import tokenizer
    >>> generated_metric("word-f1", tokenizer("llama"), limit=8)[0]
    'word_f1'
    """
    found = registry.resolve("metric", name, METRICS)
    own: Any = found
    function = own.func if isinstance(own, partial) else own  # pyright: ignore[reportUnknownMemberType]
    called: str = getattr(function, "__name__", type(function).__name__)
    return called, ModelMetric(_Generated(found, tokenizer, limit))


class _Generated:
    """Lets a model continue all prompts, and compares what it writes with the completions."""

    def __init__(self, metric: TextMetric, tokenizer: Any, limit: int) -> None:
        self.metric, self.tokenizer, self.limit = metric, tokenizer, limit

    def __call__(self, model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        ends = lengths(inputs)
        rows: Any = inputs.cpu().numpy()
        references = [
            self._text(row[int(end - count) : int(end)].tolist())
            for row, end, count in zip(rows, ends, targets, strict=True)
        ]
        texts = list(map(self._text, model.generate(inputs, self.limit)))
        with calling("metric", self.metric, f" (on {len(texts)} texts and as many references)"):
            value: Any = self.metric(texts, references)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise InvalidUserCode(
                f"metric {label_of(self.metric)} returned {type(value).__name__}: it must return one number"
            ) from None

    def _text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True).strip()
