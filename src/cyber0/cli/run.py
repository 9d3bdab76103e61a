"""`cyber0 run`: one simulated federation, from a recipe, from options, or from both."""

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.console import Console

from cyber0.callbacks import Callback
from cyber0.cli.catalogue import NAMES
from cyber0.cli.errors import keeping
from cyber0.cli.recipe import read_recipe
from cyber0.cli.track import Track, tracking
from cyber0.config import Agreement, MachineOptions, Options, RunConfig, SimulationOptions
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.printable import many
from cyber0.progress import Pace, Progress

__all__ = ["run", "with_options"]

PANELS: dict[type[Options], str] = {
    Agreement: "The run: what all parties agree on",
    SimulationOptions: "The simulation",
    MachineOptions: "This machine",
}


def with_options(*groups: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each key of some groups of a configuration; those not given stay None.

    The command's own parameters come first; it takes the others as `**options`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in Signature.from_callable(command).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        for group in groups:
            for name, field in group.model_fields.items():
                help_text = _help(name, field.annotation, field.description or "", field.default)
                option = typer.Option(help=help_text, show_default=False, rich_help_panel=PANELS[group])
                annotation = Annotated[_plain(field.annotation) | None, option]
                own.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
        command.__signature__ = Signature(own)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
        return command

    return decorate


def _help(name: str, annotation: Any, description: str, default: Any) -> str:
    choices = f" One of {', '.join(get_args(annotation))}." if get_origin(annotation) is Literal else ""
    choices += f" Known: {', '.join(NAMES[name])}." if name in NAMES else ""
    return description + choices + ("" if default is None else rf" \[default: {default}]")


def _plain(annotation: Any) -> Any:
    """Return int, float or str for a field's type; the configuration itself checks the rest."""
    if annotation in (int, float, str):
        return annotation
    inner = get_args(annotation)
    return _plain(inner[0]) if inner and get_origin(annotation) is not Literal else str


@with_options(Agreement, SimulationOptions, MachineOptions)
def run(
    recipe: Annotated[
        Path | None, typer.Argument(help="A file in TOML with the options below as keys; options go over it.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A new folder for configuration, metrics, scalars and weights; else nothing is kept.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder to the same model; with --rounds, extend it by more rounds.",
            show_default=False,
        ),
    ] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(help="A cyber0.Callback of yours, as package.module:object. Repeatable.", show_default=False),
    ] = None,
    track: Track = None,
    keep: Annotated[
        str | None,
        typer.Option(help="votes: keep every round's votes and lies in --out, for `cyber0 plot`.", show_default=False),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the configuration as a recipe and stop.")
    ] = False,
    **options: Any,
) -> None:
    """Simulate a federation in one process. Without options: the paper's MNIST study, without an attack."""
    given = {name: value for name, value in options.items() if value is not None}
    config = _configuration(recipe, given, out, resume)
    if print_config:
        typer.echo(config.to_toml(whole=True), nl=False)
        return
    require("torch", extra="train")
    if keep not in (None, "votes"):
        raise InvalidConfig(f"--keep {keep}: votes is what can be kept")
    folder = resume or out
    with tracking(track or [], folder) as trackers:
        _simulate(config, folder, [*(callback or []), *trackers], resuming=resume is not None, keep=keep)


def _configuration(recipe: Path | None, given: dict[str, Any], out: Path | None, resume: Path | None) -> RunConfig:
    if resume is None:
        config = RunConfig(**{**read_recipe(recipe), **given})
        return config.model_copy(update=_resolved(config))
    fixed = [key for key in given if key != "rounds" and key not in MachineOptions.model_fields]
    if recipe or out or fixed:
        other = f"--{fixed[0].replace('_', '-')}" if fixed else "a recipe" if recipe else "--out"
        raise InvalidConfig(
            f"--resume {resume} continues the run in that folder: {other} would make it another one; only --rounds, to "
            "extend it, and options of this machine can be given"
        )
    from cyber0.simulation.folder import RunFolder

    config = RunFolder.configuration(resume)
    return config.updated(**given, **_resolved(config.updated(**given))) if given else config


def _resolved(config: RunConfig) -> dict[str, str]:
    """Return folders by their whole paths, so that a run can be continued from anywhere; a hub id stays as it is."""
    folders = {"data": config.data, "model": config.model if config.model and Path(config.model).is_dir() else None}
    return {key: str(Path(folder).resolve()) for key, folder in folders.items() if folder}


