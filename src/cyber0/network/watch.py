"""What a federator has seen of its run since it started: counts, notices, and how far each vote is from the aggregate.

It is told of what happens and decides nothing. Distances are measured only where somebody may look at them, and in so
few rounds that rounds are not slowed.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from cyber0.network.log import Repeats, Said
from cyber0.protocol.messages import Evaluation
from cyber0.protocol.records import Ballot, Decision
from cyber0.protocol.state import State

__all__ = ["COLUMNS", "History", "Takeovers", "Watch", "distances", "standing"]

COLUMNS = 96  # of a history
MEASURED, DISTANCE, REFUSED, LATE = range(4)  # what a history has of each client
APART, SHARE = 0.05, 50  # seconds between two measurements, and how many times as long as one took
NEAR, FAR = -6.0, 12.0  # the binary logarithm of a distance, at least and at most
MEMORY = 100  # measured rounds over which a client's averages are taken
ALTERNATING, WITHIN = 4, 60.0  # streams that took the place of others, and seconds within which they did

Floats = NDArray[np.floating]


def distances(votes: Floats, aggregate: Floats) -> tuple[Floats, Floats]:
    """Return how far votes [n, k] are from their aggregate [k], and the cosine of each with those of all others.

    The distance of the vote in the middle is 1. For the cosine every vote has the same length, so that no lie drowns
    the others.

    >>> near, cosine = distances(np.array([[1.0, 0.0], [1.0, 1.0], [-8.0, 1.0]]), np.array([1.0, 0.5]))
    >>> near.round(1).tolist(), cosine.round(2).tolist()
    ([1.0, 1.0, 18.0], [-0.32, 0.75, -0.87])
    """
    votes, aggregate = votes.astype(np.float64), aggregate.astype(np.float64)
    apart = np.linalg.norm(votes - aggregate, axis=1)
    typical = float(np.median(apart))
    lengths = np.linalg.norm(votes, axis=1, keepdims=True)
    units = np.divide(votes, lengths, out=np.zeros_like(votes), where=lengths > 0)
    others = units.sum(axis=0) - units
    length = np.linalg.norm(others, axis=1)
    cosines = np.divide((units * others).sum(axis=1), length, out=np.zeros(len(votes)), where=length > 0)
    return (apart / typical if typical > 0 else 1.0 + apart), cosines


class History:
    """What happened over time, in a fixed number of columns.

    A history that `rolls` has the last columns. Another one has the whole run: when it is full, two columns become one.

    >>> history = History(1.0, begin=0.0)
    >>> history.add_round(0.5)
    >>> history.add_round(96.0)
    >>> history.width, history.columns, history.rounds[[0, 48]].tolist()
    (2.0, 49, [1.0, 1.0])
    """

    def __init__(self, width: float, begin: float, *, rolls: bool = False) -> None:
        self.width, self.begin, self.rolls = width, begin, rolls
        self.columns = 1  # in use
        self.rounds: Floats = np.zeros(COLUMNS)
        self.quality: Floats = np.full(COLUMNS, np.nan)  # the last median accuracy, or loss
        self.clients: Floats = np.zeros((0, COLUMNS, 4), dtype=np.float32)

    def column(self, now: float) -> int:
        """Return the column of a time, for which room is made."""
        place = int(max(0.0, now - self.begin) / self.width)
        if self.rolls and place >= COLUMNS:
            gone = place - COLUMNS + 1
            self.begin += gone * self.width
            self._roll(min(gone, COLUMNS))
            place = COLUMNS - 1
        while place >= COLUMNS:
            self._halve()
            place = int((now - self.begin) / self.width)
        self.columns = max(self.columns, place + 1)
        return place

    def add_round(self, now: float) -> None:
        """Count a round that was decided."""
        column = self.column(now)  # first: it may make the tables anew
        self.rounds[column] += 1

    def add_quality(self, now: float, value: float) -> None:
        """Note the median accuracy, or loss, that clients report."""
        column = self.column(now)
        self.quality[column] = value

    def add(self, now: float, kind: int, rows: list[int], values: Floats | float) -> None:
        """Add values of one kind for the clients in some rows."""
        column = self.column(now)
        if rows and max(rows) >= len(self.clients):
            more = np.zeros((max(rows) + 1 - len(self.clients), COLUMNS, 4), dtype=np.float32)
            self.clients = np.concatenate([self.clients, more])
        np.add.at(self.clients[:, column, kind], rows, values)

    def _roll(self, gone: int) -> None:
        for table, empty in ((self.rounds, 0.0), (self.quality, np.nan)):
            table[: COLUMNS - gone] = table[gone:].copy()
            table[COLUMNS - gone :] = empty
        self.clients[:, : COLUMNS - gone] = self.clients[:, gone:].copy()
        self.clients[:, COLUMNS - gone :] = 0

    def _halve(self) -> None:
        half, rest = COLUMNS // 2, COLUMNS - COLUMNS // 2
        self.rounds = np.concatenate([self.rounds[0::2] + self.rounds[1::2], np.zeros(rest)])
        first, second = self.quality[0::2], self.quality[1::2]
        self.quality = np.concatenate([np.where(np.isnan(second), first, second), np.full(rest, np.nan)])
        both = self.clients[:, 0::2] + self.clients[:, 1::2]
        self.clients = np.concatenate([both, np.zeros((len(both), rest, 4), dtype=np.float32)], axis=1)
        self.width, self.columns = 2 * self.width, half


class Takeovers:
    """Whether streams of one client take each other's place in turn, as those of two machines with one name do.

    >>> takeovers = Takeovers(iter(range(9)).__next__)
    >>> for place in (1, 2, 1, 2):
    ...     said = takeovers.seen("ann", f"10.0.0.{3 - place}:7", f"10.0.0.{place}:8")
    >>> print(said)
    ann is used by two: streams from 10.0.0.1 and 10.0.0.2 take each other's place; stop one of them
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._seen: dict[str, deque[tuple[float, str]]] = {}

    def seen(self, client: str, old: str, new: str) -> Said | None:
        """Note that a stream from `new` took the place of one from `old`; return what is to be said about it."""
        last = self._seen.setdefault(client, deque(maxlen=ALTERNATING))
        last.append((self.now(), _host(new)))
        if len(last) < ALTERNATING or last[-1][0] - last[0][0] > WITHIN:
            return None
        hosts = sorted({_host(old), *(host for _, host in last)})
        where = f"{hosts[0]} alone" if len(hosts) == 1 else f"{', '.join(hosts[:-1])} and {hosts[-1]}"
        text = f"{client} is used by two: streams from {where} take each other's place; stop one of them"
        return Said(text, "warning", client)


