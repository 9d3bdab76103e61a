"""Tasks on texts whose words have labels, such as names of persons and places.

token_classification(directory, source, model=..., labels=('O', 'B-PER', 'I-PER')) -> Task
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from cyber0 import registry
from cyber0.config import sentences
from cyber0.errors import InvalidConfig, InvalidData, UnknownName
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.losses import OutputLoss
from cyber0.tasks.meaning import digest
from cyber0.tasks.task import Metric, Task
from cyber0.tasks.text import adapters, checkpoint, sources
from cyber0.tasks.text.sources import Row
from cyber0.tasks.text.tagger import Tagger
from cyber0.tasks.text.tokens import PAD, describe_tokenizer, lengths, padded

__all__ = ["Options", "entities", "entity_f1", "tagger_of", "token_classification"]

Entity = tuple[str, int, int]
NO_LABEL = -100  # of tokens that begin no word


class Options(BaseModel):
    """The options of the task.

    Attributes:
        labels: The names of all labels; the data have names, or numbers in this order.
        words: The column of the words: a list, or a text with spaces between them.
        tags: The column of their labels, likewise.
        train: The file to train on, in the directory; as of the task `completion`.
        test: The same to test on; without it a share of the rows of `train`.
        holdout: How large that share is; which rows it has is decided by `seed`.
        seed: Decides that.
        tests: How many test rows to use at most.
        length: How many tokens a text may have; the words after them are left out.
        adapter: Train an adapter instead of the model, e.g. 'lora(rank=8)'.

    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    labels: tuple[str, ...] = Field(min_length=2)
    words: str = "tokens"
    tags: str = "tags"
    train: str | None = None
    test: str | None = None
    holdout: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0)
    tests: int | None = Field(None, ge=1)
    length: int = Field(128, ge=4)
    adapter: str | None = None


def token_classification(
    directory: Path | str | None = None, source: str = "auto", *, model: str | None = None, **options: Any
) -> Task:
    r"""Return the task of labelling words; the loss of a text is the mean cross-entropy over its words.

    A word's label is read at its first token. At an evaluation `word_accuracy` is measured, and `entity_f1`, the F1 of
    whole entities, where labels are written B-..., I-... and O.

    >>> import json, tempfile
    >>> from cyber0.tasks.text import tiny
    >>> folder = Path(tempfile.mkdtemp())
    >>> row = json.dumps({"tokens": ["a", "lovely", "film"], "tags": ["O", "O", "B"]})
    >>> _ = (folder / "train.jsonl").write_text(f"{row}\n" * 5)
    >>> task = token_classification(folder, model=str(tiny.model(folder / "model", "encoder")), labels=("O", "B"))
    >>> task.dataset.train_labels[0]
    array([-100,    0,    0,    1, -100])
    """
    known, found = _options(options), _checkpoint(model)
    if source != "auto":
        raise UnknownName("source", source, ["auto"])
    rows = sources.records(sources.locate(directory, known.train, known.test))
    parts = sources.divide(*rows, share=known.holdout, seed=known.seed, tests=known.tests)
    length = min(known.length, found.length)
    encoded = [_encode(found.tokenizer, part, known, length) for part in parts]
    width = max(inputs.shape[1] for inputs, _ in encoded)
    (inputs, labels), (tests, held) = (
        (_wider(inputs, width, PAD), _wider(labels, width, NO_LABEL)) for inputs, labels in encoded
    )
    origin = f"labels of words, from {sources.folder_of(directory)}, tokens of {model}"
    dataset = Dataset(inputs, labels, tests, held, classes=None, source=origin, lengths=lengths)
    meaning = {
        "labels": digest(list(known.labels)),
        "tokenizer": digest(describe_tokenizer(found.tokenizer)),
        "preprocessing": digest({"kind": "words", "length": length}),
    }
    metrics: dict[str, Metric] = {
        "word_accuracy": _word_accuracy,
        "entity_f1": lambda outputs, targets: entity_f1(*_named(outputs, targets, known.labels)),
    }
    return Task("token-classification", dataset, _builder(found, known), LOSS, metrics, meaning)


def tagger_of(task: str, model: str, seed: int) -> tuple[Tagger, tuple[str, ...], int]:
    """Build the untrained model of a task by its name, without data, its labels, and how long texts may be.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> model = str(tiny.model(tempfile.mkdtemp(), "encoder"))
    >>> tagger_of("token-classification(labels=('O', 'B'))", model, seed=0)[1]
    ('O', 'B')
    """
    known, found = _options(registry.check("task", task, ["token-classification"])[1]), _checkpoint(model)
    return _builder(found, known)(seed), known.labels, min(known.length, found.length)


def _options(given: dict[str, Any]) -> Options:
    registry.check_options(given, Options, "token-classification")
    if isinstance(given.get("labels"), list):
        given = {**given, "labels": tuple(cast("list[Any]", given["labels"]))}
    try:
        return Options(**given)
    except ValidationError as error:
        raise InvalidConfig(f"token-classification: {sentences(error)}; write labels=('O', 'B-PER', 'I-PER')") from None


