"""What a federator shows of its run: to the live page and `cyber0 status`, and as metrics of Prometheus."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from cyber0.network.server import Federator
from cyber0.network.tally import ClientTally
from cyber0.network.watch import DISTANCE, LATE, MEASURED, REFUSED, History, Watch, median_quality, standing

__all__ = ["condition", "health", "metrics", "snapshot", "status"]

ROWS = 60  # clients that the live page shows
SERIES = 500  # clients that have metrics of their own: more would be a burden for who collects them
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
LOWEST, HIGHEST = -2.0, 6.0  # binary logarithms of distances, for A and for /
TWICE = 1.0  # the binary logarithm of a distance that is far
AGAINST, DEVIATIONS = 0.25, 3.0  # of the usual cosine, and usual deviations from it: below both is against the others
SLACK = 1.0  # seconds after a deadline in which a round is decided


def condition(federator: Federator) -> str:
    """Return how a run is: gathering (before its first clients have founded it), running, stalled or finished.

    It is stalled if no round was decided for longer than the deadline.
    """
    state, watch = federator.state, federator.watch
    if state.is_finished:
        return "finished"
    if state.identity is None:
        return "gathering"
    silent = watch.now() - watch.progress
    return "stalled" if silent > federator.settings.deadline + SLACK else "running"


def health(federator: Federator) -> dict[str, Any]:
    """Return whether rounds can be decided: `ok` is false while the run is stalled, or has failed."""
    state, how = federator.state, condition(federator)
    if federator.failure is not None:
        how = "failed"
    return {
        "ok": how not in ("stalled", "failed"),
        "condition": how,
        "rounds": state.round,
        "of": state.who.last,
        "present": len(state.present),
        "quorum": state.who.quorum,
        "seconds_since_round": round(federator.watch.now() - federator.watch.progress, 3),
    }


def snapshot(federator: Federator, rows: int = ROWS) -> dict[str, Any]:
    """Return all that the live page shows. Clients of which there is something to say come first."""
    state, tally, watch = federator.state, federator.tally, federator.watch
    agreement, seen = federator.settings.agreement, tally.clients
    names = state.who.names
    refused = _recently_refused(watch)
    least = _least_cosine(watch)
    doubts = {name: _doubts(watch, name, refused.get(name, 0.0), least) for name in names}
    scores = {name: _score(watch, name, refused.get(name, 0.0), doubts[name]) for name in names}
    shown = sorted(names, key=lambda name: -scores[name])[:rows]  # among equals, in roster order
    places = [watch.rows.get(name, -1) for name in shown]
    strips = [_strips(history, places, watch.now()) for history in (watch.recent, watch.whole)]
    clients = [
        {**_client(federator, name, doubts[name]), "recent": recent, "whole": whole}
        for name, recent, whole in zip(shown, *strips, strict=True)
    ]
    verdicts = _verdicts(seen.values())
    return {
        "now": time.time(),
        "started": watch.started,
        "run": "" if state.identity is None else state.identity.digest.hex(),
        "task": agreement.task,
        "rule": agreement.rule,
        "byzantine": state.who.byzantine,
        "quorum": state.who.quorum,
        "condition": condition(federator),
        "rounds": state.round,
        "of": state.who.last,
        "pace": round(tally.rate, 3),
        "deadline": federator.settings.deadline,
        "last_round": watch.last_round,
        "head": (state.head.link or b"").hex(),
        "finality": federator.settings.finality(state.who),
        "present": len(state.present),
        "voted": len(state.votes.counted),
        "clients": clients,
        "names": len(names),
        "more": len(names) - len(shown),
        "quality": _finite(median_quality(one.evaluation for one in seen.values())),
        "classes": any(one.evaluation is not None and one.evaluation.accuracy is not None for one in seen.values()),
        "evaluations": watch.evaluations,
        "verdicts": verdicts,
        "received": sum(one.received for one in seen.values()),
        "sent": federator.sent(),
        "pages": watch.pages,
        "links": watch.links,
        "evidence": [name for name, one in seen.items() if one.verdicts["equivocation"]][:rows],
        "changes": [{"round": number, "text": text} for number, text in list(watch.changes)],
        "changed": watch.changed,
        "notices": dict(watch.notices),
        "said": [{"time": when, "level": said.level, "text": str(said)} for when, said in list(watch.said)],
        "series": {"recent": _series(watch.recent, watch), "whole": _series(watch.whole, watch)},
    }


def status(federator: Federator) -> dict[str, Any]:
    """Return the same with the last seal of the ledger, which is read for it."""
    seals = federator.ledger.seals[-1:] if federator.ledger.founded else []
    marks = [None if seal.fingerprint is None else f"{seal.fingerprint:016x}" for seal in seals]
    sealed = [{"rounds": seal.rounds, "fingerprint": mark} for seal, mark in zip(seals, marks, strict=True)]
    return {**snapshot(federator), "sealed": sealed[0] if sealed else None}


def _verdicts(clients: Iterable[ClientTally]) -> dict[str, int]:
    total = Counter[str]()
    for one in clients:
        total.update(one.verdicts)
    return dict(total)


def _client(federator: Federator, name: str, doubts: list[str]) -> dict[str, Any]:
    seen, watch = federator.tally.clients.get(name, ClientTally()), federator.watch
    distance, evaluation = watch.distance.get(name), seen.evaluation
    return {
        "name": name,
        "standing": standing(federator.state, name),
        "doubts": doubts,
        "counted": seen.verdicts["counted"],
        "late": seen.verdicts["late"],
        "refused": seen.verdicts["rejected"] + seen.verdicts["equivocation"],
        "reason": seen.reason[:200],
        "distance": None if distance is None else round(2.0**distance, 3),
        "cosine": None if distance is None else round(watch.cosine[name], 3),
        "accuracy": None if evaluation is None else _finite(evaluation.accuracy),
        "loss": None if evaluation is None else _finite(evaluation.loss),
        "received": seen.received,
    }


def _recently_refused(watch: Watch) -> dict[str, float]:
    """Return which share of each client's votes of the last minutes was refused."""
    watch.recent.column(watch.now())
    sums = watch.recent.clients.sum(axis=1)
    votes = sums[:, MEASURED] + sums[:, REFUSED]
    shares = np.divide(sums[:, REFUSED], votes, out=np.zeros(len(sums)), where=votes > 0)
    return {name: float(shares[row]) for name, row in watch.rows.items() if row < len(shares) and shares[row] > 0}


