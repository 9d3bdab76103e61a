"""How clients learn in a simulation: cyber0 by either engine, and the FedAvg baseline.

A learner serves several worlds at once, runs that differ in their seed, their liars or their rule, but not in their
shape. `votes(t, present)` is what each present client of each world would honestly send, as [worlds, rows, clients,
width]; `advance(world, t, aggregate)` moves a world's global model by the aggregated rows [rows, width].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cyber0.client import Client, projected
from cyber0.directions import COMPRESSED_EPOCH, matrix, project
from cyber0.estimate import estimate
from cyber0.layerwise.batching import round_up, upload
from cyber0.layerwise.measure import LayerwiseEstimate, Measure
from cyber0.layerwise.walk import Batch, Walk
from cyber0.parameters import Parameters
from cyber0.plan import CommitSequence, Plan
from cyber0.simulation.population import Indices, Population
from cyber0.simulation.private import PrivateClients
from cyber0.simulation.slopes import derivatives, measures_alike, sample_slopes, slopes
from cyber0.tasks.task import Task

__all__ = ["Batched", "Differentiated", "FedAvg", "Layered", "Learner", "Sequential", "World"]

Tensor = torch.Tensor
FEWEST = 64  # samples of a product whose rows are known to have the same bits as in a larger one
GRAIN = 64  # a ragged batch of a large model is filled up to a multiple of so many samples, if it has a thousand


@dataclass(frozen=True, eq=False, slots=True)
class World:
    """One run's global model, its clients, and what they have agreed on."""

    parameters: Parameters
    population: Population
    plan: Plan
    commits: CommitSequence
    measure: Measure = estimate
    private: PrivateClients | None = None


class Learner(Protocol):
    """What the round loop needs of an algorithm."""

    rows: int
    width: int

    def __init__(self, task: Task, worlds: Sequence[World]) -> None: ...

    def votes(self, t: int, present: Indices) -> Tensor:
        """Return what each present client would honestly send: [worlds, rows, clients, width]."""
        ...

    @staticmethod
    def advance(world: World, t: int, aggregate: NDArray[Any]) -> None:
        """Move a global model by the aggregate: [rows, width]."""
        ...


