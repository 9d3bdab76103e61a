"""`cyber0 keys`: who is who in a federation. The operator has an authority; each client makes its own key."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from rich.console import Console

from cyber0.errors import InvalidKeys
from cyber0.network import enrolment
from cyber0.network import keys as folders
from cyber0.network.certificates import common_name, fingerprint, hosts_of, is_authority, is_for_client
from cyber0.network.key_files import certificate_request, certificates, read
from cyber0.printable import printable

__all__ = ["keys"]

keys = typer.Typer(
    no_args_is_help=True,
    help="Make the keys of a federation. The operator begins (init); each client makes its own key (request); the "
    "operator signs it (sign); the client adds what comes back (install).",
)

Days = Annotated[int, typer.Option(min=1, max=folders.LONGEST, help="How long the certificates are valid.")]
Name = Annotated[str, typer.Argument(help="The client's name, by which the federator knows it.", show_default=False)]
Keys = Annotated[Path, typer.Option("--keys", help="The folder made by cyber0 keys init.", show_default=False)]


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
    """The operator: make a certificate authority, and the federator's key and certificate."""
    made = folders.init(folder, host or (), days)
    console = _console()
    _line(console, "authority", f"{folder / 'ca.pem'}; guard {folder / 'ca-key.pem'}: whoever has it can admit clients")
    _line(console, "key", fingerprint(folders.certificate(folder / "ca.pem")))
    _line(console, "federator", f"{made}, for {', '.join(hosts_of(folders.certificate(made / 'cert.pem')))}")
    _line(console, "next", f"each client: cyber0 keys request NAME; here: cyber0 keys sign REQUEST --keys {folder}")


@keys.command()
def request(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="The folder to make. \\[default: NAME]", show_default=False)] = None,
) -> None:
    """A client: make a private key, which stays here, and a request for a certificate, to be sent to the operator.

    A folder that has a key already keeps it: the request is for a new certificate of the same key.
    """
    made = enrolment.request(name, out)
    console = _console()
    _line(console, name, f"{made.parent / 'key.pem'} stays on this machine: whoever has it can vote as {name}")
    _line(console, "key", fingerprint(certificate_request(made)[0]))
    _line(console, "next", f"send {made} to the operator, who sees the same key in cyber0 keys show {made.name}")
    _line(console, "then", f"cyber0 keys install FILE --out {made.parent}, with the file that comes back")


@keys.command()
def sign(
    request: Annotated[Path, typer.Argument(help="A client's request.pem.", show_default=False)],
    directory: Keys,
    out: Annotated[
        Path | None, typer.Option(help="The file to send back. \\[default: NAME.pem]", show_default=False)
    ] = None,
    days: Days = 365,
    replace: Annotated[
        bool, typer.Option("--replace", help="The client has a certificate for another key, which this one replaces.")
    ] = False,
) -> None:
    """The operator: make the certificate that a client asks for, in one file to send back. Nothing in it is secret."""
    made = enrolment.sign(request, directory, out, days, replace=replace)
    certificate, authority = certificates(made)
    name, console = common_name(certificate), _console()
    _line(console, name, f"{made}, valid until {certificate.not_valid_after_utc:%Y-%m-%d}")
    _line(console, "key", f"{fingerprint(certificate)}: send nothing back unless {name} sees the same")
    _line(console, "authority", fingerprint(authority))
    _line(console, "next", f"send {made} back; {name}: cyber0 keys install {made.name}")


