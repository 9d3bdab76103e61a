"""What a client is sent when it lacks commits leads to the ledger's head, and nothing else is taken for it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.ledgers import KEYS, PUBLIC, append, decisions, fill, identity

from cyber0.errors import Cyber0Error, RejectedMessage
from cyber0.protocol.catching_up import Forked, Position, catch_up, follow
from cyber0.protocol.chain import ballots_hash, link_statement
from cyber0.protocol.codec import decode_from_federator, encode
from cyber0.protocol.export import exported_run
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import CatchUp, Committed
from cyber0.protocol.pages import SIZE, from_pages, page_of, to_bytes
from cyber0.protocol.roster import Change, canonical, changes_to_bytes
from cyber0.protocol.signing import sign

RUN, ROUNDS = identity(), 9
CHANGES = {
    2: (Change("admit", "fay", PUBLIC["fay"]), Change("quorum", number=4)),
    5: (Change("revoke", "cy"), Change("rotate", "ann", PUBLIC["ann's second"])),
}


def played(imported=0, changes=None, rounds=ROUNDS):
    """A ledger, whose first rounds were imported without their votes."""
    ledger = Memory()
    fill(ledger, RUN, rounds, changes=changes)
    if not imported:
        return ledger
    other = Memory()
    other.adopt(exported_run(ledger, imported))
    for decision in ledger.decisions(imported):
        append(other, decision)
    return other


LEDGERS = {
    "decided": played(),
    "roster": played(changes=CHANGES),
    "imported": played(imported=4),
    "all imported": played(imported=ROUNDS),
}


def walk(position, messages, signed=None):
    steps = []
    for message in messages:
        position, more = follow(position, decode_from_federator(encode(message)), signed)
        steps += more
    return position, steps


@settings(max_examples=200)
@given(
    kind=st.sampled_from(sorted(LEDGERS)),
    stop=st.integers(0, ROUNDS),
    cut=st.integers(0, ROUNDS),
    chunk=st.integers(1, 200),
)
def test_messages_of_any_size_lead_to_the_head_of_the_ledger(kind, stop, cut, chunk):
    """Also in two parts, the second of which begins before the first ends."""
    ledger = LEDGERS[kind]
    stop, cut = (max(number, ledger.imported) for number in (stop, min(cut, stop)))
    position, steps = walk(Position.start(RUN), catch_up(ledger, 0, cut, chunk))
    position, more = walk(position, catch_up(ledger, ledger.imported, stop, chunk))
    steps += more
    assert position.head == ledger.head_at(stop)
    assert b"".join(step.scalars for step in steps) == ledger.commits(0, stop)
    assert [step.round for step in steps] == list(range(stop))
    assert position.is_signed
    if stop == ROUNDS:
        assert position.roster == ledger.roster


@given(st.integers(0, ROUNDS), st.integers(0, ROUNDS), st.integers(1, 300))
def test_messages_hold_all_commits_in_order(first, stop, chunk):
    ledger, expected = LEDGERS["decided"], first
    messages = list(catch_up(ledger, first, stop, chunk))
    for message in messages:
        assert message.first == expected
        assert len(message.scalars) + len(message.ballots) <= max(chunk, 12 + 32)
        expected += len(message.scalars) // 12
    assert b"".join(message.scalars for message in messages) == ledger.commits(first, max(first, stop))


def committed(ledger, number):
    (written,) = ledger.written(number, number + 1)
    decision = written.decision
    hashed, changes = ballots_hash(decision.ballots), changes_to_bytes(decision.changes)
    return Committed(number, decision.scalars, hashed, written.signature, changes)


def test_commits_one_by_one_lead_there_too():
    ledger = LEDGERS["roster"]
    position, _ = walk(Position.start(RUN), [committed(ledger, number) for number in range(ROUNDS)])
    assert (position.head, position.roster) == (ledger.head, ledger.roster)
    assert walk(position, [committed(ledger, 3)]) == (position, [])  # known already


def flipped(data, place=0):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


FORGED = {
    "scalars": lambda m: replace(m, scalars=flipped(m.scalars)),
    "ballots": lambda m: replace(m, ballots=flipped(m.ballots, 40)),
    "signature": lambda m: replace(m, signature=flipped(m.signature)),
    "unsigned": lambda m: replace(m, signature=b""),
    "no ballots": lambda m: replace(m, ballots=b""),
    "few ballots": lambda m: replace(m, ballots=m.ballots[32:]),
    "gap": lambda m: replace(m, first=1),
    "half a round": lambda m: replace(m, scalars=m.scalars[:-4]),
    "no changes": lambda m: replace(m, changes=b""),
    "other changes": lambda m: replace(m, changes=m.changes.replace(b",4,", b",5,")),
    "changes elsewhere": lambda m: replace(m, changes=m.changes.replace(b"[[2,", b"[[99,")),
    "changes that are none": lambda m: replace(m, changes=b"[[2,7]]"),
    "changes that are no JSON": lambda m: replace(m, changes=b"["),
    "anchor alone": lambda m: replace(m, ballots=b"", anchor=bytes(96)),
}


@pytest.mark.parametrize("forge", FORGED)
def test_what_was_changed_on_the_way_is_not_followed(forge):
    (message,) = catch_up(LEDGERS["roster"], 0, ROUNDS)
    forged = FORGED[forge](message)
    assert forged != message
    try:
        position, _ = walk(Position.start(RUN), [forged])
    except (Cyber0Error, RejectedMessage):
        return
    assert not position.is_signed  # commits of which nobody can say whose they are: no vote is cast on them


def test_the_anchor_of_an_imported_run_is_checked():
    ledger = LEDGERS["imported"]
    *_, message = catch_up(ledger, 0, 4)
    for place in (0, 40, 70):
        with pytest.raises(Cyber0Error):
            follow(Position.start(RUN), replace(message, anchor=flipped(message.anchor, place)))
    with pytest.raises(Cyber0Error, match="has not signed"):
        follow(Position.start(RUN), replace(message, scalars=flipped(message.scalars)))
    bare, _ = follow(Position.start(RUN), replace(message, anchor=b"", signature=b""))
    assert not bare.is_signed
    with pytest.raises(Cyber0Error, match="does not show the link after 4 imported rounds"):
        walk(bare, catch_up(ledger, 4, ROUNDS))


def fork(at):
    """A second history that branches off before a round, signed by all clients and the federator."""
    ledger = Memory()
    ledger.found(RUN)
    for decision in decisions(RUN, ROUNDS, fork=at):
        append(ledger, decision)
    return ledger


@pytest.mark.parametrize("at", range(ROUNDS))
def test_a_second_history_is_refused_to_who_has_signed_the_first(at):
    """Wherever it branches off, however it is told, and also to a client that begins anew."""
    first, second = LEDGERS["decided"], fork(at)
    held = {at + 1: first.head_at(at + 1)}
    for messages in (catch_up(second, 0, ROUNDS), catch_up(second, 0, ROUNDS, chunk=1)):
        with pytest.raises(Forked, match="shows two histories of one run") as raised:
            walk(Position.start(RUN), messages, held)
        assert raised.value.known == held[at + 1]
    assert walk(Position.start(RUN), catch_up(second, 0, ROUNDS), {at: first.head_at(at)})[0].head == second.head
    imported = Memory()
    imported.adopt(exported_run(second))
    with pytest.raises(Forked):
        walk(Position.start(RUN), catch_up(imported, 0, ROUNDS), held)


def test_rounds_beyond_the_end_are_refused_unless_the_run_is_extended():
    short = identity(rounds=3)
    for changes, last in (({}, 3), ({2: (Change("extend", number=5),)}, 5)):
        ledger = Memory()
        fill(ledger, short, 6, changes=changes)
        walk(Position.start(short), catch_up(ledger, 0, last))
        with pytest.raises(Cyber0Error, match=f"sends round {last}: the run has {last}"):
            walk(Position.start(short), catch_up(ledger, 0, last + 1))


def test_a_change_of_the_roster_that_must_not_be_made_is_refused_though_it_is_signed():
    changes = (Change("quorum", number=1),)
    position, decision = Position.start(RUN), next(decisions(RUN, 1))
    statement = link_statement(RUN.digest, 1, bytes(32))
    listed = canonical([[0, [change.fields() for change in changes]]])
    message = CatchUp(0, decision.scalars, ballots_hash(decision.ballots), sign(KEYS["federator"], statement), listed)
    assert json.loads(listed)[0][0] == 0
    with pytest.raises(Cyber0Error, match="changes the roster as it must not: quorum = 1 of 5 clients"):
        follow(position, message)


# Pages of ballots


@pytest.mark.parametrize("kept", [True, False], ids=["with values", "without"])
def test_the_pages_of_a_round_give_it_back(kept):
    run = identity(keep_votes=kept, directions=6000)
    ledger = Memory()
    fill(ledger, run, 3)
    for decision in ledger.decisions():
        decision = replace(decision, changes=CHANGES[2])
        data, pages = to_bytes(decision), []
        while not pages or not pages[-1].last:
            pages.append(decode_from_federator(encode(page_of(decision.round, data, len(pages)))))
        assert all(len(page.data) <= SIZE for page in pages)
        assert (len(pages) > 1) == kept
        again = from_pages(decision.round, b"".join(page.data for page in pages))
        assert again == decision
        assert ballots_hash(again.ballots) == ballots_hash(decision.ballots)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_round_or_rejected(data):
    try:
        from_pages(3, data)
    except Cyber0Error:
        return