class Batched:
    """cyber0, all worlds, all clients and all directions of a local step at once."""

    def __init__(self, task: Task, worlds: Sequence[World]) -> None:
        self.task, self.worlds, self.plan, self.parameters = task, worlds, worlds[0].plan, worlds[0].parameters
        self.rows, self.width = self.plan.rows, self.plan.directions

    def votes(self, t: int, present: Indices) -> Tensor:
        """Return the votes of all clients together (Alg. 1, lines 3 to 11)."""
        plan, update, offsets, weights = self.plan, None, None, _weights(self.worlds)
        steps: list[Tensor] = []
        z = self._directions(t, plan.epoch(0))
        for epoch in range(plan.local_epochs):
            if plan.epoch(epoch) != plan.epoch(0):
                z = self._directions(t, plan.epoch(epoch))
            step = self._step(t, epoch, present, weights, offsets, z)
            steps.append(step)
            if epoch + 1 < plan.local_epochs or plan.sends == "projection":
                update = _added(update, step, z)
                offsets = self._offsets(t, offsets, update, step, z) if epoch + 1 < plan.local_epochs else None

        def project() -> Tensor:
            assert update is not None  # noqa: S101
            return (update @ self._directions(t, COMPRESSED_EPOCH).mT) * self._per_world(t, plan.projection)

        return plan.message(steps, project, axis=1)

    def _step(self, t: int, epoch: int, present: Indices, weights: Tensor, offsets: Tensor | None, z: Tensor) -> Tensor:
        """Return the scalars of one local step: [worlds, clients, directions]."""
        model = self.task, self.parameters, weights, self.plan.mu, offsets
        if not _is_ragged(self.worlds[0]):
            samples = self._samples(t, epoch, present) if offsets is None and self.plan.mu > 0 else None
            x, y, places = samples or (*_batches(self.worlds, t, epoch, present), None)
            return slopes(*model, x, y, z, places) * self._per_world(t, self._scale)
        gradients = self.plan.mu == 0 and self.worlds[0].private is None
        chosen, owners = _ragged(self.worlds, t, epoch, present, each=gradients or offsets is not None)
        x, y = _stacked([world.population.samples(rows) for world, rows in chosen])
        if gradients:
            factors = torch.stack([upload(_factors(each, len(present)), x.device) for each in owners])
            found = derivatives(self.task, self.parameters, weights, offsets, x, y, factors.view(x.shape[:3]))
            return (found @ z.mT) * self._per_world(t, self._scale)
        found = sample_slopes(*model, x, y, z).flatten(1, 2)
        if self.worlds[0].private is None:
            means = [_means(own, of, len(present)) for own, of in zip(found, owners, strict=True)]
            return torch.stack(means).float() * self._per_world(t, self._scale)
        released: list[Tensor] = []
        for number, world in enumerate(self.worlds):
            private = _private(world)
            totals = private.totals(found[number], upload(owners[number], found.device), len(present))
            released.append(private.released(totals, t, epoch, present))
        return torch.stack(released)

    def _samples(self, t: int, epoch: int, present: Indices) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the samples of a step's batches, each once, their labels, and the places of each client's own.

        None if none is drawn twice, or if votes could have other last bits then.
        """
        populations = [world.population for world in self.worlds]
        alike = measures_alike(self.task, self.parameters)
        if not alike or not any(population.repeats for population in populations):
            return None
        drawn = [population.distinct(t, epoch, present) for population in populations]
        width = max(len(samples) for samples, _ in drawn)
        if width < FEWEST:
            return None
        rows = [np.pad(samples, (0, width - len(samples)), mode="edge")[None] for samples, _ in drawn]
        found = [each.samples(upload(own, each.device)) for each, own in zip(populations, rows, strict=True)]
        return *_stacked(found), upload(np.stack([places for _, places in drawn]), self.parameters.device)

    def _offsets(self, t: int, before: Tensor | None, update: Tensor, step: Tensor, z: Tensor) -> Tensor:
        """Return how far each client's model is from the global one, [worlds, clients, d], after another step."""
        plan = self.plan
        if not plan.step_rule.normalises:
            return update * -plan.rate(t)
        rates = [
            [plan.step(t, 0, client, world.commits.moment).lr for client in clients]
            for world, clients in zip(self.worlds, step.cpu().numpy(), strict=True)
        ]
        return _added(before, step * -torch.tensor(rates, dtype=step.dtype, device=step.device)[..., None], z)

    @staticmethod
    def advance(world: World, t: int, aggregate: NDArray[Any]) -> None:
        """Move the global model by the aggregate (Alg. 1, lines 13 and 14)."""
        world.parameters.apply(world.commits.commit(t, aggregate))

    def _directions(self, t: int, epoch: int) -> Tensor:
        """Return the directions of each world, [worlds, directions, d]; outside of what a round moves they are zero."""
        found = [self._of_world(world, t, epoch) for world in self.worlds]
        return found[0][None] if len(found) == 1 else torch.stack(found)

    def _of_world(self, world: World, t: int, epoch: int) -> Tensor:
        moved, device = _moved(world, t), self.parameters.device
        found = matrix(world.plan.keys(t, epoch), moved.size, family=self.plan.family, device=device)
        if moved.size == self.parameters.size:
            return found
        return nn.functional.pad(found, (moved.offset, self.parameters.size - moved.offset - moved.size))

    def _per_world(self, t: int, factor: Callable[[int], float]) -> Tensor | float:
        """Return a factor that depends on how many parameters a round moves, to be multiplied with [worlds, ...]."""
        if self.plan.blocks == 1:
            return factor(self.parameters.size)
        return torch.tensor([[[factor(_moved(world, t).size)]] for world in self.worlds], device=self.parameters.device)

    def _scale(self, size: int) -> float:
        return (size if self.plan.family == "sphere" else 1) / self.plan.directions


class Sequential:
    """cyber0, one client after the other, each by the code a client of a real federation runs."""

    def __init__(self, task: Task, worlds: Sequence[World]) -> None:
        self.rows, self.width = worlds[0].plan.rows, worlds[0].plan.directions
        self._worlds = worlds
        probes = None if worlds[0].private is None else task.probes(worlds[0].parameters.device)
        self._clients: list[list[Client]] = [
            [
                Client(
                    *(world.parameters, task.losses, _batch_of(world, client), world.plan),
                    measure=world.measure,
                    private=None if world.private is None else world.private.steps_of(client, probes),
                )
                for client in range(world.population.clients)
            ]
            for world in worlds
        ]

    def votes(self, t: int, present: Indices) -> Tensor:
        """Return the votes of one client after the other (Alg. 1, lines 3 to 11)."""
        for world, clients in zip(self._worlds, self._clients, strict=True):
            for client in clients:
                client.moment = world.commits.moment
        votes = [np.stack([clients[client].vote(t) for client in map(int, present)], 1) for clients in self._clients]
        return torch.from_numpy(np.stack(votes))  # pyright: ignore[reportUnknownMemberType]

    advance = staticmethod(Batched.advance)


