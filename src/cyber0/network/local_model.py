"""A client's model and data: built of the run's configuration, trained by `cyber0.client.Client`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.client import Client
from cyber0.commit import Commit
from cyber0.config import RunConfig
from cyber0.directions.select import host
from cyber0.errors import InvalidConfig, NonFiniteLoss
from cyber0.estimate import full_precision
from cyber0.layerwise.measure import LayerwiseEstimate, evaluation_model, in_precision, measure_of
from cyber0.parameters import Parameters
from cyber0.protocol.identity import base_digest, layout_bytes
from cyber0.protocol.records import from_wire, to_wire
from cyber0.replay.weights import Weights
from cyber0.tasks import devices, memory, partition
from cyber0.tasks.batches import positions
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import Task, build_model
from cyber0.tasks.task import make as make_task

__all__ = ["LocalModel"]

AHEAD = 32  # rounds whose batches are drawn in one call


class LocalModel:
    """The model of client number `place` of a run, and the share of the task's data that the run's partition deals it.

    >>> model = LocalModel(RunConfig(source="embedded", clients=3, byzantine=1, directions=4), place=0)
    >>> len(model.vote(0))
    16
    """

    def __init__(self, config: RunConfig, place: int, task: Task | None = None, device: str = "auto") -> None:
        self.config = config
        self.task = task or load_task(config)
        self.device = devices.get_device(device)
        self._module = in_precision(build_model(self.task, config.seed), config.precision, config.mu)
        alone = config.model_copy(update={"clients": 1, "engine": "sequential"})
        memory.check_run(self._module, alone, self.device, self.task.dataset)
        self._module.to(self.device)
        self.parameters = Parameters.of(self._module)
        self.manifest = bytes.fromhex(self.parameters.manifest.digest)
        self.base = bytes.fromhex(base_digest(self.parameters))
        self.layout = layout_bytes(self.parameters.manifest)
        self._initial = [flat.detach().clone() for _, flat in self.parameters]
        self._batches = _Batches(self.task, config, place, self.device)
        self._measure = measure_of(self._module, config.precision)
        self._client = Client(self.parameters, self.task.losses, self._batches, config.plan, measure=self._measure)

    def vote(self, round: int) -> bytes:  # noqa: A002
        """What it measures in a round; where its loss is not finite it says so, and is not counted."""
        try:
            with full_precision():
                return to_wire(self._client.vote(round))
        except NonFiniteLoss:
            return to_wire(np.full(self.config.plan.scalars, np.nan))

    def advance(self, first: int, scalars: bytes) -> None:
        """Take the commits of consecutive rounds, in one pass if there are many.

        A single one is left to the next vote where that is a walk, which can apply it on its way.
        """
        commits = list(self._commits(first, scalars))
        if len(commits) == 1 and isinstance(self._measure, LayerwiseEstimate):
            self.parameters.defer(commits[0])
        else:
            self.parameters.apply_all(commits)

    def _commits(self, first: int, scalars: bytes) -> Iterator[Commit]:
        plan = self.config.plan
        rows = from_wire(scalars, plan.rows * (len(scalars) // (4 * plan.scalars)))
        for number, each in enumerate(rows.reshape(-1, plan.rows, plan.directions), first):
            yield plan.commit(number, each)

    def reset(self) -> None:
        """Go back to the initial weights."""
        self.parameters.settle()
        for (_, flat), initial in zip(self.parameters, self._initial, strict=True):
            flat.copy_(initial)

    def fingerprint(self) -> int:
        """That of the weights."""
        self.parameters.settle()
        return self.parameters.fingerprint()

    def evaluate(self) -> tuple[float, float, int]:
        """Accuracy and mean loss on the task's test samples, and how many they are."""
        self.parameters.settle()
        model = evaluation_model(self._measure, self.parameters, self.task.losses)
        found = evaluate(self.task, model, device=self.device)
        if found.accuracy is None:
            raise InvalidConfig(f"evaluate: the task {self.task.name!r} has no classes, so no accuracy to report")
        return found.accuracy, found.loss, found.samples

    def weights(self) -> Weights:
        """A copy of the weights."""
        self.parameters.settle()
        return Weights.of(
            {entry.name: host(flat.detach().cpu()).reshape(entry.shape) for entry, flat in self.parameters}
        )

    def load(self, weights: Weights) -> int:
        """Take weights that were kept; their fingerprint."""
        kept = weights.parameters(self.parameters.manifest)
        self.parameters.settle()
        for (_, flat), (_, array) in zip(self.parameters, kept, strict=True):
            words: Any = torch.from_numpy(array.view(np.int16) if array.itemsize == 2 else array)  # pyright: ignore
            flat.copy_(words.view(torch.bfloat16) if array.itemsize == 2 else words)
        return self.fingerprint()


class _Batches:
    """The batches of one client: batch(round, epoch)."""

    def __init__(self, task: Task, config: RunConfig, place: int, device: torch.device) -> None:
        self.config, self.place = config, place
        labels = task.dataset.train_labels
        if place >= config.clients:
            raise InvalidConfig(f"index = {place}: the data are dealt to {config.clients} clients, from 0 on")
        options: dict[str, Any] = {} if config.alpha is None else {"alpha": config.alpha}
        held = partition.shares_of(task.dataset, config.partition, config.clients, config.seed, **options)[place]
        self.inputs = torch.as_tensor(task.dataset.train_inputs[held]).to(device)
        self.labels = torch.as_tensor(labels[held]).to(device)
        self._first, self._drawn = -1, np.empty(0, dtype=np.int64)

    def __call__(self, number: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(self._positions(number)[epoch]).to(self.labels.device)  # pyright: ignore
        return self.inputs[chosen], self.labels[chosen]

    def _positions(self, number: int) -> NDArray[np.int64]:
        """Those of a round, [local epochs, batch]."""
        first = number - number % AHEAD
        if first != self._first:
            config, rounds = self.config, np.arange(first, first + AHEAD)[:, None]
            keys = self.place, rounds, np.arange(config.local_epochs), len(self.labels)
            self._first, self._drawn = first, positions(config.seed, *keys, config.batch)
        return self._drawn[number - first]


def load_task(config: RunConfig, data: Path | None = None, source: str | None = None, model: str | None = None) -> Task:
    """The task of a run, with data, and a language model, of this machine.

    >>> load_task(RunConfig(), source="embedded").name
    'mnist'
    """
    return make_task(config.task, data, source or config.source, model or config.model)
