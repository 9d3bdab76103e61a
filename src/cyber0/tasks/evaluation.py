"""How good a model is on samples that it was not trained on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cyber0.errors import InvalidUserCode
from cyber0.tasks.losses import OutputLoss
from cyber0.tasks.task import Batch, ModelMetric, Task
from cyber0.user_code import calling, label_of

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean loss of a model on some samples, its accuracy where there are classes, and the metrics of the user.

    `attack_success` is how often an attack with a goal, such as a backdoor, reaches it.
    """

    loss: float
    accuracy: float | None
    metrics: Mapping[str, float]
    samples: int
    attack_success: float | None = None


def evaluate(
    task: Task,
    model: Any,
    data: Batch | None = None,
    device: torch.device | str | None = None,
    *,
    size: int = 10_000,
) -> Evaluation:
    """Evaluate a model of a task on its test samples, or on other inputs and targets.

    Args:
        task: Its losses and metrics are measured.
        model: The model, as a function of inputs.
        data: Inputs and targets; those that are on the device already are not copied.
        device: Where to compute; by default the device of the model's parameters.
        size: How many samples are taken at a time.

    >>> from cyber0.tasks.task import mnist
    >>> task = mnist(source="embedded")
    >>> found = evaluate(task, task.build(0))                       # all logits are equal: it says 0 to everything
    >>> found.accuracy, round(found.loss, 4), found.samples
    (0.1, 2.3026, 1000)

    """
    dataset, losses = task.dataset, task.losses
    inputs, targets = data or (torch.as_tensor(dataset.test_inputs), torch.as_tensor(dataset.test_labels))
    device = next(model.parameters()).device if device is None else device
    asking = {name: metric for name, metric in task.metrics.items() if isinstance(metric, ModelMetric)}
    metrics = {name: metric for name, metric in task.metrics.items() if not isinstance(metric, ModelMetric)}
    needs_outputs = isinstance(losses, OutputLoss) or dataset.classes is not None or bool(metrics)
    right, loss = 0.0, 0.0
    kept: list[torch.Tensor] = []
    with torch.no_grad():
        for first in range(0, len(targets), size):
            x, known = (part[first : first + size].to(device) for part in (inputs, targets))
            outputs: Any = model(x) if needs_outputs else None
            if dataset.classes is not None:
                right += (outputs.argmax(1) == known).sum().item()
            values = losses.of(outputs, known) if isinstance(losses, OutputLoss) else losses(model, (x, known))
            loss += values.double().sum().item()
            if metrics:
                kept.append(outputs.cpu())
    return Evaluation(
        loss=loss / len(targets),
        accuracy=None if dataset.classes is None else right / targets.numel(),
        metrics=(_measure(metrics, torch.cat(kept), targets.cpu()) if metrics else {})
        | {name: metric(model, inputs.to(device), targets.to(device)) for name, metric in asking.items()},
        samples=len(targets),
    )


def _measure(
    metrics: Mapping[str, Callable[[Any, torch.Tensor], float]], outputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        with calling(f"metric {name!r}", metric):
            value: Any = metric(outputs, targets)
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise InvalidUserCode(
                f"metric {name!r} {label_of(metric)} returned {type(value).__name__}: it must return one number"
            ) from None
    return found
