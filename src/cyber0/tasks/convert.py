"""A task made of what users have: a torch model, and tensors, arrays or torch data sets."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from inspect import Parameter, isclass, signature
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import data as torch_data

from cyber0.errors import InvalidData, InvalidUserCode, UnknownName
from cyber0.tasks.dataset import Dataset, as_array, is_text, refuse_not_finite, to_numpy
from cyber0.tasks.losses import Loss, cross_entropy, output_loss
from cyber0.tasks.meaning import digest
from cyber0.tasks.task import Metric, Task
from cyber0.user_code import calling, label_of

__all__ = ["GIVEN", "task_of"]

Array = NDArray[Any]
Pair = tuple[Array, Array]
GIVEN = "data given in Python"
REQUIRED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def task_of(
    model: nn.Module | Callable[..., nn.Module],
    train: Any,
    test: Any,
    *,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    classes: int | Sequence[str] | None = None,
    name: str | None = None,
    layerwise: bool = False,
) -> Task:
    """Return the task of training a model on data that a user gives.

    Args:
        model: A module, which is copied; or a class or function that returns one, called with the run's seed if it
            takes a seed. Torch's generators are seeded before it is called.
        train: (inputs, targets) as tensors or arrays; a torch data set; or a list with one of these for each client.
        test: (inputs, targets), or a torch data set.
        loss: loss(outputs, targets) -> one value for each sample; a torch loss with a `reduction` will do as it is.
            By default the cross-entropy of classes.
        metrics: Functions of all outputs and all targets of an evaluation, by name, each returning a number.
        classes: How many there are, or their names in the order of their numbers; by default one more than the largest
            label. Targets are classes if they are integers, one for each sample, or if `loss` is not given, or if
            `classes` is. Targets that are texts are numbered in the order of these names, by default sorted.
        name: What reports call the task; by default the model's name.
        layerwise: Whether the model is measured a layer at a time, to save memory.

    >>> x = torch.arange(12).reshape(6, 2) / 12
    >>> task = task_of(nn.Linear(2, 3), train=(x, torch.tensor([0, 1, 2, 0, 1, 2])), test=(x[:2], torch.tensor([0, 1])))
    >>> task.name, task.dataset
    ('Linear', Dataset(6 + 2 samples of 3 classes: data given in Python))
    >>> task_of(nn.Linear(2, 1), (x, x[:, :1]), (x, x[:, :1]), loss=nn.MSELoss()).dataset.classes is None
    True

    """
    if test is None:
        raise InvalidData(
            "test = None: give (inputs, targets) or a torch data set to test on; where there is none, leave out some "
            "samples of train and test on these"
        )
    trained, shares = _per_client(train) if isinstance(train, list) else (_pair(train, "train"), None)
    tested = _pair(test, "test")
    _check_alike(trained, tested, ("train", "test"))
    names = None if classes is None or isinstance(classes, int | np.integer) else [str(each) for each in classes]
    count = len(names) if names else classes
    if is_text(trained[1]):
        names = names or sorted({str(each) for _, targets in (trained, tested) for each in targets.flat})
        count = count or len(names)
        trained, tested = _numbered(trained, "train", names), _numbered(tested, "test", names)
    if _is_binary(loss):
        trained, tested = _with_floats(trained), _with_floats(tested)
    known = _classes(trained[1], tested[1], loss, count)
    dataset = Dataset(*trained, *tested, classes=known, source=GIVEN, shares=shares)
    refuse_not_finite(dataset.train_inputs, "train inputs")
    refuse_not_finite(dataset.train_labels, "train targets")
    refuse_not_finite(dataset.test_inputs, "test inputs")
    refuse_not_finite(dataset.test_labels, "test targets")
    losses = cross_entropy if loss is None else output_loss(loss)
    called = label_of(model).rpartition(".")[2] if name is None else name
    meaning = {"labels": digest(names or known)}
    return Task(called, dataset, _builder(model), losses, metrics or {}, meaning, layerwise)


def _numbered(pair: Pair, what: str, names: Sequence[str]) -> Pair:
    """Return inputs, and the places of targets that are texts among the names of the classes."""
    places = {name: place for place, name in enumerate(names)}
    if unknown := sorted({str(each) for each in pair[1].flat} - set(places)):
        raise UnknownName("class", unknown[0], names, of=f"the {what} targets")
    numbers = np.array([places[str(each)] for each in pair[1].flat], dtype=np.int64)
    return pair[0], numbers.reshape(pair[1].shape)


def _is_binary(loss: Any) -> bool:
    """Return whether a loss of torch compares outputs with zeros and ones."""
    kinds = nn.BCELoss, nn.BCEWithLogitsLoss
    return isinstance(loss, kinds) or loss in (
        nn.functional.binary_cross_entropy,
        nn.functional.binary_cross_entropy_with_logits,
    )


def _with_floats(pair: Pair) -> Pair:
    """Return inputs, and targets as the floats that a binary cross-entropy needs."""
    return pair[0], pair[1].astype(np.float32)


def _classes(trained: Array, tested: Array, loss: Loss | None, classes: Any) -> int | None:
    """Return how many classes there are; None where targets are not classes."""
    integer = trained.dtype.kind in "biu" and tested.dtype.kind in "biu"
    if classes is None and (loss is None or (integer and trained.ndim == 1)):
        if not integer:
            one_hot = trained.ndim == 2 and trained.shape[1] > 1
            numbers = "targets.argmax(1)" if one_hot else "targets.long() of torch, targets.astype(int) of NumPy"
            raise InvalidData(
                f"train targets are of type {trained.dtype}, test targets of type {tested.dtype}: classes are numbered "
                f"by integers, as by {numbers}; for a regression give a loss, as loss=torch.nn.functional.mse_loss"
            )
        lowest = min(int(trained.min()), int(tested.min()))
        classes = max(int(trained.max()), int(tested.max())) + 1
        if lowest != 0:
            raise InvalidData(
                f"targets run from {lowest} to {classes - 1}: classes are numbered from 0 on"
                + (f", as by targets - {lowest}; where some are missing, give classes={classes}" if lowest > 0 else "")
            )
    return classes


def _builder(model: nn.Module | Callable[..., nn.Module]) -> Callable[[int], nn.Module]:
    """Return a function of the seed that builds the user's model."""
    construct = _constructor(model)

    def build(seed: int) -> nn.Module:
        with calling("model", model):
            built = construct(seed)
        if not isinstance(built, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidUserCode(
                f"model {label_of(model)} returned {type(built).__name__}: it must return a torch.nn.Module"
            )
        for name, parameter in built.named_parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                raise InvalidUserCode(
                    f"parameter {name!r} of model {label_of(model)} is of type {parameter.dtype}: models are trained "
                    "in torch.float32, as after model.float()"
                )
            if parameter.requires_grad and not is_lazy(parameter) and not parameter.isfinite().all():
                raise InvalidUserCode(
                    f"parameter {name!r} of model {label_of(model)} holds values that are not finite: begin with "
                    "finite weights"
                )
        return built

    return build


def _constructor(model: nn.Module | Callable[..., nn.Module]) -> Callable[[int], nn.Module]:
    """Return a function that makes a new model from a seed: by a copy, or by a call, with the seed if it takes one."""
    if isinstance(model, nn.Module):
        return lambda _: deepcopy(model)
    if not callable(model):
        raise InvalidUserCode(f"model = {model!r}: give a torch.nn.Module, or a class or function that returns one")
    try:
        parameters = signature(model).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return lambda _: model()
    needed = [p.name for p in parameters.values() if p.default is Parameter.empty and p.kind in REQUIRED]
    if "seed" in parameters and needed in ([], ["seed"]):
        by_place = parameters["seed"].kind is Parameter.POSITIONAL_ONLY
        return model if by_place else lambda seed: model(seed=seed)
    if not needed:
        return lambda _: model()
    if len(needed) == 1 and not isclass(model) and parameters[needed[0]].kind is not Parameter.KEYWORD_ONLY:
        return model
    raise InvalidUserCode(
        f"model {label_of(model)} needs {', '.join(needed)}: give a function that does without, as "
        f"lambda: {label_of(model).rpartition('.')[2]}({needed[0]}=...), or with the seed as its one argument"
    )


def _per_client(train: Any) -> tuple[Pair, tuple[NDArray[np.int64], ...]]:
    """Return the data of all clients as one, and which samples are whose."""
    if not train:
        raise InvalidData("train is an empty list: give one data set for each client")
    if all(isinstance(part, torch.Tensor | np.ndarray) for part in train):
        raise InvalidData(
            f"train is a list of {len(train)} arrays: a list has one data set for each client; for one data set that "
            "all clients share give a tuple, (inputs, targets)"
        )
    pairs = [_pair(part, f"train[{client}]") for client, part in enumerate(train)]
    for client, pair in enumerate(pairs[1:], 1):
        _check_alike(pairs[0], pair, ("train[0]", f"train[{client}]"))
    ends = np.cumsum([len(inputs) for inputs, _ in pairs]).tolist()
    shares = tuple(np.arange(start, end) for start, end in pairwise([0, *ends]))
    return (np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])), shares


