"""The command `cyber0`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cyber0.errors import Cyber0Error

if TYPE_CHECKING:
    from cyber0.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cyber0.cli.commands import app

    return app


def main() -> None:
    """Run the command line; an error of ours is one sentence and exit status 1, not a traceback."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported in our own words; read when gRPC is imported
    from cyber0.cli.commands import app

    sys.path.append(str(Path.cwd()))  # so that `--rule my_module:my_rule` finds a file beside you
    try:
        app()
    except Cyber0Error as error:
        typer.secho(f"cyber0: {error}", fg="red", err=True)
        sys.exit(1)