class Layered:
    """cyber0 on a large model: all clients in one batch, one direction after the other, a layer at a time.

    After the first local step the clients' models differ: each is then measured alone, its drift from the global
    model rebuilt, layer by layer, from the scalars of its own steps. Memory does not grow with clients.
    """

    def __init__(self, task: Task, worlds: Sequence[World]) -> None:
        self.rows, self.width = worlds[0].plan.rows, worlds[0].plan.directions
        self._task, self._worlds = task, worlds
        self._ahead: dict[int, tuple[int, _Owned]] = {}

    def votes(self, t: int, present: Indices) -> Tensor:
        """Return the votes of all clients together (Alg. 1, lines 3 to 11)."""
        return torch.stack([self._votes(world, _walk(self._task, world, t), t, present) for world in self._worlds])

    @staticmethod
    def advance(world: World, t: int, aggregate: NDArray[Any]) -> None:
        """Move the global model by the aggregate (Alg. 1, lines 13 and 14), during the next walk."""
        world.parameters.defer(world.commits.commit(t, aggregate))

    def _votes(self, world: World, walk: Walk, t: int, present: Indices) -> Tensor:
        plan = world.plan
        steps = [self._step(world, walk, t, 0, self._first(world, walk, t, present))]
        if len(present) == world.population.clients and plan.local_epochs == 1:
            self._ahead[id(world)] = t + 1, _batch(world, walk, t + 1, present)  # while the device is busy
        for epoch in range(1, plan.local_epochs):
            sent = [step.cpu().numpy() for step in steps]
            drifts = [_drift(world, t, [step[client] for step in sent]) for client in range(len(present))]
            each = [
                self._step(world, walk, t, epoch, _batch(world, walk, t, present[client : client + 1], epoch), drift)
                for client, drift in enumerate(drifts)
            ]
            steps.append(torch.cat(each))

        def project() -> Tensor:
            scalars = torch.cat(steps, dim=1).cpu().numpy()
            rows = [projected(_moved(world, t), plan, t, own) for own in scalars]
            return torch.from_numpy(np.stack(rows)).to(steps[0].device)  # pyright: ignore[reportUnknownMemberType]

        return plan.message(steps, project)

    def _first(self, world: World, walk: Walk, t: int, present: Indices) -> "_Owned":
        """Return the batch of a round's first step, which may have been made during the round before."""
        number, ahead = self._ahead.pop(id(world), (-1, None))
        known = ahead is not None and number == t and len(ahead.present) == len(present)
        return ahead if known and ahead is not None else _batch(world, walk, t, present)

    def _step(self, world: World, walk: Walk, t: int, epoch: int, owned: "_Owned", drift: Any = None) -> Tensor:
        """Return the scalars of one local step of some clients that share a model: [clients, directions]."""
        plan, batch = world.plan, owned.batch
        keys, clients = plan.keys(t, plan.epoch(epoch)), len(owned.present)
        scale = (walk.parameters.size if plan.family == "sphere" else 1) / plan.directions
        if owned.owners is None:
            slopes = torch.stack([walk.along(batch, key, plan.mu, plan.family, drift) for key in keys], dim=1)
            return (slopes * scale).float()
        found = [walk.differences(batch, key, plan.mu, plan.family, drift) for key in keys]
        slopes = torch.stack(found, dim=1).div_(2 * float(np.float32(plan.mu)))
        if world.private is None:
            return (_means(slopes, owned.owners, clients) * scale).float()
        totals = world.private.totals(slopes, upload(owned.owners, slopes.device), clients)
        return world.private.released(totals, t, epoch, owned.present)


