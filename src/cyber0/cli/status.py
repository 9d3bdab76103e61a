"""`cyber0 status`: how a run is, from its ledger or from a federator that shows it."""

import json
import re
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

import typer
from rich.console import Console

from cyber0.cli.ledger import line
from cyber0.errors import InvalidConfig, Unreachable
from cyber0.printable import many
from cyber0.protocol.audit import Context, is_final
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.settings import Settings
from cyber0.replay import open_ledger

__all__ = ["of_federator", "of_ledger", "status"]

ADDRESS = re.compile(r"(?:[^/\s]+:)?\d{1,5}|https?://.+")
LARGEST, PATIENCE = 2**24, 5.0  # bytes of an answer, and seconds until it must have come
SAMPLE = 1.0  # seconds over which the pace of a ledger is taken
BACK = 64  # rounds that are looked through for one that made commits final
NAMES = 40  # clients that are named


def status(
    run: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS-or-LEDGER",
            help="The --metrics address of a federator, or the file of a ledger, which may be in use.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show how a run is: its rounds and pace, who is here, what is final, the last seal."""
    if ADDRESS.fullmatch(run) and not Path(run).exists():
        found = of_federator(run)
    else:
        with open_ledger(Path(run)) as ledger:
            found = of_ledger(ledger, sample=SAMPLE if _is_written(Path(run)) else 0.0)
    console = Console()
    if as_json:
        console.print(json.dumps(found), markup=False, highlight=False, soft_wrap=True)
        return
    for name, value in _lines(found):
        line(console, name, value)


def of_federator(address: str) -> dict[str, Any]:
    """Return how a run is, as the federator with metrics at an address tells it.

    >>> of_federator("127.0.0.1:1")
    Traceback (most recent call last):
    cyber0.errors.Unreachable: nobody answers at 127.0.0.1:1: give the address of cyber0 serve --metrics
    """
    there = HTTPConnection(*_host_and_port(address), timeout=PATIENCE)
    try:
        there.request("GET", "/status")
        answer = there.getresponse()
        body = answer.read(LARGEST)
        shown = json.loads(body) if answer.status == 200 else None
    except (OSError, HTTPException, ValueError):
        there.close()
        raise Unreachable(f"nobody answers at {address}: give the address of cyber0 serve --metrics") from None
    there.close()
    if not isinstance(shown, dict) or "rounds" not in shown:
        raise Unreachable(f"what answers at {address} is not the --metrics address of a federator")
    told = cast("dict[str, Any]", shown)
    clients = cast("list[dict[str, Any]]", told["clients"])
    kept = ("run", "condition", "rounds", "of", "pace", "names", "present", "quorum", "quality", "finality", "sealed")
    return {
        **{name: told.get(name) for name in kept},
        "classes": told.get("classes"),
        "here": [one["name"] for one in clients if one["standing"] != "away"],
        "away": [one["name"] for one in clients if one["standing"] == "away"],
        "doubts": {one["name"]: one["doubts"] for one in clients if one["doubts"]},
    }


def _host_and_port(address: str) -> tuple[str, int]:
    """Return the host and port of an address; a port alone is one of this machine.

    >>> _host_and_port("9100"), _host_and_port("http://federator.example.org:9100/"), _host_and_port("[::1]:9100")
    (('127.0.0.1', 9100), ('federator.example.org', 9100), ('::1', 9100))
    """
    whole = f"127.0.0.1:{address}" if address.isdecimal() else address
    url = urlsplit(whole if "://" in whole else f"http://{whole}")
    try:
        host, port = url.hostname or "", url.port or 80
    except ValueError:
        host, port = "", 0
    if url.scheme != "http" or not host:
        raise InvalidConfig(f"address = {address!r}: write HOST:PORT, or http://HOST:PORT")
    return host, port


def of_ledger(ledger: Ledger, sample: float = 0.0) -> dict[str, Any]:
    """Return how the run in a ledger is; its pace is taken over so many seconds, if any."""
    identity, begin = ledger.identity, ledger.head.rounds
    if sample:
        time.sleep(sample)
    roster, rounds = ledger.roster, ledger.head.rounds
    last = list(ledger.decisions(max(ledger.imported, rounds - 1), rounds))
    counted = {ballot.client for each in last for ballot in each.ballots if ballot.verdict == "counted"}
    seals = ledger.seals
    mark = seals[-1].fingerprint if seals else None
    return {
        "run": identity.digest.hex(),
        "condition": "finished" if rounds >= roster.last else "written" if sample else "at rest",
        "rounds": rounds,
        "of": roster.last,
        "pace": (rounds - begin) / sample if sample else None,
        "names": len(roster.names),
        "present": len(counted),
        "quorum": roster.quorum,
        "here": [name for name in roster.names if name in counted],
        "away": [name for name in roster.names if name not in counted],
        "final": _final(ledger) if identity.protocol > 1 else None,
        "finality": Settings.of_ledger(ledger).finality(roster) if identity.protocol > 1 else None,
        "sealed": {"rounds": seals[-1].rounds, "fingerprint": mark and f"{mark:016x}"} if seals else None,
    }


def _final(ledger: Ledger) -> int | None:
    """Return how many commits the votes of the last rounds make final, as the ledger has them; None if they make none.

    A vote vouches for all commits before it. Signatures are not checked: that is what `cyber0 verify` is for.
    """
    identity, roster, rounds = ledger.identity, ledger.roster, ledger.head.rounds
    context = Context(identity, roster, b"")
    if rounds >= roster.last and is_final(context, len(ledger.reports), of_all=True):
        return rounds
    first = max(ledger.imported, rounds - BACK)
    for decision in reversed(list(ledger.decisions(first, rounds))):
        if is_final(context, sum(ballot.verdict == "counted" for ballot in decision.ballots)):
            return decision.round
    return None


def _is_written(path: Path) -> bool:
    """Return whether a federator has a ledger open, or has died with it."""
    return path.resolve().with_name(path.resolve().name + "-wal").exists()


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    pace, sealed = found["pace"], found["sealed"]
    lines = [("run", found["run"] or "not founded yet"), ("rounds", f"{found['rounds']:,} of {found['of']:,}")]
    lines.append(("state", found["condition"] + ("" if pace is None else f", {pace:,.1f} rounds a second")))
    enough = many(found["quorum"], "vote decides", "votes decide")
    lines.append(("here", f"{found['present']:,} of {found['names']:,}; {enough} a round"))
    lines += [("away", _named(found["away"]))] if found["away"] else []
    lines += [("stands out", f"{name}: {', '.join(why)}") for name, why in found.get("doubts", {}).items()]
    if found.get("quality") is not None:
        shown = f"{found['quality']:.1%}" if found["classes"] else f"{found['quality']:.4g}"
        lines.append(("accuracy" if found["classes"] else "loss", f"{shown}, the median of what clients report"))
    if found.get("final") is not None:
        lines.append(("final", f"{many(found['final'], 'commit')}, by the votes after them"))
    if found["finality"]:
        lines.append(("finality", found["finality"]))
    mark = sealed and sealed["fingerprint"]
    seal = (
        f"after {many(sealed['rounds'], 'round')}, {'fingerprint ' + mark if mark else 'no fingerprint'}"
        if sealed
        else "none"
    )
    return [*lines, ("last seal", seal)]


def _named(names: list[str]) -> str:
    """Return names in one line.

    >>> _named(["ann", "bob"])
    'ann, bob'
    """
    more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
