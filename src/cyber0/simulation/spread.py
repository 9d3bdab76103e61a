"""One simulation on several machines: Ray actors play shares of its clients, each with a replica of the model.

Only scalars travel. An actor is told what was aggregated since it was asked last, replays that, and answers with the
votes of its clients. One that dies is replaced by another, which replays all rounds, and is asked again.
"""

import gc
import os
import socket
import time
import warnings
import weakref
from dataclasses import dataclass, field
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.config import RunConfig
from cyber0.errors import Cyber0Error, InvalidConfig, InvalidUserCode
from cyber0.extras import require
from cyber0.simulation.learners import World
from cyber0.simulation.population import Indices
from cyber0.threads import cores, limit_threads

__all__ = ["Spread"]

ENGINES = {"ray": "sequential", "ray-batched": "batched"}  # of the whole, and of each actor
WAIT = 10.0  # seconds for room on a cluster
DEATHS = 3  # of the actors of one share, in one round
PATIENCE = 60.0  # seconds, or
USUAL = 5  # times what the slowest answer of the round before took, until it is said that one is waited for


@dataclass(eq=False)
class _Actor:
    """An actor that plays a share of the clients, and how many rounds it was told of."""

    handle: Any
    process: Any  # its number and its machine, which it has been asked for
    told: int = 0
    deaths: dict[int, int] = field(default_factory=dict[int, int])  # in each round


class Spread:
    """cyber0 on Ray actors: a learner, as those of `cyber0.simulation.learners`.

    They run on the cluster that RAY_ADDRESS names, or on one that is started on this machine.

    Args:
        config: The run; `config.actors` is how many there are, by default one for each GPU, or else for each core.
        world: The model of this process, which votes for nobody.
        given: What was given in Python in place of what the configuration names, for `Simulation`.

    """

    def __init__(self, config: RunConfig, world: World, given: dict[str, Any]) -> None:
        ray = require("ray", extra="ray")
        self.rows, self.width, self._ray, self._world = world.plan.rows, world.plan.directions, ray, world
        self._aggregates: dict[int, NDArray[np.float32]] = {}
        self._slowest = self._usual = 0.0  # seconds that an answer took at most, in this round and in the one before
        started = not ray.is_initialized()
        if started:
            ray.init(include_dashboard=False, log_to_driver=False, **_resources(config))
        found = ray.cluster_resources()
        gpus, cpus = int(found.get("GPU", 0)), int(found.get("CPU", 1))
        on_gpus = gpus > 0 and config.device != "cpu"
        count = min(config.actors or (gpus if on_gpus else cpus), config.clients)
        share = {"num_gpus": min(1.0, gpus / count)} if on_gpus else {"num_cpus": min(1.0, cpus / count)}
        _check_room(ray, share, count)
        self._remote = ray.remote(**share)(_Share)
        inner = config.updated(engine=ENGINES[config.engine], actors=None, device="cuda" if on_gpus else "cpu")
        self._build = inner.model_dump(), _sent(ray, given)
        self._actors = [_Actor(*self._start()) for _ in range(count)]
        self.close = weakref.finalize(self, _end, ray, self._actors, started)  # also where nobody does

    def votes(self, t: int, present: Indices) -> torch.Tensor:
        """Return the votes of all clients (Alg. 1, lines 3 to 11), each share measured by its actor."""
        self._usual, self._slowest = self._slowest, 0.0
        shares = np.array_split(present, len(self._actors))
        asked = [self._ask(actor, t, share) for actor, share in zip(self._actors, shares, strict=True)]
        votes = [
            self._answer(actor, t, share, answer)
            for actor, share, answer in zip(self._actors, shares, asked, strict=True)
        ]
        whole = np.concatenate([part for part in votes if part is not None], axis=1)
        return torch.from_numpy(whole)[None]  # pyright: ignore[reportUnknownMemberType]

    def advance(self, world: World, t: int, aggregate: NDArray[Any]) -> None:
        """Move the global model by the aggregate (Alg. 1, lines 13 and 14); the actors do when they are asked next."""
        world.parameters.apply(world.commits.commit(t, aggregate))
        self.note(t, aggregate)

    def note(self, t: int, aggregate: NDArray[np.float32]) -> None:
        """Remember what the actors are to be told of a round."""
        self._aggregates[t] = np.array(aggregate, dtype=np.float32)

    @property
    def pids(self) -> list[int]:
        """The processes of the actors."""
        return [pid for pid, _ in self._ray.get([actor.process for actor in self._actors])]

    def _start(self) -> tuple[Any, Any]:
        handle = self._remote.remote(*self._build)
        return handle, handle.process.remote()

    def _ask(self, actor: _Actor, t: int, share: Indices) -> Any:
        if len(share) == 0:
            return None
        missing = np.full((t - actor.told, self.rows, self.width), np.nan, dtype=np.float32)  # rounds without a commit
        for number in range(actor.told, t):
            if number in self._aggregates:
                missing[number - actor.told] = self._aggregates[number]
        actor.told = t
        return actor.handle.votes.remote(missing, t, share)

    def _answer(self, actor: _Actor, t: int, share: Indices, asked: Any) -> NDArray[np.float32] | None:
        """Return the votes of a share; where its actor has died, those that another one gives."""
        while asked is not None:
            try:
                return self._awaited(actor, t, share, asked)
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause
                raise cause if isinstance(cause, Cyber0Error) else error from None
            except self._ray.exceptions.RayActorError as error:
                actor.deaths = {t: actor.deaths.get(t, 0) + 1}
                if actor.deaths[t] >= DEATHS:
                    raise InvalidConfig(
                        f"engine = 'ray': the actor of clients {share[0]} to {share[-1]} died {DEATHS} times in round "
                        f"{t}, perhaps because memory ran out: try fewer actors ({error})"
                    ) from error
                (actor.handle, actor.process), actor.told = self._start(), 0
                asked = self._ask(actor, t, share)
        return None

    def _awaited(self, actor: _Actor, t: int, share: Indices, asked: Any) -> NDArray[np.float32]:
        """Return what an actor answers; one that hangs looks like one that computes, so a person is asked to tell."""
        begin, patience = time.monotonic(), max(PATIENCE, USUAL * self._usual)
        while True:
            try:
                answer = self._ray.get(asked, timeout=patience)
            except self._ray.exceptions.GetTimeoutError:
                seconds, clients = time.monotonic() - begin, f"{share[0]} to {share[-1]}"
                warnings.warn(
                    f"round {t} has waited {seconds:.0f} seconds for the actor of clients {clients}, "
                    f"{self._process(actor)}: if it hangs, kill it, and another takes its place",
                    stacklevel=2,
                )
                patience *= 2
            else:
                self._slowest = max(self._slowest, time.monotonic() - begin)
                return answer

    def _process(self, actor: _Actor) -> str:
        try:
            pid, machine = self._ray.get(actor.process, timeout=0)
        except self._ray.exceptions.GetTimeoutError:
            return "which has not begun"
        return f"process {pid} on {machine}"