class Differentiated:
    """cyber0 on a large model with mu = 0: a backward pass for each client, then all directions for all of them.

    It is for one local step, whose scalars are sent: after it the clients' models differ.
    """

    def __init__(self, task: Task, worlds: Sequence[World]) -> None:
        self.rows, self.width = worlds[0].plan.rows, worlds[0].plan.directions
        self._task, self._worlds = task, worlds

    def votes(self, t: int, present: Indices) -> Tensor:
        """Return the votes of all clients together (Alg. 1, lines 3 to 11). A vote is NaN where a loss is."""
        return torch.stack([self._votes(world, t, present) for world in self._worlds])

    advance = staticmethod(Batched.advance)

    def _votes(self, world: World, t: int, present: Indices) -> Tensor:
        plan, moved, measure = world.plan, _moved(world, t), cast("LayerwiseEstimate", world.measure)
        gradient, keys = measure.gradient(moved, self._task.losses), plan.keys(t, plan.epoch(0))
        flat = torch.empty(len(present), moved.size, device=moved.device)
        for row, client in zip(flat, present, strict=True):
            row.copy_(gradient(*_alone(world, t, int(client))))
        slopes = project(flat, keys, family=plan.family)
        scale = (moved.size if plan.family == "sphere" else 1) / plan.directions
        return (slopes * scale).float()[None]


def _alone(world: World, t: int, client: int) -> tuple[Tensor, Tensor, NDArray[np.int64] | None]:
    """Return inputs, labels and sizes of a client's batch."""
    (samples,) = world.population.chosen(t, 0, np.array([client]))
    inputs, labels = world.population.samples(upload(samples, world.population.device))
    return inputs, labels, world.population.lengths_of(samples)


@dataclass(frozen=True, eq=False, slots=True)
class _Owned:
    """A batch of some clients; where batches are ragged, `owners` has the place of each sample's client."""

    batch: Batch
    present: Indices
    owners: Indices | None = None


def _batch(world: World, walk: Walk, t: int, present: Indices, epoch: int = 0) -> _Owned:
    """Return the batch of some clients for a step of a round."""
    population = world.population
    if not _is_ragged(world):
        sizes = population.sizes(t, epoch, present)
        return _Owned(walk.batch(*population.batches(t, epoch, present), sizes), present)
    samples, owners = _drawn(world, t, epoch, present)
    missing = _filled(len(samples)) - len(samples)
    samples = np.pad(samples, (0, missing), constant_values=int(population.shares[0][0]))[None]
    rows = upload(samples, population.device)
    batch = walk.batch(*population.samples(rows), population.lengths_of(samples))
    return _Owned(batch, present, np.pad(owners, (0, missing), constant_values=len(present)))


