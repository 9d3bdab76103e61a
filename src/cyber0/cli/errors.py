"""What a person sees of an error: one sentence, and with --traceback where it comes from."""

import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from cyber0.errors import Cyber0Error, Refused
from cyber0.printable import printable

__all__ = [
    "Stopped",
    "in_front",
    "keeping",
    "report",
    "sentence",
    "stop_at_signals",
    "traceback_wanted",
    "want_traceback",
]

VARIABLE = "CYBER0_TRACEBACK"
REFUSED = 3  # the exit status
HINT = "(--traceback shows where)"
OURS = Path(__file__).parents[1]
PRINTERS = ("rich", "click", "typer")  # packages
INSTALLED = tuple({OURS, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib", "scripts"))})


class Stopped(KeyboardInterrupt):
    """A signal asks the process to end, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def stop_at_signals() -> None:
    """Stop in good order where the system, or a terminal that is closed, ends the process."""

    def stop(number: int, _frame: object) -> None:
        raise Stopped(number)

    for name in ("SIGTERM", "SIGHUP"):  # one that is ignored stays so, as by nohup
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


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
    """Print an error and return the exit status.

    That is as a shell has it for a signal (Ctrl-C is 130), 3 where one party refuses another, so that whatever restarts
    services can leave that to a person, otherwise 1.
    """
    import typer

    if traceback_wanted():
        traceback.print_exception(error)
    typer.secho(f"cyber0: {sentence(error)}", fg="red", err=True)
    if _output_error(error):  # Python would try once more at its end, and have a word of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, KeyboardInterrupt):
        return 128 + (error.number if isinstance(error, Stopped) else signal.SIGINT)
    return REFUSED if isinstance(error, Refused) else 1


def sentence(error: BaseException) -> str:
    """Return an error in one sentence, with what was kept; texts of others in it do nothing to a terminal.

    >>> sentence(OSError(28, "No space left on device", "runs/first/metrics.jsonl"))
    'runs/first/metrics.jsonl: No space left on device'
    >>> sentence(KeyboardInterrupt())
    'stopped'
    """
    return printable("; ".join([_what(error), *getattr(error, "__notes__", [])]), lines=True)


def _what(error: BaseException) -> str:
    place = _user_code(error)
    hint = "" if place is None or traceback_wanted() else f" {HINT}"
    if isinstance(error, KeyboardInterrupt):
        return f"stopped by {signal.Signals(error.number).name}" if isinstance(error, Stopped) else "stopped"
    if unwritten := _output_error(error):
        return f"standard output: {unwritten.strerror}"
    if isinstance(error, Cyber0Error):
        return f"{error}{hint}"
    if place is not None:
        return f"{type(error).__name__}: {error}, in {place}{hint}"
    if isinstance(error, MemoryError):
        return "out of memory" + (f": {error}" if str(error) else "")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, ImportError) and error.path and not error.path.endswith(".py"):
        return f"{error.path} cannot be loaded: {error}"
    said = f"unexpected {type(error).__name__}: {error}"
    return said if traceback_wanted() else f"{said}; this is a bug: please report it, with what --traceback shows"


def _output_error(error: BaseException | None) -> OSError | None:
    """Return the error, or its cause, by which what is printed cannot be written; such an error names no file."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, OSError) and frames and Path(frames[-1].filename).parent.name in PRINTERS:
            return error
        error = error.__cause__ or (error.__context__ if isinstance(error, SystemExit) else None)
    return None


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
