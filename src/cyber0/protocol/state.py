"""What a federator knows between two events. What must survive a crash is in its ledger."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cyber0 import aggregation
from cyber0.protocol.admission import Votes
from cyber0.protocol.events import Arrived, ClientStream, Effect
from cyber0.protocol.identity import Identity, meaning_bytes
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.settings import Settings

__all__ = ["Founded", "State", "Transition", "begin", "restored", "resume"]


@dataclass(frozen=True, slots=True)
class Founded:
    """What a run was founded on: digests of the model's layout and weights, the run's identity, what labels mean."""

    manifest: bytes
    base: bytes
    identity: bytes
    meaning: bytes = b"{}"

    @classmethod
    def of(cls, identity: Identity) -> "Founded":
        """Return what the run of an identity was founded on."""
        manifest, base = bytes.fromhex(identity.manifest), bytes.fromhex(identity.base)
        return cls(manifest, base, identity.to_bytes(), meaning_bytes(identity.meaning))

    @property
    def digest(self) -> bytes:
        """The name of the run."""
        return hashlib.sha256(self.identity).digest()


@dataclass(frozen=True, slots=True)
class State:
    """The state of `cyber0.protocol.machine.step`."""

    settings: Settings
    round: int = 0  # the open one: as many are committed
    founded: Founded | None = None
    present: Mapping[str, Arrived] = field(default_factory=dict[str, Arrived])  # who is sent each commit
    awaited: frozenset[str] = frozenset()  # those of them that keep up; a round waits for their votes
    missed: Mapping[str, int] = field(default_factory=dict[str, int])  # how many deadlines each client has missed
    diverged: frozenset[str] = frozenset()  # whose weights are known to be wrong
    votes: Votes = field(default_factory=Votes)  # for the open round
    voted: frozenset[str] = frozenset()  # whose votes for the last round are known
    extension: int | None = None  # how often the open round's deadline was extended; None while it has none
    gathering: bool = True  # after a start, until the whole roster was there or a deadline has passed
    tried: frozenset[str] = frozenset()  # whose votes the rule could make no commit of
    memory: Any = None  # of a rule with memory: what it makes of the commits so far

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are decided."""
        return self.round >= self.settings.agreement.rounds

    def is_current(self, stream: ClientStream) -> bool:
        """Return whether this is the stream that a client uses now; it may have opened another one since."""
        return stream.client in self.present and self.present[stream.client].stream == stream


Transition = tuple[State, list[Effect]]


def begin(settings: Settings) -> State:
    """Return a federation before anybody has come."""
    return State(settings, memory=aggregation.begin(settings.rule))


def resume(settings: Settings, founded: Founded, commits: int, memory: Any = None) -> State:
    """Return a federation of which so many rounds are committed, after which its rule has this memory."""
    return State(settings, commits, founded, voted=frozenset(settings.roster), memory=memory)


def restored(settings: Settings, ledger: Ledger) -> State:
    """Return a federation as its ledger leaves it, which may be before anybody has come.

    The memory of a rule that has one is computed again from the ledger's commits.
    """
    if not ledger.founded:
        return begin(settings)
    rounds, memory = ledger.head.rounds, aggregation.begin(settings.rule)
    if isinstance(settings.rule.rule, aggregation.RuleWithMemory):
        scalars = np.frombuffer(ledger.commits(0, rounds), dtype="<f4")
        for commit in scalars.reshape(rounds, settings.plan.rows, settings.plan.directions):
            memory = aggregation.after(settings.rule, memory, commit)
    return resume(settings, Founded.of(ledger.identity), rounds, memory)