def _pair(given: Any, what: str) -> Pair:
    """Return the inputs and targets of what a user gives."""
    kind: Any = type(given)  # pyright: ignore[reportUnknownVariableType]
    if issubclass(kind, torch_data.TensorDataset):
        given, kind = given.tensors, tuple
    if issubclass(kind, torch_data.DataLoader):
        raise InvalidData(f"{what} is a DataLoader: give its data set, {what}=loader.dataset")
    if issubclass(kind, torch_data.IterableDataset):
        raise InvalidData(f"{what} is an IterableDataset: samples are drawn by number; give a data set with a length")
    if issubclass(kind, tuple):
        if len(given) != 2:
            raise InvalidData(f"{what} has {len(given)} parts: give two, (inputs, targets)")
        inputs, targets = as_array(given[0], f"{what} inputs"), _targets(given[1], f"{what} targets")
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not issubclass(kind, list | dict | str):
        inputs, targets = _samples(given, what)
    else:
        raise InvalidData(f"{what} is of type {kind.__name__}: give (inputs, targets), or a torch data set")
    if len(inputs) != len(targets):
        raise InvalidData(f"{what} has {len(inputs)} inputs and {len(targets)} targets: give a target for each input")
    return inputs, targets


def _targets(values: Any, what: str) -> Array:
    """Return targets as an array: of numbers, or of texts that are numbered later."""
    listed = isinstance(values, list | tuple)
    if listed or isinstance(values, np.ndarray) or hasattr(values, "iloc"):  # or a column of pandas
        array: Array = np.asarray(values, dtype=object if listed else None)
        if is_text(array) and array.dtype.kind != "S":
            return array
    return as_array(values, what)


