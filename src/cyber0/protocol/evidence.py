"""Evidence: a file by which somebody who was not there can see that a party of a run has lied.

It compares signed statements, never bytes of signatures, and accuses nobody who follows the protocol:

- `decision`: the federator signed a link whose votes were not cast, not by whom it says, or not aggregated by the rule;
- `fork`: the federator signed two different links after the same number of rounds;
- `equivocation`: a client signed two different votes in one round of one run.

A vote that is missing is no evidence: it may have been lost on its way.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cyber0 import aggregation
from cyber0.errors import Cyber0Error, InvalidEvidence
from cyber0.protocol import pages
from cyber0.protocol.audit import Context, Wrong, check_aggregate, check_ballots, rule_of
from cyber0.protocol.catching_up import Forked, Position, Step
from cyber0.protocol.chain import (
    Anchor,
    Head,
    advance,
    commit_hashes,
    link_hash,
    link_statement,
    vote_statement,
)
from cyber0.protocol.identity import Identity
from cyber0.protocol.records import Ballot, Decision, from_wire
from cyber0.protocol.roster import Roster, canonical
from cyber0.protocol.signing import is_by

__all__ = [
    "Judgement",
    "certificates_in",
    "decision",
    "equivocation",
    "fork",
    "is_evidence",
    "judge",
    "with_certificates",
]

FORMAT = "cyber0 evidence 2"
LARGEST = 2**28  # bytes of a file


@dataclass(frozen=True)
class Judgement:
    """Who has lied: the federator, or a client by its name; the public key it signed with; and how, in words."""

    party: str
    key: bytes
    run: bytes
    text: str


def decision(steps: Sequence[Step], decided: Decision, commits: bytes = b"") -> bytes:
    """Return evidence that a decided round is not what the rules allow.

    Args:
        steps: The round and those after it, up to one whose link the federator has signed.
        decided: The round with its ballots.
        commits: The scalars of all rounds before it, which a rule with memory needs.

    """
    before = steps[0].before
    return _file(
        "decision",
        before.identity,
        position=_position(before),
        decision=pages.to_bytes(decided).hex(),
        steps=_links(steps[1:]),
        signature=steps[-1].after.signature.hex(),
        commits=commits.hex(),
    )


def fork(position: Position, forked: Forked, signature: bytes) -> bytes:
    """Return evidence that the federator signed two histories: the link that a client has signed for, and another one.

    Args:
        position: Of the client, in the run.
        forked: What the client was shown.
        signature: The federator's, of the link that the client knew.

    """
    first, last = forked.steps[0].after, forked.steps[-1].after
    return _file(
        "fork",
        position.identity,
        rounds=forked.known.rounds,
        link=(forked.known.link or b"").hex(),
        signature=signature.hex(),
        other=(first.head.link or b"").hex(),
        steps=_links(forked.steps[1:]),
        other_signature=last.signature.hex(),
    )


def equivocation(
    position: Position, number: int, client: str, votes: list[tuple[bytes, Ballot]], steps: Sequence[Step] = ()
) -> bytes:
    """Return evidence that a client signed two different votes in a round.

    Args:
        position: One of that round: its roster has the client's key.
        number: The round.
        client: Who voted.
        votes: Two votes, each with the link that it is cast on.
        steps: Where the federator has not signed the link of that position: the rounds from there on to one it signed.

    """
    said = [[link.hex(), ballot.digest.hex(), ballot.signature.hex()] for link, ballot in votes]
    return _file(
        "equivocation",
        position.identity,
        position=_position(position),
        signature=(steps[-1].after.signature if steps else position.signature).hex(),
        steps=_links(steps),
        round=number,
        client=client,
        votes=said,
    )


def with_certificates(data: bytes, certificates: Iterable[bytes]) -> bytes:
    """Return evidence with certificates, in DER, by which others can see whose key is accused."""
    return canonical({**_fields(data), "certificates": [each.hex() for each in certificates if each]})


def certificates_in(data: bytes) -> list[bytes]:
    """Return the certificates that evidence has, which may be anything."""
    try:
        return [bytes.fromhex(each) for each in _fields(data).get("certificates", [])]
    except (ValueError, TypeError):
        raise InvalidEvidence("the certificates of the evidence cannot be read") from None


def is_evidence(data: bytes) -> bool:
    """Return whether a file's content begins like evidence.

    >>> is_evidence(b'{"client":"ann","evidence":')
    False
    """
    return data.startswith(b'{"a format":"' + FORMAT.encode() + b'"')


def judge(data: bytes, own_rule: bool = False) -> Judgement:
    """Return who has lied, by a file of evidence; an error if the file proves nothing.

    >>> judge(b"{}")
    Traceback (most recent call last):
    cyber0.errors.InvalidEvidence: this is no evidence of version 2
    """
    fields = _fields(data)
    try:
        outlined = fields["kind"] == "fork"  # which needs nobody's key but the federator's
        identity = Identity.from_bytes(fields["identity"].encode(), fields["roster"].encode(), outlined=outlined)
        if not identity.signs:
            raise InvalidEvidence("it is about a run whose votes are not signed")
        return _JUDGES[fields["kind"]](identity, fields, own_rule)
    except InvalidEvidence:
        raise
    except (Cyber0Error, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise InvalidEvidence(f"the evidence cannot be read: {error}") from None


def _judge_decision(identity: Identity, fields: dict[str, Any], own_rule: bool) -> Judgement:
    position = _position_from(identity, fields["position"])
    number, link = position.head.rounds, position.head.link or b""
    decided = pages.from_pages(number, bytes.fromhex(fields["decision"]))
    try:
        position.roster.check(decided.changes)
        roster = position.roster.after(decided.changes)
    except Cyber0Error as error:
        raise InvalidEvidence(f"the roster after it cannot be known: {error}") from None
    head = advance(position.head, decided, roster)
    _check_chain(identity, head.rounds, head.link or b"", fields["steps"], fields["signature"])
    voting = position.roster.enrolled(decided.changes)
    context = Context(identity, voting, link, position.anchor.link if position.anchor else b"")
    try:
        counted = check_ballots(context, decided)
        rule = rule_of(identity, own_rule)
        if rule is None:
            raise InvalidEvidence(f"the rule {identity.agreement.rule} is code: say --own-rule if it is yours")
        if all(ballot.values is not None for ballot in counted):
            memory = _memory(identity, rule, position, bytes.fromhex(fields["commits"]))
            check_aggregate(context, decided, counted, rule, memory)
    except Wrong as wrong:
        if not wrong.accuses:
            raise InvalidEvidence(f"round {number}: {wrong}; that may be the fault of who made this file") from None
        return Judgement("the federator", identity.federator, identity.digest, f"it signed round {number}: {wrong}")
    raise InvalidEvidence(f"round {number} is as it should be")


def _memory(identity: Identity, rule: aggregation.Composition, position: Position, commits: bytes) -> Any:
    memory = aggregation.begin(rule)
    if not isinstance(rule.rule, aggregation.RuleWithMemory):
        return memory
    width = 4 * identity.plan.scalars
    hashes = commit_hashes(identity.digest, commits, width) or [identity.digest]
    if len(commits) != width * position.head.rounds or hashes[-1] != position.head.commit:
        raise InvalidEvidence("the rule has memory, and the commits before the round are not all here")
    for at in range(0, len(commits), width):
        memory = aggregation.after(rule, memory, from_wire(commits[at : at + width], identity.plan.rows))
    return memory


def _judge_fork(identity: Identity, fields: dict[str, Any], _: bool) -> Judgement:
    rounds, link, other = fields["rounds"], bytes.fromhex(fields["link"]), bytes.fromhex(fields["other"])
    if type(rounds) is not int or link == other:
        raise InvalidEvidence("the two links are the same")
    _check_link(identity, rounds, link, bytes.fromhex(fields["signature"]))
    _check_chain(identity, rounds, other, fields["steps"], fields["other_signature"])
    text = f"it signed two chains of one run, which differ after {rounds} rounds"
    return Judgement("the federator", identity.federator, identity.digest, text)


def _judge_equivocation(identity: Identity, fields: dict[str, Any], _: bool) -> Judgement:
    position = _position_from(identity, fields["position"])
    if position.head.rounds:
        head, steps = position.head, fields.get("steps", [])
        _check_chain(identity, head.rounds, head.link or b"", steps, fields["signature"])
    number, client = fields["round"], fields["client"]
    key = position.roster.key(client)
    said = {(_hash(link), _hash(digest)): bytes.fromhex(signature) for link, digest, signature in fields["votes"]}
    if type(number) is not int or len(said) < 2:
        raise InvalidEvidence("the two votes are the same")
    for (link, digest), signature in said.items():
        if not key or not is_by(key, signature, vote_statement(identity.digest, number, link, digest)):
            raise InvalidEvidence(f"a vote in it is not signed by {client}")
    return Judgement(client, key, identity.digest, f"it signed two different votes in round {number}")


_JUDGES: dict[str, Callable[[Identity, dict[str, Any], bool], Judgement]] = {
    "decision": _judge_decision,
    "fork": _judge_fork,
    "equivocation": _judge_equivocation,
}


def _links(steps: Sequence[Step]) -> list[list[str]]:
    """Return what the links after these rounds are made of."""
    return [[part.hex() for part in (step.after.head.commit, step.ballots, step.after.roster.digest)] for step in steps]


def _check_chain(identity: Identity, rounds: int, link: bytes, steps: list[Any], signature: str) -> None:
    """Refuse a link that does not lead, over what links are made of, to one that the federator has signed."""
    for commit, hashed, roster in steps:
        link = link_hash(link, *(_hash(part) for part in (commit, hashed, roster)))
    _check_link(identity, rounds + len(steps), link, bytes.fromhex(signature))


def _check_link(identity: Identity, rounds: int, link: bytes, signature: bytes) -> None:
    if not is_by(identity.federator, signature, link_statement(identity.digest, rounds, link)):
        raise InvalidEvidence(f"the link after {rounds} rounds in it is not signed by the federator")


def _position(position: Position) -> dict[str, Any]:
    """Return a position so that its roster can be checked: by the link, which contains its digest."""
    head = position.head
    return {
        "rounds": head.rounds,
        "commit": head.commit.hex(),
        "roster": position.roster.to_bytes().decode(),
        "anchor": "" if position.anchor is None else position.anchor.to_bytes().hex(),
    }


def _position_from(identity: Identity, fields: dict[str, Any]) -> Position:
    rounds, commit, roster = fields["rounds"], _hash(fields["commit"]), Roster.from_bytes(fields["roster"].encode())
    if rounds == 0:
        if commit != identity.digest or roster.digest != identity.roster.digest:
            raise InvalidEvidence("its roster is not that of the run")
        return Position.start(identity)
    data = bytes.fromhex(fields["anchor"])
    if type(rounds) is not int or len(data) != 96:
        raise InvalidEvidence("the link before the round cannot be read")
    anchor = Anchor.from_bytes(data)
    if anchor.roster != roster.digest:
        raise InvalidEvidence("its roster is not the one in the link before the round")
    return Position(identity, Head(rounds, commit, anchor.following(commit)), roster, b"", anchor)


def _hash(text: Any) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != 32:
        raise InvalidEvidence("a hash in it does not have 32 bytes")
    return data


def _file(kind: str, identity: Identity, **fields: Any) -> bytes:
    head = {"a format": FORMAT, "identity": identity.to_bytes().decode(), "kind": kind}
    return canonical({**head, "roster": identity.roster.to_bytes().decode(), **fields})


def _fields(data: bytes) -> dict[str, Any]:
    if len(data) > LARGEST:
        raise InvalidEvidence(f"a file of {len(data):,} bytes is too large for evidence")
    try:
        fields = json.loads(data)
        if fields["a format"] == FORMAT and fields["kind"] in _JUDGES:
            return fields
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise InvalidEvidence("this is no evidence of version 2")
