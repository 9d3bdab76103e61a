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

from cyber0.errors import InvalidData
from cyber0.extras import require
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.holdings import FORMATS, check_format, write
from cyber0.tasks.mnist import load
from cyber0.tasks.partition import PARTITIONS, SUPPLIED, count, get_partition, shares_of

__all__ = ["data"]

KEYWORD_ONLY = Parameter.KEYWORD_ONLY
ROWS = 60  # clients up to which the table shows them all
COLUMNS = 20  # labels up to which each has a column

TaskName = Annotated[str, typer.Option("--task", help="Whose training samples: mnist, cifar10, femnist, ...")]
Clients = Annotated[int, typer.Option(min=1, help="How many clients share the training samples.")]
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
    typer.Option(help="Of the dirichlet partition, 0.1 unless given: the smaller, the fewer labels a client has."),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same partition.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A folder with the task's files; else the one named by CYBER0_DATA, else the cache.",
        show_default=False,
    ),
]
SourceName = Annotated[
    str,
    typer.Option(
        help="auto: what is on this machine, for mnist else 5,000 embedded images. mnist, cifar10, femnist: all of it, "
        "downloaded and verified if need be. embedded: the 5,000 of mnist."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help=f"Also write it to this file: {', '.join(FORMATS)}.", show_default=False),
]


def data(
    task: TaskName = "mnist",
    clients: Clients = 40,
    partition: PartitionName = "dirichlet",
    alpha: Alpha = None,
    seed: Seed = 0,
    directory: Folder = None,
    source: SourceName = "auto",
    out: Out = None,
) -> None:
    """Show which client holds how many samples of which label."""
    if out is not None:
        check_format(out)
    console = Console()
    dataset = _dataset(task, directory, source)
    console.print(dataset.source, soft_wrap=True, highlight=False, markup=False)
    options = {} if alpha is None else {"alpha": alpha}
    shares = shares_of(dataset, partition, clients, seed, **options)
    counts = count(dataset.train_labels, shares, dataset.classes)
    _print(console, _table(counts))
    console.print(_summary(counts), soft_wrap=True, highlight=False)
    if out is not None:
        write(out, counts, f"{clients} clients, {_described(partition, options)}, seed {seed}\n{dataset.source}")
        console.print(f"written to {out}", soft_wrap=True, highlight=False, markup=False)


def _dataset(task: str, directory: Path | None, source: str) -> Dataset:
    """Return the samples of a task; the digits need no torch."""
    if task == "mnist":
        return load(directory, source=source)
    require("torch", extra="train")
    from cyber0.tasks.task import make

    dataset = make(task, directory, source).dataset
    if dataset.classes is None or dataset.train_labels.ndim > 1:
        raise InvalidData(f"task = {task!r}: its samples have no classes, so there is nothing to show by class")
    return dataset


def _described(partition: str, options: dict[str, float]) -> str:
    """Return the partition's name with all its options, also those not given."""
    parameters = signature(get_partition(partition)).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind is KEYWORD_ONLY}
    defaults = {name: value for name, value in defaults.items() if name not in SUPPLIED}
    return ", ".join(
        [partition.partition("(")[0], *(f"{key} = {value}" for key, value in (defaults | options).items())]
    )


def _table(counts: NDArray[np.int64]) -> Table:
    """Return a table of clients by labels; the bluer a number, the greater its share of the client's samples."""
    table = Table(box=box.SIMPLE, padding=(0, 0), pad_edge=False, show_footer=True)
    table.add_column("client", "all", justify="right")
    if counts.shape[1] > COLUMNS:
        return _short_table(table, counts)
    for label, total in enumerate(counts.sum(axis=0).tolist()):
        table.add_column(f" {label}", f" {total}", justify="right", no_wrap=True)
    table.add_column("  total", f"  {counts.sum()}", justify="right", no_wrap=True)
    for client, row in enumerate(counts[:ROWS].tolist()):
        total = sum(row)
        table.add_row(str(client), *(_cell(number, number / total) for number in row), Text(f"  {total}", "bold"))
    if len(counts) > ROWS:
        table.add_row("...", *[""] * counts.shape[1], "...")
    return table


def _short_table(table: Table, counts: NDArray[np.int64]) -> Table:
    """Return a table of how many samples of how many labels each client has, for more labels than fit."""
    table.add_column("  labels", f"  {(counts.sum(axis=0) > 0).sum()}", justify="right", no_wrap=True)
    table.add_column("  total", f"  {counts.sum()}", justify="right", no_wrap=True)
    for client, row in enumerate(counts[:ROWS]):
        table.add_row(str(client), f"  {(row > 0).sum()}", Text(f"  {row.sum()}", "bold"))
    if len(counts) > ROWS:
        table.add_row("...", "...", "...")
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
    return f"A client holds {_span(sizes)} samples; nine tenths of them have {_span(labels)} different labels.{more}"


def _span(values: NDArray[np.int64]) -> str:
    low, high, middle = values.min(), values.max(), np.median(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,g})"
