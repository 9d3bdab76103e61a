"""The messages of a federation, as plain data; `cyber0.protocol.codec` makes bytes of them.

A client opens one stream. It may `Ask` what the run is, for which the federator sends an `Invitation`, and then says
`Hello`. The federator answers `Welcome`, sends the commits the client lacks in `CatchUp`s, then `RoundOpen`; from there
on a `Vote` goes up and a `Committed` comes down, which opens the next round. At the end a client is `Done`.
"""

from dataclasses import dataclass

from cyber0.protocol.records import Verdict

__all__ = [
    "VERSION",
    "Ask",
    "Bye",
    "CatchUp",
    "Committed",
    "Done",
    "Evaluation",
    "FromClient",
    "FromFederator",
    "Hello",
    "Invitation",
    "Rejection",
    "RoundOpen",
    "Vote",
    "Welcome",
]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Ask:
    """A client that knows only the federator's address asks what is trained there."""

    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a client must know to build the model it says Hello with: the settings of the federation, in JSON."""

    settings: bytes
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Hello:
    """A client presents itself: its model, how many commits it holds, and what it knows of the run.

    `manifest` and `base` are the SHA-256 digests of the model's layout and of its initial weights; `head` is the last
    hash of the chain of commits it holds and `run` the digest of the run's identity, both empty where it knows none.
    `replayed` answers a `replay`. `layout` is the manifest itself, as the JSON whose digest it has: a client that knows
    no run sends it, so that the federator, which has no model, can write it down. `meaning` is JSON with a digest for
    each part of the client's task that decides what a label means.
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


@dataclass(frozen=True, slots=True)
class Vote:
    """A client's scalars of a round, as bytes; in some rounds with a fingerprint of the weights before it."""

    round: int
    scalars: bytes
    fingerprint: int | None = None


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
    """A client's last message: it holds all commits up to `round`, and its weights have this fingerprint."""

    round: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The run's identity in canonical bytes, and the round that is open."""

    identity: bytes
    round: int
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class RoundOpen:
    """The federator waits for votes. Sent at the start, after a catch-up, and when a deadline is extended."""

    round: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The decision of a round, which opens the next one."""

    round: int
    scalars: bytes


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Scalars of consecutive commits, one after the other, from round `first` on."""

    first: int
    scalars: bytes


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
        replay: The client's weights are wrong. Its votes count again once it has forgotten its vote for the open
            round, rebuilt its weights from the base model and the commits, and said Hello with `replayed`.

    """

    reason: str
    finished: bool = False
    final: bool = False
    replay: bool = False


FromClient = Ask | Hello | Vote | Evaluation | Done
FromFederator = Invitation | Welcome | RoundOpen | Committed | CatchUp | Rejection | Bye
