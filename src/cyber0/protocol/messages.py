"""The messages of a federation, as plain data; `cyber0.protocol.codec` makes bytes of them.

A client opens one stream. It may `Ask` what the run is, for which the federator sends an `Invitation`, and then says
`Hello`. The federator answers `Welcome`, sends the commits the client lacks in `CatchUp`s, then `RoundOpen`; from there
on a `Vote` goes up and a `Committed` comes down, which opens the next round. At the end a client is `Done`. In between
it may `Audit` a round, whose ballots come in `Page`s, and `Request` a change of its own entry on the roster. Where a
client holds more commits than the federator, which was restored from a backup, they are `Recall`ed before the Welcome.

A client signs its votes and its Done, the federator every link of the chain: `cyber0.protocol.chain` says what exactly.
"""

from dataclasses import dataclass

from cyber0.protocol.records import Verdict

__all__ = [
    "VERSION",
    "Ask",
    "Audit",
    "Bye",
    "CatchUp",
    "Committed",
    "Done",
    "Evaluation",
    "FromClient",
    "FromFederator",
    "Hello",
    "Invitation",
    "Page",
    "Recall",
    "Recalled",
    "Rejection",
    "Request",
    "RoundOpen",
    "Vote",
    "Welcome",
]

VERSION = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """A client that knows only the federator's address asks what is trained there, and for its place on the roster."""

    version: int = VERSION
    client: str = ""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a client must know to build the model it says Hello with: the settings of the federation, in JSON.

    `federator` is the public key that signs the chain, and `certificate` that of the key, in DER, if it has one.
    """

    settings: bytes
    federator: bytes = b""
    certificate: bytes = b""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Hello:
    """A client presents itself: its model, how many commits it holds, and what it knows of the run.

    `manifest` and `base` are the SHA-256 digests of the model's layout and of its initial weights; `head` is the last
    link of the chain it holds and `run` the digest of the run's identity, both empty where it knows none; `signature`
    is the federator's, of that link. Where it has voted after more commits than it holds, `voted`, `voted_link` and
    `voted_signature` are the same of its last vote. `key` is the public key of its votes.
    `replayed` answers a `replay`. `layout` is the manifest itself, as the JSON whose digest it has: a client that knows
    no run sends it, compressed, so that the federator, which has no model, can write it down. `brief`: the client needs
    of the roster only an outline, since it checks nobody's votes. `meaning` is JSON with a digest for each part of the
    client's task that decides what a label means. `promise` is what a private client promises, signed with its key by
    `promise_signature`: see `cyber0.protocol.promise`.
    """

    name: str
    manifest: bytes
    base: bytes
    commits: int = 0
    head: bytes = b""
    run: bytes = b""
    evaluates: bool = False
    replayed: bool = False
    version: int = VERSION
    layout: bytes = b""
    meaning: bytes = b"{}"
    key: bytes = b""
    signature: bytes = b""
    voted: int = 0
    voted_link: bytes = b""
    voted_signature: bytes = b""
    brief: bool = False
    promise: bytes = b""
    promise_signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Vote:
    """A client's scalars of a round, as bytes, signed; in some rounds with a fingerprint of the weights before it."""

    round: int
    scalars: bytes
    fingerprint: int | None = None
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good a client finds the model before a round, on test samples of its own.

    `accuracy` is None where the task has no classes, as in a regression. A loss that is NaN is sent as infinite.
    """

    round: int
    accuracy: float | None
    loss: float
    samples: int


@dataclass(frozen=True, slots=True)
class Done:
    """A client's last message, signed: it holds all commits up to `round`, and weights with this fingerprint."""

    round: int
    fingerprint: int
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Audit:
    """A client asks for a page of the ballots of a decided round."""

    round: int
    page: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A client asks for a change of its own entry on the roster, signed by it: a new key, or to be revoked."""

    change: bytes


@dataclass(frozen=True, slots=True)
class Recalled:
    """Consecutive commits that a client holds and the federator has lost, as in `CatchUp`; none if it has them not."""

    first: int
    scalars: bytes = b""
    ballots: bytes = b""
    signature: bytes = b""
    changes: bytes = b""


@dataclass(frozen=True, slots=True)
class Recall:
    """The federator asks a client that holds more commits than its ledger for those from round `first` on."""

    first: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The run's identity in canonical bytes, its first roster or an outline of it, and the round that is open.

    The votes of some of the first `lost` rounds are lost, and cannot be audited.
    """

    identity: bytes
    round: int
    roster: bytes = b""
    version: int = VERSION
    lost: int = 0


@dataclass(frozen=True, slots=True)
class RoundOpen:
    """The federator waits for votes. Sent at the start, after a catch-up, and when a deadline is extended."""

    round: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The decision of a round, which opens the next one.

    Args:
        round: Which one.
        scalars: What was decided.
        ballots: The hash of the round's ballots, by which the client knows the next link.
        signature: The federator's, of that link.
        changes: Of the roster, in JSON, that are written with this round.
        roster: The digest of the roster after it, where that is another one than before.

    """

    round: int
    scalars: bytes
    ballots: bytes = b""
    signature: bytes = b""
    changes: bytes = b""
    roster: bytes = b""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Consecutive commits.

    Args:
        first: The round of the first one.
        scalars: Those of one round after the other.
        ballots: The hashes of each round's ballots, one after the other.
        signature: The federator's, of the link after the last one.
        changes: Of the roster, in JSON: a list of rounds and the changes that were written with them.
        anchor: In place of `ballots`, where they are not known since the run was imported: what the last link was made
            of.
        rosters: For each round after which the roster is another one, its number in eight bytes, little-endian, and the
            digest of that roster.

    """

    first: int
    scalars: bytes
    ballots: bytes = b""
    signature: bytes = b""
    changes: bytes = b""
    anchor: bytes = b""
    rosters: bytes = b""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the ballots of a round, as `cyber0.protocol.ballots` writes them; an empty one has none to give."""

    round: int
    page: int
    data: bytes
    last: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """A vote was not counted: the verdict, and the reason in words. `replay` is as in `Bye`."""

    round: int
    verdict: Verdict
    reason: str
    replay: bool = False


@dataclass(frozen=True, slots=True)
class Bye:
    """The federator ends the stream: the run is finished, or the client is refused, or it may come again.

    Args:
        reason: Why, in words.
        finished: All rounds are decided.
        final: The client need not come again.
        replay: The client's weights are wrong. Its votes count again, from the next round on, once it has rebuilt its
            weights from the base model and the commits, and said Hello with `replayed`.

    """

    reason: str
    finished: bool = False
    final: bool = False
    replay: bool = False


FromClient = Ask | Hello | Vote | Evaluation | Done | Audit | Request | Recalled
FromFederator = Invitation | Recall | Welcome | RoundOpen | Committed | CatchUp | Page | Rejection | Bye
