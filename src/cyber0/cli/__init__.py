"""The command `cyber0`."""

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyber0.cli.errors import report, stop_at_signals

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
    try:
        stop_at_signals()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a name that a terminal cannot show stops nothing
                stream.reconfigure(errors="backslashreplace")
        from cyber0.cli.commands import app

        sys.path.append(str(Path.cwd()))  # so that `--rule my_module:my_rule` finds a file beside you
        app()
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(report(error))
