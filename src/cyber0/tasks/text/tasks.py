"""Tasks on texts: a data set, a prompt and a language model.

    make(directory, source, model=...) -> Task

Each takes the options of `Options`, in its name as `sst2(shots=16, adapter='lora(rank=4)')`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cyber0 import registry
from cyber0.config import sentences
from cyber0.errors import InvalidConfig, InvalidData, UnknownName
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.meaning import digest
from cyber0.tasks.task import Task
from cyber0.tasks.text import adapters, checkpoint, hub, prompts, rows, sources
from cyber0.tasks.text.checkpoint import Checkpoint
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.completer import WordScorer
from cyber0.tasks.text.heads import Head
from cyber0.tasks.text.prompts import Prompt
from cyber0.tasks.text.rows import Rows
from cyber0.tasks.text.tokens import describe_tokenizer, encode, lengths, word_ids, word_tokens

__all__ = ["Options", "assemble", "classifier_of", "snli", "sst2", "text_classification", "trec"]

Folder = Path | str | None


class Options(BaseModel):
    """The options of any task on texts.

    Attributes:
        shots: How many samples of each class to train on; None for all, and all of a class that has fewer.
        seed: Decides which samples these are.
        tests: How many test samples to use at most.
        head: masked, causal, seq2seq or pooled; by default what the model was trained as.
        adapter: Train an adapter instead of the model, e.g. 'lora(rank=8)'.
        length: How many tokens a prompt may have; a longer one is cut.
        prompt: A prompt file of yours.
        pooling: How a pooled head reads hidden states, mean or cls; by default as the model's folder says.
        normalise: Whether a pooled head scales sentence embeddings to length one; by default as the folder says.
        scale: What a pooled head multiplies its logits with.
        holdout: The share of rows to test on, chosen by seed, if there are no test rows.

    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    shots: int | None = Field(512, ge=1)
    seed: int = Field(0, ge=0)
    tests: int | None = Field(None, ge=1)
    head: str = "auto"
    adapter: str | None = None
    length: int | None = Field(None, ge=4)
    prompt: str | None = None
    pooling: str | None = None
    normalise: bool | None = None
    scale: float = Field(1.0, gt=0)
    holdout: float = Field(0.2, gt=0, lt=1)


def sst2(directory: Folder = None, source: str = "auto", *, model: str | None = None, **options: Any) -> Task:
    """Return the task SST-2: is a film's review good or bad (Stanford Sentiment Treebank, as in GLUE).

    >>> sst2(source="sst2")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: the task 'sst2' needs a language model: name one by --model, a hub id or a folder
    """
    return _shipped("sst2", directory, source, model, options)


def snli(directory: Folder = None, source: str = "auto", *, model: str | None = None, **options: Any) -> Task:
    """Return the task SNLI: does a sentence follow from another, contradict it, or neither (Bowman et al., 2015).

    >>> snli("no-such-folder", model="roberta-large")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: there is no folder no-such-folder
    """
    return _shipped("snli", directory, source, model, options)


def trec(directory: Folder = None, source: str = "auto", *, model: str | None = None, **options: Any) -> Task:
    """Return the task TREC: which of six kinds of things does a question ask for (Li and Roth, 2002).

    >>> trec(model="roberta-large", shot=16)
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown option 'shot' of trec: use one of ... (did you mean 'shots'?)
    """
    return _shipped("trec", directory, source, model, options)


def _shipped(name: str, directory: Folder, source: str, model: str | None, given: dict[str, Any]) -> Task:
    options = _options(name, model, given)
    if source not in ("auto", name):
        raise UnknownName("source", source, ["auto", name])
    prompt = prompts.load(options.prompt or name, None if directory is None else Path(directory))
    prompt = prompt.model_copy(update={"data": prompts.load(name).data})
    paths = rows.locate(name, prompt, None if directory is None else Path(directory))
    columns = _columns(prompt)
    train, test = (rows.read(path, prompt, columns) for path in paths)
    return assemble(name, prompt, train, test, str(model), options, str(paths[0].parent))


