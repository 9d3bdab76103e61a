"""The metrics log: what is kept of a run as it is played."""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from cyber0.callbacks import Round
from cyber0.errors import InvalidCommit, InvalidConfig, InvalidData
from cyber0.simulation.folder import Line, RunFolder
from cyber0.simulation.history import History, numbers
from cyber0.simulation.simulation import Simulation
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.evaluation import Evaluation
from cyber0.tasks.losses import describe_loss

__all__ = ["Keep", "MetricsLog"]

Keep = Literal["votes"]


class MetricsLog:
    """What is kept of a run as it is played: its evaluations in `lines`, and in its folder, if it has one.

    Args:
        simulation: The run; one that has a folder with rounds in it goes on from there.
        folder: Where everything is written.
        share: The share of the time that is this run's own, where several are played together.
        keep: "votes" keeps every round's votes.

    >>> from cyber0.config import RunConfig
    >>> simulation = Simulation(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=1))
    >>> log = MetricsLog(simulation)
    >>> for played in simulation.play():
    ...     evaluation = log.add(played)
    >>> [line["round"] for line in log.lines]
    [0, 1]

    """

    def __init__(
        self,
        simulation: Simulation,
        folder: RunFolder | None = None,
        share: float = 1.0,
        keep: Keep | None = None,
    ) -> None:
        if keep not in (None, "votes"):
            raise InvalidConfig(f"keep = {keep!r}: use 'votes' to keep every round's votes, or leave it out")
        self.simulation, self.folder, self.share, self.keep = simulation, folder, share, keep
        self.rounds: list[Round] = [] if folder is None or keep is None else folder.rounds()
        self._dropped: Counter[str] = Counter()
        self._votes = self._skipped = 0
        self._seconds: Callable[[], float] = lambda: 0.0
        self._signs: list[Any] = []
        self.lines = self._begin()
        last = self.lines[-1]
        self._dropped.update(last.get("dropped", {}))
        self._votes, self._skipped, self._new = last["votes"], last["skipped"], len(self.rounds)
        self._pending: list[Any] = []
        begun = time.perf_counter() - last["seconds"] / share
        self._seconds = lambda: (time.perf_counter() - begun) * share

    def add(self, played: Round) -> Line | None:
        """Take note of a round; when it is time to, evaluate the model and return the evaluation."""
        simulation, config = self.simulation, self.simulation.config
        self._votes, self._skipped = self._votes + len(played.participants), self._skipped + (played.aggregate is None)
        if played.honest is not None and len(played.admitted) < len(played.participants):
            self._dropped.update(str(client) for client in np.setdiff1d(played.participants, played.admitted))
        if "sign" in played.reports:
            self._signs.append(played.reports["sign"])
        if self.keep is not None:
            self.rounds.append(played)
        if self.folder is not None:
            self._pending.append(_aggregate(simulation, played))
        if simulation.rounds % config.evaluate_every and simulation.rounds != config.rounds:
            return None
        self.lines.append(self._line())
        if self.folder is not None:
            attack = simulation.attack.state() if simulation.attack.has_memory and simulation.attack.resumable else None
            self.folder.append(np.stack(self._pending), self.lines[-1], self.rounds[self._new :], attack)
            self._pending.clear()
            self._new = len(self.rounds)
        return self.lines[-1]

    def history(self) -> History:
        """Return all that was kept."""
        return History(self.lines, self.rounds)

    def summary(self) -> Line:
        """Return the outcome."""
        simulation, last = self.simulation, self.lines[-1]
        best = _best(self.lines, "")
        found = {
            "best_accuracy_on_test": self.lines[best]["accuracy"],
            "best_round_on_test": self.lines[best]["round"],
            "final_accuracy": last["accuracy"],
            "final_loss": last["loss"],
            **({"final_attack_success": last["attack_success"]} if "attack_success" in last else {}),
        }
        if simulation.validation is not None:
            chosen = self.lines[_best(self.lines, "validation_")]
            found |= {
                "best_round_on_validation": chosen["round"],
                "accuracy_at_best_validation": chosen["accuracy"],
                "loss_at_best_validation": chosen["loss"],
            }
        return {
            **found,
            **{f"final_{name}": value for name, value in last.get("metrics", {}).items()},
            **{key: last[key] for key in last if key.endswith("_per_client")},
            "rounds": simulation.rounds,
            "skipped_rounds": last["skipped"],
            **({"dropped_votes": _dropped(simulation, self._dropped)} if self._dropped else {}),
            **({} if simulation.world.private is None else simulation.world.private.facts()),
            "seconds": last["seconds"],
            "model_fingerprint": _fingerprint(simulation),
            "data": simulation.task.dataset.source,
            "device": str(simulation.device),
        }

    def _begin(self) -> list[Line]:
        """Return the evaluations so far, with the simulation where the last one left it; a first one for a new run."""
        dataset, folder = self.simulation.task.dataset, self.folder
        origin: Line = {"data": dataset.source, "data_sha256": _digest(dataset), "model": _fingerprint(self.simulation)}
        if (loss := describe_loss(self.simulation.task.losses)) is not None:
            origin["loss_function"] = loss
        if folder is not None and folder.lines:
            self._go_on(folder, origin)
            folder.extend()
            return [folder.lines[0] | origin, *folder.lines[1:]]
        beginning = self._line() | origin
        if folder is not None:
            folder.extend()
            folder.append(np.empty(0), beginning)
        return [beginning]

    def _go_on(self, folder: RunFolder, origin: Line) -> None:
        """Take the rounds of a folder, which began with the same data and model and end in the model last evaluated."""
        simulation, first, last = self.simulation, folder.lines[0], folder.lines[-1]
        for key in ("data_sha256", "model"):
            if first.get(key) != origin[key]:
                raise InvalidData(
                    f"{folder.path} was begun with another {key} ({first.get(key)}, now {origin[key]}): "
                    "give it the same data and the same model, or remove it"
                )
        _check_loss(folder, first.get("loss_function"), origin.get("loss_function"))
        if last["round"] > 0 and simulation.attack.has_memory:
            state = folder.attack_state() if simulation.attack.resumable else None
            if state is None:
                raise InvalidConfig(
                    f"{folder.path} cannot be resumed: attack {simulation.attack.name!r} may remember earlier rounds "
                    "and has no state() and restore(state); begin the run anew, or give the attack both"
                )
            simulation.attack.restore(state)
        try:
            simulation.replay(folder.aggregates(simulation.learner.rows, simulation.learner.width))
            model = _fingerprint(simulation)
        except InvalidCommit:
            model = "none"
        if last.get("model", model) != model:
            raise InvalidConfig(
                f"{folder.path} is damaged: its scalars do not lead to the model of round {last['round']}"
            )

    def _line(self) -> Line:
        """Evaluate the model, and count what it has cost each client; a loss or a metric that is not finite is None."""
        simulation = self.simulation
        found, chosen = simulation.evaluate(), simulation.validate()
        scalars = simulation.learner.rows * simulation.learner.width
        up = self._votes * scalars / simulation.config.clients
        down = float((simulation.rounds - self._skipped) * scalars)
        held_out = {} if chosen is None else {f"validation_{key}": value for key, value in _measured(chosen).items()}
        return {
            "round": simulation.rounds,
            **_measured(found),
            **({} if found.attack_success is None else {"attack_success": found.attack_success}),
            **held_out,
            **({"metrics": {name: _finite(value) for name, value in found.metrics.items()}} if found.metrics else {}),
            "scalars_up_per_client": up,
            "scalars_down_per_client": down,
            "bytes_up_per_client": 4 * up,
            "bytes_down_per_client": 4 * down,
            "votes": self._votes,
            "skipped": self._skipped,
            **({"dropped": dict(self._dropped)} if self._dropped else {}),
            **self._sign(),
            "seconds": self._seconds(),
            "model": _fingerprint(simulation),
        }

    def _sign(self) -> Line:
        """Return the mean of the signs that an attack chose since the last evaluation, if it chose any."""
        signs, self._signs = self._signs, []
        return {"sign": float(np.mean([np.mean(numbers(each)) for each in signs]))} if signs else {}