class Watch:
    """What a federator has seen.

    Args:
        measures: Whether to measure the distances of votes, and to keep what happened over time.
        now: A clock that does not jump.

    >>> watch = Watch()
    >>> watch.notice(Said("ann is here", client="ann")), watch.notices["info"]
    ('ann is here', 1)

    """

    def __init__(self, *, measures: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self.measures, self.now, self.started = measures, now, time.time()
        self.begin = self.progress = now()  # when it began, and when a round was decided last
        self.last_round = 0.0  # the same, as a date
        self.notices = Counter[str]()  # by level
        self.said: deque[tuple[float, Said]] = deque(maxlen=50)
        self.changes: deque[tuple[int, str]] = deque(maxlen=20)  # of the roster, with their rounds
        self.links = self.pages = self.evaluations = self.changed = 0
        self.takeovers = Takeovers(now)
        self.recent, self.whole = History(1.0, self.begin, rolls=True), History(0.25, self.begin)
        self.rows: dict[str, int] = {}
        self.distance: dict[str, float] = {}  # binary logarithms, averaged over the last rounds
        self.cosine: dict[str, float] = {}  # with the votes of all others, the same
        self._measured = Counter[str]()
        self._repeats = Repeats(now)
        self._next = self._next_quality = self.begin

    def notice(self, said: Said, *, known: bool = True) -> Said | None:
        """Count a notice; return it if it is to be shown. All strangers, who are not `known`, count as one."""
        self.notices[said.level] += 1
        shown = self._repeats.shown(said, known=known)
        if shown is not None:
            self.said.append((time.time(), shown))
        return shown

    def decided(self, decision: Decision) -> None:
        """Note a round that is decided and written, whose link is signed."""
        now = self.progress = self.now()
        self.last_round = time.time()
        self.links += 1
        self.changed += len(decision.changes)
        self.changes.extend((decision.round, change.text) for change in decision.changes)
        if not self.measures:
            return
        self.recent.add_round(now)
        self.whole.add_round(now)
        if now >= self._next:
            self._measure(decision, now)
            after = self.now()
            self._next = after + max(APART, SHARE * (after - now))

    def evaluated(self, evaluations: Iterable[Evaluation | None]) -> None:
        """Note that a client has reported one more evaluation; these are the last of all clients."""
        self.evaluations += 1
        if not self.measures:
            return
        now = self.now()
        if now < self._next_quality:  # many clients evaluate at once
            return
        value, after = median_quality(evaluations), self.now()
        self._next_quality = after + max(APART, SHARE * (after - now))
        if value is not None:
            self.recent.add_quality(now, value)
            self.whole.add_quality(now, value)

    def _measure(self, decision: Decision, now: float) -> None:
        counted = [ballot for ballot in decision.ballots if ballot.verdict == "counted" and ballot.values]
        if counted:
            values = np.frombuffer(b"".join(ballot.values or b"" for ballot in counted), dtype="<f4")
            aggregate = np.frombuffer(decision.scalars, dtype="<f4")
            apart, cosines = distances(values.reshape(len(counted), -1), aggregate)
            logs = np.clip(np.log2(np.maximum(apart, 2.0**NEAR)), NEAR, FAR)
            self._average(counted, logs, cosines)
            self._add(now, MEASURED, counted, 1.0)
            self._add(now, DISTANCE, counted, logs)
        refused = [ballot for ballot in decision.ballots if ballot.verdict in ("rejected", "equivocation")]
        self._add(now, REFUSED, refused, 1.0)
        self._add(now, LATE, [ballot for ballot in decision.ballots if ballot.verdict == "late"], 1.0)

    def _add(self, now: float, kind: int, ballots: list[Ballot], values: Floats | float) -> None:
        if ballots:
            rows = [self.rows.setdefault(ballot.client, len(self.rows)) for ballot in ballots]
            self.recent.add(now, kind, rows, values)
            self.whole.add(now, kind, rows, values)

    def _average(self, counted: list[Ballot], logs: Floats, cosines: Floats) -> None:
        for ballot, apart, cosine in zip(counted, logs.tolist(), cosines.tolist(), strict=True):
            name = ballot.client
            self._measured[name] += 1
            share = 1 / min(self._measured[name], MEMORY)
            before = self.distance.get(name, apart), self.cosine.get(name, cosine)
            self.distance[name] = before[0] + share * (apart - before[0])
            self.cosine[name] = before[1] + share * (cosine - before[1])


def median_quality(evaluations: Iterable[Evaluation | None]) -> float | None:
    """Return the median of the clients' accuracies, or of their losses where the task has no classes.

    >>> median_quality([Evaluation(1, 0.5, 1.0, 10), None, Evaluation(1, 0.7, 1.0, 10), Evaluation(1, 0.6, 1.0, 10)])
    0.6
    """
    known = [each for each in evaluations if each is not None]
    values = sorted(each.accuracy for each in known if each.accuracy is not None) or sorted(each.loss for each in known)
    return values[len(values) // 2] if values else None


def standing(state: State, name: str) -> str:
    """Return how a client stands in the open round: it must replay, is away, has voted, is awaited or catches up."""
    if name in state.diverged:
        return "must replay"
    if name not in state.present:
        return "away"
    if name in state.votes.counted:
        return "has voted"
    return "is awaited" if name in state.awaited else "catches up"


def _host(address: str) -> str:
    """Return the host of HOST:PORT.

    >>> _host("10.0.0.1:5555"), _host("[::1]:5555"), _host("")
    ('10.0.0.1', '::1', 'an unknown place')
    """
    return address.rpartition(":")[0].strip("[]") or "an unknown place"