def text_classification(
    directory: Folder = None,
    source: str = "auto",
    *,
    model: str | None = None,
    prompt: str | None = None,
    train: str | None = None,
    test: str | None = None,
    dataset: str | None = None,
    **options: Any,
) -> Task:
    """Return a task on texts of your own: a prompt, and rows from files or from a Hugging Face data set.

    Files are named here or in the prompt's [data], and looked for in the directory, which may be a file of rows itself;
    the prompt then lies beside it. `dataset` is `name` or `name:configuration` on the hub, or a folder that `datasets`
    can read; the package `datasets` must be installed.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> folder = tiny.data(tempfile.mkdtemp())
    >>> text_classification(folder, model=str(tiny.model(folder / "model")), prompt="prompt.toml", shots=4).dataset
    Dataset(8 + 12 samples of 2 classes: tiny reviews, from ..., tokens of ...)
    """
    known = _options("text-classification", model, options)
    if source != "auto":
        raise UnknownName("source", source, ["auto"])
    if prompt is None:
        raise InvalidConfig(
            "text-classification needs a prompt: text-classification(prompt='my.toml'), see docs/text.md"
        )
    folder = sources.folder_of(directory)
    if not folder.is_dir():
        raise InvalidData(f"there is no folder {folder}")
    form = prompts.load(prompt, folder)
    if dataset is not None:
        dataset = str(folder / dataset) if (folder / dataset).is_dir() else dataset
        train_rows, test_rows = hub.read(dataset, form, _columns(form))
    else:
        located = sources.locate(directory, train or form.data.train, test or form.data.test)
        train_rows, test_rows = _read(located, form)
    parts = (train_rows, test_rows) if test_rows else rows.split(train_rows, known.holdout, known.seed)
    return assemble("text-classification", form, *parts, str(model), known, dataset or str(folder))


def _read(located: sources.Located, prompt: Prompt) -> tuple[Rows, Rows | None]:
    train, test = located
    columns = _columns(prompt)
    own, held = hub.read(str(train), prompt, columns) if train.is_dir() else (rows.read(train, prompt, columns), None)
    return own, held if test is None else rows.read(test, prompt, columns)


def _options(name: str, model: str | None, given: dict[str, Any]) -> Options:
    registry.check_options(given, Options, name)
    if model is None:
        raise InvalidConfig(f"the task {name!r} needs a language model: name one by --model, a hub id or a folder")
    try:
        return Options(**given)
    except ValidationError as error:
        raise InvalidConfig(f"{name}: {sentences(error)}") from None


def _columns(prompt: Prompt) -> tuple[str, ...]:
    """Return all columns that any of the prompts shows; which prompt is used depends on the model."""
    return tuple(dict.fromkeys(column for kind in prompt.prompts for column in prompt.columns(kind)))


def assemble(name: str, prompt: Prompt, train: Rows, test: Rows, model: str, options: Options, where: str) -> Task:
    """Make a task of rows to train and to test on, and a model by hub id or folder.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> some = Rows([{"text": "a dull film"}, {"text": "a lovely film"}], np.array([0, 1]))
    >>> folder = str(tiny.model(tempfile.mkdtemp(), "llama"))
    >>> task = assemble("mine", Prompt.of(tiny.PROMPT), some, some, folder, Options(), "my desk")
    >>> task.dataset.train_inputs.shape, sum(p.numel() for p in task.build(0).parameters())
    ((2, 5), 10608)
    """
    found = checkpoint.get_checkpoint(model, options.head)
    reading = _reading(found, prompt, options)
    train = train if options.shots is None else train.of(rows.few(train.labels, options.shots, options.seed))
    test = test if options.tests is None else test.of(_sample(len(test.labels), options.tests, options.seed))
    length = reading.length(options.length or prompt.length)
    inputs, tests = (encode(found.tokenizer, prompt, found.kind, part.texts, length) for part in (train, test))
    dataset = Dataset(
        *(inputs, train.labels, tests, test.labels),
        classes=len(prompt.words),
        source=f"{prompt.title}, from {where}, tokens of {model}",
        lengths=lengths,
    )
    return Task(name, dataset, reading.builder(options.adapter), meaning=_meaning(reading, prompt, length))