def _check_loss(folder: RunFolder, kept: Line | None, given: Line | None) -> None:
    """Refuse to go on with another loss; code that another version of Python compiled cannot be compared."""
    then, now = kept or {}, given or {}
    keys = ("name", "settings", "code") if then.get("python") == now.get("python") else ("name", "settings")
    different = [key for key in keys if then.get(key) != now.get(key)]
    if different:
        names = [f"loss {each['name']}" if each else "the loss of the task" for each in (then, now)]
        what = "" if different[0] == "name" else f" with other {different[0]}"
        raise InvalidConfig(
            f"{folder.path} was begun with {names[0]}, and is to be resumed with {names[1]}{what}: give it the same "
            "loss, or name another folder"
        )


def _measured(found: Evaluation) -> Line:
    return {"accuracy": found.accuracy, "loss": _finite(found.loss)}


def _finite(value: float) -> float | None:
    """Return a value, or None in place of one that is not finite, which JSON cannot hold."""
    return value if math.isfinite(value) else None


def _best(lines: list[Line], prefix: str) -> int:
    """Return the first evaluation with the highest accuracy or, without classes, with the least loss."""

    def merit(line: Line) -> float:
        if line[f"{prefix}accuracy"] is not None:
            return line[f"{prefix}accuracy"]
        return -math.inf if line[f"{prefix}loss"] is None else -line[f"{prefix}loss"]

    return max(range(len(lines)), key=lambda place: (merit(lines[place]), -place))


def _dropped(simulation: Simulation, counts: Counter[str]) -> dict[str, str]:
    """Return how many votes of whom did not count, and why as far as that is known."""
    inputs, shares = simulation.population.dataset.train_inputs, simulation.population.shares
    byzantine = simulation.config.clients - simulation.config.byzantine
    found: dict[str, str] = {}
    for client, count in sorted(counts.items(), key=lambda item: int(item[0])):
        reason = "not finite"
        if inputs.dtype.kind == "f" and not np.isfinite(inputs[shares[int(client)]]).all():
            reason = "not finite, since the client's data hold values that are not finite"
        elif int(client) >= byzantine:
            reason = "not finite, sent by a Byzantine client"
        found[f"client-{client}"] = f"{count}: {reason}"
    return found


def _fingerprint(simulation: Simulation) -> str:
    simulation.parameters.settle()
    return f"{simulation.parameters.fingerprint():016x}"


@lru_cache(maxsize=1)  # runs that are played together share their data
def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for part in (dataset.train_inputs, dataset.train_labels, dataset.test_inputs, dataset.test_labels):
        digest.update(memoryview(np.ascontiguousarray(part)))  # pyright: ignore[reportArgumentType]
    if dataset.owners is not None:
        digest.update(memoryview(dataset.owners))  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()


def _aggregate(simulation: Simulation, played: Round) -> Any:
    if played.aggregate is not None:
        return played.aggregate
    return np.full((simulation.learner.rows, simulation.learner.width), np.nan, dtype=np.float32)
