"""The calibrated objective: clients that hold the classes in unequal shares are made to agree.

A client that has many samples of a class learns first of all to guess that class, and its vote says so: the votes of
clients with unequal shares lie far apart, and liars hide among them. With the calibrated objective a client adds the
logarithm of each class's share of its own samples to the scores before it takes the cross-entropy. So what follows from
the shares alone need not be learned, and what is left is what tells the classes apart, the same for all clients. The
model itself stays as it is. Its scores are those of classes that are equally frequent, or as frequent as the parties
agreed: `calibrated(shares=(0.7, 0.3))`.

Menon, Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021; for clients with
unequal shares: Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated Learning with Label Distribution Skew via Logits
Calibration. ICML 2022.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cyber0.errors import InvalidConfig
from cyber0.layerwise.nearby import Nearby
from cyber0.objective import Objective
from cyber0.tasks.losses import OutputLoss, cross_entropy
from cyber0.tasks.task import Task

__all__ = ["calibrated", "offset_scores", "with_objective", "with_shares"]

COUNTED = 0.5  # samples of a class, on average, that a client is taken to have beside its own


def with_shares(labels: NDArray[Any], classes: int, agreed: Sequence[float] | None = None) -> NDArray[np.float32]:
    """Return the targets of one client, [samples, 1 + classes]: the label, and how far its client's shares are off.

    That is the logarithm of each class's share of the client's samples, less that of the share that was agreed on. Half
    a sample for each class, in the shares agreed on, is counted besides: so a class that the client does not have stays
    finite, and one that has few samples stays near the plain loss.

    >>> with_shares(np.array([0, 0, 0, 1]), classes=2).round(2)
    array([[ 0.  ,  0.34, -0.51],
           [ 0.  ,  0.34, -0.51],
           [ 0.  ,  0.34, -0.51],
           [ 1.  ,  0.34, -0.51]], dtype=float32)
    """
    frequencies = np.full(classes, 1 / classes) if agreed is None else np.asarray(agreed)
    counts = np.bincount(labels, minlength=classes) + COUNTED * classes * frequencies
    offsets = np.log(counts / counts.sum()) - np.log(frequencies)
    return np.column_stack([labels, np.tile(offsets, (len(labels), 1))]).astype(np.float32)


def offset_scores(scores: torch.Tensor, offsets: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """Return scores with offsets added along an axis; those of outputs that no class has stay as they are.

    >>> offset_scores(torch.zeros(1, 3), torch.tensor([[0.5, -0.5]]))
    tensor([[ 0.5000, -0.5000,  0.0000]])
    """
    classes = offsets.shape[axis]
    first, others = scores.narrow(axis, 0, classes), scores.narrow(axis, classes, scores.shape[axis] - classes)
    return torch.cat([first + offsets.to(scores.dtype), others], dim=axis)


def _calibrated(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    scores = offset_scores(outputs, targets[:, 1:])
    return nn.functional.cross_entropy(scores, targets[:, 0].long(), reduction="none")


calibrated = OutputLoss(_calibrated)
"""The cross-entropy of scores, each with the offset of its class added to it; targets are `with_shares`."""


def with_objective(task: Task, objective: Objective) -> Task:
    """Return a task as clients train it: as it is, or with the calibrated loss in the place of the cross-entropy.

    A `radius` of the objective goes around either.

    >>> from cyber0.tasks.task import mnist
    >>> task = mnist(source="embedded")
    >>> with_objective(task, Objective()) is task, with_objective(task, Objective(calibrated=True)).losses is calibrated
    (True, True)
    """
    losses = task.losses
    if objective.calibrated:
        _check(task, objective)
        losses = calibrated
    if objective.radius is not None:
        losses = Nearby(losses, objective.radius)
    return task if losses is task.losses else replace(task, losses=losses)


def _check(task: Task, objective: Objective) -> None:
    """Refuse a task that cannot be calibrated."""
    classes, others = task.dataset.classes, str(replace(objective, calibrated=False, shares=None))
    if classes is None or task.dataset.train_labels.ndim != 1:
        what = "has no classes" if classes is None else "gives a sample several labels"
        raise InvalidConfig(
            f"objective = {str(objective)!r} is for tasks that give each sample one class, and {task.name!r} {what}: "
            f"use objective = {others!r}"
        )
    if not _is_cross_entropy(task.losses):
        raise InvalidConfig(
            f"objective = {str(objective)!r} is for the cross-entropy, without weights or smoothing, and {task.name!r} "
            f"has another loss: leave the loss out, or use objective = {others!r}"
        )
    if objective.shares is not None and len(objective.shares) != classes:
        raise InvalidConfig(
            f"objective = {str(objective)!r} has {len(objective.shares)} shares, and {task.name!r} {classes} classes: "
            f"give {classes}"
        )


def _is_cross_entropy(losses: Any) -> bool:
    """Return whether losses are the plain cross-entropy, ours or torch's."""
    if losses is cross_entropy:
        return True
    given: Any = losses.given or losses.loss if isinstance(losses, OutputLoss) else None
    if isinstance(given, nn.CrossEntropyLoss):
        return given.weight is None and given.label_smoothing == 0 and given.ignore_index < 0
    return (
        isinstance(given, partial)
        and given.func is nn.functional.cross_entropy
        and list(given.keywords) == ["reduction"]
    )
