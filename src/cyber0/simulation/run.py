"""A run from its first round to its result, in a folder or without one; and the result of one that was played."""

from collections.abc import Iterable
from contextlib import closing, nullcontext
from pathlib import Path
from shlex import quote
from typing import Any

from cyber0.aggregation import Rule, get_rule
from cyber0.attacks import Attack, AttackRun
from cyber0.callbacks import Callback, Callbacks
from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidData, InvalidName, InvalidUserCode, UnknownName
from cyber0.extras import require
from cyber0.participant import build_participant, load_task
from cyber0.registry import name_of
from cyber0.simulation.export import Record, from_folder
from cyber0.simulation.folder import RunFolder
from cyber0.simulation.history import History
from cyber0.simulation.metrics import Keep, MetricsLog
from cyber0.simulation.result import Result
from cyber0.simulation.simulation import Simulation
from cyber0.tasks.convert import GIVEN
from cyber0.tasks.partition import PARTITIONS, Partition
from cyber0.tasks.task import Task

__all__ = ["open_run", "run"]


def run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    task: Task | None = None,
    rule: Rule | None = None,
    attack: Attack | type | None = None,
    partition: Partition | None = None,
    callbacks: Iterable[Callback | type[Callback] | str] = (),
    keep: Keep | None = None,
    resume: bool = False,
) -> Result:
    """Simulate a run to its end.

    Args:
        config: The run.
        out: A new folder for everything there is to keep; by default nothing is.
        task: What is trained, instead of the task that the configuration names.
        rule: A rule instead of the one it names.
        attack: An attack instead of the one it names; a class is called once, and may keep state.
        partition: A partition instead of the one it names.
        callbacks: What is called before the run, after each round and after each evaluation.
        keep: "votes" keeps every round's votes, lies and aggregate in the result's history.
        resume: Whether to continue the run in `out`, which ends in the same model as if it had not been stopped.

    >>> result = run(RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
    >>> result.summary["rounds"], result.summary["bytes_up_per_client"]
    (2, 32.0)

    """
    listening = Callbacks(callbacks)
    path = None if out is None else _folder(out)
    config = _named(config, rule, attack, partition)
    if resume and path is None:
        raise InvalidConfig("resume = True: say by `out` which folder's run to continue")
    folder = None if path is None else _resumed(path, config, task) if resume else RunFolder.new(path, config)
    with nullcontext() if folder is None else closing(folder):
        simulation = Simulation(config, task, rule=rule, attack=attack, split=partition)
        record = Record(simulation) if config.algorithm == "cyber0" else None
        log = MetricsLog(simulation, folder, keep=keep)
        if record is not None and folder is not None:
            record.add_all(folder.aggregates(simulation.learner.rows, simulation.learner.width))
        listening.before_run(simulation)
        if simulation.rounds == 0:
            listening.after_evaluation(simulation, log.lines[0])
        for played in simulation.play():
            evaluation = log.add(played)
            if record is not None:
                record.add(played)
            listening.after_round(simulation, played)
            if evaluation is not None:
                listening.after_evaluation(simulation, evaluation)
        summary = log.summary()
        if folder is not None:
            folder.finish(summary, {k: v.detach().cpu() for k, v in simulation.parameters.tensors.items()})
    parts: dict[str, Any] = {"model": lambda: simulation.parameters.module}
    parts["exported"] = None if record is None else record.exported
    return Result(config, log.history(), summary, folder=path, **parts)


def open_run(
    path: str | Path, *, task: Task | None = None, data: str | None = None, model: str | None = None
) -> Result:
    """Read the result of a run from its folder.

    Args:
        path: The folder, of `cyber0 run --out` or of `cyber0.run(..., out=...)`.
        task: What was trained, if it was a task of your own that cannot be imported by its name.
        data: Where the data of its task are now, if elsewhere.
        model: Where its language model is now, if elsewhere.

    >>> from tempfile import mkdtemp
    >>> config = RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2)
    >>> played = run(config, Path(mkdtemp()) / "run")
    >>> opened = open_run(played.folder)
    >>> opened.accuracy == played.accuracy, opened.fingerprint == played.fingerprint
    (True, True)

    """
    folder = RunFolder.read(Path(path))
    summary = folder.summary
    if summary is None:
        raise InvalidConfig(
            f"{path} holds a run that has not ended: continue it with cyber0 run --resume {quote(str(path))}, or in "
            "Python by the call that began it, with resume=True"
        )
    if not folder.lines:
        raise InvalidConfig(f"{folder.path / 'metrics.jsonl'} is missing or empty: the run has lost its evaluations")

    def given_task() -> Task:
        if task is not None:
            return task
        try:
            return load_task(folder.config, data or folder.config.data, folder.config.source, model)
        except (InvalidName, InvalidUserCode, UnknownName) as error:
            raise InvalidConfig(
                f"{path} was played with {folder.config.task!r}, which names no task ({error}): give open_run the "
                "task, as task=task_of(model, train, test) by cyber0.tasks.convert.task_of"
            ) from error

    def trained() -> Any:
        torch = require("torch", extra="train")
        module: Any = build_participant(given_task(), folder.config, torch.device("cpu")).parameters.module
        _load(module, folder.weights)
        return module

    return Result(
        folder.config,
        History(folder.lines, folder.rounds()),
        summary,
        folder=folder.path,
        model=trained,
        exported=lambda: from_folder(folder.path, data, model, given_task()),
    )


def _folder(out: Any) -> Path:
    """Return the path of a run's folder; refuse what names none."""
    if not isinstance(out, str | Path) or not str(out).strip() or "\0" in str(out):
        raise InvalidConfig(f"out = {out!r}: name a folder, as out='runs/first'")
    return Path(out)


def _resumed(path: Path, config: RunConfig, task: Task | None) -> RunFolder:
    """Open the folder of a run to be resumed; refuse one whose model and data are needed, and not given again."""
    lines = RunFolder.read(path).lines
    if task is None and lines and lines[0].get("data") == GIVEN:
        raise InvalidConfig(
            f"{path} holds a run of a model and data that were given in Python ({config.task}): continue it in Python, "
            f"by the same call of cyber0.simulate with out={str(path)!r} and resume=True"
        )
    return RunFolder.resume(path, config)


def _named(config: RunConfig, rule: Any, attack: Any, partition: Any) -> RunConfig:
    """Return a configuration that names what is used in place of its own rule, attack and partition."""
    names: dict[str, Any] = {}
    if rule is not None:
        names["rule"] = get_rule(rule).name
    if attack is not None:
        names["attack"] = AttackRun(attack, seed=0, knows="model").name
    if partition is not None:
        names["partition"] = partition if isinstance(partition, str) else name_of(partition, PARTITIONS)
    return config.updated(**names) if names else config


def _load(module: Any, weights: Path) -> None:
    """Give a model the weights of a file."""
    torch, safetensors = require("torch", extra="train"), require("safetensors.torch", extra="train")
    try:
        tensors: dict[str, Any] = safetensors.load_file(weights)
    except Exception as error:
        raise InvalidConfig(
            f"{weights} is missing or damaged: remove summary.json, and `cyber0 run --resume` the run"
        ) from error
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    shapes = [{name: tuple(each.shape) for name, each in found.items()} for found in (tensors, trainable)]
    if shapes[0] != shapes[1]:
        raise InvalidData(
            f"{weights} holds {_listed(shapes[0])}, and the model of the task has {_listed(shapes[1])}: give open_run "
            "the task that was trained"
        )
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(tensors[name])


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())[:4]) + ", ..." * (len(shapes) > 4)
