"""Who is welcome, how a run is founded, what a client that comes late is sent."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.bench import FEDERATOR, KEYS, ROSTER, Bench, bench, founding, hello, identity, resumed, settings

from cyber0.protocol.events import (
    Alarm,
    Arrived,
    ClientStream,
    Evaluated,
    HangUp,
    Left,
    Notice,
    Received,
    RecordIdentity,
    Replay,
    Send,
)
from cyber0.protocol.identity import FROZEN, meaning_bytes, packed_layout
from cyber0.protocol.machine import begin
from cyber0.protocol.messages import Bye, Committed, Evaluation, RoundOpen, Welcome
from cyber0.protocol.records import to_wire
from cyber0.protocol.roster import Change

# Founding


def test_a_majority_with_one_model_founds_the_run_and_the_others_are_refused():
    machine = founding()
    machine.come("ann", base=bytes([1] * 32))
    machine.come("bob", "cy")
    assert not machine.of(RecordIdentity)
    machine.come("dan")
    keys = {name: KEYS[name] for name in ROSTER[1:]}  # that of ann may be another when it comes back
    assert machine.of(RecordIdentity) == [RecordIdentity(identity(keys=keys))]
    assert [len(machine.sent(name, Welcome)) for name in ROSTER] == [0, 1, 1, 1]
    (bye,) = machine.sent("ann", Bye)
    assert bye.final
    told, instead = bye.reason.split("; ")
    assert told == "its base model is 0101010101010101: that of this run is 0000000000000000"
    assert instead == "join with the same pretrained weights"


def test_where_nobody_agrees_is_said_in_what():
    machine = founding("ann")
    needed = "3 must bring the same model and task"
    assert [each.text for each in machine.of(Notice)] == [f"1 of 4 are here: {needed}"]
    for number, name in enumerate(ROSTER):
        labels = {"words": f"{name == 'bob':064x}"}
        machine.come(name, stream=1, meaning=meaning_bytes({FROZEN: f"{number:064x}", **labels}))
    assert not machine.of(RecordIdentity)
    assert machine.of(Notice)[-2] == Notice(f"4 of 4 are here: {needed}")
    assert machine.of(Notice)[-1] == Notice(
        "those who are here differ in frozen weights, what labels mean: ann | bob | cy | dan", "dan"
    )
    machine.come("dan", stream=2, base=bytes([1] * 32))
    assert machine.of(Notice)[-1].text.startswith(
        "those who are here differ in base model, frozen weights, what labels mean: "
    )
    machine = founding("ann", "bob")
    machine.come("cy", "dan", base=bytes([1] * 32))
    assert machine.of(Notice)[-1].text == "those who are here differ in base model: ann, bob | cy, dan"
    machine.come("cy", "dan", stream=1, meaning=b"{ }")
    assert machine.of(Notice)[-1].text == "those who are here differ in what labels mean: ann, bob | cy, dan"


def test_what_a_client_calls_its_parts_is_in_no_notice():
    """Another word each time would be another notice, of which a federator shows only so many."""
    machine = founding("ann", "bob")
    said = set()
    for word in ("a", "b", "\x1b[31m", ", ann | bob agree"):
        machine.come("dan", stream=ord(word[-1]), meaning=meaning_bytes({word: "00" * 32}))
        said.add(machine.of(Notice)[-1])
    assert said == {Notice("those who are here differ in what labels mean: ann, bob | dan", "dan")}


@given(st.permutations(ROSTER), st.sampled_from(ROSTER))
def test_liars_neither_found_nor_block(order, liar):
    machine = founding()
    for name in order:
        machine.come(name, base=bytes([name == liar] * 32))
    keys = {name: KEYS[name] for name in ROSTER if name != liar}
    assert machine.of(RecordIdentity) == [RecordIdentity(identity(keys=keys))]


def test_enough_of_a_roster_wait_for_the_others_until_a_deadline():
    machine = founding("ann", "bob", "cy")
    assert machine.of(Alarm) == [Alarm(0, 0, 10.0)]
    assert not machine.of(RecordIdentity)
    machine.late()
    keys = {name: KEYS[name] for name in ROSTER[:3]}
    assert machine.of(RecordIdentity) == [RecordIdentity(identity(keys=keys))]
    assert machine.of(Alarm) == [Alarm(0, 0, 10.0)] * 2
    for name in ROSTER[:3]:
        machine.vote(name, 1.0)
    assert machine.commits == [1.0]


def test_who_leaves_before_that_deadline_is_waited_for_again():
    machine = founding("ann", "bob", "cy")
    machine(Left(ClientStream("cy")))
    machine.late()
    assert not machine.of(RecordIdentity)
    machine.come("cy", stream=2)
    machine.late()
    assert len(machine.of(RecordIdentity)) == 1


def test_a_run_begins_with_so_many_that_a_round_can_be_decided():
    roster = tuple("abcdefgh")
    machine = founding(*roster[:5], roster=roster, byzantine=2)  # more than half, and no quorum of 6
    machine.late()
    assert not machine.of(RecordIdentity)
    machine.come("f")
    machine.late()
    assert len(machine.of(RecordIdentity)) == 1


def test_who_left_before_the_founding_does_not_count():
    machine = founding("ann", "bob")
    machine(Left(ClientStream("bob")))
    machine.come("cy")
    assert not machine.of(RecordIdentity)
    machine.come("bob", stream=2)
    machine.late()
    assert len(machine.of(RecordIdentity)) == 1


def test_founding_is_written_before_anybody_is_welcomed():
    kinds = [
        type(effect) if not isinstance(effect, Send) else type(effect.message) for effect in founding(*ROSTER).effects
    ]
    assert kinds.index(RecordIdentity) < kinds.index(Welcome)


def test_the_layout_that_any_of_them_sent_is_written_down():
    layout = b'[["w",[3],"float32"]]'
    manifest = hashlib.sha256(layout).digest()
    machine = founding()
    machine.come("ann", "bob", manifest=manifest)
    machine.come("cy", manifest=manifest, layout=packed_layout(layout))
    machine.late()
    (found,) = machine.of(RecordIdentity)
    assert found.identity.layout.size == 3
    assert all(event.hello.layout == b"" for event in machine.state.present.values())


def test_the_layout_of_a_run_that_is_founded_is_not_unpacked():
    """It could be a small one that becomes large: each of them would take the time of many votes."""
    machine = bench()
    machine.come("ann", layout=b"what is no layout")
    assert machine.sent("ann", Welcome)


def test_a_layout_without_the_digest_it_is_sent_with_is_refused():
    machine = founding()
    machine.come("ann", layout=b"another")
    assert (
        machine.sent("ann", Bye)[0].reason == "its manifest 0707070707070707 is not the digest of the layout it sends"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 1}, "it speaks version 1 of the protocol: this federator speaks 3"),
        ({"name": "eve"}, "it calls itself 'eve', but its certificate says 'ann'"),
        ({"commits": 2}, "it holds 2 commits, but only 1 rounds are decided"),
        ({"manifest": bytes(32)}, "its manifest is 0000000000000000: that of this run is"),
        ({"base": bytes([1] * 32)}, "its base model is 0101010101010101: that of this run is"),
        ({"run": bytes(32)}, "its run is 0000000000000000: that of this run is"),
        ({"key": b""}, "it sends no public key that its votes could be checked by"),
        ({"key": b"\5" * 33}, "it sends no public key that its votes could be checked by"),
        ({"key": KEYS["bob"]}, "its key is that of bob: every client needs its own"),
        ({"key": KEYS["eve"]}, f"its key is {KEYS['eve'].hex()[:16]}, and the roster has {KEYS['ann'].hex()[:16]}: "),
        (
            {"commits": 1, "head": bytes(32)},
            "after 1 commits its chain ends in 0000000000000000, and the ledger's",
        ),
    ],
    ids=["version", "name", "commits", "manifest", "base", "run", "no key", "no point", "another's", "other", "head"],
)
def test_who_does_not_fit_is_refused_with_a_reason(changes, reason):
    machine = Bench(resumed(settings(), 1))
    effects = machine(Arrived(ClientStream("ann"), hello(**{"name": "ann", **changes}), head=bytes([9] * 32)))
    send, hang_up, _ = effects
    assert send.message.reason.startswith(reason)
    assert send.message.final
    assert hang_up == HangUp(ClientStream("ann"), send.message.reason)
    assert not machine.state.present


@pytest.mark.parametrize("changes", [{"run": bytes(32)}, {"commits": 1}, {"key": b""}], ids=["run", "commits", "key"])
def test_before_the_founding_too(changes):
    machine = founding()
    machine.come("ann", **changes)
    assert machine.sent("ann", Bye)[0].final


def test_strangers_are_refused():
    machine = founding("eve")
    assert machine.sent("eve", Bye)[0].reason == "it is not on the roster"


# Keys


def test_two_clients_with_one_key_found_no_run():
    machine = founding("ann", "bob")
    machine.come("cy", key=KEYS["ann"])
    assert machine.sent("cy", Bye)[0].reason == "its key is that of ann: every client needs its own"
    assert not machine.of(RecordIdentity)


def test_who_comes_after_the_founding_counts_at_once_with_a_key_that_is_written_with_the_round():
    machine = founding("ann", "bob", "cy", rounds=5)
    machine.late()
    machine.come("dan")
    machine.come("dan")  # a second Hello enrols it no second time
    for _ in range(4):
        for name in ROSTER:
            machine.vote(name, 1.0)
    assert [decision.changes for decision in machine.decisions] == [(Change("admit", "dan", KEYS["dan"]),), (), (), ()]
    voted = [[ballot.client for ballot in decision.ballots] for decision in machine.decisions]
    assert voted == [list(ROSTER)] * 4
    assert machine.state.who.key("dan") == KEYS["dan"]
    assert machine.state.identity.roster.key("dan") == b""
    machine.come("dan", stream=1, commits=4, key=KEYS["eve"])
    assert "and the roster has" in machine.sent("dan", Bye)[0].reason


def test_keys_that_are_known_beforehand_are_pinned_whether_their_clients_have_come_or_not():
    known = replace(settings(rounds=5), keys={"dan": KEYS["dan"], "ann": KEYS["ann"]})
    machine = Bench(begin(known, FEDERATOR))
    machine.come("ann", key=KEYS["eve"])
    assert "and the roster has" in machine.sent("ann", Bye)[0].reason
    machine.come("ann", "bob", "cy")
    machine.late()
    assert machine.state.identity.roster.keys == tuple(KEYS[name] for name in ROSTER)
    machine.come("dan")
    assert machine.state.proposed == ()


# Streams


def test_who_comes_late_is_sent_what_it_lacks_and_waited_for_once_it_keeps_up():
    machine = Bench(resumed(settings(rounds=9), 5))
    machine.come("ann", "bob", "cy", commits=5)
    effects = machine.come("dan", commits=2)
    assert Replay(ClientStream("dan"), 2, 5) in effects
    assert [type(message) for message in (effects[0].message, effects[2].message)] == [Welcome, RoundOpen]
    for name in ROSTER[:3]:
        machine.vote(name, 1.0)
    assert machine.commits == [1.0]
    assert machine.sent("dan", Committed)[0].round == 5
    machine.vote("dan", 1.0)
    for name in ROSTER[:2]:
        machine.vote(name, 1.0)
    assert machine.commits == [1.0]


def test_a_second_stream_replaces_the_first():
    machine = bench()
    effects = machine.come("ann", stream=1)
    assert HangUp(ClientStream("ann", 0), "another stream of this client took its place") in effects
    assert machine(Left(ClientStream("ann", 0))) == []
    assert machine.vote("ann", 5.0, stream=0) == []
    machine.vote("ann", 1.0, stream=1)
    for name in ROSTER[1:]:
        machine.vote(name, 1.0)
    assert machine.decisions[0].ballots[0].values == to_wire([[1.0]])


def test_evaluations_are_passed_on_from_those_who_said_they_evaluate():
    machine = Bench(resumed(settings(), 0))
    machine.come("ann", evaluates=True)
    machine.come("bob")
    evaluation = Evaluation(0, 0.5, 0.7, 100)
    assert machine(Received(ClientStream("ann"), evaluation)) == [Evaluated("ann", evaluation)]
    assert machine(Received(ClientStream("bob"), evaluation)) == []


# What a label means


def test_a_client_whose_labels_mean_something_else_is_refused_with_the_difference():
    ours, theirs = ({"prompt": "a" * 64, "words": digit * 64} for digit in "bc")
    machine = founding()
    machine.come("ann", "bob", "cy", meaning=meaning_bytes(ours))
    machine.come("dan", meaning=meaning_bytes(theirs))
    (bye,) = machine.sent("dan", Bye)
    assert bye.final
    assert bye.reason == (
        "its labels mean something else: words cccccccccccccccc instead of bbbbbbbbbbbbbbbb; "
        "join with the same words as the others"
    )
    assert "dan" not in machine.state.present


def test_a_client_with_other_frozen_weights_is_told_so():
    ours, theirs = ({"prompt": "a" * 64, FROZEN: digit * 64} for digit in "bc")
    machine = founding()
    machine.come("ann", "bob", "cy", meaning=meaning_bytes(ours))
    machine.come("dan", meaning=meaning_bytes(theirs))
    assert machine.sent("dan", Bye)[0].reason == (
        "its frozen weights are cccccccccccccccc: those of this run are bbbbbbbbbbbbbbbb; join with the same "
        "pretrained weights, packed in the same way"
    )
    machine = founding()
    machine.come("ann", "bob", "cy", meaning=meaning_bytes(ours))
    machine.come("dan", meaning=meaning_bytes({"prompt": "a" * 64}))  # of a version that does not know the part
    assert "its frozen weights are none" in machine.sent("dan", Bye)[0].reason


def test_a_run_that_says_nothing_of_frozen_weights_welcomes_who_does():
    """It was founded before they were part of the identity."""
    machine = founding()
    machine.come("ann", "bob", "cy", meaning=meaning_bytes({"prompt": "a" * 64}))
    machine.come("dan", meaning=meaning_bytes({"prompt": "a" * 64, FROZEN: "c" * 64}))
    assert not machine.sent("dan", Bye)
    assert "dan" in machine.state.present


def test_a_run_is_founded_on_the_meaning_that_a_majority_brings():
    ours, theirs = ({"words": digit * 64} for digit in "bc")
    machine = founding()
    machine.come("dan", meaning=meaning_bytes(theirs))
    machine.come("ann", "bob", meaning=meaning_bytes(ours))
    assert not machine.of(RecordIdentity)
    machine.come("cy", meaning=meaning_bytes(ours))
    (found,) = machine.of(RecordIdentity)
    assert found.identity.meaning == ours
    assert "its labels mean something else" in machine.sent("dan", Bye)[0].reason


def test_a_meaning_that_is_none_is_refused():
    machine = founding()
    machine.come("ann", meaning=b'{"words":"red"}')
    assert "a SHA-256 in hexadecimal digits for each part" in machine.sent("ann", Bye)[0].reason
