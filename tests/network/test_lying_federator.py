"""Everything a lying federator was seen to do, against real members: caught by the first audit that sees it."""

import hashlib
import random
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests import processes
from tests.network.parties import free_port
from tests.network.two_faces import FEDERATOR, TwoFaces

from cyber0.errors import InvalidEvidence
from cyber0.network.audits import Audits, Caught
from cyber0.network.store import Store
from cyber0.protocol import evidence, pages
from cyber0.protocol.chain import link_statement, vote_statement
from cyber0.protocol.messages import CatchUp, RoundOpen
from cyber0.protocol.records import Ballot, to_wire
from cyber0.protocol.roster import canonical
from cyber0.protocol.signing import encoded, is_by, sign


@pytest.fixture
def world():
    """Four rounds, rightly decided, with three honest clients and one liar; audits of every round."""
    world = TwoFaces(3, 1, rounds=20)
    node = world.root
    for lie in (0.1, 0.4, 1.2, 9.0):
        node = world.decide(node, world.settings.roster, {"client-3": lie})
        for name in world.members:
            world.show(name, node)
    assert not world.stopped
    assert {member.commits for member in world.members.values()} == {4}
    world.node = node
    return world


ALICE = "client-0"


def stops(world, text, name=ALICE):
    """Why a member has stopped; and it has not voted since."""
    refusal = world.stopped.pop(name)
    assert text in str(refusal)
    return refusal


def judged(refusal, party="the federator"):
    assert isinstance(refusal, Caught)
    judgement = evidence.judge(refusal.evidence)
    assert judgement.party == party
    return judgement


# What a signed link says that is not so


def changed_bit(_world, decision):
    scalars = bytearray(decision.scalars)
    scalars[0] ^= 1
    return replace(decision, scalars=bytes(scalars))


def altered_vote(world, decision):
    ballots = list(decision.ballots)
    ballots[1] = Ballot.of(ballots[1].client, "counted", to_wire([5.0]), signature=ballots[1].signature)
    return replace(decision, ballots=tuple(ballots), scalars=world.aggregate(ballots))


def invented_vote(world, decision):
    made = sign(FEDERATOR, b"a vote that was never cast")
    ballots = [*decision.ballots[:2], Ballot.of("client-2", "counted", to_wire([5.0]), signature=made)]
    return replace(decision, ballots=tuple(ballots), scalars=world.aggregate(ballots))


def old_vote(world, decision):
    """A vote of an earlier round, signed by its client, for this one."""
    earlier = world.node.parent.decision.ballots[1]
    ballots = [decision.ballots[0], earlier, *decision.ballots[2:]]
    return replace(decision, ballots=tuple(ballots))


def too_few(_world, decision):
    return replace(decision, ballots=decision.ballots[:2])


def counted_twice(world, decision):
    ballots = (*decision.ballots[:2], decision.ballots[1], *decision.ballots[2:])
    return replace(decision, ballots=ballots, scalars=world.aggregate(ballots))


def stranger(_world, decision):
    ballots = (*decision.ballots, replace(decision.ballots[0], client="mallory"))
    return replace(decision, ballots=ballots)


def said_to_equivocate(world, decision):
    ballots = (replace(decision.ballots[0], verdict="equivocation", reason="two votes"), *decision.ballots[1:])
    return replace(decision, ballots=ballots, scalars=world.aggregate(ballots[1:]))


