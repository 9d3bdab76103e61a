"""`cyber0 roster`, `admit`, `revoke`, `rotate`, `extend`: who takes part in a run, and for how long, as it goes on."""

from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from rich.console import Console

from cyber0.cli.ledger import line
from cyber0.errors import InvalidConfig, InvalidKeys, InvalidLedger, Unreachable
from cyber0.network.certificates import common_name, fingerprint_of, is_for_client
from cyber0.network.control import ask
from cyber0.network.key_files import certificate_request, certificates, read
from cyber0.printable import many, printable
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import PublicKey, decoded, encoded, public_key
from cyber0.protocol.sqlite import File

__all__ = ["admit", "extend", "key_of", "revoke", "roster", "rotate"]

Name = Annotated[str, typer.Argument(help="The client's name.", show_default=False)]
LedgerFile = Annotated[Path, typer.Option("--ledger", help="The ledger of the federator that runs.")]
Key = Annotated[
    Path | None,
    typer.Option("--key", help="Its public key: a request.pem of cyber0 keys request, or a public key in PEM."),
]
Cert = Annotated[
    Path | None, typer.Option("--cert", help="Its certificate, by the federation's authority (cyber0 keys sign).")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait until it is written.")]
LEDGER = Path("run.ledger")


def admit(
    name: Name, key: Key = None, cert: Cert = None, ledger: LedgerFile = LEDGER, timeout: Timeout = 300.0
) -> None:
    """Admit a client to a run: its votes count from the second round after that is written."""
    _ask(ledger, timeout, kind="admit", name=name, **key_of(name, key, cert))


def revoke(name: Name, ledger: LedgerFile = LEDGER, timeout: Timeout = 300.0) -> None:
    """Revoke a client: it is cut off at once, and not on the roster from the second round after that is written."""
    _ask(ledger, timeout, kind="revoke", name=name)


def rotate(
    name: Name, key: Key = None, cert: Cert = None, ledger: LedgerFile = LEDGER, timeout: Timeout = 300.0
) -> None:
    """Give a client a new key, such as when the old one was lost: it counts from the second round after."""
    _ask(ledger, timeout, kind="rotate", name=name, **key_of(name, key, cert))


def extend(
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds the run has then, all together.")],
    ledger: LedgerFile = LEDGER,
    timeout: Timeout = 300.0,
) -> None:
    """Extend a run before its last round is decided; its learning rate stays at the end of its schedule."""
    _ask(ledger, timeout, kind="extend", rounds=rounds)


def roster(ledger: LedgerFile = LEDGER) -> None:
    """Show who takes part in a run, who is there, and what is about to change; a federator need not run."""
    if not ledger.exists():
        raise InvalidLedger(f"{ledger} is not there: --ledger names the ledger of the run")
    console = Console()
    with File(ledger, read_only=True) as file:
        if not file.founded:
            raise InvalidLedger(f"{ledger} holds no run yet: it is founded when enough clients have come")
        if file.identity.protocol == 1:
            raise InvalidLedger(f"{ledger} holds a run of version 1, whose roster cannot change: cyber0 ledger show")
        who, rounds, finality = file.roster, file.head.rounds, Settings.of_ledger(file).finality(file.roster)
    live = _live(ledger)
    line(console, "rounds", f"{rounds:,} of {who.last:,}")
    enough = many(who.quorum, "vote decides", "votes decide")
    line(console, "clients", f"{len(who.names)}, {who.byzantine} of whom may lie; {enough} a round")
    line(console, "finality", finality)
    line(console, "federator", "not running" if live is None else f"running, in round {live['round']:,}")
    present = set[str]() if live is None else set(live["present"])
    for name in who.members:
        here = "" if live is None else ", here" if name in present else ", away"
        line(console, printable(name), f"{_shown(who.key(name))}{here}")
    for change in who.pending:
        line(console, "pending", f"{change.text}, from round {rounds + 1:,} on")
    for text in () if live is None else live["proposed"]:
        line(console, "asked for", f"{text}, once it is written")


def _shown(key: bytes) -> str:
    """Return a public key as `cyber0 keys show` shows it."""
    public = decoded(key)
    if public is None:
        return "no key yet"
    return f"key {fingerprint_of(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))}"


def _live(ledger: Path) -> dict[str, Any] | None:
    """Return what a federator that runs says of itself; None if none does."""
    try:
        return ask(ledger, {"kind": "show"}, timeout=5.0)
    except Unreachable:
        return None


def _ask(ledger: Path, timeout: float, **request: Any) -> None:
    answer = ask(ledger, request, timeout)
    Console().print(printable(str(answer["said"])), markup=False, highlight=False, soft_wrap=True)


def key_of(name: str, key: Path | None, cert: Path | None) -> dict[str, str]:
    """Return the public key in a file, and a certificate of it, in hexadecimal digits."""
    if (key is None) == (cert is None):
        raise InvalidConfig(f"{name} needs --key FILE (its request.pem or public key) or --cert FILE, one of the two")
    if cert is not None:
        made = certificates(cert)[0]
        _check_owner(cert, name, common_name(made))
        public = made.public_key()
        if not is_for_client(made) or not isinstance(public, PublicKey):
            raise InvalidKeys(f"{cert} is not a client's certificate: cyber0 keys sign makes one")
        return {"key": encoded(public).hex(), "certificate": made.public_bytes(Encoding.DER).hex()}
    path = key or Path()
    if b"CERTIFICATE REQUEST" in read(path):
        asked, public = certificate_request(path)
        _check_owner(path, name, common_name(asked))
    else:
        public = public_key(path)
    return {"key": encoded(public).hex()}


def _check_owner(path: Path, name: str, owner: str) -> None:
    if owner != name:
        raise InvalidKeys(f"{path} is of {owner!r}, not of {name!r}: give the file of {name}")
