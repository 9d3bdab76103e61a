"""How clients learn in a simulation: cyber0 by either engine, and the FedAvg baseline.

A learner gives `votes(t, present)`, what each present client would honestly send, [rows, clients, width], and
`advance(t, aggregate)`, which moves the global model by the aggregated rows [rows, width].
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.client import Client
from cyber0.directions import COMPRESSED_EPOCH, matrix
from cyber0.errors import InvalidCommit
from cyber0.parameters import Parameters
from cyber0.plan import Plan
from cyber0.simulation.population import Indices, Population
from cyber0.simulation.slopes import derivatives, slopes
from cyber0.tasks.task import Task

__all__ = ["Batched", "FedAvg", "Learner", "Sequential"]

Votes = NDArray[np.float32]


class Learner(Protocol):
    """What the round loop needs of an algorithm."""

    rows: int
    width: int

    def votes(self, t: int, present: Indices) -> Votes:
        """What each present client would honestly send: [rows, clients, width]."""
        ...

    def advance(self, t: int, aggregate: NDArray[Any]) -> None:
        """Move the global model by the aggregate: [rows, width]."""
        ...


class Batched:
    """cyber0, all clients and all directions of a local step at once."""

    def __init__(self, task: Task, parameters: Parameters, population: Population, plan: Plan) -> None:
        self.task, self.parameters, self.population, self.plan = task, parameters, population, plan
        self.rows, self.width = plan.rows, plan.directions

    def votes(self, t: int, present: Indices) -> Votes:
        """Alg. 1, lines 3 to 11, for all clients together."""
        plan, update = self.plan, None
        steps: list[torch.Tensor] = []
        for epoch in range(plan.local_epochs):
            z = self._directions(t, plan.epoch(epoch))
            x, y = self.population.batches(t, epoch, present)
            offsets = None if update is None else update * -plan.learning_rate
            step = slopes(self.task, self.parameters, plan.mu, offsets, x, y, z) * self._scale()
            steps.append(step)
            if epoch + 1 < plan.local_epochs or plan.scheme == "compressed":
                update = step @ z if update is None else torch.addmm(update, step, z)
        return self._message(t, steps, update).cpu().numpy()

    def advance(self, t: int, aggregate: NDArray[Any]) -> None:
        """Alg. 1, lines 13 and 14."""
        self.parameters.apply(self.plan.commit(t, aggregate))

    def _directions(self, t: int, epoch: int) -> torch.Tensor:
        keys, plan = self.plan.keys(t, epoch), self.plan
        return matrix(keys, self.parameters.size, family=plan.family, device=self.population.device)

    def _scale(self) -> float:
        return (self.parameters.size if self.plan.family == "sphere" else 1) / self.plan.directions

    def _message(self, t: int, steps: list[torch.Tensor], update: torch.Tensor | None) -> torch.Tensor:
        if self.plan.scheme == "unbiased":
            return torch.stack(steps)
        if self.plan.scheme == "biased" or update is None:
            return torch.stack(steps).double().sum(dim=0).float()[None]
        projected = update @ self._directions(t, COMPRESSED_EPOCH).T
        return (projected * self.plan.projection(self.parameters.size))[None]


class Sequential:
    """cyber0, one client after the other, each by the code a client of a real federation runs."""

    def __init__(self, task: Task, parameters: Parameters, population: Population, plan: Plan) -> None:
        self.parameters, self.plan = parameters, plan
        self.rows, self.width = plan.rows, plan.directions
        self._clients: list[Client] = [
            Client(parameters, task.losses, _batch_of(population, client), plan) for client in range(population.clients)
        ]

    def votes(self, t: int, present: Indices) -> Votes:
        """Alg. 1, lines 3 to 11, for each client."""
        return np.stack([self._clients[client].vote(t) for client in map(int, present)], axis=1)

    def advance(self, t: int, aggregate: NDArray[Any]) -> None:
        """Alg. 1, lines 13 and 14."""
        self.parameters.apply(self.plan.commit(t, aggregate))


def _batch_of(population: Population, client: int) -> Any:
    def batch(t: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = population.batches(t, epoch, np.array([client]))
        return x[0], y[0]

    return batch


class FedAvg:
    """The baseline (McMahan et al., 2017): K local steps of gradient descent; the whole update travels, d scalars."""

    def __init__(self, task: Task, parameters: Parameters, population: Population, plan: Plan) -> None:
        self.task, self.parameters, self.population, self.plan = task, parameters, population, plan
        self.rows, self.width = 1, parameters.size

    def votes(self, t: int, present: Indices) -> Votes:
        """The sum of each client's gradients along its local steps: [1, clients, d]."""
        x, y = self.population.batches(t, 0, present)
        update = derivatives(self.task, self.parameters, None, x, y)
        for epoch in range(1, self.plan.local_epochs):
            x, y = self.population.batches(t, epoch, present)
            update = update + derivatives(self.task, self.parameters, update * -self.plan.learning_rate, x, y)
        return update.cpu().numpy()[None]

    def advance(self, t: int, aggregate: NDArray[Any]) -> None:  # noqa: ARG002
        """Take one step of the learning rate along the aggregate."""
        with np.errstate(over="ignore"):
            values = (self.plan.learning_rate * aggregate[0].astype(np.float64)).astype(np.float32)
        if not np.isfinite(values).all():
            raise InvalidCommit("the learning rate times the aggregate is too large for float32")
        step = torch.as_tensor(values)
        for entry, flat in self.parameters:
            flat -= step[entry.start : entry.start + entry.size].to(flat.device)
