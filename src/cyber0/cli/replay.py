"""`cyber0 replay`: rebuild a trained model from its base and its commits."""

import errno
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer
from rich.console import Console

from cyber0.cli.errors import keeping
from cyber0.cli.ledger import Run, line
from cyber0.errors import InvalidConfig, InvalidParameters
from cyber0.extras import require
from cyber0.files import make_folder
from cyber0.parameters import Parameters
from cyber0.progress import Progress
from cyber0.protocol.ledger import Ledger
from cyber0.replay import Checkpoint, Weights, open_ledger, rebuild
from cyber0.replay import base as base_of

__all__ = ["replay"]

Base = Annotated[
    str,
    typer.Option(
        help="The weights the run began with: a safetensors file, a folder with one, or 'task' to build them.",
        show_default=False,
    ),
]
Data = Annotated[Path | None, typer.Option(help="With --base task: the folder of its data.", show_default=False)]
Model = Annotated[
    str | None, typer.Option(help="With --base task: the hub id or folder of its model.", show_default=False)
]


def replay(
    run: Run,
    base: Base,
    out: Annotated[Path, typer.Option(help="The safetensors file to write.", show_default=False)],
    rounds: Annotated[
        int | None,
        typer.Option("--round", min=0, help="Stop after so many rounds. \\[default: all]", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, ...")] = "auto",
    data: Data = None,
    model: Model = None,
) -> None:
    """Rebuild a trained model, bit for bit, from the weights it began with and its ledger or exported run.

    One that is stopped goes on where it was when it is started again: beside --out it keeps a file *.replay.
    """
    check_task_options(base, data, model)
    console = Console()
    with open_ledger(run) as ledger:
        check_writable(out)
        weights, parameters = begun_with(ledger, base, data, model)
        count = ledger.head.rounds if rounds is None else rounds
        begin = time.perf_counter()
        with resumable(console, out.with_name(f"{out.name}.replay")) as checkpoint:
            with Progress(console, "replaying", count) as progress:
                fingerprint = rebuild(ledger, parameters, rounds, chosen(device), progress.update, checkpoint)
            write(weights, out, checkpoint)
        seconds, parent = time.perf_counter() - begin, ledger.identity.parent
    line(console, "rounds", f"{count:,}")
    if parent is not None:
        line(console, "parent", parent.text)
    line(console, "seconds", f"{seconds:.2f}")
    line(console, "fingerprint", f"{fingerprint:016x}")
    line(console, "written to", out)


@contextmanager
def resumable(console: Console, path: Path) -> Generator[Checkpoint]:
    """Give a checkpoint in a file, which is removed at the end; an error before that says how to go on."""

    def say(text: str) -> None:
        line(console, "note", text)

    checkpoint = Checkpoint(path, say)
    with keeping(lambda: f"{path} has what was done: the same command goes on from there" * checkpoint.usable):
        yield checkpoint
    checkpoint.remove()


def write(weights: Weights, out: Path, checkpoint: Checkpoint) -> None:
    """Write a model that was rebuilt; on a disk that is full otherwise, in the room that its checkpoint takes."""
    try:
        make_folder(out.parent)
        free, room = shutil.disk_usage(out.parent).free, checkpoint.room(out.parent)
    except OSError as error:
        raise InvalidParameters(f"cannot write {out}: {error.strerror}") from None
    if free < weights.size <= free + room:
        checkpoint.remove()
    weights.write(out)


def check_writable(out: Path) -> None:
    """Refuse a file that cannot be written, before the work is done.

    >>> check_writable(Path("/dev/null/model.safetensors"))
    Traceback (most recent call last):
    cyber0.errors.InvalidParameters: cannot write /dev/null/model.safetensors: /dev/null is not a folder
    """
    folder = out.parent
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder")
        if out.is_file() or not out.exists():  # no device
            TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InvalidParameters(f"cannot write {out}: {error.strerror}") from None


def check_task_options(base: str | None, data: Path | None, model: str | None) -> None:
    """Refuse --data and --model where no task is built.

    >>> check_task_options("model.safetensors", Path("texts"), None)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: --data texts is for --base task, and --base is model.safetensors: leave it out
    """
    for name, value in (("--data", data), ("--model", model)):
        if value is not None and base != "task":
            said = "which is not given: give it too" if base is None else f"and --base is {base}: leave it out"
            raise InvalidConfig(f"{name} {value} is for --base task, {said}")


def begun_with(ledger: Ledger, base: str, data: Path | None, model: str | None) -> tuple[Weights, Parameters]:
    """Return the weights that --base names; an error says which ones the run began with."""
    try:
        return base_of(ledger.identity, None if base == "task" else Path(base), data, model)
    except InvalidParameters as error:
        agreement = ledger.identity.agreement
        builds = "" if base == "task" else ", which --base task builds"
        whose = agreement.model or f"the task {agreement.task}"
        raise InvalidParameters(f"--base {base}: {error}; give the weights of {whose}{builds}") from None


def chosen(device: str) -> str:
    """Return the device that a name stands for; without torch, auto is the CPU, served by NumPy."""
    if device == "cpu":
        return device
    try:
        require("torch", extra="train")
    except ImportError:
        if device == "auto":
            return "cpu"
        raise
    from cyber0.tasks import devices

    return str(devices.get_device(device))
