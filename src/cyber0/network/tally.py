"""Counts for whoever watches a federator."""

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from cyber0.protocol.messages import Evaluation
from cyber0.protocol.records import Decision, Verdict

__all__ = ["ClientTally", "Tally"]

WINDOW = 5.0  # seconds over which a rate is taken


@dataclass(eq=False, slots=True)
class ClientTally:
    """The verdicts on a client's votes, its bytes, its last evaluation and its final fingerprint."""

    counted: int = 0
    others: Counter[str] | None = None  # verdicts on votes that did not count
    reason: str = ""
    received: int = 0
    sent: int = 0
    evaluation: Evaluation | None = None
    fingerprint: int | None = None

    def add(self, verdict: Verdict) -> None:
        """Count one more vote."""
        if verdict == "counted":
            self.counted += 1
        else:
            self.others = self.others or Counter()
            self.others[verdict] += 1

    @property
    def verdicts(self) -> Counter[str]:
        """How many of its votes had which verdict."""
        return Counter({"counted": self.counted} if self.counted else {}) + (self.others or Counter())

    @property
    def refused(self) -> int:
        """How many of its votes did not count."""
        return 0 if self.others is None else self.others.total()


class Tally:
    """All clients that were on the roster since the federator runs, and how quickly rounds follow each other."""

    def __init__(self, names: Iterable[str]) -> None:
        self.clients = {name: ClientTally() for name in names}
        self.notices: deque[str] = deque(maxlen=6)
        self.rounds = 0
        self._times: deque[tuple[float, int]] = deque()

    def add(self, names: Iterable[str]) -> None:
        """Count for clients that are new, too."""
        for name in names:
            self.clients.setdefault(name, ClientTally())

    def record(self, decision: Decision) -> None:
        """Count a decided round."""
        self.rounds += 1
        self._times.append((time.monotonic(), decision.round))
        while len(self._times) > 2 and self._times[-1][0] - self._times[1][0] > WINDOW:
            self._times.popleft()
        for ballot in decision.ballots:
            seen = self.clients[ballot.client]
            seen.add(ballot.verdict)
            if ballot.verdict != "counted":
                seen.reason = f"{ballot.verdict}: {ballot.reason}"

    def share(self, name: str) -> float:
        """Return in what share of the rounds that were decided here a client's vote counted."""
        return self.clients[name].counted / max(1, self.rounds)

    @property
    def rate(self) -> float:
        """Rounds per second, over the last seconds."""
        if len(self._times) < 2:
            return 0.0
        (begin, first), (end, last) = self._times[0], self._times[-1]
        return (last - first) / max(end - begin, 1e-9)

    def agreed(self, least: int) -> int | None:
        """Return the final fingerprint that most clients report, if at least `least` do; otherwise None."""
        marks = Counter(seen.fingerprint for seen in self.clients.values() if seen.fingerprint is not None)
        if not marks:
            return None
        mark, count = marks.most_common(1)[0]
        return mark if count >= least and 2 * count > marks.total() else None
