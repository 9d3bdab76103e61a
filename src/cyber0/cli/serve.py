"""`cyber0 serve`: the federator of a real federation."""

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cyber0 import registry, tasks
from cyber0.cli.errors import keeping
from cyber0.cli.recipe import read_recipe
from cyber0.cli.run import with_options
from cyber0.cli.track import Track, tracking
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig
from cyber0.network.control import Control
from cyber0.network.http import Http, is_loopback_host
from cyber0.network.keys import (
    certificate,
    certificate_of_federator,
    certificates_of_clients,
    check_name,
    expiring,
    federator_key,
    peer_name,
    server_credentials,
)
from cyber0.network.listener import collect_rarely, raise_limit, too_few
from cyber0.network.log import Form, Log, check_form
from cyber0.network.remembered import asked_before, keep_asked, serving
from cyber0.network.server import Federator
from cyber0.network.show import Show, showing
from cyber0.network.watch import Watch
from cyber0.printable import printable
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import private_key
from cyber0.protocol.sqlite import File

__all__ = ["serve"]

DAY = 86400.0  # seconds


@with_options(Agreement)
def serve(
    recipe: Annotated[
        Path | None, typer.Argument(help="A file in TOML with the options of cyber0 run as keys; options go over it.")
    ] = None,
    ledger: Annotated[Path, typer.Option(help="The run's ledger; one that exists is continued.")] = Path("run.ledger"),
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen at.")] = "127.0.0.1:7360",
    roster: Annotated[
        str | None,
        typer.Option(
            help="Who may join: names separated by commas, or a file with one name per line.",
            show_default="client-0, client-1, ...",
        ),
    ] = None,
    tls: Annotated[Path | None, typer.Option(help="The folder made by cyber0 keys init.", show_default=False)] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen without TLS: any client could pretend to be another.")
    ] = False,
    key: Annotated[
        Path | None, typer.Option(help="The key that signs the ledger. \\[default: that of --tls]", show_default=False)
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.01, help="Seconds that a round waits for votes.", show_default="as before, or 60"),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="How long a round waits for others once a quorum is in, in times that quorums took lately.",
            show_default="as before, or 2",
        ),
    ] = None,
    linger: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to serve latecomers after the end.", show_default="as before, or 0"),
    ] = None,
    fingerprint_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rounds from one comparison of the clients' weights to the next.",
            show_default="as before, or 100",
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rounds from one evaluation to the next, of clients that evaluate.",
            show_default="as before, or 10",
        ),
    ] = None,
    log: Annotated[
        str, typer.Option(help="How to write lines: plain, or json for one JSON object to a line.")
    ] = "plain",
    metrics: Annotated[
        str | None,
        typer.Option(
            help="PORT or HOST:PORT for Prometheus metrics, /health and a live page in the browser. \\[default: none]",
            show_default=False,
        ),
    ] = None,
    metrics_public: Annotated[
        bool,
        typer.Option("--metrics-public", help="Let other machines read them: who takes part, and whose votes count."),
    ] = False,
    callback: Annotated[
        list[str] | None,
        typer.Option(help="A cyber0.Callback of yours, as package.module:object. Repeatable.", show_default=False),
    ] = None,
    track: Track = None,
    no_votes: Annotated[
        bool, typer.Option("--no-votes", help="Keep only digests of the votes in the ledger, not their values.")
    ] = False,
    own_rule: Annotated[
        bool,
        typer.Option(
            "--own-rule",
            help="Allow a rule that the ledger names as package.module:object to be imported: only if it is yours.",
        ),
    ] = False,
    **options: Any,
) -> None:
    """Serve a federation: decide each round from the clients' votes. Needs no model, no data and no torch."""
    given = {name: value for name, value in options.items() if value is not None}
    check_listen(listen, secure=tls is not None, insecure=insecure)
    form, watched = check_form(log), None if metrics is None else metrics_address(metrics, public=metrics_public)
    own = {
        "deadline": deadline,
        "patience": patience,
        "linger": linger,
        "fingerprint_every": fingerprint_every,
        "evaluate_every": evaluate_every,
    }
    own = {name: value for name, value in own.items() if value is not None}
    anything = bool(recipe or given or roster or no_votes)
    asked = _asked(recipe, given, roster, no_votes) if anything or not ledger.exists() else None
    if "evaluate_every" in read_recipe(recipe) and asked is not None:
        own.setdefault("evaluate_every", asked.evaluate_every)
    raise_limit()
    collect_rarely()
    with File(ledger) as file:
        if asked is None and not own_rule:
            refuse_code(file)
        settings, linger, said = _resumed(file, asked, own)
        signer = key or (federator_key(tls) if tls else None)
        with keeping(lambda: kept(file)):
            private = None if signer is None else private_key(signer)
            shown = Shown(form, watched, metrics_public, tuple(said))
            with tracking(track or [], ledger.with_name(f"{ledger.name}-tracking")) as trackers:
                called = [*(callback or []), *trackers]
                asyncio.run(_serve(settings, file, listen, tls, private, linger, called, shown))
                for mark in [seal.fingerprint for seal in file.seals[-1:] if seal.fingerprint is not None]:
                    for tracker in trackers:
                        tracker.fingerprint(f"{mark:016x}")


