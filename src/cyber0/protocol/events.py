"""The events that `cyber0.protocol.machine.step` takes, and the effects that it returns."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from cyber0.protocol.chain import Head
from cyber0.protocol.identity import Identity
from cyber0.protocol.messages import Evaluation, FromFederator, Hello, Recalled, Vote
from cyber0.protocol.records import Decision, Promised
from cyber0.protocol.roster import Change

__all__ = [
    "Adopt",
    "Alarm",
    "Arrived",
    "ClientStream",
    "Deadline",
    "Effect",
    "Evaluated",
    "Event",
    "HangUp",
    "Impatience",
    "Left",
    "Notice",
    "Patience",
    "Proposed",
    "Received",
    "Record",
    "RecordIdentity",
    "RecordPromise",
    "Replay",
    "Send",
]


class ClientStream(NamedTuple):
    """One stream of a client, whose name the transport has authenticated; `number` tells its streams apart."""

    client: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """A client said Hello; `head` is the ledger's link after `hello.commits` commits, empty if it is not known."""

    stream: ClientStream
    hello: Hello
    head: bytes = b""


class Received(NamedTuple):  # which is made in a fraction of the time: for every vote
    """A client sent a vote, an evaluation, or commits that it was asked for.

    `signed`: a vote is signed by its client, on the link of its round. `digest` is the SHA-256 of its scalars, where it
    is known.
    """

    stream: ClientStream
    message: Vote | Evaluation | Recalled
    signed: bool = True
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Proposed:
    """The operator, or a client about itself, asks for changes of the roster, all of them or none."""

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A stream has ended."""

    stream: ClientStream


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of an `Alarm` is over."""

    round: int
    extension: int


@dataclass(frozen=True, slots=True)
class Impatience:
    """The time of a `Patience` is over."""

    round: int


class Send(NamedTuple):
    """Send a message on a stream."""

    stream: ClientStream
    message: FromFederator


@dataclass(frozen=True, slots=True)
class Replay:
    """Send the commits of rounds `first` to `stop - 1`, as the ledger holds them, in CatchUps."""

    stream: ClientStream
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class RecordIdentity:
    """Write the run's identity to the ledger, durably: a majority of the roster has brought the same model and task."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class RecordPromise:
    """Write to the ledger what a client has promised about its privacy, if it is new."""

    promised: Promised


@dataclass(frozen=True, slots=True)
class Record:
    """Sign the link after a decision, and write both to the ledger, durably, before any later effect.

    Nothing is sent that is not on disk. A `Committed` of this round is sent with that signature.
    """

    decision: Decision
    head: Head


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write rounds that were decided before, and lost, to the ledger, with the signatures of their links, durably."""

    rounds: tuple[tuple[Decision, bytes], ...]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Note a client's evaluation."""

    client: str
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Alarm:
    """Bring the event `Deadline(round, extension)` after so many seconds."""

    round: int
    extension: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Patience:
    """Bring the event `Impatience(round)` after so many seconds: a quorum is in, and others are still waited for."""

    round: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HangUp:
    """End a stream once everything that was sent on it before is delivered."""

    stream: ClientStream
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Show a sentence to whoever watches the federator; `client` is whom it is about, if it is about one."""

    text: str
    client: str = ""
    level: Literal["info", "warning", "error"] = "info"


Event = Arrived | Received | Proposed | Left | Deadline | Impatience
Effect = (
    Send | Replay | RecordIdentity | RecordPromise | Record | Adopt | Evaluated | Alarm | Patience | HangUp | Notice
)
