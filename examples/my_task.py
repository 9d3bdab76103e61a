"""A task of your own: cyber0 run --task examples.my_task:moons --clients 10 --byzantine 2 --lr 0.1 --rounds 60."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cyber0.tasks.convert import task_of
from cyber0.tasks.models import initialise
from cyber0.tasks.task import Task


def moons(directory: Path | None, source: str) -> Task:  # noqa: ARG001
    """Two interleaved half circles, told apart by a small network."""
    return task_of(network, train=points(2000, 0), test=points(500, 1), name="moons")


def network(seed: int) -> Any:
    """A small network; `initialise` gives it the same weights on every machine."""
    return initialise(torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)), seed)


def points(count: int, seed: int) -> tuple[Any, Any]:
    """Samples in the plane, and which moon each is of."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    angle = rng.random(count) * np.pi
    x = np.where(labels == 0, np.cos(angle), 1 - np.cos(angle))
    y = np.where(labels == 0, np.sin(angle), 0.5 - np.sin(angle))
    return np.stack([x, y], axis=1) + 0.1 * rng.normal(size=(count, 2)), labels