def classifier_of(
    task: str, model: str, seed: int, directory: Folder = None
) -> tuple[Classifier | WordScorer, Prompt, int]:
    """Build the untrained classifier of a task by its name, without data, its prompt, and how long prompts may be.

    A prompt file of one's own is looked for in the directory.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> folder = tiny.data(tempfile.mkdtemp())
    >>> model = str(tiny.model(folder / "model", "encoder"))
    >>> task = "text-classification(prompt='prompt.toml')"
    >>> classifier, prompt, _ = classifier_of(task, model, seed=0, directory=folder)
    >>> prompt.classes, classifier.kind
    (('bad', 'good'), 'pooled')
    >>> classifier_of("mnist", model, seed=0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: task = 'mnist' trains no language model: only one that does can be exported so
    """
    known = ("sst2", "snli", "trec", "text-classification")
    if (name := task.partition("(")[0].strip().replace("_", "-")) not in known:
        raise InvalidConfig(f"task = {task!r} trains no language model: only one that does can be exported so")
    name, given = registry.check("task", task, known)
    options = _options(name, model, {key: given[key] for key in given if key not in ("train", "test", "dataset")})
    prompt = prompts.load(options.prompt or name, None if directory is None else Path(directory))
    reading = _reading(checkpoint.get_checkpoint(model, options.head), prompt, options)
    return reading.builder(options.adapter)(seed), prompt, reading.length(options.length or prompt.length)


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """How a model's outputs become the scores of classes: by a head, or by the probabilities of whole words."""

    found: Checkpoint
    head: Head | None
    words: list[list[int]]
    owners: list[int]

    def length(self, wanted: int) -> int:
        """Return how many tokens a prompt may have, so that a word fits after it."""
        after = max(map(len, self.words)) if self.head is None and self.found.kind == "causal" else 0
        return min(wanted, self.found.length - after)

    def builder(self, adapter: str | None) -> Callable[[int], Classifier | WordScorer]:
        """Return the function of a seed that builds the model."""
        load, head = adapters.loader(self.found, adapter), self.head

        def build(seed: int) -> Classifier | WordScorer:
            whole = load(seed)
            return (WordScorer(whole, self.words, self.owners) if head is None else Classifier(whole, head)).eval()

        return build


def _reading(found: Checkpoint, prompt: Prompt, options: Options) -> _Reading:
    words = {} if found.kind == "pooled" else prompt.words_of(found.kind)
    ids = word_ids(found.tokenizer, words) if found.kind in ("causal", "seq2seq") else []
    owners = [place for place, own in enumerate(words.values()) for _ in own]
    whole = found.kind == "seq2seq" or any(len(word) > 1 for word in ids)
    return _Reading(found, None if whole else _head(found, prompt, options), ids, owners)


def _meaning(reading: _Reading, prompt: Prompt, length: int) -> dict[str, str]:
    """Return the digests of all that decides what a label means."""
    found, head = reading.found, reading.head
    words = [] if found.kind == "pooled" else [list(own) for own in prompt.words_of(found.kind).values()]
    how: dict[str, Any] = {}
    if head is not None and found.kind == "pooled":
        how = {"pooling": head.pooling, "normalise": head.normalise, "scale": head.scale}
    return {
        "labels": digest(list(prompt.classes)),
        "words": digest([own[0] if len(own) == 1 else own for own in words]),
        "prompt": digest(prompt.template(found.kind)),
        "tokenizer": digest(describe_tokenizer(found.tokenizer)),
        "preprocessing": digest({"kind": found.kind, "length": length, **how}),
    }


def _head(found: Checkpoint, prompt: Prompt, options: Options) -> Head:
    if found.kind != "pooled":
        mask, words = found.tokenizer.mask_token_id if found.kind == "masked" else None, prompt.words_of(found.kind)
        counts = tuple(map(len, words.values()))
        return Head(found.kind, len(words), word_tokens(found.tokenizer, words), mask, counts=counts)
    pooling, normalise = (options.pooling, False) if options.pooling else found.pooling()
    return pooled_head(
        len(prompt.words), pooling, normalise if options.normalise is None else options.normalise, options.scale
    )


def pooled_head(outputs: int, pooling: str, normalise: bool, scale: float = 1.0) -> Head:
    """Return the head of a linear layer over pooled hidden states.

    >>> pooled_head(2, "max", normalise=False)
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown pooling 'max': use one of cls, mean
    """
    if pooling not in ("mean", "cls"):
        raise UnknownName("pooling", pooling, ["mean", "cls"])
    return Head("pooled", outputs, pooling=pooling, normalise=normalise, scale=scale)


def _sample(count: int, most: int, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng((seed, rows.DOMAIN, 2)).permutation(count)[:most])
