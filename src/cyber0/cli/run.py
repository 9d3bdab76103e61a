"""`cyber0 run`: one simulated federation, from a recipe, from options, or from both."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.console import Console

from cyber0.cli.errors import keeping
from cyber0.cli.recipe import read_recipe
from cyber0.config import Agreement, MachineOptions, Options, RunConfig, SimulationOptions
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.progress import Progress

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
                help_text = _help(field.annotation, field.description or "", field.default)
                option = typer.Option(help=help_text, show_default=False, rich_help_panel=PANELS[group])
                annotation = Annotated[_plain(field.annotation) | None, option]
                own.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
        command.__signature__ = Signature(own)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
        return command

    return decorate


def _help(annotation: Any, description: str, default: Any) -> str:
    choices = f" One of {', '.join(get_args(annotation))}." if get_origin(annotation) is Literal else ""
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
            help="Continue the run in this folder; it ends as if it had not been stopped.", show_default=False
        ),
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
        typer.echo(config.to_toml(), nl=False)
        return
    require("torch", extra="train")
    _simulate(config, resume or out, resuming=resume is not None)


def _configuration(recipe: Path | None, given: dict[str, Any], out: Path | None, resume: Path | None) -> RunConfig:
    if resume is None:
        config = RunConfig(**{**read_recipe(recipe), **given})
        return config.model_copy(update=_resolved(config))
    if recipe or given or out:
        raise InvalidConfig(f"--resume {resume} takes its configuration from that folder: give no other")
    from cyber0.simulation.folder import Folder

    return Folder.configuration(resume)


def _resolved(config: RunConfig) -> dict[str, str]:
    """Return folders by their whole paths, so that a run can be continued from anywhere; a hub id stays as it is."""
    folders = {"data": config.data, "model": config.model if config.model and Path(config.model).is_dir() else None}
    return {key: str(Path(folder).resolve()) for key, folder in folders.items() if folder}


def _simulate(config: RunConfig, folder: Path | None, *, resuming: bool) -> None:
    from cyber0.simulation.run import run as simulate

    console = Console(soft_wrap=True)
    with keeping(lambda: _kept(folder)):
        console.print(_title(config), markup=False, highlight=False)
        with Progress(console, "", config.rounds) as progress:
            begin = None if resuming else partial(_introduce, console, progress)
            summary = simulate(config, folder, resume=resuming, watch=partial(_watch, progress), begin=begin)
    _print(console, {name: _readable(name, value) for name, value in summary.items()})
    if folder:
        _print(console, {"written to": str(folder)})


def _kept(folder: Path | None) -> str:
    """Return how to continue a run that has begun in a folder."""
    begun = folder is not None and (folder / "metrics.jsonl").exists()
    return f"continue with: cyber0 run --resume {quote(str(folder))}" if begun else ""


def _title(config: RunConfig) -> str:
    """Return what is run, in a line."""
    liars = f"{config.clients} clients, {config.byzantine} of them may lie"
    what = f"{config.algorithm} on {config.task}" + (f" with {config.model}" if config.model else "")
    return f"{what}: {liars}, rule {config.rule}, attack {config.attack}, {config.rounds:,} rounds, seed {config.seed}"


def _introduce(console: Console, progress: Progress, simulation: Any, first: dict[str, Any]) -> None:
    """Show the first evaluation; of a language model also what it is like, before it is trained for hours."""
    progress.update(0, _evaluation(first), news=True)
    if simulation.config.model is None:
        return
    from cyber0.tasks.text.report import describe

    known = simulation.task, simulation.parameters.module, simulation.config, simulation.device
    _print(console, describe(*known, accuracy=first["accuracy"]))
    if "lr" not in simulation.config.model_fields_set:
        rate = f"lr = {simulation.config.lr} is the default, and for digits: begin with 1e-6 to 3e-5, by --lr"
        _print(console, {"learning rate": rate})


def _watch(progress: Progress, played: Any, line: dict[str, Any]) -> None:
    done = played.number + 1
    progress.update(done, _evaluation(line), news=done == line["round"])


def _evaluation(line: dict[str, Any]) -> str:
    """Return an evaluation in a few words; a task without classes has no accuracy, a model that diverged no loss."""
    accuracy = "" if line.get("accuracy") is None else f"accuracy {line['accuracy']:.1%}, "
    loss = "not a number" if line["loss"] is None else f"{line['loss']:.3f}"
    return f"{accuracy}loss {loss}, {line['bytes_up_per_client'] / 1e3:,.1f} kB sent"


def _print(console: Console, values: dict[str, str]) -> None:
    for name, value in values.items():
        console.print(f"{name:24} {value}", markup=False, highlight=False)


def _readable(name: str, value: Any) -> str:
    if name.endswith("accuracy"):
        return "none: the task has no classes" if value is None else f"{value:.2%}"
    if name.startswith("bytes"):
        return f"{value / 1e3:,.1f} kB" if value >= 1e3 else f"{value:,.6g} bytes"
    if name == "final_loss" and value is None:
        return "not a number: the model has diverged; try a smaller --lr"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
