"""Sessions: the one message to each node, sent again to nodes that lost it, and their replies at the end."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from cyber0.flower.assignment import Node

__all__ = ["ACTION", "RECORD", "Dispatch", "Report", "SessionInfo"]

ACTION = RECORD = "session"
YEAR = 365 * 24 * 3600.0  # Flower forgets a message after its time to live: a session ends by itself
PATIENCE = (3.0, 60.0)  # seconds before a session that failed is opened again, at first and at most


@dataclass(frozen=True)
class SessionInfo:
    """What a node needs for a session: the federator's address and authority (PEM), its token, and its name.

    >>> SessionInfo.read(SessionInfo("localhost:1", b"PEM", "secret", "alice").record()).name
    'alice'
    """

    address: str
    authority: bytes
    token: str
    name: str

    def record(self) -> RecordDict:
        """Return the content of the session message."""
        return RecordDict({RECORD: ConfigRecord(dict(vars(self)))})

    @classmethod
    def read(cls, content: RecordDict) -> "SessionInfo":
        """Return the session in a message."""
        return cls(**_fields(content))


@dataclass(frozen=True)
class Report:
    """A node's reply at the end: how many commits it holds, and the fingerprint of its weights.

    >>> Report(400, 2**64 - 1).record()[RECORD]["fingerprint"]
    'ffffffffffffffff'
    """

    rounds: int
    fingerprint: int

    def record(self) -> RecordDict:
        """Return the content of the reply."""
        return RecordDict({RECORD: ConfigRecord({"rounds": self.rounds, "fingerprint": f"{self.fingerprint:016x}"})})

    @classmethod
    def read(cls, content: RecordDict) -> "Report":
        """Return the report in a reply."""
        fields = _fields(content)
        return cls(int(fields["rounds"]), int(fields["fingerprint"], 16))


class Dispatch:
    """The sessions of a run: `expect` one of a client, `renew` those that are due, `collect` the replies.

    `new_session(name)` returns a client's session, with a new token; `reports` are those of the clients that came to
    the end of the run.
    """

    def __init__(self, grid: Grid, new_session: Callable[[str], SessionInfo], notice: Callable[[str], None]) -> None:
        self.grid, self.new_session, self.notice = grid, new_session, notice
        self.reports: dict[str, Report] = {}
        self._waiting: dict[str, str] = {}  # the client's name, by the message
        self._due: dict[str, float] = {}  # when to open a client's session
        self._failures: Counter[str] = Counter()

    def expect(self, names: Iterable[str]) -> None:
        """Open new sessions for these clients as soon as possible."""
        self._due.update(dict.fromkeys(names, 0.0))

    def renew(self, online: Mapping[str, Node]) -> None:
        """Open the sessions that are due for clients that are online. If Flower fails, they stay due."""
        now = time.monotonic()
        for name in [name for name, when in self._due.items() if when <= now and name in online]:
            if name in self.reports or self._open(name, online[name]):
                del self._due[name]

    def _open(self, name: str, node: Node) -> bool:
        """Send a client its session, which replaces an older one; return whether Flower accepted it."""
        message = Message(self.new_session(name).record(), node.number, f"query.{ACTION}", ttl=YEAR)
        sent = [identifier for identifier in self.grid.push_messages([message]) if identifier]
        others = {identifier: other for identifier, other in self._waiting.items() if other != name}
        self._waiting = others | dict.fromkeys(sent, name)
        if sent:
            self.notice(f"a session is opened for {name}, on node {node.number}")
        return bool(sent)

    def collect(self) -> None:
        """Read the replies that have come."""
        if not self._waiting:
            return
        for reply in self.grid.pull_messages(list(self._waiting)):
            name = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if name is not None:
                self._take(name, reply)

    def _take(self, name: str, reply: Message) -> None:
        try:
            if not reply.has_error():
                self.reports[name] = Report.read(reply.content)
                return
            reason = reply.error.reason
        except (KeyError, ValueError, TypeError) as error:
            reason = f"its reply cannot be read: {error}"
        first, most = PATIENCE
        self._due[name] = time.monotonic() + min(most, first * 2.0 ** min(self._failures[name], 9))
        self._failures[name] += 1
        self.notice(f"the session of {name} has failed, and will be opened again: {reason}")


def _fields(content: RecordDict) -> dict[str, Any]:
    return dict(content.config_records[RECORD])