def _checkpoint(model: str | None) -> checkpoint.Checkpoint:
    if model is None:
        raise InvalidConfig("the task 'token-classification' needs a language model: name one by --model")
    return checkpoint.get_checkpoint(model, "pooled")


def _encode(
    tokenizer: Any, part: Iterable[Row], options: Options, length: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the tokens of texts, and the label of each token that begins a word."""
    tokens: list[list[int]] = []
    tags: list[list[int]] = []
    for where, row in part:
        words, labels = _columns(row, options, where)
        ids, starts = _tokens_of(tokenizer, words, length)
        found = [NO_LABEL] * len(ids)
        for place, label in zip(starts, labels, strict=False):  # words after `length` tokens have none
            found[place] = label
        if not starts:
            raise InvalidData(f"{where}: none of its words is left within {length} tokens: allow more, by length=...")
        tokens.append(ids)
        tags.append(found)
    labels = padded(tags).astype(np.int64)
    return padded(tokens), np.where(labels == PAD, NO_LABEL, labels)


def _columns(row: Any, options: Options, where: str) -> tuple[list[str], list[int]]:
    known = cast("dict[str, Any]", row if isinstance(row, dict) else {})
    found = [known.get(column) for column in (options.words, options.tags)]
    words, tags = (cast("list[Any]", each.split() if isinstance(each, str) else each) for each in found)
    if type(words) is not list or type(tags) is not list or len(words) != len(tags) or not words:
        raise InvalidData(
            f"{where}: give {options.words} and {options.tags} as two lists of one length, or as texts with spaces"
        )
    return [str(word) for word in words], [_number(tag, options, where) for tag in tags]


def _number(tag: Any, options: Options, where: str) -> int:
    if tag in options.labels:
        return options.labels.index(tag)
    if isinstance(tag, int) and 0 <= tag < len(options.labels):
        return tag
    raise InvalidData(
        f"{where}: the label {tag!r} is not one of {', '.join(options.labels)}, nor a number from 0 to "
        f"{len(options.labels) - 1}"
    )


def _tokens_of(tokenizer: Any, words: list[str], length: int) -> tuple[list[int], list[int]]:
    """Return the tokens of a text, and where each of its words begins."""
    settings = {"return_offsets_mapping": True, "truncation": True, "max_length": length, "verbose": False}
    found = tokenizer(" ".join(words), **settings)
    begins = list(accumulate((len(word) + 1 for word in words), initial=0))
    starts: list[int] = []
    for place, (begin, end) in enumerate(found.offset_mapping):
        # A token may begin with the space before its word.
        if len(starts) < len(words) and begin <= begins[len(starts)] < end:
            starts.append(place)
    return list(found.input_ids), starts


def _wider(array: NDArray[Any], width: int, value: int) -> NDArray[Any]:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=value)


def _builder(found: checkpoint.Checkpoint, options: Options) -> Callable[[int], Tagger]:
    load = adapters.loader(found, options.adapter)
    return lambda seed: Tagger(load(seed), len(options.labels)).eval()


def _mean_over_words(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    known = targets >= 0
    losses = nn.functional.cross_entropy(outputs.transpose(1, 2), targets.clamp(min=0), reduction="none")
    return (losses * known).sum(1) / known.sum(1).clamp(min=1)


LOSS = OutputLoss(_mean_over_words)


def _word_accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    known = targets >= 0
    return float((outputs.argmax(2) == targets)[known].double().mean())


def _named(
    outputs: torch.Tensor, targets: torch.Tensor, labels: Sequence[str]
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the labels that were given to the words of each text, and the true ones."""
    known = targets >= 0

    def names(numbers: torch.Tensor) -> list[list[str]]:
        rows = [row[kept].numpy() for row, kept in zip(numbers, known, strict=True)]
        return [[labels[int(number)] for number in row] for row in rows]

    return names(outputs.argmax(2)), names(targets)


def entity_f1(given: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> float:
    """Return the F1 of whole entities over all texts, of the labels of their words.

    >>> entity_f1([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "B-PER"]])
    0.5
    """
    found = [(set(entities(one)), set(entities(other))) for one, other in zip(given, true, strict=True)]
    right = sum(len(one & other) for one, other in found)
    total = sum(len(one) + len(other) for one, other in found)
    return 2 * right / total if total else 1.0


def entities(labels: Sequence[str]) -> list[Entity]:
    """Return the entities of a text: their kind, their first word, and the one after their last.

    An entity begins with B-, or with an I- that continues none of its kind, as CoNLL's evaluation has it.

    >>> entities(["B-PER", "I-PER", "I-LOC", "O", "B-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 2, 3), ('LOC', 4, 5), ('LOC', 5, 6)]
    """
    found: list[Entity] = []
    for place, label in enumerate(labels):
        mark, _, kind = label.partition("-")
        if label == "O":
            continue
        last = found[-1] if found else None
        if mark == "I" and last is not None and last[0] == kind and last[2] == place:
            found[-1] = (kind, last[1], place + 1)
        else:
            found.append((kind, place, place + 1))
    return found
