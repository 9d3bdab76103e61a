"""A study compares accuracies: of a task without classes it says so."""

import numpy as np
from torch import nn

from cyber0.study.recipe import Recipe
from cyber0.study.study import study
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.losses import output_loss
from cyber0.tasks.task import Task


def regression(directory, source):  # noqa: ARG001
    x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(30, 2)
    data = Dataset(x, x[:, :1], x, x[:, :1], classes=None, source="a line")
    return Task("line", data, lambda _: nn.Linear(2, 1), output_loss(nn.MSELoss()))


def test_a_task_without_classes_is_refused_in_a_sentence(tmp_path):
    base = {"task": f"{__name__}:regression", "clients": 3, "byzantine": 1, "rounds": 2, "partition": "iid"}
    results = study(Recipe.of({"seeds": 1, "base": base, "axes": {"directions": [2]}}), tmp_path / "study", jobs=1)
    (failure,) = results.failures
    assert "has no classes, and a study compares accuracies" in failure.message