@keys.command()
def install(
    file: Annotated[Path, typer.Argument(help="What the operator sent back.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="The folder with your key. \\[default: NAME]", show_default=False)
    ] = None,
) -> None:
    """A client: put the certificate that came back beside the key it is for."""
    made = enrolment.install(file, out)
    certificate, authority = certificates(file)
    console = _console()
    _line(console, common_name(certificate), f"{made}, valid until {certificate.not_valid_after_utc:%Y-%m-%d}")
    _line(console, "authority", f"{fingerprint(authority)}: the operator must see the same in cyber0 keys show")
    _line(console, "next", f"cyber0 join HOST:PORT --tls {made}")


@keys.command()
def host(
    directory: Keys,
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]...",
            help="Names or addresses by which clients reach the federator; none: a new certificate for the same ones.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Drop the hosts of the present certificate.")] = False,
    days: Days = 3650,
) -> None:
    """The operator: give the federator a certificate for other hosts. Its key stays; clients need nothing new."""
    made = folders.certify_federator(directory, hosts or (), days, only=only)
    certificate = folders.certificate(made / "cert.pem")
    console = _console()
    _line(console, "federator", f"{made / 'cert.pem'}, for {', '.join(hosts_of(certificate))}")
    _line(console, "valid until", f"{certificate.not_valid_after_utc:%Y-%m-%d}; the old one is {made / 'cert.pem.old'}")
    _line(console, "next", f"copy {made / 'cert.pem'} to the federator's machine, and start cyber0 serve again")


@keys.command()
def issue(
    name: Name,
    directory: Keys,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; else clients/NAME in the keys' folder.", show_default=False)
    ] = None,
    days: Days = 365,
) -> None:
    """To try things out: make a client's private key and certificate in one step, on the operator's machine.

    Whoever sees that folder can vote as the client. In a real federation each client makes its own key (request), and
    you sign it (sign).
    """
    made = folders.issue(name, directory, out, days)
    console = _console()
    _line(console, name, f"{made}, valid until {folders.certificate(made / 'cert.pem').not_valid_after_utc:%Y-%m-%d}")
    _line(console, "next", f"move that folder to {name}'s machine by a way that nobody else reads")


@keys.command()
def show(
    path: Annotated[
        Path, typer.Argument(help="The folder of a federation or of a client, or one PEM file.", show_default=False)
    ],
) -> None:
    """Show certificates and requests: whose they are, their keys, how long they are valid, and what is missing."""
    files = [path] if path.is_file() else sorted(path.rglob("*.pem"))
    requests = [file for file in files if b"CERTIFICATE REQUEST-----" in read(file)]
    chosen = [file for file in files if file in (path, path / "ca.pem") or file.name == "cert.pem"]
    found = [(file, made) for file in chosen if file not in requests for made in certificates(file)]
    if not found and not requests:
        raise InvalidKeys(f"{path} holds no certificates and no requests: cyber0 keys init makes a federation's")
    console = _console()
    for file, made in found:
        _line(console, common_name(made), _described(made, file))
    certified = {(common_name(made), fingerprint(made)) for _, made in found}
    for file in requests:
        try:
            asked, _ = certificate_request(file)
        except InvalidKeys as error:
            _line(console, "?", f"request that cannot be signed: {error}")
            continue
        if (common_name(asked), fingerprint(asked)) not in certified:
            _line(console, common_name(asked), f"request, not signed yet, key {fingerprint(asked)}, {file}")


def _described(made: x509.Certificate, file: Path) -> str:
    end = made.not_valid_after_utc
    valid = f"{'valid until' if end > datetime.now(UTC) else 'EXPIRED on'} {end:%Y-%m-%d}"
    words = f"{valid}, key {fingerprint(made)}, {file}"
    if is_authority(made):
        return f"authority, {words}"
    if file.name == "cert.pem":
        words += f", private key {'here' if (file.parent / 'key.pem').exists() else 'elsewhere'}"
    return f"client, {words}" if is_for_client(made) else f"federator, {words}, reached as {', '.join(hosts_of(made))}"


def _console() -> Console:
    return Console(soft_wrap=True)


def _line(console: Console, name: str, value: str) -> None:
    """Print a line; what would steer the terminal is shown as its code, since requests are made by others."""
    console.print(f"{printable(name):16} {printable(value)}", markup=False, highlight=False)
