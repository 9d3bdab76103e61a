"""What a federator knows between two events. What must survive a crash is in its ledger."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from immutables import Map

from cyber0 import aggregation
from cyber0.protocol.admission import Votes, without
from cyber0.protocol.chain import Head, genesis
from cyber0.protocol.events import Arrived, ClientStream, Effect
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.roster import Change, Roster
from cyber0.protocol.settings import Settings

__all__ = ["State", "Transition", "begin", "restored", "resume"]


NOWHERE = Head(0, b"", b"")  # before the run is founded


@dataclass(frozen=True)  # without slots: a dictionary is copied in a tenth of the time
class State:
    """The state of `cyber0.protocol.machine.step`."""

    settings: Settings
    federator: bytes = b""  # its public key
    identity: Identity | None = None  # once the run is founded
    head: Head = NOWHERE  # of the chain
    previous: bytes = b""  # the link before the last, on which late votes were cast
    roster: Roster | None = None  # as the chain has it, once the run is founded
    proposed: tuple[Change, ...] = ()  # to be written with the open round
    revoked: frozenset[str] = frozenset()  # whose revocation is proposed or pending
    present: Map[str, Arrived] = Map()  # noqa: RUF009 - who is sent each commit
    holders: Map[bytes, str] = Map()  # noqa: RUF009 - whose keys they bring, until the run is founded
    awaited: frozenset[str] = frozenset()  # those of them that keep up
    waiting: Map[str, None] = Map()  # noqa: RUF009 - those of them whose votes the open round still waits for
    diverged: frozenset[str] = frozenset()  # whose weights are known to be wrong
    votes: Votes = field(default_factory=Votes)  # for the open round
    unheard: Map[str, None] = Map()  # noqa: RUF009 - whose votes for the last round are not known
    extension: int | None = None  # how often the open round's deadline was extended; None while it has none
    opened: float = 0.0  # when the open round was opened, by the clock of the events
    took: float | None = None  # seconds until the open round had a quorum; None while it has none
    pace: tuple[float, ...] = ()  # the same of the last rounds
    gathering: bool = True  # after a start, until the whole roster was there or a quorum was for a deadline
    heard: frozenset[str] = frozenset()  # who has said meanwhile what it holds
    fresh: bool = True  # no link was signed since the start
    ahead: Mapping[str, Arrived] = field(default_factory=dict[str, Arrived])  # who holds more commits than the ledger
    asked: ClientStream | None = None  # which of them is to show what it holds
    silent: frozenset[str] = frozenset()  # which of them did not
    moved: bool = False  # commits were given back, of which those who are present are not told yet
    bound: int = 0  # the most rounds after which it has seen a signature of its own
    lost: int = 0  # how many rounds there were when votes were lost last
    tried: frozenset[str] = frozenset()  # whose votes the rule could make no commit of
    memory: Any = None  # of a rule with memory: what it makes of the commits so far

    def but(self, **changes: Any) -> "State":
        """Return the state with some fields changed, as `dataclasses.replace` does, in little time: for every vote.

        >>> from cyber0.config import RunConfig
        >>> begin(Settings.of(RunConfig(clients=1, byzantine=0))).but(took=1.0).took
        1.0
        """
        made = object.__new__(State)
        values = vars(made)
        values.update(vars(self))
        values.update(changes)
        return made

    @property
    def round(self) -> int:
        """The open one: as many are committed."""
        return self.head.rounds

    @property
    def who(self) -> Roster:
        """The roster of the open round, with the keys of those who have come in it for the first time.

        Before the run is founded nobody has a key.
        """
        roster = self.roster or self.settings.first
        return roster.enrolled(self.proposed) if self.proposed else roster

    @property
    def voters(self) -> tuple[str, ...]:
        """Who is invited to the open round."""
        return self.settings.voters(self.round, self.who)

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are decided."""
        return self.round >= self.who.last

    def with_awaited(self, client: str) -> "State":
        """Return the state in which a client keeps up; the open round waits for its vote, unless it has that."""
        if client in self.awaited:
            return self
        awaited, waiting = self.awaited | {client}, self.waiting
        heard = client in self.votes.counted or client in self.votes.excluded
        if not heard and self.settings.is_invited(client, self.round, self.who):
            waiting = waiting.set(client, None)
        return self.but(awaited=awaited, waiting=waiting)

    def without_awaited(self, clients: Iterable[str]) -> "State":
        """Return the state in which clients do not keep up, and nothing waits for them."""
        waiting = self.waiting
        gone = self.awaited.intersection(clients)
        for client in gone:
            waiting = without(waiting, client)
        return self.but(awaited=self.awaited - gone, waiting=waiting) if gone else self

    def opening(self, now: float) -> "State":
        """Return the state with a round that is open from now on: it waits for all who keep up and are invited."""
        waiting = Map({client: None for client in self.voters if client in self.awaited})
        return self.but(waiting=waiting, opened=now, took=None)

    @property
    def has_heard(self) -> bool:
        """Whether so many clients have said since the start what they hold as decide a round."""
        return len(self.heard & self.who.places.keys()) >= self.who.quorum

    def is_current(self, stream: ClientStream) -> bool:
        """Return whether this is the stream that a client uses now; it may have opened another one since."""
        arrived = self.present.get(stream.client)
        return arrived is not None and (arrived.stream is stream or arrived.stream == stream)


Transition = tuple[State, list[Effect]]


def begin(settings: Settings, federator: bytes = b"") -> State:
    """Return a federation before anybody has come; `federator` is the public key that signs its chain."""
    return State(settings, federator, memory=aggregation.begin(settings.rule))


def resume(
    settings: Settings,
    identity: Identity,
    head: Head | None = None,
    roster: Roster | None = None,
    previous: bytes = b"",
    memory: Any = None,
    lost: int = 0,
) -> State:
    """Return a federation as of a head, after which its roster is this one and its rule has this memory."""
    roster = roster or identity.roster
    revoked = frozenset(change.name for change in roster.pending if change.kind == "revoke")
    return State(
        settings,
        identity.federator,
        identity,
        head or genesis(identity.digest),
        previous,
        roster,
        revoked=revoked,
        memory=memory,
        lost=lost,
    )


def restored(settings: Settings, ledger: Ledger, federator: bytes = b"") -> State:
    """Return a federation as its ledger leaves it, which may be before anybody has come.

    The memory of a rule that has one is computed again from the ledger's commits.
    """
    if not ledger.founded:
        return begin(settings, federator)
    head, memory = ledger.head, aggregation.begin(settings.rule)
    if isinstance(settings.rule.rule, aggregation.RuleWithMemory):
        scalars = np.frombuffer(ledger.commits(0, head.rounds), dtype="<f4")
        for commit in scalars.reshape(head.rounds, settings.plan.rows, settings.plan.directions):
            memory = aggregation.after(settings.rule, memory, commit)
    if head.rounds == ledger.imported and ledger.anchor is not None:
        previous = ledger.anchor.link
    else:
        previous = b"" if head.rounds == 0 else ledger.head_at(head.rounds - 1).link or b""
    return resume(settings, ledger.identity, head, ledger.roster, previous, memory, ledger.lost)
