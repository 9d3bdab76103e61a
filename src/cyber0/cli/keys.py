"""`cyber0 keys`: the federator's keys, and those by which it knows its clients."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from rich.console import Console

from cyber0.network import keys as folders
from cyber0.network.certificates import common_name

__all__ = ["keys"]

keys = typer.Typer(no_args_is_help=True, help="Make the keys of a federation: the federator's, and one set per client.")

Days = Annotated[int, typer.Option(min=1, max=folders.LONGEST, help="How long the certificates are valid.")]


@keys.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address by which clients reach the federator; may be repeated.", show_default=False
        ),
    ] = None,
    days: Days = 3650,
) -> None:
    """Make a certificate authority, and the federator's key and certificate."""
    made = folders.init(folder, host or (), days)
    console = Console(soft_wrap=True)
    _line(console, "authority", f"{folder / 'ca.pem'}; guard {folder / 'ca-key.pem'}: whoever has it can admit clients")
    _line(console, "federator", f"{made}, for {', '.join(_hosts(folders.certificate(made / 'cert.pem')))}")
    _line(console, "next", f"cyber0 keys issue NAME --keys {folder}, once per client")


@keys.command()
def issue(
    name: Annotated[
        str, typer.Argument(help="The client's name, by which the federator knows it.", show_default=False)
    ],
    directory: Annotated[Path, typer.Option("--keys", help="The folder made by cyber0 keys init.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; else clients/NAME in the keys' folder.", show_default=False)
    ] = None,
    days: Days = 365,
) -> None:
    """Make a client's key and certificate: a folder to copy to the client's machine."""
    made = folders.issue(name, directory, out, days)
    console = Console(soft_wrap=True)
    _line(console, name, f"{made}, valid until {folders.certificate(made / 'cert.pem').not_valid_after_utc:%Y-%m-%d}")
    _line(console, "next", f"copy that folder to {name}'s machine by a way that nobody else reads")


@keys.command()
def show(
    folder: Annotated[Path, typer.Argument(help="The folder of a federation, or of a client.", show_default=False)],
) -> None:
    """Show the certificates of a folder: whose they are, and how long they are valid."""
    found = sorted(folder.rglob("*.pem"))
    certificates = [path for path in found if path.name == "cert.pem" or path == folder / "ca.pem"]
    if not certificates:
        raise folders.InvalidKeys(f"{folder} holds no certificates: cyber0 keys init {folder} makes a federation's")
    console = Console(soft_wrap=True)
    for path in certificates:
        made = folders.certificate(path)
        end = made.not_valid_after_utc
        state = "valid until" if end > datetime.now(UTC) else "EXPIRED on"
        hosts = _hosts(made) if common_name(made) == "federator" else []
        reached = f", reached as {', '.join(hosts)}" if hosts else ""
        _line(console, common_name(made), f"{state} {end:%Y-%m-%d}, SHA-256 {_digest(made)}, {path}{reached}")


def _hosts(made: x509.Certificate) -> list[str]:
    try:
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _digest(made: x509.Certificate) -> str:
    return made.fingerprint(SHA256()).hex()[:16]


def _line(console: Console, name: str, value: str) -> None:
    console.print(f"{name:16} {value}", markup=False, highlight=False)
