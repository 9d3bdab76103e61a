"""`cyber0 data`: who holds what, as a table and as a picture."""

from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from cyber0.tasks.holdings import FORMATS, check_format, write
from cyber0.tasks.mnist import load
from cyber0.tasks.partition import PARTITIONS, count, get_partition, split

__all__ = ["data"]

KEYWORD_ONLY = Parameter.KEYWORD_ONLY
ROWS = 60  # clients up to which the table shows them all

Clients = Annotated[int, typer.Option(min=1, help="How many clients share the training images.")]
PartitionName = Annotated[
    str,
    typer.Option(
        "--partition",
        help=f'How they share them: {", ".join(PARTITIONS)}, with options as in "shards(per_client=3)", or '
        "a function of yours, package.module:function.",
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(help="Of the dirichlet partition, 0.1 unless given: the smaller, the fewer digits a client has."),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same partition.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A folder with the four MNIST files; else the one named by CYBER0_DATA, else the cache.",
        show_default=False,
    ),
]
SourceName = Annotated[
    str,
    typer.Option(
        help="auto: MNIST where it is on this machine, else 5,000 embedded images. mnist: all of it, downloaded and "
        "verified if need be. embedded: the 5,000."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help=f"Also write it to this file: {', '.join(FORMATS)}.", show_default=False),
]


def data(
    clients: Clients = 40,
    partition: PartitionName = "dirichlet",
    alpha: Alpha = None,
    seed: Seed = 0,
    directory: Folder = None,
    source: SourceName = "auto",
    out: Out = None,
) -> None:
    """Show which client holds how many images of which digit."""
    if out is not None:
        check_format(out)
    console = Console()
    digits = load(directory, source=source)
    console.print(digits.source, soft_wrap=True, highlight=False, markup=False)
    options = {} if alpha is None else {"alpha": alpha}
    counts = count(digits.train_labels, split(partition, digits.train_labels, clients, seed, **options), digits.classes)
    _print(console, _table(counts))
    console.print(_summary(counts), soft_wrap=True, highlight=False)
    if out is not None:
        write(out, counts, f"{clients} clients, {_described(partition, options)}, seed {seed}\n{digits.source}")
        console.print(f"written to {out}", soft_wrap=True, highlight=False, markup=False)


def _described(partition: str, options: dict[str, float]) -> str:
    """Return the partition's name with all its options, also those not given."""
    parameters = signature(get_partition(partition)).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.kind is KEYWORD_ONLY}
    return ", ".join(
        [partition.partition("(")[0], *(f"{key} = {value}" for key, value in (defaults | options).items())]
    )


def _table(counts: NDArray[np.int64]) -> Table:
    """Return a table of clients by labels; the bluer a number, the greater its share of the client's samples."""
    table = Table(box=box.SIMPLE, padding=(0, 0), pad_edge=False, show_footer=True)
    table.add_column("client", "all", justify="right")
    for label, total in enumerate(counts.sum(axis=0).tolist()):
        table.add_column(f" {label}", f" {total}", justify="right", no_wrap=True)
    table.add_column("  total", f"  {counts.sum()}", justify="right", no_wrap=True)
    for client, row in enumerate(counts[:ROWS].tolist()):
        total = sum(row)
        table.add_row(str(client), *(_cell(number, number / total) for number in row), Text(f"  {total}", "bold"))
    if len(counts) > ROWS:
        table.add_row("...", *[""] * counts.shape[1], "...")
    return table


def _cell(number: int, share: float) -> Text:
    """Return a number on a background from black (none) to blue (all of the client's samples)."""
    if number == 0:
        return Text("·", "dim")
    level = share**0.5  # a tenth is still to be seen
    red, green, blue = (round(level * full) for full in (40, 110, 220))
    return Text(f" {number}", f"white on rgb({red},{green},{blue})" if share >= 0.01 else "")


def _print(console: Console, table: Table) -> None:
    """Print a table; in a file or a pipe it is as wide as it needs to be."""
    need = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.print(table, width=None if console.is_terminal else max(need, 1), crop=console.is_terminal)


def _summary(counts: NDArray[np.int64]) -> str:
    sizes = counts.sum(axis=1)
    ordered = -np.sort(-counts, axis=1)
    labels = (np.cumsum(ordered, axis=1) < 0.9 * sizes[:, None]).sum(axis=1) + 1
    more = f" ({len(counts) - ROWS} clients not shown: --out FILE.csv has them all)" if len(counts) > ROWS else ""
    return f"A client holds {_span(sizes)} images; nine tenths of them show {_span(labels)} different digits.{more}"


def _span(values: NDArray[np.int64]) -> str:
    low, high, middle = values.min(), values.max(), np.median(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,g})"