def _filled(samples: int) -> int:
    """Return to how many samples a ragged batch is filled up, so that few shapes occur: by a sixteenth at most.

    >>> [_filled(samples) for samples in (20, 1500, 3000, 3100)]
    [64, 1536, 3072, 3200]
    """
    return round_up(samples, max(GRAIN, 1 << max(0, (samples // 16).bit_length() - 1)))


def _moved(world: World, t: int) -> Parameters:
    """Return what a round moves of a world's model."""
    return world.parameters.block(world.plan.blocks, world.plan.seed, t)


def _walk(task: Task, world: World, t: int) -> Walk:
    measure: Any = world.measure
    return measure.walk(_moved(world, t), task.losses)


def _drift(world: World, t: int, steps: list[NDArray[np.float32]]) -> tuple[list[Any], NDArray[np.float32]]:
    """Return the directions along which a client has moved in its steps so far, and how far along each."""
    moment = world.commits.moment
    commits = [world.plan.step(t, epoch, scalars, moment) for epoch, scalars in enumerate(steps)]
    return [key for commit in commits for key in commit.keys], np.concatenate([c.coefficients for c in commits])


def _batch_of(world: World, client: int) -> Any:
    alone, population = np.array([client]), world.population

    def batch(t: int, epoch: int) -> tuple[Tensor, Tensor]:
        x, y = population.batches(t, epoch, alone)
        return x[0], y[0]

    def poisson(t: int, epoch: int) -> tuple[Tensor, Tensor]:
        rows = upload(_private(world).batch(t, epoch, alone)[0], population.device)
        return population.samples(rows)

    return batch if world.private is None else poisson


def _private(world: World) -> PrivateClients:
    assert world.private is not None  # noqa: S101
    return world.private


def _is_ragged(world: World) -> bool:
    """Return whether the batches of clients differ in size: Poisson batches of private ones, and all samples."""
    return world.private is not None or world.population.batch == 0


def _drawn(world: World, t: int, epoch: int, present: Indices) -> tuple[Indices, Indices]:
    """Return the samples of ragged batches, client after client, and the place of each one's owner in `present`."""
    return world.population.held(present) if world.private is None else world.private.batch(t, epoch, present)


def _factors(owners: Indices, clients: int) -> NDArray[np.float32]:
    """Return what each sample counts in its client's mean; 0 for those that belong to nobody.

    >>> _factors(np.array([0, 0, 1, 2]), clients=2)
    array([0.5, 0.5, 1. , 0. ], dtype=float32)
    """
    shares = np.append(1 / np.bincount(owners, minlength=clients)[:clients], 0)
    return shares[owners].astype(np.float32)


def _means(values: Tensor, owners: Indices, clients: int) -> Tensor:
    """Return the mean of the values [samples, ...] of each client in float64, in one order on a device.

    A sample whose owner is `clients` belongs to nobody.

    >>> _means(torch.tensor([[1.0], [5.0], [2.0], [9.0]]), np.array([0, 1, 0, 2]), clients=2)
    tensor([[1.5000],
            [5.0000]], dtype=torch.float64)
    """
    order, counts = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=clients)
    kept = values.double()[upload(order[: counts[:clients].sum()], values.device)]
    return torch.segment_reduce(kept, "mean", lengths=upload(counts[:clients], values.device), axis=0)


def _ragged(
    worlds: Sequence[World], t: int, epoch: int, present: Indices, *, each: bool
) -> tuple[list[tuple[World, Tensor]], list[Indices]]:
    """Return the samples of the ragged batches of a step, and the owner of each; those that only fill up have none.

    All samples of a world in one row, [1, samples], or those of each client in a row of its own, [clients, samples].
    """
    drawn = [_drawn(world, t, epoch, present) for world in worlds]
    if each:
        sizes = [np.bincount(owners, minlength=len(present)) for _, owners in drawn]
    else:
        sizes = [np.array([len(owners)]) for _, owners in drawn]
    width = max(1, *(int(of_world.max()) for of_world in sizes))
    chosen: list[tuple[World, Tensor]] = []
    holders: list[Indices] = []
    for world, (samples, owners), counts in zip(worlds, drawn, sizes, strict=True):
        filled = np.arange(width) < counts[:, None]
        rows = np.full(filled.shape, world.population.shares[0][0])
        places = np.full(filled.shape, len(present))
        rows[filled], places[filled] = samples, owners
        chosen.append((world, upload(rows, world.population.device)))
        holders.append(places.ravel())
    return chosen, holders


def _added(update: Tensor | None, step: Tensor, z: Tensor) -> Tensor:
    """Return an update [worlds, clients, d] with a step [worlds, clients, directions] along z added to it."""
    return step @ z if update is None else torch.baddbmm(update, step, z)


class FedAvg:
    """The baseline (McMahan et al., 2017): K local steps of gradient descent, and the change travels, d scalars."""

    def __init__(self, task: Task, worlds: Sequence[World]) -> None:
        self.task, self.worlds, self.plan, self.parameters = task, worlds, worlds[0].plan, worlds[0].parameters
        self.rows, self.width = 1, self.parameters.size

    def votes(self, t: int, present: Indices) -> Tensor:
        """Return how each client's local model differs from the global one after its steps: [worlds, 1, clients, d]."""
        weights, rate = _weights(self.worlds), self.plan.rate(t)
        change = derivatives(self.task, self.parameters, weights, None, *_batches(self.worlds, t, 0, present)) * -rate
        for epoch in range(1, self.plan.local_epochs):
            batches = _batches(self.worlds, t, epoch, present)
            change = change - rate * derivatives(self.task, self.parameters, weights, change, *batches)
        return change[:, None]

    @staticmethod
    def advance(world: World, t: int, aggregate: NDArray[Any]) -> None:  # noqa: ARG004
        """Change the global model by the aggregate."""
        change = torch.tensor(aggregate[0], device=world.parameters.device)
        for entry, flat in world.parameters:
            flat += change[entry.start : entry.start + entry.size]


def _weights(worlds: Sequence[World]) -> Tensor:
    """Return the weights of the global models, [worlds, d]."""
    return torch.stack([torch.cat([flat.detach() for _, flat in world.parameters]) for world in worlds])


def _batches(worlds: Sequence[World], t: int, epoch: int, present: Indices) -> tuple[Tensor, Tensor]:
    """Return the batches of one local step: inputs [worlds, clients, batch, ...], labels [worlds, clients, batch]."""
    return _stacked([world.population.batches(t, epoch, present) for world in worlds])


def _stacked(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of all worlds, in one tensor each; those of a single world are not copied."""
    if len(parts) == 1:
        return parts[0][0][None], parts[0][1][None]
    return torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])