def _simulate(config: RunConfig, folder: Path | None, callbacks: list[Any], *, resuming: bool, keep: Any) -> None:
    from cyber0.simulation import run as play

    console = Console(soft_wrap=True)
    progress = Progress(console, "", config.rounds)
    shown = _Shown(console, progress, introduce=not resuming)
    with keeping(lambda: _kept(folder) if shown.begun else ""):  # what was refused is refused again
        console.print(_title(config), markup=False, highlight=False, emoji=False)
        with progress:
            result = play(config, folder, callbacks=[shown, *callbacks], keep=keep, resume=resuming)
    _print(console, {name: _readable(name, value) for name, value in result.summary.items() if name != "dropped_votes"})
    for client, votes in result.summary.get("dropped_votes", {}).items():
        _print(console, {f"dropped of {client}": f"{votes}"})
    if folder:
        _print(console, {"written to": str(folder)})


class _Shown(Callback):
    """Shows how far a run is and what its last evaluation found."""

    def __init__(self, console: Console, progress: Progress, *, introduce: bool) -> None:
        self.console, self.progress, self.introduce = console, progress, introduce
        self.latest, self.begun = "", False
        self._pace = Pace(console, progress.total)

    def before_run(self, run: Any) -> None:  # noqa: ARG002
        """Take note that the run was not refused."""
        self.begun = True

    def after_round(self, run: Any, round: Any) -> None:  # noqa: A002, ARG002
        """Advance the display."""
        self._pace.round()
        self.progress.update(round.number + 1, self.latest)

    def after_evaluation(self, run: Any, evaluation: Mapping[str, Any]) -> None:
        """Show an evaluation; before a language model is trained for hours, also what it is like."""
        self.latest = _evaluation(evaluation)
        self.progress.update(evaluation["round"], self.latest, news=True)
        if evaluation["round"] == 0 and self.introduce and run.config.model is not None:
            _introduce(self.console, run, evaluation)


def _kept(folder: Path | None) -> str:
    """Return how to continue a run that has begun in a folder."""
    begun = folder is not None and (folder / "metrics.jsonl").exists()
    return f"continue with: cyber0 run --resume {quote(str(folder))}" if begun else ""


def _title(config: RunConfig) -> str:
    """Return what is run, in a line."""
    liars = f"{many(config.clients, 'client')}, {config.byzantine} of them may lie"
    what = f"{config.algorithm} on {config.task}" + (f" with {config.model}" if config.model else "")
    what += "" if config.objective == "plain" else f", objective {config.objective}"
    how = f"rule {config.rule}, attack {config.attack}, {many(config.rounds, 'round')}"
    return f"{what}: {liars}, {how}, seed {config.seed}"


def _introduce(console: Console, simulation: Any, first: Mapping[str, Any]) -> None:
    from cyber0.tasks.text.report import describe

    known = simulation.task, simulation.parameters.module, simulation.config, simulation.device
    _print(console, describe(*known, accuracy=first["accuracy"]))
    if "lr" not in simulation.config.model_fields_set:
        rate = f"lr = {simulation.config.lr} is the default, and for digits: begin with 1e-6 to 3e-5, by --lr"
        _print(console, {"learning rate": rate})


def _evaluation(line: Mapping[str, Any]) -> str:
    """Return an evaluation in a few words; a task without classes has no accuracy, a model that diverged no loss."""
    accuracy = "" if line.get("accuracy") is None else f"accuracy {line['accuracy']:.1%}, "
    success = f", attack success {line['attack_success']:.1%}" if "attack_success" in line else ""
    loss = "not a number" if line["loss"] is None else f"{line['loss']:.3f}"
    return f"{accuracy}loss {loss}{success}, {line['bytes_up_per_client'] / 1e3:,.1f} kB sent"


def _print(console: Console, values: dict[str, str]) -> None:
    for name, value in values.items():
        console.print(f"{name:24} {value}", markup=False, highlight=False)


def _readable(name: str, value: Any) -> str:
    if "accuracy" in name or "success" in name:
        return "none: the task has no classes" if value is None else f"{value:.2%}"
    if name.startswith("bytes"):
        return f"{value / 1e3:,.1f} kB" if value >= 1e3 else f"{value:,.6g} bytes"
    if name == "final_loss" and value is None:
        return "not a number: the model has diverged; try a smaller --lr"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
