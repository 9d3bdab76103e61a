"""A client's model and data: the model that was agreed on, trained on all the data that the client has."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.client import Client
from cyber0.config import Agreement, why_not_private
from cyber0.directions.select import host
from cyber0.errors import InvalidConfig, InvalidParameters
from cyber0.estimate import DOUBLE_UP_TO, estimate, full_precision
from cyber0.layerwise.measure import LayerwiseEstimate
from cyber0.network.private_data import PrivacyOptions, PrivateData, check_rounding, warn_of_budget
from cyber0.participant import build_participant, load_task
from cyber0.plan import CommitSequence
from cyber0.protocol.identity import base_digest, layout_bytes, meaning_bytes
from cyber0.protocol.promise import Promise
from cyber0.protocol.records import to_wire
from cyber0.replay.weights import Weights
from cyber0.tasks import devices, partition
from cyber0.tasks.batches import positions
from cyber0.tasks.calibration import with_shares
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import Task

__all__ = ["LocalModel"]

MOMENT = "second_moment"  # under which it is stored beside the weights
AHEAD = 32  # rounds whose batches are drawn in one call,
DRAWN = 2**20  # unless that would be more samples than these


class LocalModel:
    """The model of client number `place` of a run, and its data: all the training samples of its task.

    To try a federation out with one data set, `deal` names a partition: the client then trains on the share that this
    deals to its place. `stream` is as in `build_participant`.

    >>> from cyber0.tasks.task import mnist
    >>> model = LocalModel(Agreement(clients=3, byzantine=1, directions=4), place=0, task=mnist(source="embedded"))
    >>> len(model.vote(0)), model.samples
    (16, 4000)
    """

    def __init__(
        self,
        agreement: Agreement,
        place: int,
        task: Task | None = None,
        device: str = "auto",
        deal: str | None = None,
        privacy: PrivacyOptions | None = None,
        notice: Callable[[str], None] = lambda _: None,
        stream: str | None = None,
    ) -> None:
        self.agreement, self.plan, self.task = agreement, agreement.plan, task or load_task(agreement)
        self._participant = build_participant(self.task, agreement, devices.get_device(device), stream=stream)
        self.parameters = self._participant.parameters
        self.manifest = bytes.fromhex(self.parameters.manifest.digest)
        self.base = bytes.fromhex(base_digest(self.parameters))
        self.layout = layout_bytes(self.parameters.manifest)
        self.meaning = meaning_bytes(self._participant.meaning)
        self._initial = [flat.detach().clone() for _, flat in self.parameters]
        self._commits = CommitSequence(self.plan)
        self._batches = _Batches(self.task, agreement, place, self._participant.device, deal)
        self.private: PrivateData | None = None
        if privacy is not None and (why := why_not_private(agreement.trained_by)):
            raise InvalidConfig(f"epsilon = {privacy.epsilon} in a run with objective = {agreement.objective!r}: {why}")
        if privacy is None:
            warn_of_budget(self._batches.inputs, self._batches.labels, notice)
        else:
            check_rounding(agreement, self.parameters.size, double=self._is_double)
            data = self._batches.inputs, self._batches.labels
            self.private = PrivateData(privacy, agreement, *data, notice, self.task.probes(self._participant.device))
        self._client = self._new_client()

    @property
    def _is_double(self) -> bool:
        """Whether losses are computed in float64, as those of small models are."""
        return self._participant.measure is estimate and self.parameters.size <= DOUBLE_UP_TO

    def _new_client(self) -> Client:
        measured = self.parameters, self._participant.task.losses
        options: dict[str, Any] = {"measure": self._participant.measure}
        if self.private is None:
            return Client(*measured, self._batches, self.plan, **options)
        return Client(*measured, self.private.batch, self.plan, **options, private=self.private.steps)

    def promise(self, terms: bytes) -> Promise | None:
        """Return what it promises for the run of these terms; None if its data are not private."""
        if self.private is None:
            return None
        promised = self.private.begin(terms)
        self._client = self._new_client()  # with the noise of this run
        return promised

    def close(self) -> None:
        """Give the budget of its data free."""
        if self.private is not None:
            self.private.budget.close()

    @property
    def samples(self) -> int:
        """How many samples it trains on."""
        return len(self._batches.labels)

    def vote(self, round: int) -> bytes | None:  # noqa: A002
        """Return what it measures in a round; NaN where its loss is not finite, which is not counted.

        A private client charges its budget first; None once that is spent.
        """
        if self.private is not None and not self.private.charge(round):
            return None
        with full_precision():
            self._client.moment = self._commits.moment
            return to_wire(self._client.vote(round))

    def advance(self, first: int, scalars: bytes) -> None:
        """Apply the commits of consecutive rounds, from round `first` on, in one pass if there are many.

        A layer-wise estimate applies a single commit itself, on its way through the model for the next vote.
        """
        commits = list(self._commits.commits(first, scalars))
        if len(commits) == 1 and isinstance(self._participant.measure, LayerwiseEstimate):
            self.parameters.defer(commits[0])
        else:
            self.parameters.apply_all(commits)

    def reset(self) -> None:
        """Go back to the initial weights."""
        self.parameters.settle()
        self._commits.moment = 0.0
        for (_, flat), initial in zip(self.parameters, self._initial, strict=True):
            flat.copy_(initial)

    def fingerprint(self) -> int:
        """Return the fingerprint of the weights."""
        self.parameters.settle()
        return self.parameters.fingerprint()

    def evaluate(self) -> tuple[float | None, float, int]:
        """Return accuracy (None without classes) and mean loss on the task's test samples, and how many they are."""
        self.parameters.settle()
        found = evaluate(self.task, self._participant.model, device=self._participant.device)
        return found.accuracy, found.loss, found.samples

    def weights(self) -> Weights:
        """Return a copy of the weights, and, if steps are normalised, the second moment as a fact about them."""
        self.parameters.settle()
        arrays = {entry.name: host(flat.detach().cpu()).reshape(entry.shape) for entry, flat in self.parameters}
        weights = Weights.of(arrays)
        if self.plan.step_rule.normalises:
            weights.header["__metadata__"] = {MOMENT: self._commits.moment.hex()}
        return weights

    def load(self, weights: Weights) -> int:
        """Set the weights to stored ones, and return their fingerprint."""
        kept, moment = weights.parameters(self.parameters.manifest), self._moment(weights)
        self.parameters.settle()
        self._commits.moment = moment
        for (_, flat), (_, array) in zip(self.parameters, kept, strict=True):
            words: Any = torch.from_numpy(array.view(np.int16) if array.itemsize == 2 else array)  # pyright: ignore
            flat.copy_(words.view(torch.bfloat16) if array.itemsize == 2 else words)
        return self.fingerprint()

    def _moment(self, weights: Weights) -> float:
        """Return the second moment that was stored with weights; 0 for plain steps, which have none."""
        if not self.plan.step_rule.normalises:
            return 0.0
        text = weights.header.get("__metadata__", {}).get(MOMENT)
        try:
            if (moment := float.fromhex(text)) >= 0 and math.isfinite(moment):
                return moment
        except (TypeError, ValueError):
            pass
        raise InvalidParameters(f"{MOMENT} = {text!r} of the stored weights must be a finite number of at least 0")