class _Share:
    """What an actor is: a replica of the run, which measures what it is asked for."""

    def __init__(self, config: dict[str, Any], given: dict[str, Any]) -> None:
        self.config, self.given, self.simulation = config, given, None

    def votes(self, aggregates: NDArray[np.float32], t: int, share: Indices) -> NDArray[np.float32]:
        from cyber0.simulation.simulation import Simulation

        if self.simulation is None:  # not earlier: an actor whose constructor raises has died, as far as Ray can tell
            torch.set_num_threads(1)  # an actor for each core is more than threads of one
            limit_threads(1)
            self.simulation = Simulation(RunConfig(**self.config), **self.given)
        self.simulation.replay(aggregates)
        return np.asarray(torch.as_tensor(self.simulation.votes(t, share)).cpu(), dtype=np.float32)

    def process(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()


def _sent(ray: Any, given: dict[str, Any]) -> Any:
    """Store what was given in Python where all actors find it."""
    try:
        return ray.put(given)
    except (TypeError, AttributeError, PicklingError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # what Ray says of it fills a page
            cause = cause.__cause__
        why = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise InvalidUserCode(
            f"engine = 'ray': what was given cannot be sent to other processes ({why}): give models, functions "
            "and data without locks, open files and the like, or use engine = 'batched'"
        ) from error


def _resources(config: RunConfig) -> dict[str, Any]:
    """Return what a cluster on this machine is to have; one that is named has what it has."""
    if "RAY_ADDRESS" in os.environ:
        return {}
    return {"num_cpus": max(cores(), config.actors or 1)}


def _check_room(ray: Any, share: dict[str, float], count: int) -> None:
    """Refuse a cluster that has no room for the actors: they would wait without a word."""
    (kind, needed) = next((name.removeprefix("num_").upper()[:-1], size * count) for name, size in share.items())
    end = time.monotonic() + WAIT  # what has just ended is not free at once
    gc.collect()  # runs that nobody holds any longer let go of theirs
    while (free := ray.available_resources().get(kind, 0.0)) < needed - 1e-6:
        if time.monotonic() > end:
            raise InvalidConfig(
                f"engine = 'ray': {count} actors need {needed:g} {kind}s, and {free:g} of the cluster are free: give "
                "fewer actors, or end what runs there"
            )
        time.sleep(0.05)


def _end(ray: Any, actors: list[_Actor], started: bool) -> None:
    if not ray.is_initialized():
        return
    for actor in actors:
        ray.kill(actor.handle)
    if started:
        ray.shutdown()
