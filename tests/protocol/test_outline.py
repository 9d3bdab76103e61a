"""An outline of a roster leads to the same links as the roster itself, and proves nothing about anybody."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.ledgers import KEYS, fill, identity
from tests.protocol.test_catching_up import FORGED, LEDGERS, ROUNDS, RUN, flipped, fork, walk

from cyber0.errors import Cyber0Error, InvalidEvidence, InvalidIdentity, RejectedMessage
from cyber0.network.stored_position import position_facts, position_from
from cyber0.protocol import evidence
from cyber0.protocol.catching_up import Forked, Position, catch_up, follow
from cyber0.protocol.chain import vote_statement
from cyber0.protocol.codec import decode_from_federator, encode
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Committed
from cyber0.protocol.outline import Outline, roster_from
from cyber0.protocol.records import Ballot, to_wire
from cyber0.protocol.roster import Change, Roster, canonical
from cyber0.protocol.signing import sign

OUTLINE = Outline.of_roster(RUN.roster)
OUTLINED = Identity.from_bytes(RUN.to_bytes(), OUTLINE.to_bytes(), outlined=True)
START = Position.start(OUTLINED)
NUMBER = st.integers(0, 2**32 - 1)


@given(NUMBER, NUMBER, NUMBER, NUMBER, st.binary(min_size=32, max_size=32))
def test_an_outline_survives_its_bytes(byzantine, quorum, rounds, many, digest):
    outline = Outline((), (), byzantine, quorum, rounds, many=many, hashed=digest)
    again = roster_from(outline.to_bytes())
    assert again == outline
    assert (again.size, again.digest, again.last) == (many, digest, rounds)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = json.loads(OUTLINE.to_bytes())["outline"]


@given(st.dictionaries(st.sampled_from([*FIELDS, "clients", "keys"]), ANY, max_size=3), st.sampled_from(["", *FIELDS]))
def test_what_is_no_outline_is_refused(changes, left_out):
    fields = {name: value for name, value in (FIELDS | changes).items() if name != left_out}
    data = canonical({"outline": fields})
    try:
        found = roster_from(data)
    except InvalidIdentity:
        return
    assert found.to_bytes() == data


@given(st.binary(max_size=60))
def test_any_bytes_are_an_outline_or_refused(data):
    with pytest.raises(InvalidIdentity):
        roster_from(b'{"outline":' + data)


@given(kind=st.sampled_from(sorted(LEDGERS)), stop=st.integers(0, ROUNDS), chunk=st.integers(1, 200))
def test_an_outline_leads_to_the_same_links(kind, stop, chunk):
    """Through all changes of the roster, wherever its client stores where it stands, and goes on from there."""
    ledger = LEDGERS[kind]
    stop = max(stop, ledger.imported)
    position, _ = walk(START, catch_up(ledger, 0, stop, chunk))
    assert position.head == ledger.head_at(stop)
    assert position.is_signed
    again = position_from(OUTLINED, position_facts(position))
    assert again == position
    last, _ = walk(again, catch_up(ledger, stop, ROUNDS, chunk))
    assert (last.head, last.roster.digest) == (ledger.head, ledger.roster.digest)


def test_an_outline_knows_of_more_rounds():
    short, ledger = identity(rounds=3), Memory()
    fill(ledger, short, 6, changes={2: (Change("extend", number=5),)})
    start = Position.start(
        Identity.from_bytes(short.to_bytes(), Outline.of_roster(short.roster).to_bytes(), outlined=True)
    )
    assert walk(start, catch_up(ledger, 0, 5))[0].roster.last == 5
    with pytest.raises(Cyber0Error, match="sends round 5: the run has 5"):
        walk(start, catch_up(ledger, 0, 6))


LIES = {
    **{name: forge for name, forge in FORGED.items() if "changes" not in name},  # which links do not contain
    "no digests": lambda m: replace(m, rosters=b""),
    "another digest": lambda m: replace(m, rosters=flipped(m.rosters, 20)),
    "another round": lambda m: replace(m, rosters=flipped(m.rosters)),
    "half a digest": lambda m: replace(m, rosters=m.rosters[:-20]),
    "one more digest": lambda m: replace(m, rosters=m.rosters + bytes(40)),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_a_lying_federator_says_of_rosters_is_not_followed(lie):
    """Unless it signs that, too: then it has signed two chains."""
    (message,) = catch_up(LEDGERS["roster"], 0, ROUNDS)
    lied = LIES[lie](message)
    assert lied != message
    try:
        position, _ = walk(START, [lied])
    except (Cyber0Error, RejectedMessage):
        return
    assert not position.is_signed


@pytest.mark.parametrize("size", [1, 31, 33, 1000])
def test_a_digest_has_32_bytes(size):
    with pytest.raises((RejectedMessage, Cyber0Error), match="32 bytes"):
        follow(START, decode_from_federator(encode(Committed(0, bytes(12), bytes(32), bytes(64), roster=bytes(size)))))


def test_an_outline_of_another_roster_is_refused():
    for other in (replace(OUTLINE, hashed=bytes(32)), replace(OUTLINE, many=OUTLINE.many + 1)):
        with pytest.raises(InvalidIdentity):
            Identity.from_bytes(RUN.to_bytes(), other.to_bytes(), outlined=True)


def test_an_outline_is_no_roster_where_one_is_needed():
    with pytest.raises(InvalidIdentity, match="the roster cannot be read"):
        Roster.from_bytes(OUTLINE.to_bytes())
    with pytest.raises(InvalidIdentity, match="the roster cannot be read"):
        Identity.from_bytes(RUN.to_bytes(), OUTLINE.to_bytes())


def test_an_outline_in_evidence_frames_no_client():
    """Neither one of the run's first roster, nor one of that in a link, though its digest is right."""
    votes = []
    for value in (1.0, 2.0):
        scalars = to_wire([value] * 3)
        ballot = Ballot.of("ann", "counted", scalars)
        made = sign(KEYS["ann"], vote_statement(RUN.digest, 0, RUN.digest, ballot.digest))
        votes.append((RUN.digest, replace(ballot, signature=made)))
    proof = evidence.equivocation(Position.start(RUN), 0, "ann", votes)
    assert evidence.judge(proof).party == "ann"  # who has lied; with an outline nobody knows its key
    fields, outline = json.loads(proof), OUTLINE.to_bytes().decode()
    inner = {"position": fields["position"] | {"roster": outline}}
    for changed in ({"roster": outline}, inner, {"roster": outline, **inner}):
        for kind in ("equivocation", "decision"):
            with pytest.raises(InvalidEvidence):
                evidence.judge(canonical(fields | changed | {"kind": kind}))


def test_who_has_an_outline_proves_two_histories():
    first, second = LEDGERS["decided"], fork(4)
    with pytest.raises(Forked) as raised:
        walk(START, catch_up(second, 0, ROUNDS), {5: first.head_at(5)})
    (written,) = first.written(4, 5)
    proof = evidence.fork(START, raised.value, written.signature)
    judgement = evidence.judge(proof)
    assert (judgement.party, judgement.run) == ("the federator", RUN.digest)
    fields = json.loads(proof)
    forged = replace(OUTLINE, hashed=bytes(32)).to_bytes().decode()
    with pytest.raises(InvalidEvidence):
        evidence.judge(canonical(fields | {"roster": forged}))
