"""Catching up: the commits that a client lacks, from the ledger to messages, and from there to the client's chain."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cyber0.errors import Cyber0Error, Refused
from cyber0.protocol.chain import Anchor, Head, ballots_hash, commit_hash, genesis, link_hash, link_statement
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.messages import CatchUp, Committed
from cyber0.protocol.roster import Roster, canonical, changes_from
from cyber0.protocol.signing import is_by

__all__ = ["Position", "catch_up", "follow"]

CHUNK = 2**18  # bytes of commits and hashes in a message


def catch_up(ledger: Ledger, first: int, stop: int, chunk: int = CHUNK) -> Iterator[CatchUp]:
    """Yield the commits of rounds `first` to `stop - 1` of a ledger, in messages of about `chunk` bytes.

    Of rounds that were imported only the commits are known; what was signed after the last of them comes with it.
    """
    width = 4 * ledger.identity.plan.scalars
    if first < (imported := min(ledger.imported, stop)):
        step = max(1, chunk // width)
        for start in range(first, imported, step):
            yield _imported(ledger, start, min(start + step, imported))
        first = imported
    step = max(1, chunk // (width + 32))
    for start in range(first, stop, step):
        yield _decided(ledger, start, min(start + step, stop))


def _imported(ledger: Ledger, first: int, stop: int) -> CatchUp:
    scalars = ledger.commits(first, stop)
    if stop < ledger.imported or ledger.anchor is None:
        return CatchUp(first, scalars)
    (last,) = ledger.written(stop - 1, stop)
    return CatchUp(first, scalars, signature=last.signature, anchor=ledger.anchor.to_bytes())


def _decided(ledger: Ledger, first: int, stop: int) -> CatchUp:
    scalars, hashes, signature, changed = list[bytes](), list[bytes](), b"", list[object]()
    for written in ledger.written(first, stop):
        decision, signature = written.decision, written.signature
        scalars.append(decision.scalars)
        hashes.append(ballots_hash(decision.ballots))
        if decision.changes:
            changed.append([decision.round, [change.fields() for change in decision.changes]])
    changes = canonical(changed) if changed else b""
    return CatchUp(first, b"".join(scalars), b"".join(hashes), signature, changes)


@dataclass(frozen=True)
class Position:
    """Where a client stands in a run: its head, the roster of the next round, and the head's signature, if it has one.

    `link` of the head is None while commits of an imported run are coming in.
    """

    identity: Identity
    head: Head
    roster: Roster
    signature: bytes = b""

    @classmethod
    def start(cls, identity: Identity) -> "Position":
        """Return the position before the first round."""
        return cls(identity, genesis(identity.digest), identity.roster)

    @property
    def is_signed(self) -> bool:
        """Whether a vote may be cast here: before the first round, or on a link that the federator has signed."""
        return self.head.link is not None and (self.head.rounds == 0 or bool(self.signature))


def follow(
    position: Position, message: Committed | CatchUp, signed: Mapping[int, Head] | None = None
) -> tuple[Position, bytes]:
    """Return the position after a message, and the scalars of the commits in it that are new.

    Refuses commits that skip a round, whose link is not signed by the federator, or that do not lead through the heads
    that the client has `signed` for, by rounds.
    """
    first = message.round if isinstance(message, Committed) else message.first
    here, width = position.head.rounds, 4 * position.identity.plan.scalars
    stop = first + len(message.scalars) // width
    if first > here or len(message.scalars) % width or stop > position.roster.last:
        raise Refused(f"the federator sends commits from round {first} on, but this client holds {here}")
    if stop <= here:
        return position, b""
    if isinstance(message, CatchUp) and not message.ballots:
        moved = _over_imported(position, message, first, signed or {})
    else:
        moved = _over_decided(position, message, first, signed or {})
    return moved, message.scalars[(here - first) * width :]


def _over_imported(position: Position, message: CatchUp, first: int, signed: Mapping[int, Head]) -> Position:
    commit, width = position.head.commit, 4 * position.identity.plan.scalars
    for at in range((position.head.rounds - first) * width, len(message.scalars), width):
        commit = commit_hash(commit, first + at // width, message.scalars[at : at + width])
        _check_signed(signed, Head(first + at // width + 1, commit, None))
    rounds = first + len(message.scalars) // width
    if not message.anchor:
        return replace(position, head=Head(rounds, commit, None), signature=b"")
    anchor = Anchor.from_bytes(message.anchor)
    if anchor.roster != position.roster.digest:
        raise Refused("the roster of the imported run has changed before: this client cannot check how")
    head = Head(rounds, commit, anchor.following(commit))
    return _signed(replace(position, head=head), message.signature)


def _over_decided(position: Position, message: Committed | CatchUp, first: int, signed: Mapping[int, Head]) -> Position:
    head, roster, width = position.head, position.roster, 4 * position.identity.plan.scalars
    if head.link is None:
        raise Refused(f"the federator does not show the link after {head.rounds} imported rounds")
    count = len(message.scalars) // width
    if len(message.ballots) != 32 * count:
        raise Refused(f"the federator sends {count} commits with {len(message.ballots) // 32} hashes of ballots")
    changed = _changes(message, first, count)
    link = head.link
    commit = head.commit
    for round in range(head.rounds, first + count):  # noqa: A001
        at = round - first
        commit = commit_hash(commit, round, message.scalars[at * width : (at + 1) * width])
        roster = _after(roster, changed.get(round, b""))
        link = link_hash(link, commit, message.ballots[32 * at : 32 * at + 32], roster.digest)
        _check_signed(signed, Head(round + 1, commit, link))
    return _signed(replace(position, head=Head(first + count, commit, link), roster=roster), message.signature)


def _check_signed(signed: Mapping[int, Head], head: Head) -> None:
    known = signed.get(head.rounds)
    if known is not None and (known.commit != head.commit or head.link not in (None, known.link)):
        raise Refused(
            f"after {head.rounds} rounds the federator's chain is not the one this client has voted on: it shows two "
            "histories of one run"
        )


def _after(roster: Roster, changes: bytes) -> Roster:
    try:
        return roster.after(changes_from(changes))
    except Cyber0Error as error:
        raise Refused(f"the federator sends changes of the roster that cannot be made: {error}") from None


def _changes(message: Committed | CatchUp, first: int, count: int) -> dict[int, bytes]:
    """Return the changes of the roster by round, in canonical JSON."""
    if isinstance(message, Committed):
        return {message.round: message.changes} if message.changes else {}
    try:
        found = {number: canonical(fields) for number, fields in json.loads(message.changes or b"[]")}
        for round, changes in found.items():  # noqa: A001
            changes_from(changes)
            if not first <= round < first + count:
                raise ValueError(round)
    except (Cyber0Error, ValueError, TypeError, RecursionError) as error:
        raise Refused(f"the federator sends changes of the roster that cannot be read: {error}") from None
    return found


def _signed(position: Position, signature: bytes) -> Position:
    """Return the position with the federator's signature of its link; refuse it without one."""
    identity, head = position.identity, position.head
    statement = link_statement(identity.digest, head.rounds, head.link or b"")
    if not is_by(identity.federator, signature, statement):
        raise Refused(f"the federator has not signed its chain after {head.rounds} rounds: nobody can hold it to that")
    return replace(position, signature=signature)