def _least_cosine(watch: Watch) -> float:
    """Return the cosine with the others' votes below which a client votes against them."""
    if not watch.cosine:
        return -1.0
    cosines = np.array(list(watch.cosine.values()))
    usual = float(np.median(cosines))
    deviation = 1.4826 * float(np.median(np.abs(cosines - usual)))  # as a standard deviation, of most of them
    return min(AGAINST * usual, usual - DEVIATIONS * deviation)


def _doubts(watch: Watch, name: str, refused: float, least: float) -> list[str]:
    """Return what is unusual about a client's votes, which need not be a lie."""
    found = ["refused"] if refused else []
    if watch.distance.get(name, 0.0) >= TWICE:
        found.append("far")
    if watch.cosine.get(name, 1.0) < least:
        found.append("against")
    return found


def _score(watch: Watch, name: str, refused: float, doubts: list[str]) -> float:
    """Return by how much a client is put before others; 0 for most, so that these keep their places."""
    if not doubts:
        return 0.0
    far = max(0.0, watch.distance.get(name, 0.0))
    return round(2 * (far + 8 * refused + 2 * ("against" in doubts))) / 2 + 1


def _strips(history: History, rows: list[int], now: float) -> list[str]:
    """Return a character for each column of each row's history.

    A letter for the mean distance of counted votes, `!` for refused votes, `~` for late ones, `.` for none.
    """
    history.column(now)
    width = history.columns
    table = np.zeros((len(rows), width, 4))
    for place, row in enumerate(rows):
        if 0 <= row < len(history.clients):
            table[place] = history.clients[row, :width]
    measured = table[..., MEASURED]
    mean = np.divide(table[..., DISTANCE], measured, out=np.zeros_like(measured), where=measured > 0)
    letters = np.array(list(ALPHABET))
    scale = (len(ALPHABET) - 1) / (HIGHEST - LOWEST)
    found = letters[np.clip((mean - LOWEST) * scale, 0, len(ALPHABET) - 1).astype(int)]
    found = np.where(measured > 0, found, ".")
    found = np.where((measured == 0) & (table[..., LATE] > 0), "~", found)
    found = np.where((table[..., REFUSED] > measured), "!", found)
    return ["".join(line) for line in found.tolist()]


def _series(history: History, watch: Watch) -> dict[str, Any]:
    """Return rounds per second and the clients' median accuracy, or loss, in each column."""
    now = watch.now()
    history.column(now)
    width = history.columns
    open_for = max(1e-9, min(history.width, now - history.begin - (width - 1) * history.width))
    seconds = [history.width] * (width - 1) + [max(open_for, 0.2 * history.width)]
    rates = [round(float(count) / each, 2) for count, each in zip(history.rounds[:width], seconds, strict=True)]
    quality = [round(float(value), 4) if np.isfinite(value) else None for value in history.quality[:width]]
    return {"seconds": history.width, "pace": rates, "quality": quality}


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else value


# Prometheus


def metrics(federator: Federator) -> str:
    """Return the metrics of a federator in the text format of Prometheus."""
    return "".join(f"{line}\n" for line in _lines(federator))


