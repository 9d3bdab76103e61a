"""What a person sees of an error: one sentence, and with --traceback where it comes from."""

import os
import sysconfig
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import typer

from cyber0.errors import Cyber0Error

__all__ = ["in_front", "keeping", "report", "sentence", "traceback_wanted", "want_traceback"]

VARIABLE = "CYBER0_TRACEBACK"
HINT = "(--traceback shows where)"
OURS = Path(__file__).parents[1]
INSTALLED = tuple({OURS, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib", "scripts"))})


def want_traceback(value: bool) -> None:
    """Show whole tracebacks from now on, in this process and those it starts."""
    if value:
        os.environ[VARIABLE] = "1"


def traceback_wanted() -> bool:
    """Return whether whole tracebacks are shown."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


@contextmanager
def keeping(say: Callable[[], str]) -> Generator[None]:
    """Add to any error what `say()` returns: what was kept, and how to go on; nothing if that is empty."""
    try:
        yield
    except BaseException as error:
        if note := say():
            error.add_note(note)
        raise


def report(error: BaseException) -> int:
    """Print an error and return the exit status: 130 for Ctrl-C, otherwise 1."""
    if traceback_wanted():
        traceback.print_exception(error)
    typer.secho(f"cyber0: {sentence(error)}", fg="red", err=True)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def sentence(error: BaseException) -> str:
    """Return an error in one sentence, with what was kept.

    >>> sentence(OSError(28, "No space left on device", "runs/first/metrics.jsonl"))
    'runs/first/metrics.jsonl: No space left on device'
    >>> sentence(KeyboardInterrupt())
    'stopped'
    """
    return "; ".join([_what(error), *getattr(error, "__notes__", [])])


def _what(error: BaseException) -> str:
    place = _user_code(error)
    hint = "" if place is None or traceback_wanted() else f" {HINT}"
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if isinstance(error, Cyber0Error):
        return f"{error}{hint}"
    if place is not None:
        return f"{type(error).__name__}: {error}, in {place}{hint}"
    if isinstance(error, MemoryError):
        return "out of memory" + (f": {error}" if str(error) else "")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    said = f"unexpected {type(error).__name__}: {error}"
    return said if traceback_wanted() else f"{said}; this is a bug: please report it, with what --traceback shows"


def _user_code(error: BaseException | None) -> str | None:
    """Return the file and line of the user's code that an error, or what caused it, passed through last."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            path = Path(frame.filename)
            if not frame.filename.startswith("<") and not any(path.is_relative_to(folder) for folder in INSTALLED):
                return f"{path.name}, line {frame.lineno}"
        error = error.__cause__
    return None


def in_front(arguments: list[str]) -> list[str]:
    """Return the arguments with --traceback in front, wherever it was given.

    >>> in_front(["run", "--rounds", "3", "--traceback"])
    ['--traceback', 'run', '--rounds', '3']
    """
    if "--traceback" not in arguments:
        return arguments
    return ["--traceback", *(argument for argument in arguments if argument != "--traceback")]
