"""What happens to a federator, and what it does about it: the two ends of `cyber0.protocol.machine.step`."""

from dataclasses import dataclass
from typing import NamedTuple

from cyber0.protocol.messages import Evaluation, FromFederator, Hello, Vote
from cyber0.protocol.records import Decision

__all__ = [
    "Alarm",
    "Arrived",
    "ClientStream",
    "Deadline",
    "Effect",
    "Evaluated",
    "Event",
    "HangUp",
    "Left",
    "Notice",
    "Received",
    "Record",
    "RecordIdentity",
    "Replay",
    "Send",
]


class ClientStream(NamedTuple):
    """One stream of a client, whose name the transport has authenticated; `number` tells its streams apart.

    >>> ClientStream("alice", 1) == ClientStream("alice", 2)
    False
    """

    client: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """A client said Hello. `head` is the ledger's own hash after `hello.commits` commits, empty where it has none.

    >>> Arrived(ClientStream("alice"), Hello("alice", bytes(32), bytes(32))).head
    b''
    """

    stream: ClientStream
    hello: Hello
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Received:
    """A client sent a vote or an evaluation.

    >>> Received(ClientStream("alice"), Vote(0, bytes(4))).message.round
    0
    """

    stream: ClientStream
    message: Vote | Evaluation


@dataclass(frozen=True, slots=True)
class Left:
    """A stream has ended, for whatever reason.

    >>> Left(ClientStream("alice")).stream.client
    'alice'
    """

    stream: ClientStream


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of an `Alarm` has come.

    >>> Deadline(7, extension=0).round
    7
    """

    round: int
    extension: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on a stream.

    >>> from cyber0.protocol.messages import RoundOpen
    >>> Send(ClientStream("alice"), RoundOpen(7)).message
    RoundOpen(round=7)
    """

    stream: ClientStream
    message: FromFederator


@dataclass(frozen=True, slots=True)
class Replay:
    """Send the ledger's commits of the rounds from `first` up to, not including, `stop` in CatchUps.

    >>> Replay(ClientStream("alice"), first=0, stop=7).stop
    7
    """

    stream: ClientStream
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class RecordIdentity:
    """Write the run's identity to the ledger, durably: a majority of the roster agrees on the model.

    >>> RecordIdentity(b"...").identity
    b'...'
    """

    identity: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """Write a decision to the ledger, durably, before any later effect: nothing is sent that is not on disk.

    >>> Record(Decision(7, bytes(4), ())).decision.round
    7
    """

    decision: Decision


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A client's evaluation, for the metrics.

    >>> Evaluated("alice", Evaluation(100, 0.5, 0.7, 1000)).client
    'alice'
    """

    client: str
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Alarm:
    """Bring the event `Deadline(round, extension)` in so many seconds.

    >>> Alarm(7, extension=0, seconds=60.0).seconds
    60.0
    """

    round: int
    extension: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HangUp:
    """End a stream, after what was sent on it.

    >>> HangUp(ClientStream("alice"), "another stream took its place").reason
    'another stream took its place'
    """

    stream: ClientStream
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person watching would want to know.

    >>> Notice("alice has left").text
    'alice has left'
    """

    text: str


Event = Arrived | Received | Left | Deadline
Effect = Send | Replay | RecordIdentity | Record | Evaluated | Alarm | HangUp | Notice