def _lines(federator: Federator) -> Iterator[str]:
    state, tally, watch = federator.state, federator.tally, federator.watch
    seen = tally.clients
    yield from _metric("rounds", "gauge", "Rounds that are decided.", state.round)
    yield from _metric("rounds_planned", "gauge", "Rounds of the run.", state.who.last)
    yield from _metric("rounds_per_second", "gauge", "Rounds a second, over the last seconds.", tally.rate)
    yield from _metric("last_round_timestamp_seconds", "gauge", "When a round was decided last.", watch.last_round)
    yield from _metric("start_timestamp_seconds", "gauge", "When the federator started.", watch.started)
    yield from _metric("healthy", "gauge", "Whether rounds can be decided.", int(health(federator)["ok"]))
    yield from _metric("clients", "gauge", "Clients on the roster.", len(state.who.names))
    yield from _metric("clients_present", "gauge", "Clients that are connected.", len(state.present))
    yield from _metric("quorum", "gauge", "Votes that decide a round.", state.who.quorum)
    yield from _metric("links_signed_total", "counter", "Links signed since the start.", watch.links)
    yield from _metric("audit_pages_total", "counter", "Pages of ballots sent to clients that audit.", watch.pages)
    yield from _metric("evaluations_total", "counter", "Evaluations that clients reported.", watch.evaluations)
    yield from _metric("roster_changes_total", "counter", "Changes of the roster.", watch.changed)
    levels = {(("level", level),): watch.notices[level] for level in ("info", "warning", "error")}
    yield from _metric("notices_total", "counter", "Notices, those that were only counted included.", levels)
    received, sent = sum(one.received for one in seen.values()), federator.sent()
    yield from _metric("received_bytes_total", "counter", "Bytes of messages from clients.", received)
    yield from _metric("sent_bytes_total", "counter", "Bytes of messages to clients.", sent)
    verdicts = {(("verdict", verdict),): count for verdict, count in sorted(_verdicts(seen.values()).items())}
    yield from _metric("votes_total", "counter", "Votes by verdict.", verdicts)
    if len(seen) <= SERIES:
        yield from _client_lines(federator)


def _client_lines(federator: Federator) -> Iterator[str]:
    state, seen, watch = federator.state, federator.tally.clients, federator.watch
    present = {(("client", name),): int(name in state.present) for name in state.who.names}
    yield from _metric("client_present", "gauge", "Whether a client is connected.", present)
    votes = {
        (("client", name), ("verdict", verdict)): count
        for name, one in seen.items()
        for verdict, count in sorted(one.verdicts.items())
    }
    yield from _metric("client_votes_total", "counter", "Votes of a client by verdict.", votes)
    received = {(("client", name),): one.received for name, one in seen.items()}
    yield from _metric("client_received_bytes_total", "counter", "Bytes of messages from a client.", received)
    distance = {(("client", name),): 2.0**value for name, value in watch.distance.items()}
    text = "How far a client's votes are from the aggregate; that of the client in the middle is 1."
    yield from _metric("client_distance", "gauge", text, distance)
    cosine = {(("client", name),): value for name, value in watch.cosine.items()}
    yield from _metric("client_cosine", "gauge", "The cosine of a client's votes with those of all others.", cosine)
    evaluations = {name: one.evaluation for name, one in seen.items() if one.evaluation is not None}
    accuracy = {(("client", name),): e.accuracy for name, e in evaluations.items() if e.accuracy is not None}
    yield from _metric("client_accuracy", "gauge", "The accuracy that a client reports.", accuracy)
    loss = {(("client", name),): e.loss for name, e in evaluations.items()}
    yield from _metric("client_loss", "gauge", "The loss that a client reports.", loss)


Labels = tuple[tuple[str, str], ...]


def _metric(name: str, kind: str, text: str, values: float | Mapping[Labels, float]) -> Iterator[str]:
    r"""Yield the lines of a metric; one without values has none.

    >>> print(*_metric("quorum", "gauge", "Votes that decide a round.", {(("client", 'a"b'),): 7}), sep="\n")
    # HELP cyber0_quorum Votes that decide a round.
    # TYPE cyber0_quorum gauge
    cyber0_quorum{client="a\"b"} 7
    """
    found: Mapping[Labels, float] = values if isinstance(values, Mapping) else {(): values}
    if not found:
        return
    yield f"# HELP cyber0_{name} {text}"
    yield f"# TYPE cyber0_{name} {kind}"
    for labels, value in found.items():
        written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        number = repr(value).replace("inf", "+Inf").replace("-+Inf", "-Inf").replace("nan", "NaN")
        yield f"cyber0_{name}{{{written}}} {number}" if written else f"cyber0_{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
