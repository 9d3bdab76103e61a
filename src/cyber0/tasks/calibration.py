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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cyber0.errors import InvalidConfig
from cyber0.objective import Objective
from cyber0.tasks.losses import OutputLoss, cross_entropy
from cyber0.tasks.task import Task

__all__ = ["calibrated", "with_objective", "with_shares"]

COUNTED = 0.5  # samples that each class is taken to have beside those there are (Krichevsky and Trofimov)


def with_shares(labels: NDArray[Any], classes: int, agreed: Sequence[float] | None = None) -> NDArray[np.float32]:
    """Return the targets of one client, [samples, 1 + classes]: the label, and the logarithms of the client's shares.

    Those of the shares that were agreed on are subtracted, if any were. A class that the client has no sample of counts
    as half of one.

    >>> with_shares(np.array([0, 0, 0, 1]), classes=2).round(2)
    array([[ 0.  , -0.36, -1.2 ],
           [ 0.  , -0.36, -1.2 ],
           [ 0.  , -0.36, -1.2 ],
           [ 1.  , -0.36, -1.2 ]], dtype=float32)
    """
    counts = np.bincount(labels, minlength=classes) + COUNTED
    logarithms = np.log(counts / counts.sum()) - (0.0 if agreed is None else np.log(agreed))
    return np.column_stack([labels, np.tile(logarithms, (len(labels), 1))]).astype(np.float32)


def _calibrated(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    scores = outputs + targets[:, 1:].to(outputs.dtype)
    return nn.functional.cross_entropy(scores, targets[:, 0].long(), reduction="none")


calibrated = OutputLoss(_calibrated)
"""The cross-entropy of scores, each with the logarithm of its class's share added to it; targets are `with_shares`."""


def with_objective(task: Task, objective: Objective) -> Task:
    """Return a task as clients train it: as it is, or with the calibrated loss in the place of the cross-entropy.

    >>> from cyber0.tasks.task import mnist
    >>> task = mnist(source="embedded")
    >>> with_objective(task, Objective()) is task, with_objective(task, Objective(calibrated=True)).losses is calibrated
    (True, True)
    """
    if not objective.calibrated:
        return task
    classes = task.dataset.classes
    if task.losses is not cross_entropy or classes is None or task.dataset.train_labels.ndim != 1:
        raise InvalidConfig(
            "objective = 'calibrated' is for tasks that give each sample one class, by the cross-entropy, and "
            f"{task.name!r} is none: leave it out"
        )
    if objective.shares is not None and len(objective.shares) != classes:
        raise InvalidConfig(
            f"objective = 'calibrated' with {len(objective.shares)} shares: {task.name!r} has {classes} classes"
        )
    return replace(task, losses=calibrated)