def _samples(dataset: Any, what: str) -> Pair:
    """Return all samples of a torch data set as two arrays."""
    if type(dataset) in (torch.Tensor, np.ndarray):
        raise InvalidData(f"{what} is one array of shape {tuple(dataset.shape)}: give two, (inputs, targets)")
    if hasattr(dataset, "columns"):
        raise InvalidData(f"{what} is a table: give two, (inputs, targets), as (table[features], table[target])")
    with calling(f"{what} data set", dataset):
        samples = len(dataset)
    found: list[Any] = []
    for index in range(samples):
        with calling(f"{what} data set", dataset, f" (at sample {index})"):
            found.append(dataset[index])
    if not found:
        raise InvalidData(f"{what} data set {label_of(dataset)} is empty")
    for index, sample in enumerate(found):
        if type(sample) not in (tuple, list) or len(sample) != 2:
            raise InvalidData(
                f"sample {index} of {what} is of type {type(sample).__name__}: a data set gives pairs, (input, target)"
            )
        if type(sample[0]).__module__.startswith("PIL"):
            raise InvalidData(
                f"the input of sample {index} of {what} is an image: give the data set a transform to tensors, as "
                "torchvision.transforms.ToTensor()"
            )
    targets = [y for _, y in found]
    texts = all(isinstance(target, str) for target in targets)
    return _stacked([x for x, _ in found], f"{what} inputs"), (
        np.array(targets, dtype=object) if texts else _stacked(targets, f"{what} targets")
    )


def _stacked(values: list[Any], what: str) -> Array:
    """Return the values of all samples as one array."""
    arrays = [np.asarray(to_numpy(value)) for value in values]
    for index, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise InvalidData(
                f"{what} have different shapes: sample 0 has {arrays[0].shape}, sample {index} has {array.shape}; "
                "crop, pad or resize them to one"
            )
    return as_array(np.stack(arrays), what)


def _check_alike(one: Pair, other: Pair, names: tuple[str, str]) -> None:
    """Refuse two parts whose inputs differ in shape, or of which one has targets that are texts."""
    if one[0].shape[1:] != other[0].shape[1:]:
        raise InvalidData(
            f"an input has shape {one[0].shape[1:]} in {names[0]} and {other[0].shape[1:]} in {names[1]}: give inputs "
            "of one shape"
        )
    if is_text(one[1]) != is_text(other[1]):
        texts, numbers = names if is_text(one[1]) else names[::-1]
        raise InvalidData(f"targets are texts in {texts} and numbers in {numbers}: give one or the other in both")
