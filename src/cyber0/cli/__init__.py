"""The command `cyber0`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyber0.cli.errors import report

if TYPE_CHECKING:
    from cyber0.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cyber0.cli.commands import app

    return app


def main() -> None:
    """Run the command line; an error is one sentence and exit status 1, and a traceback only if asked for."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported in our own words; read when gRPC is imported
    from cyber0.cli.commands import app

    sys.path.append(str(Path.cwd()))  # so that `--rule my_module:my_rule` finds a file beside you
    try:
        app()
    except Exception as error:
        sys.exit(report(error))
