"""`cyber0 withdraw`, `cyber0 renew`: what a client decides about itself."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cyber0.cli.ledger import digest_of
from cyber0.cli.serve import is_loopback
from cyber0.errors import InvalidConfig
from cyber0.files import state_directory
from cyber0.network.keys import certificate, channel_credentials, client_name
from cyber0.network.own_entry import ask_federator
from cyber0.printable import printable
from cyber0.protocol.roster import Change
from cyber0.protocol.signing import encoded, private_key

__all__ = ["renew", "withdraw"]

Address = Annotated[str, typer.Argument(help="HOST:PORT of the federator.", show_default=False)]
Name = Annotated[str | None, typer.Option("--name", help="Your name. \\[default: that of your certificate]")]
Tls = Annotated[Path | None, typer.Option("--tls", help="Your folder of keys.", show_default=False)]
Insecure = Annotated[bool, typer.Option("--insecure", help="Connect to another machine without TLS.")]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key", help="Your present key in PEM. \\[default: that of --tls, or in --state]", show_default=False
    ),
]
State = Annotated[
    Path | None, typer.Option("--state", help="The folder you joined with.", show_default="~/.local/state/cyber0")
]
Expect = Annotated[
    str | None,
    typer.Option("--expect", help="The run's digest, in hexadecimal, if --state is lost.", show_default=False),
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait until it is written.")]


def withdraw(
    address: Address,
    name: Name = None,
    tls: Tls = None,
    key: Key = None,
    state: State = None,
    expect: Expect = None,
    insecure: Insecure = False,
    timeout: Timeout = 300.0,
) -> None:
    """Withdraw from a run: you are cut off at once, and never vote in it again unless you are admitted anew.

    What you voted before stays in the ledger and in the model.
    """
    name, options = _options(address, name, tls, key, insecure)
    _ask(address, Change("revoke", name), state, expect, timeout, options)


def renew(
    address: Address,
    new: Annotated[Path, typer.Option(help="Your new key in PEM, or the folder that has it.", show_default=False)],
    name: Name = None,
    tls: Tls = None,
    key: Key = None,
    state: State = None,
    expect: Expect = None,
    insecure: Insecure = False,
    timeout: Timeout = 300.0,
) -> None:
    """Change your key in a run for a new one, signed with the present one. Join again with the new one after that."""
    name, options = _options(address, name, tls, key, insecure)
    public = encoded(private_key(new / "key.pem" if new.is_dir() else new).public_key())
    _ask(address, Change("rotate", name, public), state, expect, timeout, options)


def _options(
    address: str, name: str | None, tls: Path | None, key: Path | None, insecure: bool
) -> tuple[str, dict[str, Any]]:
    if not is_loopback(address) and tls is None and not insecure:
        raise InvalidConfig(f"{address!r} is another machine: give --tls DIR (see cyber0 keys), or say --insecure")
    if name is None and tls is None:
        raise InvalidConfig("--name is needed: your name on the federator's roster")
    own = key or (None if tls is None else tls / "key.pem")
    options = {
        "key": None if own is None else private_key(own),
        "credentials": None if tls is None else channel_credentials(tls),
        "authority": None if tls is None else certificate(tls / "ca.pem"),
    }
    return name or client_name(tls or Path()), options


def _ask(
    address: str, change: Change, state: Path | None, expect: str | None, timeout: float, options: dict[str, Any]
) -> None:
    run = digest_of(expect, "--expect")
    if run is not None and options["key"] is None:
        raise InvalidConfig("--expect needs --key or --tls, too: without --state your key is not known")
    said = ask_federator(address, change, state=state or state_directory(), run=run, timeout=timeout, **options)
    Console().print(printable(said), markup=False, highlight=False, soft_wrap=True)
