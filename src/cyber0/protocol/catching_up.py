"""Catching up: the commits that a client lacks, from the ledger to messages, and from there to the client's chain."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cyber0.errors import Cyber0Error, Refused
from cyber0.protocol.chain import Anchor, Head, commit_hash, genesis, link_statement
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Ledger, Linked
from cyber0.protocol.messages import CatchUp, Committed
from cyber0.protocol.outline import Outline
from cyber0.protocol.records import u64
from cyber0.protocol.roster import Change, Roster, canonical, changes_from
from cyber0.protocol.signing import is_by

__all__ = ["Forked", "Position", "Step", "catch_up", "follow"]

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
    step, rosters = max(1, chunk // (width + 32)), _rosters(ledger)
    while first < stop:
        rounds = _up_to_signed(ledger, first, stop, step)
        if not rounds:
            return
        yield _decided(first, rounds, rosters)
        first += len(rounds)


def _rosters(ledger: Ledger) -> list[tuple[int, bytes]]:
    """Return the rounds after which the roster of a ledger is another one, with its digest."""
    found, roster, last = list[tuple[int, bytes]](), ledger.adopted, ledger.head.rounds
    for number, changes in ledger.changed():
        if roster.pending and found[-1][0] + 1 < number:
            roster = roster.after(())
            found.append((found[-1][0] + 1, roster.digest))
        roster = roster.after(changes)
        found.append((number, roster.digest))
    if roster.pending and found and found[-1][0] + 1 < last:
        found.append((found[-1][0] + 1, roster.after(()).digest))
    return found


def _up_to_signed(ledger: Ledger, first: int, stop: int, step: int) -> list[Linked]:
    """Return about `step` rounds, of which the last has a signed link: of rounds that were lost not every one has."""
    while True:
        rounds = list(ledger.linked(first, min(first + step, stop)))
        signed = len(rounds)
        while signed and rounds[signed - 1].lost and not rounds[signed - 1].signature:
            signed -= 1
        if signed or first + step >= stop:
            return rounds[:signed] or rounds
        step *= 2


def _imported(ledger: Ledger, first: int, stop: int) -> CatchUp:
    scalars = ledger.commits(first, stop)
    if stop < ledger.imported or ledger.anchor is None:
        return CatchUp(first, scalars)
    (last,) = ledger.linked(stop - 1, stop)
    return CatchUp(first, scalars, signature=last.signature, anchor=ledger.anchor.to_bytes())


def _decided(first: int, rounds: list[Linked], rosters: list[tuple[int, bytes]]) -> CatchUp:
    scalars, hashes = b"".join(each.scalars for each in rounds), b"".join(each.ballots for each in rounds)
    changed = [[each.round, [change.fields() for change in each.changes]] for each in rounds if each.changes]
    changes = canonical(changed) if changed else b""
    here = range(first, first + len(rounds))
    digests = b"".join(u64(number) + digest for number, digest in rosters if number in here)
    return CatchUp(first, scalars, hashes, rounds[-1].signature, changes, rosters=digests)


@dataclass(frozen=True)
class Position:
    """Where a client stands in a run: its head, the roster of the next round, and the head's signature, if it has one.

    `anchor` is what the head's link was made of, where that is known. The head's link is None while commits of an
    imported run are coming in.
    """

    identity: Identity
    head: Head
    roster: Roster
    signature: bytes = b""
    anchor: Anchor | None = None

    @classmethod
    def start(cls, identity: Identity) -> "Position":
        """Return the position before the first round."""
        return cls(identity, genesis(identity.digest), identity.roster)

    @property
    def is_signed(self) -> bool:
        """Whether a vote may be cast here: before the first round, or on a link that the federator has signed."""
        return self.head.link is not None and (self.head.rounds == 0 or bool(self.signature))


@dataclass(frozen=True)
class Step:
    """A round that a client has followed: where it stood before, what was decided, and the link after it.

    `ballots` is the hash of the round's ballots, empty where it is not known; `signature` the federator's, of the link,
    which only the last of several rounds has.
    """

    before: Position
    scalars: bytes
    ballots: bytes
    changes: tuple[Change, ...]
    after: Position

    @property
    def round(self) -> int:
        """Which one."""
        return self.before.head.rounds


class Forked(Refused):
    """The federator shows a chain that does not lead through what this client has signed.

    `known` is the head that it has signed, and `steps` what it was shown, up to a link that the federator has signed.
    """

    def __init__(self, known: Head, steps: tuple[Step, ...]) -> None:
        super().__init__(
            f"after {known.rounds} rounds the federator's chain is not the one this client has voted on: it shows two "
            "histories of one run"
        )
        self.known, self.steps = known, steps


def follow(
    position: Position, message: Committed | CatchUp, signed: Mapping[int, Head] | None = None
) -> tuple[Position, list[Step]]:
    """Return the position after a message, and the rounds that are new.

    Refuses commits that skip a round, whose last link is not signed by the federator, or that do not lead through the
    heads that the client has `signed` for, by rounds.
    """
    first = message.round if isinstance(message, Committed) else message.first
    here, width = position.head.rounds, 4 * position.identity.plan.scalars
    stop = first + len(message.scalars) // width
    if first > here or len(message.scalars) % width:
        raise Refused(f"the federator sends commits from round {first} on, but this client holds {here}")
    if stop <= here:
        return position, []
    if message.ballots and len(message.ballots) != 32 * (stop - first):
        raise Refused(f"the federator sends {stop - first} commits with {len(message.ballots) // 32} hashes of ballots")
    steps = _steps(position, message, first, stop)
    last = steps[-1]
    if isinstance(message, CatchUp) and not message.ballots:
        after = _anchored(last.after, message)
    else:
        after = _signed(last.after, message.signature)
    steps[-1] = Step(last.before, last.scalars, last.ballots, last.changes, after)
    if signed:
        _check_signed(signed, steps)
    return after, steps


def _steps(position: Position, message: Committed | CatchUp, first: int, stop: int) -> list[Step]:
    width, changed, steps = 4 * position.identity.plan.scalars, _changes(message, first, stop), list[Step]()
    digests = _digests(message)
    if message.ballots and position.head.link is None:
        raise Refused(f"the federator does not show the link after {position.head.rounds} imported rounds")
    for number in range(position.head.rounds, stop):
        at = number - first
        scalars, hashed = message.scalars[at * width : (at + 1) * width], message.ballots[32 * at : 32 * at + 32]
        if number >= position.roster.last:
            raise Refused(f"the federator sends round {number}: the run has {position.roster.last}")
        steps.append(_step(position, scalars, hashed, changed.get(number, ()), digests.get(number, b"")))
        position = steps[-1].after
    return steps


def _step(position: Position, scalars: bytes, hashed: bytes, changes: tuple[Change, ...], digest: bytes) -> Step:
    head = position.head
    commit = commit_hash(head.commit, head.rounds, scalars)
    if not hashed or head.link is None:
        after = replace(position, head=Head(head.rounds + 1, commit, None), signature=b"", anchor=None)
        return Step(position, scalars, b"", (), after)
    roster = _roster_after(position.roster, changes, digest)
    anchor = Anchor(head.link, hashed, roster.digest)
    following = Head(head.rounds + 1, commit, anchor.following(commit))
    return Step(position, scalars, hashed, changes, Position(position.identity, following, roster, b"", anchor))


def _digests(message: Committed | CatchUp) -> dict[int, bytes]:
    """Return the digests of the rosters after rounds in which they change, as the federator says."""
    if isinstance(message, Committed):
        if len(message.roster) not in (0, 32):  # with any other length evidence of what it signs could not be read
            raise Refused(
                f"the federator sends a roster's digest of {len(message.roster)} bytes: it must have 32 bytes"
            )
        return {message.round: message.roster}
    parts = (message.rosters[at : at + 40] for at in range(0, len(message.rosters), 40))
    return {int.from_bytes(part[:8], "little"): part[8:] for part in parts}


def _roster_after(roster: Roster, changes: tuple[Change, ...], digest: bytes) -> Roster:
    if isinstance(roster, Outline):
        return roster.following(changes, digest)
    if not changes:
        return roster.after(())
    try:
        roster.check(changes)
        return roster.after(changes)
    except Cyber0Error as error:
        raise Refused(f"the federator changes the roster as it must not: {error}") from None


def _anchored(position: Position, message: CatchUp) -> Position:
    """Return the position after the last imported round, whose link the federator shows; before it, as it is."""
    if not message.anchor:
        return position
    anchor = Anchor.from_bytes(message.anchor)
    if anchor.roster != position.roster.digest:
        raise Refused("the roster of the imported run has changed before: this client cannot check how")
    head = replace(position.head, link=anchor.following(position.head.commit))
    return _signed(replace(position, head=head, anchor=anchor), message.signature)


def _changes(message: Committed | CatchUp, first: int, stop: int) -> dict[int, tuple[Change, ...]]:
    """Return the changes of the roster by round."""
    try:
        if isinstance(message, Committed):
            return {message.round: changes_from(message.changes)}
        listed: list[Any] = json.loads(message.changes or b"[]")
        found = {number: changes_from(canonical(fields)) for number, fields in listed}
        if not all(first <= number < stop for number in found):
            raise Refused("the federator sends changes of the roster for rounds that it does not send")
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(f"the federator sends changes of the roster that cannot be read: {error}") from None
    return found


def _signed(position: Position, signature: bytes) -> Position:
    """Return the position with the federator's signature of its link; refuse it without one."""
    identity, head = position.identity, position.head
    statement = link_statement(identity.digest, head.rounds, head.link or b"")
    if not is_by(identity.federator, signature, statement):
        raise Refused(f"the federator has not signed its chain after {head.rounds} rounds: nobody can hold it to that")
    return Position(identity, head, position.roster, signature, position.anchor)


def _check_signed(signed: Mapping[int, Head], steps: list[Step]) -> None:
    """Refuse rounds that do not lead through what the client has signed: of imported ones only the commits can tell."""
    for place, step in enumerate(steps):
        head, known = step.after.head, signed.get(step.after.head.rounds)
        if known is not None and (known.commit != head.commit or head.link not in (None, known.link)):
            raise Forked(known, tuple(steps[place:]))
