"""Mutants of messages and files: nothing gives way, and bugs that are planted are found.

`python -m tests.fuzz --messages 1000000` feeds more of them.
"""

import asyncio
from dataclasses import replace
from hashlib import sha256

import pytest
from google.protobuf.message import EncodeError
from tests.fuzz import Violation, World, fuzz

from cyber0.errors import InvalidEvidence, Refused
from cyber0.network import server
from cyber0.network.member import Member
from cyber0.protocol import catching_up, codec, evidence, machine
from cyber0.protocol.codec import decode_from_federator, encode
from cyber0.protocol.messages import Bye
from cyber0.protocol.settings import Settings


def test_mutants_of_messages_are_refused_or_harmless():
    counts = fuzz(15_000, seed=1)
    assert counts["messages"] == 15_000
    assert counts["decoded"] > 10_000  # what does not decode goes no further
    kinds = set(codec.OURS.values())
    assert all(counts[kind.__name__] > 50 for kind in kinds)
    assert counts["parts taken"] > 50


# Bugs that are planted


def anything(monkeypatch, field):
    monkeypatch.setitem(codec.RIGHT, field, (lambda _: True, ""))


def no_size_limit(monkeypatch):
    decode = codec._decode
    monkeypatch.setattr(codec, "_decode", lambda data, _limit, *rest: decode(data, 2**20, *rest))


def no_error_of_ours(monkeypatch):
    monkeypatch.setattr(codec, "DecodeError", EncodeError)


def votes_need_no_signature(monkeypatch):
    monkeypatch.setattr(server.Signatures, "of", lambda _, __, vote: sha256(vote.scalars).digest())


def unsigned_votes_count(monkeypatch):
    ask = machine._reason_to_reject
    monkeypatch.setattr(machine, "_reason_to_reject", lambda s, event, vote: ask(s, event._replace(signed=True), vote))


def links_need_no_signature(monkeypatch):
    monkeypatch.setattr(catching_up, "is_by", lambda *_: True)


def commits_need_no_signature(monkeypatch):
    monkeypatch.setattr(Member, "_is_applicable", property(lambda member: not member.audits.holds))


def wishes_need_no_signature(monkeypatch):
    monkeypatch.setattr("cyber0.network.server.is_by", lambda *_: True)


def evidence_without_signatures(monkeypatch):
    monkeypatch.setattr(evidence, "is_by", lambda *_: True)


PLANTED = {
    "signatures of any length": lambda m: anything(m, "signature"),
    "digests of any length": lambda m: anything(m, "manifest"),
    "scalars of any length": lambda m: anything(m, "scalars"),
    "hashes of any length": lambda m: anything(m, "ballots"),
    "verdicts that are none": lambda m: anything(m, "verdict"),
    "a loss that is NaN": lambda m: anything(m, "loss"),
    "an accuracy that is none": lambda m: anything(m, "accuracy"),
    "no size limit": no_size_limit,
    "errors that are not ours": no_error_of_ours,
    "votes need no signature": votes_need_no_signature,
    "unsigned votes count": unsigned_votes_count,
    "links need no signature": links_need_no_signature,
    "wishes need no signature": wishes_need_no_signature,
    "commits need no signature": commits_need_no_signature,
    "evidence without signatures": evidence_without_signatures,
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_planted_bug_is_found(monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(Violation):
        fuzz(60_000, seed=2)


# Bugs that were found


def test_a_reason_that_quotes_too_much_is_cut():
    assert decode_from_federator(encode(Bye("x" * 5000))).reason == "x" * 1000
    assert decode_from_federator(encode(Bye("its \ud800 differs"))).reason == "its ? differs"


def test_text_that_is_none_in_a_hello_does_not_stop_the_federator():
    async def play():
        world = World()
        hello = replace(world.members["client-1"].hello(), meaning=b'{"\\ud800":"%s"}' % (b"00" * 32))
        moment = next(moment for name, _, moment in world.up[10:] if name == "client-1")
        world.at_federator("client-1", encode(hello), moment)

    asyncio.run(play())


@pytest.mark.parametrize("change", [(b'"clients": 4', b'"clients": 1%s'), (b'"deadline": 600.0', b'"deadline": 1%s')])
def test_integers_that_are_too_large_for_a_float_are_refused(change):
    before, after = change

    async def play():
        return World().settings.invitation()

    invitation = asyncio.run(play())
    assert before in invitation.settings
    changed = invitation.settings.replace(before, after % (b"0" * 400))
    with pytest.raises(Refused, match="the federator's invitation cannot be used"):
        Settings.from_invitation(replace(invitation, settings=changed))


def test_rounds_that_no_link_can_have_are_no_evidence():
    async def play():
        return World().identity

    identity = asyncio.run(play())
    fields = {"rounds": 2**64, "link": "00" * 32, "signature": "00" * 64, "other": "11" * 32, "steps": []}
    made = evidence._file("fork", identity, **fields, other_signature="00" * 64)
    with pytest.raises(InvalidEvidence, match="cannot be read"):
        evidence.judge(made)
