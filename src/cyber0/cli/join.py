"""`cyber0 join`: a client of a real federation."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cyber0.cli.errors import keeping
from cyber0.cli.ledger import digest_of, line
from cyber0.cli.serve import is_loopback
from cyber0.config import CLIP, DELTA
from cyber0.errors import InvalidConfig, Refused
from cyber0.extras import require
from cyber0.files import state_directory
from cyber0.network.consent import DIRECTIONS, ROUNDS, SECONDS, Limits
from cyber0.network.handshake import refusal
from cyber0.network.keys import certificate, channel_credentials, client_name, expiring
from cyber0.network.liars import Liar
from cyber0.network.log import Log, Said, check_form
from cyber0.network.member import Member
from cyber0.network.session import Outcome, run_client
from cyber0.progress import Progress, duration
from cyber0.protocol.signing import PrivateKey, private_key
from cyber0.threads import share_of_cores

__all__ = ["join"]

MOVED = 0.5  # seconds from one move of the bar to the next
EVERY, LONGEST = 20.0, 3600.0  # seconds from one line that says where a client is to the next, and at most


def join(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the federator.", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="Your name on the roster. \\[default: that of your certificate]")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of the data files.", show_default=False)] = None,
    source: Annotated[str, typer.Option(help="Where the data come from: auto, embedded, or a set's name.")] = "auto",
    model: Annotated[
        str | None,
        typer.Option(help="The language model on this machine: a hub id or a folder. \\[default: as the run says]"),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, ...")] = "auto",
    stream: Annotated[
        str | None,
        typer.Option(
            help="Memory of the device for weights that are not trained, as 8GiB; the rest is brought when needed.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads to compute on. \\[default: all cores; beside the federator, on one machine, its share]",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="A folder for votes and weights, by which a client comes back after a stop.",
            show_default="~/.local/state/cyber0",
        ),
    ] = None,
    deal: Annotated[
        str | None,
        typer.Option(
            help="To try things out with data that all clients have: train on the share that a partition deals you, "
            "such as iid or dirichlet(alpha=0.1). Otherwise you train on all of your data.",
            show_default=False,
        ),
    ] = None,
    index: Annotated[
        int | None,
        typer.Option(min=0, help="Which share --deal deals you. \\[default: by your place on the roster]"),
    ] = None,
    own_code: Annotated[
        bool,
        typer.Option(
            "--own-code",
            help="Allow a task that the run gives as package.module:object to be imported: only if that code is yours.",
        ),
    ] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Evaluate on the task's test set and tell the federator.")
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Keep your data private: the epsilon of your data set, over all runs. Without it, votes are not.",
            show_default=False,
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of that budget, below 1 / your samples.")] = DELTA,
    clip: Annotated[
        float | None,
        typer.Option(
            help=f"The length to which each sample's slopes are clipped. \\[default: as the run says, or {CLIP:g}]",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="The name of your data set: its budget is kept under it, whatever --state is.")
    ] = "data",
    accept_changed: Annotated[
        bool,
        typer.Option(
            "--accept-changed", help="Go on with what is left of the budget, though the data have changed since."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A safetensors file for the trained weights.")] = None,
    tls: Annotated[
        Path | None, typer.Option(help="Your folder of keys, made by cyber0 keys request and install.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="The key that signs your votes, in PEM. \\[default: that of --tls, or one made in --state]",
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Connect to another machine without TLS: anybody could read and change what is sent."
        ),
    ] = False,
    snapshot_every: Annotated[int, typer.Option(min=1, help="Rounds from one copy of the weights to the next.")] = 100,
    give_up: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to look for a federator before giving up. \\[default: for ever]"),
    ] = None,
    audit: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="How many rounds to check from their votes: 0 none, 1 each before your next vote."
        ),
    ] = 0.05,
    accept_lost: Annotated[
        bool,
        typer.Option(
            "--accept-lost",
            help="With --audit 1: go on where a federator that was restored from a backup has lost a round's votes.",
        ),
    ] = False,
    audit_budget: Annotated[
        float, typer.Option(min=1, help="Bytes per second that this may take, unless every round is checked.")
    ] = 2.0**20,
    expect: Annotated[
        str | None, typer.Option(help="The digest of the only run to take part in, in hexadecimal.", show_default=False)
    ] = None,
    max_memory: Annotated[
        float | None,
        typer.Option(min=0.001, help="GiB that model and data may take. \\[default: what is free]", show_default=False),
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(min=0.001, help="Seconds of this machine that a round may take; a longer one is the last.")
    ] = SECONDS,
    max_directions: Annotated[
        int, typer.Option(min=1, help="Directions to measure along in a round, over all local epochs.")
    ] = DIRECTIONS,
    max_rounds: Annotated[int, typer.Option(min=1, help="Rounds to take part in.")] = ROUNDS,
    log: Annotated[
        str, typer.Option(help="How to write lines: plain, or json for one JSON object to a line.")
    ] = "plain",
    attack: Annotated[
        str | None, typer.Option(help="For tests, behave as a liar: sf, random, nan, stale, equivocate or flood.")
    ] = None,
) -> None:
    """Join a federation: see its terms, train on your data, send a few numbers per round, end with the common model."""
    if not is_loopback(address) and tls is None and not insecure:
        raise InvalidConfig(f"{address!r} is another machine: give --tls DIR (see cyber0 keys), or say --insecure")
    form = check_form(log)
    if name is None and tls is None:
        raise InvalidConfig("--name is needed: a name on the federator's roster")
    if tls is not None:
        _check_handshake(address, tls)
    if epsilon is not None and evaluate:
        raise InvalidConfig(
            "--evaluate tells how the model does on your samples, which --epsilon does not cover: leave one of them out"
        )
    options: dict[str, Any] = {
        "credentials": None if tls is None else channel_credentials(tls),
        "key": _key(tls, key),
        "authority": None if tls is None else certificate(tls / "ca.pem"),
        "data": data,
        "source": source,
        "model": model,
        "device": device,
        "stream": stream,
        "state": state or state_directory(),
        "deal": deal,
        "index": index,
        "own_code": own_code,
        "evaluates": evaluate,
        "privacy": _privacy(epsilon, delta=delta, clip=clip, dataset=dataset, accept_changed=accept_changed),
        "audit": audit,
        "audit_budget": audit_budget,
        "accept_lost": accept_lost,
        "expect": digest_of(expect, "--expect"),
        "limits": Limits(max_memory, max_seconds, max_directions, max_rounds),
        "marks": key.with_name(f"{key.name}-runs") if key else None if tls is None else tls / "runs",
        "attack": attack,
        "snapshot_every": snapshot_every,
        "give_up": give_up,
        "out": out,
        "threads": _threads(threads, shared=is_loopback(address)),
    }
    lines = Log(Console(), form)
    for text in [] if tls is None else expiring(tls):
        lines.say(Said(text, "warning"))
    _join(address, name or client_name(tls or Path()), options, lines)


def _join(address: str, name: str, options: dict[str, Any], log: Log) -> None:
    where = Where(log, name)
    kept = f"come back with the same command: the state is in {options['state']}"
    with keeping(lambda: kept if options["state"].is_dir() else ""), where:
        outcome = run_client(address, name, watch=where.watch, notice=log.say, **options)
    _print(log, name, outcome, options["out"])


class Where:
    """Where a client is: a bar on a terminal, elsewhere a line now and then, also while nothing happens.

    Args:
        log: Where lines are written.
        name: The client's name.
        every: Seconds from one line to the next; while nothing happens, these double.

    """

    def __init__(self, log: Log, name: str, every: float = EVERY) -> None:
        self.log, self.name, self.every = log, name, every
        shows = log.form == "plain" and log.console.is_terminal
        self._bar = Progress(log.console, name) if shows else None
        self._over, self._thread = threading.Event(), threading.Thread(target=self._work, daemon=True)
        self._member: Member | Liar | None = None
        self._first = (0.0, 0)  # when it was seen first, and the commits that it had brought

    def __enter__(self) -> "Where":
        if self._bar is not None:
            self._bar.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.__exit__(*error)

    def watch(self, member: Member | Liar) -> None:
        """Show where a member is."""
        if self._member is None:
            self._first = (time.monotonic(), member.commits)
        self._member = member
        self._show()

    def _show(self) -> None:
        """Move the bar, also while a member applies many rounds."""
        if self._bar is not None and self._member is not None:
            self._bar.update(self._member.commits, total=self._member.rounds)

    def _work(self) -> None:
        while self._bar is not None and not self._over.wait(MOVED):
            self._show()
        pause, begin, last = self.every, 0.0, None
        while not self._over.wait(pause):
            if self._member is None:
                continue  # it says itself that it waits for a federator
            if last is None:
                begin, last = self._first[0], self._first
            now, commits, rounds = time.monotonic(), self._member.commits, self._member.rounds
            text, rate = f"{self.name} has {commits:,} of {rounds:,} rounds", 0.0
            if commits > last[1]:
                rate = (commits - last[1]) / (now - last[0])
                text += f", {rate:,.1f} a second, about {duration((rounds - commits) / rate)} left"
                pause, begin, last = self.every, now, (now, commits)
            else:
                text += f", and waits for the next one for {duration(now - begin)}"
                pause = min(2 * pause, LONGEST)
            self.log.say(text, rounds=commits, of=rounds, rounds_per_second=round(rate, 3))


def _threads(given: int | None, *, shared: bool) -> Callable[[int], int | None]:
    """Return how many threads to compute on, of the number of clients: as given, or a share of a machine they share."""
    return lambda clients: given or (share_of_cores(clients) if shared else None)


def _privacy(epsilon: float | None, **options: Any) -> Any:
    """Return what the client wants of its privacy; None if it wants none."""
    if epsilon is None:
        if options["clip"] is not None:
            raise InvalidConfig(f"--clip {options['clip']:g} is for private votes: give --epsilon with it")
        return None
    require("torch", extra="train")
    from cyber0.network.private_data import PrivacyOptions

    return PrivacyOptions(epsilon, **options)


def _key(tls: Path | None, key: Path | None) -> PrivateKey | None:
    if tls is not None and key is not None:
        raise InvalidConfig(f"--key {key} and --tls {tls}: with TLS the key of the certificate signs; leave --key out")
    path = key or (None if tls is None else tls / "key.pem")
    return None if path is None else private_key(path)


def _check_handshake(address: str, tls: Path) -> None:
    """Refuse keys whose handshake fails, instead of trying again for ever. A federator may come later."""
    channel_credentials(tls)
    reason = refusal(address, tls)
    if reason is not None:
        raise Refused(reason)


def _print(log: Log, name: str, outcome: Outcome, out: Path | None) -> None:
    if log.form == "json":
        facts = {"rounds": outcome.rounds, "accuracy": outcome.accuracy, "loss": outcome.loss}
        marks = {"fingerprint": f"{outcome.fingerprint:016x}", "head": outcome.head.hex()}
        marks |= {"not_audited": outcome.unaudited} if outcome.unaudited else {}
        marks |= {} if outcome.epsilon is None else {"epsilon_spent": outcome.epsilon}
        log.say(f"{name} has ended", **facts, **marks, **({} if out is None else {"written_to": str(out)}))
        return
    console = log.console
    line(console, "rounds", f"{outcome.rounds:,}")
    if outcome.accuracy is not None:
        line(console, "accuracy", f"{outcome.accuracy:.2%}")
    if outcome.loss is not None:
        line(console, "loss", f"{outcome.loss:.4f}")
    line(console, "fingerprint", f"{outcome.fingerprint:016x}")
    line(console, "head", outcome.head.hex())
    if outcome.epsilon is not None:
        line(console, "epsilon spent", f"{outcome.epsilon:.3g}, of this data set in all runs")
    if outcome.unaudited:
        line(
            console, "not audited", f"{outcome.unaudited:,} rounds that were picked: the federator has lost their votes"
        )
    if out is not None:
        line(console, "written to", out)
