"""What is trained: data, model and loss.

A task is made by a plain callable, found by name or as `package.module:object`:

    make(directory, source) -> Task                    with a keyword `model` if it takes a language model
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from threading import RLock
from typing import Any, cast

import torch
from torch import nn

from cyber0 import registry
from cyber0.errors import InvalidConfig, InvalidUserCode
from cyber0.layerwise.patched import in_float32
from cyber0.layerwise.protocols import declare_layerwise
from cyber0.tasks import TASKS, memory, models
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.losses import OutputLoss, cross_entropy, not_per_sample
from cyber0.tasks.meaning import digest
from cyber0.tasks.mnist import CLASSES, DEVIATION, MEAN, load
from cyber0.user_code import calling, label_of

__all__ = [
    "Metric",
    "ModelMetric",
    "Task",
    "build_model",
    "cross_entropy",
    "get_task",
    "make",
    "mnist",
    "mnist_cnn",
    "mnist_mlp",
]

Batch = tuple[torch.Tensor, torch.Tensor]
DIGITS = {
    "labels": digest([str(digit) for digit in range(CLASSES)]),
    "preprocessing": digest({"scale": 1 / 255, "mean": MEAN, "deviation": DEVIATION, "shape": [784]}),
}
MEASURED = (  # columns of a history, which metrics must not replace
    *("round", "accuracy", "loss", "attack_success", "votes", "skipped", "seconds"),
    *(f"{unit}_{way}_per_client" for unit in ("scalars", "bytes") for way in ("up", "down")),
)
MIXED = 0.05  # of the largest output: a change beyond it is no matter of rounding, not even in half precision
TRIAL = 4  # samples that a new model is tried out on
PROBES = 128  # test samples that a private client tries its arithmetic with
ALONE = RLock()  # torch's generators belong to the whole process


@dataclass(frozen=True, slots=True, eq=False)
class ModelMetric:
    """A metric that asks the model itself, as one of generated texts does: `measure(model, inputs, targets)`.

    The model is the task's module, or an object with its methods.

    >>> ModelMetric(lambda model, inputs, targets: len(inputs))(None, torch.zeros(3), torch.zeros(3))
    3.0
    """

    measure: Callable[[Any, torch.Tensor, torch.Tensor], float]

    def __call__(self, model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Return what is measured of a model, given all inputs and all targets."""
        return float(self.measure(model, inputs, targets))


Metric = Callable[[Any, torch.Tensor], float] | ModelMetric


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Data, a model built of a seed, and losses(model, (inputs, labels)) -> one loss for each sample.

    Args:
        name: What reports call it.
        dataset: What to train and to test on; its `classes` say whether accuracy is measured.
        build: A function of the run's seed that returns the model, with torch's generators seeded by it.
        losses: A function of the model and a batch; an `OutputLoss` where it depends on the model's outputs alone.
        metrics: What else is measured at an evaluation: functions of all outputs and all targets, by name, or a
            `ModelMetric`.
        meaning: What decides the meaning of a label, part by part, as digests that parties of a run compare.
        layerwise: Whether the model is measured by the layer-wise engine, a layer at a time, as language models always
            are: for models of which three copies would not fit into memory.

    >>> task = mnist(source="embedded")
    >>> batch = torch.as_tensor(task.dataset.train_inputs[:2]), torch.as_tensor(task.dataset.train_labels[:2])
    >>> task.losses(task.build(0), batch).detach()
    tensor([2.3026, 2.3026])

    """

    name: str
    dataset: Dataset
    build: Callable[[int], nn.Module]
    losses: Callable[[Any, Batch], torch.Tensor] = cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=dict[str, Metric])
    meaning: Mapping[str, str] = field(default_factory=dict[str, str])
    layerwise: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidUserCode(f"dataset = {type(self.dataset).__name__}: give a cyber0.tasks.dataset.Dataset")
        if isinstance(self.build, nn.Module) or not callable(self.build):
            raise InvalidUserCode(
                f"build = {type(self.build).__name__}: give a function of the seed that returns a new model"
            )
        if not callable(self.losses):
            raise InvalidUserCode(f"losses = {self.losses!r}: give a function")
        _check_metrics(self.metrics)

    def probes(self, device: torch.device | str = "cpu") -> Batch:
        """Return a few test samples, which no vote is measured on, for a private client to try its arithmetic with.

        >>> [len(each) for each in mnist(source="embedded").probes()]
        [128, 128]
        """
        parts = self.dataset.test_inputs[:PROBES], self.dataset.test_labels[:PROBES]
        inputs, labels = (torch.as_tensor(part).to(device) for part in parts)
        return inputs, labels


def _check_metrics(metrics: Any) -> None:
    """Refuse metrics that are not functions by name, or that are called as what is measured anyway."""
    if not isinstance(metrics, Mapping):
        raise InvalidUserCode(f"metrics = {metrics!r}: give functions by name, as {{'f1': f1}}")
    for name, given in cast("Mapping[Any, Any]", metrics).items():
        if not isinstance(name, str) or name in MEASURED or name.startswith("validation_"):
            raise InvalidUserCode(f"metric {name!r}: give it a text as another name; {', '.join(MEASURED)} are taken")
        if not callable(given):
            raise InvalidUserCode(f"{name} = {given!r}: give a function")


def build_model(task: Task, seed: int) -> nn.Module:
    """Build the model of a seed, in evaluation mode, and try model and loss out on a few samples.

    Torch's generators are seeded for that, and are afterwards as they were before.

    >>> build_model(mnist(source="embedded"), seed=0)
    Linear(in_features=784, out_features=10, bias=True)
    >>> build_model(Task("mine", mnist(source="embedded").dataset, lambda seed: nn.Linear(784, 2)), seed=0)
    Traceback (most recent call last):
    cyber0.errors.InvalidUserCode: model torch.nn.modules.linear.Linear gave outputs of shape (4, 2) for 4 samples of \
