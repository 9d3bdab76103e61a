"""What is trained: data, model and loss.

A task is made by a plain callable, found by name or as `package.module:object`:

    make(directory, source) -> Task                    with a keyword `model` if it takes a language model
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cyber0 import registry
from cyber0.errors import InvalidConfig
from cyber0.tasks import models
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.mnist import load
from cyber0.tasks.text.tasks import snli, sst2, text_classification, trec

__all__ = ["TASKS", "Task", "cross_entropy", "evaluate", "get_task", "make", "mnist", "mnist_cnn", "mnist_mlp"]

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Data, a model built of a seed, and losses(model, (inputs, labels)) -> one loss for each sample.

    >>> task = mnist(source="embedded")
    >>> batch = torch.as_tensor(task.dataset.train_inputs[:2]), torch.as_tensor(task.dataset.train_labels[:2])
    >>> task.losses(task.build(0), batch).detach()
    tensor([2.3026, 2.3026])
    """

    name: str
    dataset: Dataset
    build: Callable[[int], nn.Module]
    losses: Callable[[Any, Batch], torch.Tensor]


def cross_entropy(model: Any, batch: Batch) -> torch.Tensor:
    """The cross-entropy of the model's softmax, for each sample.

    >>> cross_entropy(nn.Identity(), (torch.tensor([[0.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])))
    tensor([0.6931, 0.1269])
    """
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels, reduction="none")


def evaluate(
    model: nn.Module,
    data: Dataset | Batch,
    device: torch.device | str | None = None,
    *,
    losses: Callable[[Any, Batch], torch.Tensor] = cross_entropy,
    size: int = 10_000,
) -> tuple[float, float]:
    """Accuracy and mean loss on a data set's test samples, or on (inputs, labels), `size` at a time.

    On `device`, by default the model's own; a pair of tensors that is there already is not copied.

    >>> task = mnist(source="embedded")
    >>> accuracy, loss = evaluate(task.build(0), task.dataset)
    >>> accuracy, round(loss, 4)                                    # all logits are equal: it says 0 to everything
    (0.1, 2.3026)
    """
    inputs, labels = _test(data) if isinstance(data, Dataset) else data
    device = next(model.parameters()).device if device is None else device
    right, loss = 0.0, 0.0
    with torch.no_grad():
        for first in range(0, len(labels), size):
            x, known = (part[first : first + size].to(device) for part in (inputs, labels))
            logits = model(x)
            right += (logits.argmax(1) == known).sum().item()
            loss += losses(partial(_given, logits), (x, known)).double().sum().item()
    return right / len(labels), loss / len(labels)


def _given(logits: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return logits


def _test(dataset: Dataset) -> Batch:
    return torch.as_tensor(dataset.test_inputs), torch.as_tensor(dataset.test_labels)


def mnist(directory: Path | str | None = None, source: str = "auto") -> Task:
    """Logistic regression on MNIST, from zero weights: d = 7850, as in the paper's study.

    >>> mnist(source="embedded").name
    'mnist'
    """
    return Task("mnist", load(directory, source=source), models.logistic, cross_entropy)


def mnist_mlp(directory: Path | str | None = None, source: str = "auto", *, hidden: int = 64) -> Task:
    """A hidden layer on MNIST: d = 50890.

    >>> sum(p.numel() for p in mnist_mlp(source="embedded", hidden=8).build(0).parameters())
    6370
    """

    def build(seed: int) -> nn.Module:
        return models.mlp(seed, hidden=hidden)

    return Task("mnist-mlp", load(directory, source=source), build, cross_entropy)


def mnist_cnn(directory: Path | str | None = None, source: str = "auto") -> Task:
    """A small convolutional network on MNIST: d = 11274.

    >>> sum(p.numel() for p in mnist_cnn(source="embedded").build(0).parameters())
    11274
    """
    return Task("mnist-cnn", load(directory, source=source), models.cnn, cross_entropy)


TASKS: dict[str, Callable[..., Task]] = {
    "mnist": mnist,
    "mnist-cnn": mnist_cnn,
    "mnist-mlp": mnist_mlp,
    "snli": snli,
    "sst2": sst2,
    "text-classification": text_classification,
    "trec": trec,
}


def get_task(name: str | Callable[..., Task]) -> Callable[..., Task]:
    """The task of a name, with its options, to be called with a directory and a source.

    >>> get_task("mnist-mlp(hidden=8)")(None, "embedded").name
    'mnist-mlp'
    >>> get_task("mnits")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown task 'mnits': use one of mnist, mnist-cnn, mnist-mlp, ... (did you mean 'mnist'?)
    """
    return registry.resolve("task", name, TASKS)


def make(
    name: str | Callable[..., Task],
    directory: Path | str | None = None,
    source: str = "auto",
    model: str | None = None,
) -> Task:
    """The task of a name, made: of data, and of a language model, by hub id or folder, if it takes one.

    >>> make("mnist", source="embedded").name
    'mnist'
    >>> make("mnist", model="roberta-large")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: model = 'roberta-large': the task 'mnist' takes no language model: leave it out
    """
    found = get_task(name)
    if model is None:
        return found(directory, source)
    if "model" not in signature(found).parameters:
        raise InvalidConfig(f"model = {model!r}: the task {name!r} takes no language model: leave it out")
    return found(directory, source, model=model)
