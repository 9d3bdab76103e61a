"""`cyber0 doctor`: what this machine can do, and whether it gives the right bits."""

import platform
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from cyber0 import __version__
from cyber0.directions import DirectionKey, sample
from cyber0.errors import Cyber0Error

__all__ = ["doctor"]

EXTRAS = {
    "train": "torch",
    "text": "transformers",
    "study": "mlxtend",
    "flower": "flwr",
    "ray": "ray",
    "track": "tensorboard",
    "privacy": "dp_accounting",
    "data": "datasets",
}
SIZE = 2**22


def doctor() -> None:
    """Check that every backend gives the right bits on every device here, and list the installed extras."""
    console = Console()
    console.print(
        f"cyber0 {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n"
    )
    table = Table("backend", "device", "bits", "million normals a second")
    wrong = False
    for backend, device in _places():
        verdict, speed = _examine(backend, device)
        wrong |= verdict.startswith("WRONG")
        table.add_row(backend, str(device or "NumPy"), verdict, speed)
    console.print(table)
    for extra, module in EXTRAS.items():
        console.print(
            f"{extra:7} " + ("installed" if find_spec(module) else f"pip install 'cyber0[{extra}]'"),
            markup=False,
        )
    if wrong:
        raise typer.Exit(1)


def _places() -> Iterator[tuple[str, Any]]:
    yield from (("numpy", None), ("cpu", None))
    if find_spec("torch"):
        import torch

        yield "torch", torch.device("cpu")
        for index in range(torch.cuda.device_count()):
            yield from ((name, torch.device("cuda", index)) for name in ("torch", "triton"))


def _examine(backend: str, device: Any) -> tuple[str, str]:
    key = DirectionKey(seed=1, round=0)
    try:
        sample(key, 1, backend=backend, device=device)  # compiles, and proves itself
        seconds = min(_seconds(lambda: sample(key, SIZE, backend=backend, device=device)[-1].item()) for _ in range(3))
        return "right", f"{SIZE / 1e6 / seconds:,.0f}"
    except Cyber0Error as error:
        return ("WRONG: " if "known answers" in str(error) else "absent: ") + str(error), "-"


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