10 classes: it must give shape (4, 10), a score for each class
    """
    with _seeded(seed):
        with calling("model", task.build):
            model = task.build(seed)
        if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidUserCode(
                f"model {label_of(task.build)} returned {type(model).__name__}: it must return a torch.nn.Module"
            )
        _try_out(task, model.eval())
    if task.layerwise:
        declare_layerwise(model)
    return model


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Draw from torch's generators by a seed, and put them back as they were; one thread at a time."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    random: Any = torch.random
    with ALONE, random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def _try_out(task: Task, model: nn.Module) -> None:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    arrays = task.dataset.train_inputs[:TRIAL], task.dataset.train_labels[:TRIAL]
    inputs, targets = (torch.as_tensor(array).to(device) for array in arrays)
    given = f" (on inputs of shape {tuple(inputs.shape)}, {inputs.dtype})"
    with torch.no_grad(), in_float32(model):
        with calling("model", model, given):
            outputs = model(inputs)
            _check_repeatable(model, inputs, outputs)
        losses = task.losses
        if isinstance(losses, OutputLoss):
            _check_outputs(task.dataset, model, outputs, targets)
            values = losses.of(outputs, targets)
            _check_broadcast(losses, outputs, targets)
            if values.isnan().all() and outputs.isfinite().all():
                raise InvalidUserCode(
                    f"loss {label_of(losses.given or losses.loss)} gave nan for all of {len(targets)} samples, whose "
                    "outputs are finite: nothing can be learnt from it"
                )
        else:
            with calling("losses", losses):
                values: Any = losses(model, (inputs, targets))
    if not isinstance(values, torch.Tensor) or values.shape != (len(targets),):
        raise InvalidUserCode(f"losses {label_of(losses)} {not_per_sample(values, len(targets))}")


def _check_repeatable(model: nn.Module, inputs: torch.Tensor, outputs: Any) -> None:
    """Refuse a model whose outputs for a sample are others each time, or depend on the other samples of its batch.

    What changes along a direction could not be measured of the first; the second would mix the samples of clients that
    are measured together, and would evaluate otherwise in batches of another size.
    """
    if not isinstance(outputs, torch.Tensor):
        return
    samples = len(inputs)
    fewer = samples - 1 if samples > 2 and outputs.shape[:1] == (samples,) else samples
    part: Any = model(inputs[:fewer])
    if _close(part, outputs[:fewer]):
        return
    if not _close(model(inputs), outputs):
        raise InvalidUserCode(
            f"model {label_of(model)} gives other outputs each time for the same inputs: it must not draw at random in "
            "evaluation mode, as torch.nn.Dropout does not"
        )
    if part.shape == outputs[:fewer].shape and (part - outputs[:fewer]).abs().max() > MIXED * outputs.abs().max():
        raise InvalidUserCode(
            f"model {label_of(model)} gives other outputs for a sample when the rest of its batch is another: they "
            "must depend on that sample alone; use torch.nn.GroupNorm, or BatchNorm with track_running_stats=True"
        )


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)


def _check_outputs(dataset: Dataset, model: nn.Module, outputs: Any, targets: torch.Tensor) -> None:
    """Refuse outputs that are not a score for each class."""
    if dataset.classes is None:
        return
    wanted = (len(targets), dataset.classes, *targets.shape[1:])
    shape: Any = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    fits = isinstance(outputs, torch.Tensor) and len(shape) == len(wanted)
    if not fits or (shape[0], *shape[2:]) != (wanted[0], *wanted[2:]) or shape[1] < wanted[1]:
        raise InvalidUserCode(
            f"model {label_of(model)} gave outputs of shape {shape} for {len(targets)} samples of {dataset.classes} "
            f"classes: it must give shape {wanted}, a score for each class{_other_targets(dataset, shape, targets)}"
        )


def _other_targets(dataset: Dataset, shape: Any, targets: torch.Tensor) -> str:
    """Return what targets would fit the outputs better, to be put at the end of an error."""
    if len(shape) == 2 and targets.shape[1:] == (1,):
        return "; or give targets of shape [samples], as targets.squeeze(1)"
    if len(shape) == 2 and targets.shape == shape and dataset.classes == 2:
        return "; or give the number of the class in place of zeros and a one, as targets.argmax(1)"
    if shape in ((len(targets),), (len(targets), 1)) and dataset.classes == 2:
        return "; or compare one output with targets of 0.0 and 1.0, by loss=torch.nn.BCEWithLogitsLoss()"
    return ""


def _check_broadcast(losses: OutputLoss, outputs: Any, targets: torch.Tensor) -> None:
    """Refuse outputs [n, 1] and targets [n], which torch would compare each with each."""
    n = len(targets)
    suspicious = isinstance(outputs, torch.Tensor) and outputs.shape == (n, 1) and targets.shape == (n,) and n > 1
    if suspicious and losses.loss(outputs, targets).shape == (n, n):
        raise InvalidUserCode(
            f"outputs of shape {(n, 1)} and targets of shape {(n,)}: the loss would compare each output with each "
            "target; give targets of shape [samples, 1], or let the model end in .squeeze(1)"
        )


def mnist(directory: Path | str | None = None, source: str = "auto") -> Task:
    """Return logistic regression on MNIST, from zero weights: d = 7850, as in the paper's study.

    >>> mnist(source="embedded").name
    'mnist'
    """
    return Task("mnist", load(directory, source=source), models.logistic, meaning=DIGITS)


def mnist_mlp(directory: Path | str | None = None, source: str = "auto", *, hidden: int = 64) -> Task:
    """Return a network with a hidden layer on MNIST: d = 50890.

    >>> sum(p.numel() for p in mnist_mlp(source="embedded", hidden=8).build(0).parameters())
    6370
    """
    if not isinstance(hidden, int) or hidden < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidConfig(f"task = 'mnist-mlp(hidden={hidden!r})': the hidden layer has 1 unit or more, as hidden=64")

    def build(seed: int) -> nn.Module:
        memory.check((784 + 1 + 10) * hidden + 10, copies=3)
        return models.mlp(seed, hidden=hidden)

    return Task("mnist-mlp", load(directory, source=source), build, meaning=DIGITS)


def mnist_cnn(directory: Path | str | None = None, source: str = "auto") -> Task:
    """Return a small convolutional network on MNIST: d = 11274.

    >>> sum(p.numel() for p in mnist_cnn(source="embedded").build(0).parameters())
    11274
    """
    return Task("mnist-cnn", load(directory, source=source), models.cnn, meaning=DIGITS)


def get_task(name: str | Callable[..., Task]) -> Callable[..., Task]:
    """Return the task of a name, with its options, to be called with a directory and a source.

    >>> get_task("mnist-mlp(hidden=8)")(None, "embedded").name
    'mnist-mlp'
    >>> get_task("mnits")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown task 'mnits': use one of cifar10, completion, ... (did you mean 'mnist'?)
    """
    return registry.resolve("task", name, TASKS)


def make(
    name: str | Callable[..., Task],
    directory: Path | str | None = None,
    source: str = "auto",
    model: str | None = None,
) -> Task:
    """Make the task of a name, with data, and with a language model, by hub id or folder, if it takes one.

    >>> make("mnist", source="embedded").name
    'mnist'
    >>> make("mnist", model="roberta-large")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: model = 'roberta-large': the task 'mnist' takes no language model: leave it out
    """
    found = get_task(name)
    options: dict[str, Any] = {} if model is None else {"model": model}
    if model is not None and "model" not in signature(found).parameters:
        raise InvalidConfig(f"model = {model!r}: the task {name!r} takes no language model: leave it out")
    with calling("task", found):
        task = found(directory, source, **options)
    if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidUserCode(f"task {label_of(found)} returned {type(task).__name__}: it must return a Task")
    return task
