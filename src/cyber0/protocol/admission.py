"""Which votes count. A vote is checked before any rule sees its values, and a bad vote costs only its sender."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from struct import unpack
from typing import TypeVar

import numpy as np
from immutables import Map

from cyber0.protocol.messages import Vote
from cyber0.protocol.records import Ballot, Verdict

__all__ = ["Votes", "add_late", "admit", "differing", "fault", "set_apart"]

FEW = 128  # bytes of numbers that are looked at one by one: quicker than an array of them

Ballots = Mapping[str, tuple[Ballot, ...]]
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of the open round.

    Args:
        counted: The vote of each client that counts.
        fingerprints: The fingerprint of the weights that came with a counted vote, if one did.
        judged: The ballots of each client that do not count, with the reason.
        excluded: The clients that have no further vote in this round.
        late: Votes for the round before that came after its decision; they are recorded with this round.

    """

    counted: Map[str, Ballot] = Map()  # noqa: RUF009 - it never changes
    fingerprints: Map[str, int] = Map()  # noqa: RUF009
    judged: Ballots = field(default_factory=dict[str, tuple[Ballot, ...]])
    excluded: frozenset[str] = frozenset()
    late: Mapping[str, Ballot] = field(default_factory=dict[str, Ballot])

    def ballots(self, client: str) -> tuple[Ballot, ...]:
        """Return all ballots of a client that are to be recorded: late ones, those that do not count, its vote."""
        found = [self.late.get(client), *self.judged.get(client, ()), self.counted.get(client)]
        return tuple(ballot for ballot in found if ballot is not None)


def admit(votes: Votes, client: str, vote: Vote, length: int) -> Votes:
    """Return the votes with one more; it counts if it is the client's first, and `length` bytes of finite numbers.

    The same vote again changes nothing. A different one is an equivocation: both are recorded, and neither counts.

    >>> once = admit(Votes(), "alice", Vote(7, bytes(4)), length=4)
    >>> admit(once, "alice", Vote(7, bytes(4)), length=4) is once
    True
    >>> twice = admit(once, "alice", Vote(7, b"else"), length=4)
    >>> [ballot.verdict for ballot in twice.ballots("alice")], twice.excluded
    (['equivocation', 'equivocation'], frozenset({'alice'}))
    """
    if client in votes.excluded:
        return votes
    first = votes.counted.get(client)
    if first is None:
        if reason := fault(vote.scalars, length):
            return _exclude(votes, client, _judged(client, "rejected", vote, length, reason))
        return _count(votes, client, vote)
    if first.values == vote.scalars:
        return votes
    reason = "two different votes for one round"
    both = replace(first, verdict="equivocation", reason=reason)
    return _exclude(votes, client, both, _judged(client, "equivocation", vote, length, reason))


def add_late(votes: Votes, client: str, vote: Vote) -> Votes:
    """Return the votes with one for the round before, which is decided. It is recorded as late; that is no offence.

    >>> add_late(Votes(), "alice", Vote(6, bytes(4))).ballots("alice")[0].reason
    'round 6 is decided'
    """
    ballot = Ballot.of(client, "late", vote.scalars, f"round {vote.round} is decided", vote.signature)
    return replace(votes, late={**votes.late, client: ballot})


def differing(fingerprints: Mapping[str, int]) -> frozenset[str] | None:
    """Return the clients whose fingerprints differ from that of a strict majority; None if there is no such majority.

    >>> differing({"alice": 1, "bob": 1, "carol": 2})
    frozenset({'carol'})
    >>> differing({"alice": 1, "bob": 2}) is None
    True
    """
    if len(set(fingerprints.values())) <= 1:
        return frozenset()
    values = list(fingerprints.values())
    usual = max(values, key=values.count)
    if 2 * values.count(usual) <= len(values):
        return None
    return frozenset(client for client, value in fingerprints.items() if value != usual)


def set_apart(votes: Votes, client: str, reason: str) -> Votes:
    """Return the votes without a client's, which is recorded as rejected."""
    return _exclude(votes, client, replace(votes.counted[client], verdict="rejected", reason=reason))


def _count(votes: Votes, client: str, vote: Vote) -> Votes:
    counted = votes.counted.set(client, Ballot.of(client, "counted", vote.scalars, signature=vote.signature))
    marks = votes.fingerprints
    if vote.fingerprint is not None:
        marks = marks.set(client, vote.fingerprint)
    return Votes(counted, marks, votes.judged, votes.excluded, votes.late)


def _exclude(votes: Votes, client: str, *ballots: Ballot) -> Votes:
    """Replace all ballots of a client in this round, so that it cannot fill the ledger, and exclude it."""
    counted, marks = without(votes.counted, client), without(votes.fingerprints, client)
    judged = {**votes.judged, client: ballots}
    return replace(votes, counted=counted, fingerprints=marks, judged=judged, excluded=votes.excluded | {client})


def without(mapping: Map[Key, Value], key: Key) -> Map[Key, Value]:
    """Return a mapping without a key, which it need not have."""
    return mapping.delete(key) if key in mapping else mapping


def _judged(client: str, verdict: Verdict, vote: Vote, length: int, reason: str) -> Ballot:
    ballot = Ballot.of(client, verdict, vote.scalars, reason, vote.signature)
    return ballot if len(vote.scalars) == length else ballot.without_values()


def fault(scalars: bytes, length: int) -> str:
    """Return what is wrong with the numbers of a vote; an empty text if nothing is.

    >>> fault(bytes(4), length=4), fault(bytes(8), length=4)
    ('', "2 scalars: this run's votes have 1")
    """
    if len(scalars) != length:
        return f"{len(scalars) // 4} scalars: this run's votes have {length // 4}"
    if not _is_finite(scalars):
        return "a scalar is not finite"
    return ""


def _is_finite(scalars: bytes) -> bool:
    if len(scalars) > FEW:
        return bool(np.isfinite(np.frombuffer(scalars, dtype="<f4")).all())
    return all(map(isfinite, unpack(f"<{len(scalars) // 4}f", scalars)))