class _Batches:
    """The batches of one client, called with the round and the epoch."""

    def __init__(self, task: Task, agreement: Agreement, place: int, device: torch.device, deal: str | None) -> None:
        self.agreement, self.place = agreement, place
        inputs, labels = task.dataset.train_inputs, task.dataset.train_labels
        if deal is not None:
            if not 0 <= place < agreement.clients:
                shares = "one for each client that the run began with"
                raise InvalidConfig(f"index = {place}: it must be from 0 to {agreement.clients - 1}, {shares}")
            dealt = task.dataset.strata, agreement.clients, agreement.seed
            held = partition.split(deal, *dealt, owners=task.dataset.owners)[place]
            inputs, labels = inputs[held], labels[held]
        self.inputs, self.labels = torch.as_tensor(inputs).to(device), torch.as_tensor(labels).to(device)
        self._targets = self.labels
        if (objective := agreement.trained_by).calibrated:
            targets = with_shares(labels, task.dataset.classes or 0, objective.frequencies)
            self._targets = torch.as_tensor(targets).to(device)
        self._ahead = max(1, min(AHEAD, DRAWN // (max(1, agreement.batch) * agreement.local_epochs)))
        self._first, self._drawn = -1, np.empty(0, dtype=np.int64)

    def __call__(self, number: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.agreement.batch == 0:
            return self.inputs, self._targets
        chosen = torch.from_numpy(self._positions(number)[epoch]).to(self.labels.device)  # pyright: ignore
        return self.inputs[chosen], self._targets[chosen]

    def _positions(self, number: int) -> NDArray[np.int64]:
        """Return the positions of a round's samples, [local epochs, batch]."""
        first = number - number % self._ahead
        if first != self._first:
            agreement, rounds = self.agreement, np.arange(first, first + self._ahead)[:, None]
            keys = self.place, rounds, np.arange(agreement.local_epochs), len(self.labels)
            self._first, self._drawn = first, positions(agreement.seed, *keys, agreement.batch)
        return self._drawn[number - first]
