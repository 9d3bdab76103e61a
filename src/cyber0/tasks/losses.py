"""Losses: one value for each sample, of whatever a user gives."""

import hashlib
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import isclass, signature
from types import CodeType
from typing import Any, cast

import torch
from torch import nn

from cyber0.errors import InvalidUserCode
from cyber0.user_code import calling, label_of

__all__ = ["OutputLoss", "cross_entropy", "describe_loss", "not_per_sample", "output_loss"]

Tensor = torch.Tensor
Batch = tuple[Tensor, Tensor]
Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class OutputLoss:
    """Losses that depend on the model through its outputs alone: `loss(outputs, targets)`, one value for each sample.

    Called as losses(model, (inputs, targets)), like any other losses of a task; code that already has the outputs calls
    `of`. Further axes of what `loss` returns, such as the tokens of a text or the pixels of an image, are averaged.
    `given` is the user's object that `loss` was made of, which errors name.

    >>> squares = OutputLoss(lambda outputs, targets: (outputs - targets) ** 2)
    >>> squares(nn.Identity(), (torch.tensor([[1.0, 2.0], [3.0, 3.0]]), torch.zeros(2, 2)))
    tensor([2.5000, 9.0000])
    """

    loss: Loss
    given: object = None

    def __call__(self, model: Any, batch: Batch) -> Tensor:
        """Return the loss of each sample, [samples]."""
        inputs, targets = batch
        return self.of(model(inputs), targets)

    def of(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of each sample, [samples], from outputs that are known."""
        named = self.loss if self.given is None else self.given
        shapes = [
            f"{tuple(each.shape)}" if isinstance(each, Tensor) else type(each).__name__ for each in (outputs, targets)
        ]
        with calling(
            "loss", named, f" (on outputs of shape {shapes[0]} and {targets.dtype} targets of shape {shapes[1]})"
        ):
            values: Any = self.loss(outputs, targets)
        if not isinstance(values, Tensor) or values.ndim == 0 or len(values) != len(targets):
            raise InvalidUserCode(f"loss {label_of(named)} {not_per_sample(values, len(targets))}")
        return values if values.ndim == 1 else values.flatten(1).mean(1)


def not_per_sample(values: Any, samples: int) -> str:
    """Return what is wrong with losses that are not one value for each sample.

    >>> not_per_sample(torch.tensor(0.5), samples=4)
    "gave a single number for 4 samples: it must give one value for each of them, as torch's losses do with \
reduction='none'"
    """
    if not isinstance(values, Tensor):
        found = f"returned {type(values).__name__}"
    else:
        found = "gave a single number" if values.ndim == 0 else f"gave shape {tuple(values.shape)}"
    return (
        f"{found} for {samples} samples: it must give one value for each of them, as torch's losses do with "
        "reduction='none'"
    )


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


cross_entropy = OutputLoss(_cross_entropy)
"""The cross-entropy of the softmax of outputs [samples, classes] or [samples, classes, ...]: the default loss."""


def output_loss(loss: Loss) -> OutputLoss:
    """Return a user's loss(outputs, targets) as the losses of a task.

    A loss with a `reduction`, a torch function or a module such as torch.nn.MSELoss(), is made to give a value for each
    sample; a module is copied, not changed.

    >>> output_loss(nn.functional.mse_loss).of(torch.tensor([1.0, 3.0]), torch.zeros(2))
    tensor([1., 9.])
    >>> output_loss(nn.CrossEntropyLoss()).of(torch.zeros(2, 4), torch.tensor([0, 1]))
    tensor([1.3863, 1.3863])
    >>> output_loss(lambda outputs, targets: (outputs - targets).mean()).of(torch.zeros(2), torch.zeros(2))
    Traceback (most recent call last):
    cyber0.errors.InvalidUserCode: loss ...<lambda> gave a single number for 2 samples: it must give one value for \
each of them, as torch's losses do with reduction='none'
    """
    if not callable(loss):
        raise InvalidUserCode(f"loss = {loss!r}: give a function of outputs and targets, or a loss of torch.nn")
    if isclass(loss):
        raise InvalidUserCode(f"loss = {label_of(loss)} is a class: give an object of it, as {loss.__name__}()")
    if isinstance(loss, nn.Module):
        return OutputLoss(_of_module(loss), loss)
    if not _has_reduction(loss):
        return OutputLoss(loss)
    reducing: Any = loss
    return OutputLoss(partial(reducing, reduction="none"))


def _of_module(loss: nn.Module) -> Loss:
    """Return a copy of a module of torch.nn without its reduction, on whatever device it is called for."""
    copy: Any = deepcopy(loss).eval()
    if isinstance(getattr(loss, "reduction", None), str):
        copy.reduction = "none"
    return lambda outputs, targets: copy.to(targets.device)(outputs, targets)


def _has_reduction(loss: Any) -> bool:
    try:
        return "reduction" in signature(loss).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


def describe_loss(losses: Any) -> dict[str, str] | None:
    """Return what tells a user's losses from others: their name, their settings, and a digest of their code.

    Code is compiled differently by another version of Python, which is given beside the digest. Torch's losses have no
    digest, since their code is another in another version of torch. None for losses of this library.

    >>> describe_loss(output_loss(nn.HuberLoss(delta=2.0)))
    {'name': 'torch.nn.modules.loss.HuberLoss', 'settings': "{'delta': 2.0}"}
    >>> describe_loss(cross_entropy) is None
    True
    """
    given: Any = losses if not isinstance(losses, OutputLoss) else losses.loss if losses.given is None else losses.given
    settings: dict[str, Any] = {}
    while isinstance(given, partial):
        settings |= given.keywords
        given = given.func
    name = label_of(given)
    package = name.partition(".")[0]
    if package == "cyber0":
        return None
    if isinstance(given, nn.Module):
        settings |= {key: value for key, value in vars(given).items() if isinstance(value, int | float | str)}
        settings |= {key: value.tolist() for key, value in given.state_dict().items()}
    settings = {key: settings[key] for key in sorted(settings) if key not in ("reduction", "training")}
    found = {"name": name, "settings": repr(settings)}
    code = None if package == "torch" else _code_of(given)
    return found if code is None else {**found, "python": sys.implementation.cache_tag, "code": _digest(code)}


def _code_of(given: Any) -> CodeType | None:
    """Return the code of a function, or of the method by which an object is called, if it is written in Python."""
    method = given if hasattr(given, "__code__") else getattr(given, "forward", type(given).__call__)
    return getattr(method, "__code__", None)


def _digest(code: CodeType) -> str:
    """Return a digest of what code does; where it stands, and comments, do not matter."""

    def fixed(constant: Any) -> str:
        if isinstance(constant, CodeType):
            return _digest(constant)
        if isinstance(constant, frozenset):  # whose order is another in each process
            return str(sorted(map(repr, cast("frozenset[Any]", constant))))
        return repr(constant)

    constants = [fixed(each) for each in code.co_consts]
    return hashlib.sha256(repr((code.co_code, code.co_names, constants)).encode()).hexdigest()
