"""`cyber0 list`: every rule, attack, task, partition, study and so on that comes with cyber0."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cyber0.cli.catalogue import KINDS, entries
from cyber0.errors import UnknownName

__all__ = ["list_names"]


def list_names(
    kind: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; all of them if not given.", show_default=False)
    ] = None,
) -> None:
    """List every name that comes with cyber0, with its options and what it does; yours are package.module:object."""
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of names", kind, KINDS)
    console = Console()
    for each in KINDS if kind is None else [kind]:
        console.print(_table(each))


def _table(kind: str) -> Table:
    table = Table(
        title=kind, title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False, title_style="bold"
    )
    table.add_column(no_wrap=True)
    table.add_column()
    for entry in entries(kind):
        names = ", ".join((entry.name, *entry.others))
        options = f" [dim]({escape(entry.options)})[/]" if entry.options else ""
        table.add_row(names, escape(entry.summary) + options)
    table.add_row("", "")
    return table
