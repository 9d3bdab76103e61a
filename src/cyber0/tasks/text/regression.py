"""Tasks on texts whose targets are numbers: a linear layer over sentence embeddings, and squared errors.

text_regression(directory, source, model=..., text='{title} {body}', target='stars') -> Task
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cyber0 import registry
from cyber0.config import sentences
from cyber0.errors import InvalidConfig, InvalidData, UnknownName
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.losses import OutputLoss
from cyber0.tasks.meaning import digest
from cyber0.tasks.task import Metric, Task
from cyber0.tasks.text import adapters, checkpoint, sources
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.prompts import check_template, columns_of
from cyber0.tasks.text.sources import Row
from cyber0.tasks.text.tasks import pooled_head
from cyber0.tasks.text.tokens import describe_tokenizer, encode_texts, lengths

__all__ = ["Options", "regressor_of", "text_regression"]


class Options(BaseModel):
    """The options of the task.

    Attributes:
        text: How a row becomes a text; columns of the data stand in braces.
        target: The column of the number.
        centre: What is subtracted from targets.
        spread: What they are divided by then; with both, targets should be of about the size of one.
        train: The file to train on, in the directory; as of the task `completion`.
        test: The same to test on; without it a share of the rows of `train`.
        holdout: How large that share is; which rows it has is decided by `seed`.
        seed: Decides that.
        tests: How many test rows to use at most.
        length: How many tokens a text may have; a longer one is cut.
        pooling: How hidden states become a sentence embedding, mean or cls; by default as the model's folder says.
        normalise: Whether embeddings are scaled to length one; by default as the folder says.
        scale: What the output is multiplied with.
        adapter: Train an adapter instead of the model, e.g. 'lora(rank=8)'.

    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    text: str = "{text}"
    target: str = "target"
    centre: float = 0.0
    spread: float = Field(1.0, gt=0)
    train: str | None = None
    test: str | None = None
    holdout: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0)
    tests: int | None = Field(None, ge=1)
    length: int = Field(128, ge=4)
    pooling: str | None = None
    normalise: bool | None = None
    scale: float = Field(1.0, gt=0)
    adapter: str | None = None


def text_regression(
    directory: Path | str | None = None, source: str = "auto", *, model: str | None = None, **options: Any
) -> Task:
    """Return the task of giving texts a number, such as a score or a price; its loss is the squared error.

    At an evaluation `rmse` and `mae` are measured in the units of the data, and the correlations `pearson` and
    `spearman`.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> folder = tiny.data(tempfile.mkdtemp())
    >>> task = text_regression(folder, model=str(tiny.model(folder / "model", "encoder")), target="label")
    >>> task.dataset
    Dataset(60 + 12 samples: numbers of texts, from ..., tokens of ...)
    >>> task.build(0)(torch.as_tensor(task.dataset.test_inputs)).shape
    torch.Size([12, 1])
    """
    known, found = _options(options), _checkpoint(model)
    if source != "auto":
        raise UnknownName("source", source, ["auto"])
    rows = sources.records(sources.locate(directory, known.train, known.test))
    parts = sources.divide(*rows, share=known.holdout, seed=known.seed, tests=known.tests)
    length = min(known.length, found.length)
    texts, targets = zip(*(_read(part, known) for part in parts), strict=True)
    inputs = [encode_texts(found.tokenizer, known.text, "pooled", part, length) for part in texts]
    origin = f"numbers of texts, from {sources.folder_of(directory)}, tokens of {model}"
    dataset = Dataset(inputs[0], targets[0], inputs[1], targets[1], classes=None, source=origin, lengths=lengths)
    pooling, normalise = _pooling(found, known)
    reading = {"kind": "regression", "length": length, "pooling": pooling, "normalise": normalise, "scale": known.scale}
    meaning = {
        "labels": digest({"target": known.target, "centre": known.centre, "spread": known.spread}),
        "prompt": digest(known.text),
        "tokenizer": digest(describe_tokenizer(found.tokenizer)),
        "preprocessing": digest(reading),
    }
    metrics: dict[str, Metric] = {
        "rmse": lambda outputs, targets: known.spread * math.sqrt(_errors(outputs, targets).square().mean()),
        "mae": lambda outputs, targets: known.spread * float(_errors(outputs, targets).abs().mean()),
        "pearson": lambda outputs, targets: _correlation(outputs[:, 0].numpy(), targets.numpy()),
        "spearman": lambda outputs, targets: _correlation(_ranks(outputs[:, 0].numpy()), _ranks(targets.numpy())),
    }
    return Task("text-regression", dataset, _builder(found, known), LOSS, metrics, meaning)


def regressor_of(task: str, model: str, seed: int) -> tuple[Classifier, Options]:
    """Build the untrained model of a task by its name, without data; return the task's options, too.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> model = str(tiny.model(tempfile.mkdtemp(), "encoder"))
    >>> regressor_of("text-regression(length=99)", model, seed=0)[1].length   # it takes 60
    60
    """
    known, found = _options(registry.check("task", task, ["text-regression"])[1]), _checkpoint(model)
    length = min(known.length, found.length)
    return _builder(found, known)(seed), known.model_copy(update={"length": length})


def _options(given: dict[str, Any]) -> Options:
    registry.check_options(given, Options, "text-regression")
    try:
        known = Options(**given)
        check_template("text", known.text)
    except ValidationError as error:
        raise InvalidConfig(f"text-regression: {sentences(error)}") from None
    except ValueError as error:
        raise InvalidConfig(f"text-regression: {error}") from None
    return known


def _checkpoint(model: str | None) -> checkpoint.Checkpoint:
    if model is None:
        raise InvalidConfig("the task 'text-regression' needs a language model: name one by --model")
    return checkpoint.get_checkpoint(model, "pooled")


def _pooling(found: checkpoint.Checkpoint, options: Options) -> tuple[str, bool]:
    pooling, normalise = (options.pooling, False) if options.pooling else found.pooling()
    return pooling, normalise if options.normalise is None else options.normalise


def _read(part: Iterable[Row], options: Options) -> tuple[list[dict[str, Any]], NDArray[np.float32]]:
    """Return the columns of rows that the text shows, and their targets."""
    texts: list[dict[str, Any]] = []
    targets: list[float] = []
    wanted = columns_of(options.text)
    for where, row in part:
        known = cast("dict[str, Any]", row if isinstance(row, dict) else {})
        for column in (*wanted, options.target):
            if known.get(column) is None:
                raise InvalidData(
                    f"{where}: there is no column {column!r}, or it is empty, in {', '.join(map(str, known))}"
                )
        texts.append({column: known[column] for column in wanted})
        targets.append(_number(known[options.target], options, where))
    return texts, ((np.array(targets) - options.centre) / options.spread).astype(np.float32)


def _number(value: Any, options: Options, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidData(f"{where}: {options.target} = {value!r} must be a finite number")
    return number


def _builder(found: checkpoint.Checkpoint, options: Options) -> Callable[[int], Classifier]:
    load = adapters.loader(found, options.adapter)
    pooling, normalise = _pooling(found, options)
    head = pooled_head(1, pooling, normalise, options.scale)
    return lambda seed: Classifier(load(seed), head).eval()


def _squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return _errors(outputs, targets).square()


def _errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs[:, 0] - targets


LOSS = OutputLoss(_squared)


def _correlation(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the correlation of two lists of numbers; 0 where one of them does not vary."""
    x, y = x.astype(np.float64) - x.mean(dtype=np.float64), y.astype(np.float64) - y.mean(dtype=np.float64)
    length = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return float(x @ y) / length if length > 0 else 0.0


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the rank of each value; equal ones share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
