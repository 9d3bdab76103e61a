"""The clients of a simulated federation: who holds which samples, who lies, who takes part in a round."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.errors import InvalidAttack
from cyber0.layerwise.batching import upload
from cyber0.objective import Objective
from cyber0.tasks.batches import positions
from cyber0.tasks.calibration import with_shares
from cyber0.tasks.dataset import Dataset

__all__ = ["Population"]

Indices = NDArray[np.int64]
PLAIN = Objective()
AHEAD, SAMPLES = 32, 2**20  # rounds whose batches are drawn in one call, and how many samples that may be


@lru_cache(maxsize=1)  # runs that are played together share them
def on_device(dataset: Dataset, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the inputs to train on, and the inputs and labels to test on, in the memory of a device."""
    parts = dataset.train_inputs, dataset.test_inputs, dataset.test_labels
    inputs, test_inputs, test_labels = (torch.as_tensor(part).to(device) for part in parts)
    return inputs, test_inputs, test_labels


@dataclass(eq=False)
class Population:
    """All clients' data in the memory of one device, and the batches they draw from it.

    The last `byzantine` clients are liars; `corrupt_labels` and `corrupt_samples` are what they do to their data.
    """

    dataset: Dataset
    shares: list[Indices]
    byzantine: int
    batch: int
    local_epochs: int
    seed: int
    device: torch.device
    corrupt_labels: Callable[[Any, int], Any] | None = None
    corrupt_samples: Callable[[Any, Any, int | None], tuple[Any, Any]] | None = None
    objective: Objective = PLAIN  # calibrated: a label comes with the shares of its client
    _drawn: dict[int, Indices] = field(default_factory=dict[int, Indices], init=False)
    _sizes: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        labels = self.dataset.train_labels.copy()
        if self.corrupt_labels is not None and self.byzantine:
            held = np.concatenate(self.shares[-self.byzantine :])
            if self.dataset.classes is None:
                raise InvalidAttack("labels of this task are not classes: an attack on labels needs classes")
            labels[held] = self.corrupt_labels(labels[held], self.dataset.classes)
        self.inputs, *self.test = on_device(self.dataset, self.device)
        self._poisoned = self._place = None
        if self.corrupt_samples is not None and self.byzantine:
            held = np.concatenate(self.shares[-self.byzantine :])
            changed, labels[held] = self.corrupt_samples(
                self.dataset.train_inputs[held], labels[held], self.dataset.classes
            )
            place = np.full(len(labels), -1)
            place[held] = np.arange(len(held))
            self._poisoned, self._place = (torch.as_tensor(part).to(self.device) for part in (changed, place))
        self.labels = torch.as_tensor(self._with_shares(labels) if self.objective.calibrated else labels).to(
            self.device
        )
        self._samples = np.concatenate(self.shares)
        self._counts = np.array([len(share) for share in self.shares])
        self._starts = np.cumsum(self._counts) - self._counts

    def _with_shares(self, labels: NDArray[Any]) -> NDArray[np.float32]:
        classes = self.dataset.classes or 0
        targets = np.empty((len(labels), 1 + classes), dtype=np.float32)
        for share in self.shares:
            targets[share] = with_shares(labels[share], classes, self.objective.frequencies)
        return targets

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.shares)

    def liars(self, present: Indices) -> Indices:
        """Return which rows of `present` are Byzantine clients."""
        return np.flatnonzero(present >= self.clients - self.byzantine)

    def batches(self, t: int, epoch: int, present: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batches of one local step: inputs [clients, batch, ...] and labels [clients, batch].

        Batches of all samples, `batch` = 0, differ in size: they are returned for one client at a time.
        """
        return self.samples(upload(self.chosen(t, epoch, present), self.device))

    def chosen(self, t: int, epoch: int, present: Indices) -> Indices:
        """Return which samples those batches have, [clients, batch]."""
        return self._indices(t)[epoch, present] if self.batch else np.stack(self._shares_of(present))

    @property
    def repeats(self) -> bool:
        """Whether a batch may have a sample several times: some client holds fewer than it draws."""
        return bool(self._counts.min() < self.batch)

    def distinct(self, t: int, epoch: int, present: Indices) -> tuple[Indices, Indices]:
        """Return the samples of those batches, each once, and where among them each draw is, [clients, batch]."""
        chosen = self.chosen(t, epoch, present)
        samples, places = np.unique(chosen, return_inverse=True)
        return samples, places.reshape(chosen.shape)

    def held(self, present: Indices) -> tuple[Indices, Indices]:
        """Return all samples of present clients, one client after the other, and the place of each one's owner."""
        samples = np.concatenate(self._shares_of(present))
        return samples, np.repeat(np.arange(len(present)), self._counts[present])

    def _shares_of(self, clients: Indices) -> list[Indices]:
        return [self.shares[int(client)] for client in clients]

    def samples(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of training samples, as their clients hold them: [..., ...] and [...]."""
        inputs = self.inputs.index_select(0, rows.flatten()).view(*rows.shape, *self.inputs.shape[1:])  # faster than []
        if self._poisoned is not None and self._place is not None:  # other runs share `inputs`
            place = self._place[rows]
            inputs[place >= 0] = self._poisoned[place[place >= 0]]
        return inputs, self.labels[rows]

    def sizes(self, t: int, epoch: int, present: Indices) -> NDArray[np.int64] | None:
        """Return the length of each sample of those batches, [clients, batch]; None where all of a row counts."""
        return None if self.dataset.lengths is None else self.lengths_of(self.chosen(t, epoch, present))

    def lengths_of(self, samples: Indices) -> NDArray[np.int64] | None:
        """Return the length of each of some samples, in an array of their shape; None where all of a row counts."""
        if self.dataset.lengths is None:
            return None
        if self._sizes is None:
            self._sizes = self.dataset.lengths(self.dataset.train_inputs)
        return self._sizes[samples]

    def _indices(self, t: int) -> Indices:
        """Return the samples of round t, [local epochs, clients, batch]: `batch_indices` of each client."""
        if t not in self._drawn:
            ahead = max(1, min(AHEAD, SAMPLES // (self.local_epochs * self.clients * self.batch)))
            rounds, epochs = np.arange(t, t + ahead), np.arange(self.local_epochs)
            keys = np.arange(self.clients), rounds[:, None, None], epochs[:, None]
            found = self._samples[self._starts[:, None] + positions(self.seed, *keys, self._counts, self.batch)]
            self._drawn = dict(zip(rounds.tolist(), found, strict=True))
        return self._drawn[t]
