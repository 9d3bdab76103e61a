"""`cyber0 flower`: a federation on Flower."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cyber0.cli.ledger import line
from cyber0.cli.recipe import read_recipe
from cyber0.cli.run import with_options
from cyber0.config import Agreement, RunConfig
from cyber0.flower.template import new as write

__all__ = ["flower"]

flower = typer.Typer(no_args_is_help=True, help="Run a federation on Flower.")


@flower.callback()
def group() -> None:
    """Run a federation on Flower."""


@flower.command()
@with_options(Agreement)
def new(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.", show_default=False)],
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe in TOML: the options below, as keys.", show_default=False)
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(help="The ledger's file, on the ServerApp's machine; else beside the folder.", show_default=False),
    ] = None,
    **options: Any,
) -> None:
    """Write a Flower app that trains by cyber0; `flwr run` starts it."""
    given = {name: value for name, value in options.items() if value is not None}
    write(folder, RunConfig(**{**read_recipe(recipe), **given}), ledger)
    console = Console(soft_wrap=True)
    line(console, "written to", folder)
    line(console, "start it with", f"flwr run {folder} SUPERLINK --stream")
    line(console, "SUPERLINK", "a name in ~/.flwr/config.toml (docs/flower.md); without one, Flower only simulates")