def _resumed(file: File, asked: Settings | None, own: dict[str, Any]) -> tuple[Settings, float, list[str]]:
    """Return the settings to serve a ledger with, how long to linger, and what to say of them; they are kept in it."""
    options, said = serving(file, own)
    before = asked_before(file) if asked is None else None
    if before is not None:
        said.append("the run that was asked for before is not founded yet: this is it")
    asked = asked or before
    timing = {name: value for name, value in options.items() if name != "linger"}
    asked = None if asked is None else replace(asked, **timing)
    settings = Settings.of_ledger(file, asked, **timing)
    file.remember(options)
    if not file.founded:
        keep_asked(file, settings)
    return settings, options["linger"], said


def _asked(recipe: Path | None, given: dict[str, Any], roster: str | None, no_votes: bool) -> Settings:
    members = None if roster is None else names_of(roster)
    keys = read_recipe(recipe)
    if members and "clients" not in {**keys, **given}:
        given = {**given, "clients": len(members)}
    settings = Settings.of(RunConfig(**{**keys, **given}), members, keep_votes=not no_votes)
    registry.check("task", settings.agreement.task, tasks.NAMES)  # these two refuse what no client could play
    _ = settings.quorum
    return settings


def refuse_code(ledger: File) -> None:
    """Refuse a ledger whose rule is code, if nobody but the file has named it."""
    before = asked_before(ledger)
    agreement = ledger.identity.agreement if ledger.founded else None if before is None else before.agreement
    if agreement is not None and ":" in (rule := agreement.rule):
        raise InvalidConfig(
            f"rule = {rule!r} in {ledger.path} is code that would be imported here: say --own-rule if it is yours"
        )


def kept(ledger: File) -> str:
    """Return what a federator that stops leaves behind, and how to go on; nothing where the run is finished."""
    if not ledger.founded:
        return ""
    rounds, all_rounds = ledger.head.rounds, ledger.roster.last
    if rounds >= all_rounds:
        return ""
    own = " --own-rule" if ":" in ledger.identity.agreement.rule else ""
    return (
        f"{rounds:,} of {all_rounds:,} rounds are kept in {ledger.path}; go on by cyber0 serve --ledger {ledger.path}"
        f"{own}, with the same --listen and --tls"
    )


def names_of(roster: str) -> tuple[str, ...]:
    """Return the names of a roster: separated by commas, or one per line in a file.

    >>> names_of("alice,bob")
    ('alice', 'bob')
    """
    path = Path(roster)
    text = path.read_text(encoding="utf-8") if path.is_file() else roster
    return tuple(check_name(name.strip()) for name in text.replace("\n", ",").split(",") if name.strip())


def check_listen(address: str, *, secure: bool, insecure: bool) -> None:
    """Refuse to listen without TLS where other machines can connect, unless that is asked for.

    >>> check_listen("0.0.0.0:7360", secure=False, insecure=False)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: listen = '0.0.0.0:7360' is reached from other machines: give --tls DIR (see cyber0 \
keys), or say --insecure
    """
    if is_loopback(address) or secure or insecure:  # in this order: an address that is none is refused first
        return
    raise InvalidConfig(
        f"listen = {address!r} is reached from other machines: give --tls DIR (see cyber0 keys), or say --insecure"
    )