LIES = {
    changed_bit: "its scalars are not what median makes of the counted votes",
    altered_vote: "the vote of client-1 is not signed by it",
    invented_vote: "the vote of client-2 is not signed by it",
    old_vote: "the vote of client-1 is not signed by it",
    too_few: "2 votes are counted: at least 3 must be",
    counted_twice: "a client is counted twice",
    stranger: "'mallory' is not on the roster",
    said_to_equivocate: "client-0 is said to have cast two different votes, and only one is here",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_wrong_round_is_caught_before_the_next_vote_and_proven_to_others(world, lie):
    right = world.decide(world.node, world.settings.roster).decision
    wrong = world.write(world.node, lie(world, right))
    world.show(ALICE, wrong)
    refusal = stops(world, LIES[lie])
    assert LIES[lie] in judged(refusal).text
    assert ALICE not in wrong.votes
    assert world.members[ALICE].commits == 4  # it was not even applied


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_wrong_round_in_a_catch_up_is_caught_too(world, lie):
    """Though only the last of its links is signed."""
    right = world.decide(world.node, world.settings.roster).decision
    wrong = world.write(world.node, lie(world, right))
    votes = [world.lie(name, wrong, 1.0) for name in world.liars]
    after = world.write(wrong, replace(right, round=5, ballots=(Ballot.of("client-3", "counted", votes[0].scalars),)))
    answers = {node.decision.round: node.decision for node in after.path}
    world.at[ALICE] = after
    world.deliver(ALICE, [world.catch_up(after, first=4)], answers)
    assert LIES[lie] in judged(stops(world, LIES[lie])).text


def test_an_audit_of_some_rounds_finds_what_it_picks():
    caught = 0
    for seed in range(40):
        world = TwoFaces(3, 1, rounds=20, audit=0.3)
        world.members[ALICE].audits = audits = Audits(0.3, rng=random.Random(seed))  # noqa: S311
        audits.begin(world.identity, 0)
        node = world.decide(world.root, world.settings.roster)
        world.show(ALICE, world.write(world.root, changed_bit(world, node.decision)))
        caught += ALICE in world.stopped
    assert 4 <= caught <= 22  # 12 are expected


# Histories


def other_branch(world, length):
    """Another history from the beginning, decided by the votes that were cast on the first link, then by lies."""
    node = world.decide(world.root, world.settings.roster, {"client-3": -9.0})
    ballots = world.ballots(world.root, ["client-0", "client-1", "client-3"], {"client-3": -9.0})
    scalars = world.aggregate(ballots)
    decision = replace(node.decision, ballots=ballots, scalars=scalars)
    node = world.write(world.root, decision)
    for _ in range(length - 1):
        vote = world.lie("client-3", node, 1.0)
        ballot = Ballot.of("client-3", "counted", vote.scalars, signature=vote.signature)
        node = world.write(node, replace(decision, round=node.position.head.rounds, ballots=(ballot,)))
    return node


@pytest.mark.parametrize("length", [4, 6], ids=["as long", "longer"])
def test_a_replay_through_another_history_is_refused_and_proven(world, length):
    world.members[ALICE].audits = Audits(0)
    world.replay(ALICE, other_branch(world, length))
    judgement = judged(stops(world, "it shows two histories of one run"))
    assert "it signed two chains of one run, which differ after" in judgement.text


def test_a_replay_through_a_shorter_history_changes_nothing(world):
    world.members[ALICE].audits = Audits(0)
    world.replay(ALICE, other_branch(world, 2))
    assert "this client has voted in round 4" in str(world.stopped.get(ALICE, "this client has voted in round 4"))
    assert world.members[ALICE].commits == 0  # nothing of it was applied
    assert not any(ALICE in child.votes for child in world.root.children[1:])


def test_a_replay_through_what_it_signed_brings_it_back(world):
    world.replay(ALICE, world.node)
    assert not world.stopped
    assert world.members[ALICE].commits == 4
    following = world.decide(world.node, world.settings.roster)
    for name in world.members:
        world.show(name, following)
    assert len({member.model.fingerprint() for member in world.members.values()}) == 1


def test_replays_are_bounded_in_number(world):
    for _ in range(3):
        world.replay(ALICE, world.node)
    assert not world.stopped
    world.replay(ALICE, world.node)
    stops(world, "asks for a replay for the 4th time")


def test_a_round_is_voted_in_once(world):
    """Whatever the federator says: opened again, after a replay, after a restart with what is stored."""
    first = world.node.votes[ALICE]
    said = []
    member = world.members[ALICE]
    member.receive([RoundOpen(4)], said.append)
    assert [vote.scalars for vote in said] == [first.scalars]
    member.receive([RoundOpen(3)], said.append)
    assert len(said) == 1
    member.model._vote = to_wire(np.full(1, 77.0))  # it would measure something else now
    world.replay(ALICE, world.node)
    assert world.node.votes[ALICE].scalars == first.scalars


def test_an_older_head_gets_no_vote(world):
    said = []
    member = world.members[ALICE]
    member.hello()
    member.receive([world.welcome(), RoundOpen(2)], said.append)
    assert said == []


def test_rounds_in_another_order_are_refused(world):
    path = world.node.path
    message = world.catch_up(world.node)
    width = len(path[0].decision.scalars)
    swapped = message.scalars[width : 2 * width] + message.scalars[:width] + message.scalars[2 * width :]
    member = world.members[ALICE]
    member.audits = Audits(0)
    member._restart()
    member.hello()
    world.deliver(ALICE, [world.welcome(), replace(message, scalars=swapped)])
    stops(world, "has not signed its chain after 4 rounds")


def test_a_link_that_is_not_signed_is_not_followed(world):
    node = world.decide(world.node, world.settings.roster)
    for signature in (b"", bytes(64), node.parent.position.signature):
        world.stopped.clear()
        world.deliver(ALICE, [replace(node.committed(), signature=signature)], {4: node.decision})
        stops(world, "the federator has not signed its chain after 5 rounds")


def test_clients_are_not_led_apart(world):
    """Four clients were led through four histories for 250 rounds: now they part after one commit."""
    one = world.decide(world.node, ["client-0", "client-1", "client-2"])
    other = world.decide(world.node, ["client-0", "client-1", "client-3"], {"client-3": -50.0})
    world.show("client-0", one)
    world.show("client-1", other)
    world.show("client-2", other)
    assert set(one.votes) == {"client-0"}
    assert set(other.votes) == {"client-1", "client-2"}
    further = world.decide(other, ["client-1", "client-2", "client-3"])  # a quorum of three, with the liar
    world.show("client-1", further)
    ballots = world.ballots(one, ["client-0", "client-3"])
    alone = world.write(one, replace(further.decision, ballots=ballots))
    world.show("client-0", alone)
    assert "2 votes are counted: at least 3 must be" in judged(stops(world, "at least 3")).text
    assert world.members["client-1"].audits.final == 5


# Answers to audits


def test_an_audit_that_is_not_answered_stops_the_votes_and_accuses_nobody(world):
    node = world.decide(world.node, world.settings.roster)
    world.at[ALICE] = node
    world.deliver(ALICE, [node.committed()])
    assert not world.stopped
    assert ALICE not in node.votes
    assert world.members[ALICE].commits == 4


def test_a_second_welcome_does_not_get_around_an_audit(world):
    node = world.decide(world.node, world.settings.roster)
    world.at[ALICE] = node
    world.deliver(ALICE, [node.committed(), world.welcome(), RoundOpen(5)])
    world.deliver(ALICE, [node.committed(), world.welcome()])
    assert not world.stopped
    assert world.members[ALICE].commits == 4
    assert ALICE not in node.votes


def as_imported(node, last=True):
    """A round as of a run whose votes were not imported with it."""
    anchor = node.position.anchor.to_bytes() if last else b""
    return CatchUp(node.decision.round, node.decision.scalars, signature=node.position.signature, anchor=anchor)


@pytest.mark.parametrize("audit", [1.0, 0.05])
def test_a_round_that_is_shown_as_imported_does_not_get_around_an_audit(audit):
    world = TwoFaces(3, 1, rounds=20, audit=audit)
    picks = iter([0.9, 0.9, 0.9, 0.01])
    world.members[ALICE].audits._rng.random = lambda: next(picks)
    node = world.root
    for _ in range(3):
        node = world.decide(node, world.settings.roster)
        for name in world.members:
            world.show(name, node)
    right = world.decide(node, world.settings.roster).decision
    wrong = world.write(node, changed_bit(world, right))
    world.at[ALICE] = wrong
    world.deliver(ALICE, [as_imported(wrong)], {3: wrong.decision})
    assert not isinstance(stops(world, "round 3 is shown without its ballots, and this client audits it"), Caught)
    assert ALICE not in wrong.votes
    assert world.members[ALICE].commits == 3


def test_a_client_that_comes_takes_imported_rounds_once_their_last_link_is_signed(world):
    told = []
    world.members[ALICE] = world.member(ALICE, 0, notice=told.append)
    world.at[ALICE] = world.node
    *first, last = world.node.path
    world.deliver(ALICE, [world.welcome(), *(as_imported(node, last=False) for node in first)])
    assert world.members[ALICE].commits == 0
    world.deliver(ALICE, [as_imported(last)])
    assert world.members[ALICE].commits == 4
    assert told[-1:] == ["4 rounds were imported without their votes: this client cannot audit them"]


def test_commits_that_nobody_signed_are_not_applied(world):
    world.members[ALICE] = member = world.member(ALICE, 0)
    world.deliver(ALICE, [world.welcome(), CatchUp(0, bytes(8)), RoundOpen(2)])
    assert (member.commits, member.model.fingerprint()) == (0, 0)


def test_a_replay_does_not_get_around_an_audit():
    world = TwoFaces(3, 1, rounds=20, audit=0.05)
    picks = iter([0.01, 0.9, 0.9])  # the first round is picked once, by chance
    world.members[ALICE].audits._rng.random = lambda: next(picks)
    wrong = world.write(world.root, changed_bit(world, world.decide(world.root, world.settings.roster).decision))
    world.at[ALICE] = wrong
    world.deliver(ALICE, [wrong.committed()])
    world.replay(ALICE, wrong)
    judged(stops(world, "its scalars are not what median makes of the counted votes"))


def test_an_answer_may_not_use_up_the_budget_of_audits(world):
    """Fields that nobody knows change no ballot, and a client would have to take them all the same."""
    node = world.decide(world.node, world.settings.roster)
    world.at[ALICE] = node
    world.deliver(ALICE, [node.committed()])
    data = pages.to_bytes(node.decision) + b"\xfa\x7f\x80\x80\x10" + bytes(2**18)
    answers = [pages.page_of(4, data, number) for number in range(5)]
    world.deliver(ALICE, answers)
    assert not isinstance(stops(world, "the ballots of round 4 have more than 147,"), Caught)


def test_an_answer_that_is_not_the_round_accuses_nobody(world):
    node = world.decide(world.node, world.settings.roster)
    for answer in (changed_bit(world, node.decision), altered_vote(world, node.decision), world.node.decision):
        world.members[ALICE].hello()
        world.deliver(ALICE, [world.welcome(), node.committed()], {4: answer})
        refusal = stops(world, "an audit of round 4 was answered with")
        assert not isinstance(refusal, Caught)


@pytest.mark.parametrize("lost", [1, 2])
def test_rounds_of_a_rule_with_memory_that_come_again_accuse_nobody(lost):
    """A stream that breaks before an audit is answered: what the rule remembers is that of before the round."""
    world = TwoFaces(3, 1, rounds=20, rule="centered_clipping_previous(radius=0.1)")
    node = world.root
    for number in range(5):
        node = world.decide(node, world.settings.roster, {"client-3": number - 9.0})
        for name in world.members:
            world.at[name] = node
        world.deliver(ALICE, [node.committed()])  # its audit is not answered
        for _ in range(lost):
            world.members[ALICE].hello()
            world.deliver(ALICE, [world.welcome(), node.committed()])
        for name in world.members:
            world.show(name, node)
        world.members[ALICE].hello()
        world.deliver(ALICE, [world.welcome(), node.committed(), RoundOpen(number + 1)], {number: node.decision})
    assert not world.stopped
    assert world.members[ALICE].commits == 5
    wrong = world.write(node, changed_bit(world, world.decide(node, world.settings.roster).decision))
    world.show(ALICE, wrong)
    judged(stops(world, "its scalars are not what centered_clipping_previous"))


def test_pages_with_changes_that_cannot_be_read_are_nonsense(world):
    node = world.decide(world.node, world.settings.roster)
    world.at[ALICE] = node
    world.deliver(ALICE, [node.committed()])
    data = pages.to_bytes(node.decision) + b"\x1a\x02[]"  # the field of changes
    world.deliver(ALICE, [pages.page_of(4, data, 0)])
    assert not isinstance(stops(world, "an audit of round 4 was answered with nonsense"), Caught)


def test_a_vote_that_is_left_out_is_told_and_accuses_nobody(world):
    told = []
    world.members[ALICE].audits.notice = told.append
    node = world.decide(world.node, ["client-1", "client-2", "client-3"])
    world.show(ALICE, node)
    assert not world.stopped
    assert told == ["this client's vote of round 4 is not among its ballots: it was late, or left out"]


# Evidence


def test_two_votes_of_one_client_are_evidence_and_one_is_not(world):
    one, other = (world.lie("client-3", world.node, value) for value in (1.0, 2.0))
    link = world.node.position.head.link
    ballots = [Ballot.of("client-3", "equivocation", vote.scalars, signature=vote.signature) for vote in (one, other)]
    proof = evidence.equivocation(world.node.position, 4, "client-3", [(link, ballot) for ballot in ballots])
    assert evidence.judge(proof).party == "client-3"
    again = world.lie("client-3", world.node, 1.0)  # another signature of the same statement
    assert again.signature != one.signature
    same = [ballots[0], Ballot.of("client-3", "equivocation", again.scalars, signature=again.signature)]
    with pytest.raises(InvalidEvidence, match="the two votes are the same"):
        evidence.judge(evidence.equivocation(world.node.position, 4, "client-3", [(link, ballot) for ballot in same]))


def test_nobody_is_framed_by_votes_that_it_did_not_sign(world):
    link, honest = world.node.position.head.link, world.node.votes["client-1"]
    true = Ballot.of("client-1", "counted", honest.scalars, signature=honest.signature)
    digest = hashlib.sha256(to_wire([3.0])).digest()
    statement = vote_statement(world.identity.digest, 4, link, digest)
    for key in (FEDERATOR, world.keys["client-3"]):
        forged = Ballot.of("client-1", "counted", to_wire([3.0]), signature=sign(key, statement))
        votes = [(link, true), (link, forged)]
        with pytest.raises(InvalidEvidence, match="not signed by client-1"):
            evidence.judge(evidence.equivocation(world.node.position, 4, "client-1", votes))


@pytest.mark.parametrize("lie", [changed_bit, altered_vote, too_few, stranger], ids=lambda lie: lie.__name__)
def test_an_honest_federator_is_not_framed_by_a_round_that_it_did_not_sign(world, lie):
    """Whoever makes the file can change everything in it but what the federator has signed."""
    right = world.node
    step = right.step()
    with pytest.raises(InvalidEvidence, match="not signed by the federator"):
        evidence.judge(evidence.decision([step], lie_about(world, lie, right.decision)))
    with pytest.raises(InvalidEvidence, match="round 3 is as it should be"):
        evidence.judge(evidence.decision([step], right.decision))


def lie_about(world, lie, decision):
    changed = lie(world, decision)
    return replace(changed, round=decision.round)


def test_values_that_are_left_out_of_the_file_frame_nobody(world):
    step, decision = world.node.step(), world.node.decision
    stripped = replace(decision, ballots=tuple(ballot.without_values() for ballot in decision.ballots))
    with pytest.raises(InvalidEvidence, match="may be the fault of who made this file"):
        evidence.judge(evidence.decision([step], stripped))


def test_another_roster_in_the_file_frames_nobody(world):
    """With other keys every vote would look forged."""
    step = world.node.step()
    roster = step.before.roster
    others = replace(roster, keys=(*roster.keys[1:], encoded(FEDERATOR.public_key())))
    for before in (replace(step.before, roster=others), replace(step.before, roster=others, anchor=None)):
        with pytest.raises(InvalidEvidence):
            evidence.judge(evidence.decision([replace(step, before=before)], world.node.decision))


def test_two_links_of_different_rounds_or_runs_are_no_fork(world):
    fields = {
        "a format": evidence.FORMAT,
        "kind": "fork",
        "identity": world.identity.to_bytes().decode(),
        "roster": world.identity.roster.to_bytes().decode(),
        "steps": [],
    }
    one, other = world.node.position, world.node.parent.position
    fields |= {"rounds": 4, "link": one.head.link.hex(), "signature": one.signature.hex()}
    fields |= {"other": other.head.link.hex(), "other_signature": other.signature.hex()}
    with pytest.raises(InvalidEvidence, match="after 4 rounds in it is not signed"):
        evidence.judge(canonical(fields))
    elsewhere = sign(FEDERATOR, link_statement(bytes(32), 4, other.head.link))
    with pytest.raises(InvalidEvidence, match="after 4 rounds in it is not signed"):
        evidence.judge(canonical(fields | {"other_signature": elsewhere.hex()}))
    assert not is_by(world.identity.federator, elsewhere, link_statement(world.identity.digest, 4, other.head.link))


def test_every_byte_of_evidence_matters_or_changes_nothing(world):
    right = world.decide(world.node, world.settings.roster).decision
    world.show(ALICE, world.write(world.node, changed_bit(world, right)))
    proof = stops(world, "its scalars are not").evidence
    whole = evidence.judge(proof)
    for place in range(0, len(proof), 7):
        damaged = proof[:place] + bytes([proof[place] ^ 1]) + proof[place + 1 :]
        try:
            judgement = evidence.judge(damaged)
        except InvalidEvidence:
            continue
        assert (judgement.party, judgement.key, judgement.run) == (whole.party, whole.key, whole.run)


# What a client keeps


def test_a_client_that_starts_again_with_an_old_snapshot_knows_what_it_signed(tmp_path):
    world = TwoFaces(3, 1, rounds=20)
    folder = tmp_path / "alice"
    world.members[ALICE] = world.member(ALICE, 0, store=Store(folder))
    world.root.votes.pop(ALICE)
    world.deliver(ALICE, [world.welcome(), RoundOpen(0)])
    node = world.decide(world.root, world.settings.roster)
    for name in world.members:
        world.show(name, node)
    world.members[ALICE].store.close()
    (folder / "commits").unlink()
    again = world.member(ALICE, 0, store=Store(folder))  # it has neither weights nor commits, only what it signed
    world.members[ALICE] = again
    other = world.decide(world.root, ["client-0", "client-1", "client-3"], {"client-3": -9.0})
    world.at[ALICE] = other
    assert again.commits == 0
    assert again.store.newest == 1
    world.deliver(ALICE, [world.welcome(), world.catch_up(other), RoundOpen(1)], {0: other.decision})
    judged(stops(world, "it shows two histories of one run"))
    assert ALICE not in other.votes
    again.store.close()


def test_a_client_that_is_started_again_does_not_vote_for_a_federator_that_it_caught(world, tmp_path):
    right = world.decide(world.node, world.settings.roster).decision
    world.show(ALICE, world.write(world.node, changed_bit(world, right)))
    proof = stops(world, "its scalars are not").evidence
    made = FEDERATOR.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(made)
    address = f"127.0.0.1:{free_port()}"
    words = ["--ledger", tmp_path / "run.ledger", "--listen", address, "--key", tmp_path / "key.pem"]
    federator = processes.Popen(processes.command("serve", *words, "--clients", 3, "--byzantine", 1))
    try:
        options = ["--name", ALICE, "--state", tmp_path, "--source", "embedded", "--deal", "iid"]
        join = processes.command("join", address, *options, "--give-up", "60")
        client = processes.Popen(join, stdout=subprocess.PIPE)
        assert any("training on" in line for line in client.stdout)
        while not (folders := [*tmp_path.glob(f"*-{ALICE}")]):
            assert client.poll() is None
        client.kill()
        client.wait()
        client.stdout.close()
        (folders[0] / "evidence-1.json").write_bytes(proof)
        again = processes.run(join, capture_output=True)
        assert again.returncode == 3
        assert "the federator has lied, as " in again.stderr
        assert "it signed round 4: its scalars are not what" in again.stderr
    finally:
        federator.kill()
        federator.wait()