def metrics_address(given: str, *, public: bool) -> tuple[str, int]:
    """Return host and port of metrics: a port alone is one of this machine; where others reach it, that must be said.

    >>> metrics_address("9100", public=False), metrics_address("[::1]:9100", public=False)
    (('127.0.0.1', 9100), ('::1', 9100))
    >>> metrics_address("0.0.0.0:9100", public=False)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: metrics = '0.0.0.0:9100' is reached from other machines, without TLS and without a \
password: give 127.0.0.1:9100, or say --metrics-public
    """
    address = f"127.0.0.1:{given}" if given.isdecimal() else given
    host, _, port = address.rpartition(":")
    if not is_loopback(address) and not public:
        raise InvalidConfig(
            f"metrics = {given!r} is reached from other machines, without TLS and without a password: give "
            f"127.0.0.1:{port}, or say --metrics-public"
        )
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether an address is one of this machine only.

    >>> is_loopback("localhost:7360"), is_loopback("[::1]:7360"), is_loopback("192.0.2.7:7360")
    (True, True, False)
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isdecimal() and int(port) < 2**16):
        raise InvalidConfig(f"address = {address!r}: write HOST:PORT, such as 127.0.0.1:7360")
    return is_loopback_host(host)


@dataclass(frozen=True)
class Shown:
    """How a federator shows its run: the form of its lines, where its metrics are, and what it says at first."""

    form: Form = "plain"
    metrics: tuple[str, int] | None = None
    public: bool = False
    first: tuple[str, ...] = ()


async def _serve(
    settings: Settings,
    ledger: File,
    listen: str,
    tls: Path | None,
    key: Any,
    linger: float,
    callbacks: list[Any],
    shown: Shown,
) -> None:
    console = Console(soft_wrap=True)
    with showing(console, shown.form) as show:
        federator = Federator(
            settings,
            ledger,
            peer_name=None if tls is None else peer_name,
            certified=tls is not None,
            key=key,
            certificate=b"" if tls is None else certificate_of_federator(tls),
            certificates=None if tls is None else certificates_of_clients(tls, settings.roster),
            linger=linger,
            notice=show.notice,
            watch=Watch(measures=shown.metrics is not None),
            callbacks=callbacks,
        )
        http = Http(federator, public=shown.public)
        signals: list[int] = []

        def stop(number: int) -> None:
            signals.append(number)
            federator.stop(f"it was stopped by {signal.Signals(number).name}, and may come back")

        with suppress(NotImplementedError):  # not on every system
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
        port = await federator.start(listen, None if tls is None else server_credentials(tls))
        control = Control(
            federator, ledger.path, None if tls is None else certificate(federator_key(tls).with_name("ca.pem"))
        )
        if problem := await control.open():
            show.notice(problem)
        show.begin(federator, f"{listen.rpartition(':')[0]}:{port}", secure=tls is not None)
        for text in shown.first:
            show.log.say(text)
        if few := too_few(len(federator.state.who.names)):
            federator.say(few, "warning")
        if shown.metrics is not None:
            show.log.say(f"the live page is at {live_address(shown.metrics[0], await http.start(*shown.metrics))}")
        await _watched(federator, show, tls)
        await control.close()
        await federator.close()
        await http.close()
    _report(show.log, federator, kept(ledger))
    if signal.SIGINT in signals:
        raise typer.Exit(130)


def live_address(host: str, port: int) -> str:
    """Return the address of the live page, for a browser.

    >>> live_address("::1", 9100), live_address("0.0.0.0", 9100)
    ('http://[::1]:9100/', 'http://0.0.0.0:9100/')
    """
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


async def _watched(federator: Federator, show: Show, tls: Path | None) -> None:
    """Show the run until it is over; once a day, which certificates expire soon."""
    checked = -DAY
    while not federator.over.is_set():
        if tls is not None and time.monotonic() - checked >= DAY:
            checked = time.monotonic()
            for text in expiring(tls):
                federator.say(text, "warning")
        with suppress(TimeoutError):
            await asyncio.wait_for(federator.over.wait(), 1.0)
        show.line()


def _report(log: Log, federator: Federator, left: str) -> None:
    lines = {
        "rounds": f"{federator.state.round:,} of {federator.state.who.last:,}",
        "ended": federator.reason,
    }
    if federator.ledger.founded:
        lines["head"] = (federator.ledger.head.link or b"").hex()
        seals = federator.ledger.seals
        if seals and seals[-1].fingerprint is not None:
            lines["fingerprint"] = f"{seals[-1].fingerprint:016x}"
    if left:
        lines["kept"] = left
    if log.form == "json":
        log.say("the federator has ended", **lines)
        return
    for name, value in lines.items():
        log.console.print(f"{name:16} {printable(value)}", markup=False, highlight=False)
