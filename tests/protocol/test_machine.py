"""The promises of the round machine, each by itself."""

from itertools import permutations

import numpy as np
import pytest
from tests.protocol.bench import ROSTER, bench, settings

from cyber0.config import RunConfig
from cyber0.errors import InvalidAggregation, InvalidConfig
from cyber0.protocol.events import (
    Alarm,
    ClientStream,
    Left,
    Notice,
    Received,
    Record,
    Replay,
    Send,
)
from cyber0.protocol.messages import Bye, Rejection, Vote
from cyber0.protocol.records import to_wire
from cyber0.simulation import Simulation

# Rounds


def first(votes, _):
    """A rule that cares for the order, and for no number of votes."""
    return votes[:, 0]


@pytest.mark.parametrize("order", list(permutations(ROSTER)), ids="-".join)
def test_the_order_of_arrival_changes_no_byte(order):
    machine = bench(rule="tests.protocol.test_machine:first")
    for name in order:
        machine.vote(name, float(ROSTER.index(name)))
    assert machine.commits == [0.0]
    assert [ballot.client for ballot in machine.decisions[0].ballots] == list(ROSTER)


def test_no_rule_is_asked_with_fewer_than_2b_plus_1_votes():
    machine = bench(rule="tests.protocol.test_machine:first")
    machine.vote("ann", 1.0)
    machine.vote("bob", 1.0)
    for extension in range(5):
        machine.late(extension)
    assert machine.commits == []


@pytest.mark.parametrize("name", ["cwtm", "nnm+cwtm", "krum"])
def test_a_federator_decides_what_a_simulator_does(name):
    config = RunConfig(source="embedded", clients=5, byzantine=1, directions=3, local_epochs=2, rounds=3, rule=name)
    simulation = Simulation(config)
    roster = tuple(f"client {number}" for number in range(5))
    machine = bench(roster=roster, directions=3, local_epochs=2, rule=name)
    for number in range(3):
        votes = simulation.votes(number, np.arange(5))
        for place in (3, 1, 4, 0, 2):
            machine(Received(ClientStream(roster[place]), Vote(number, to_wire(votes[:, place]))))
        assert machine.decisions[number].scalars == to_wire(simulation.play_round(number).aggregate)


def test_nothing_is_sent_that_was_not_recorded():
    machine = bench()
    for name in ROSTER:
        machine.vote(name, 1.0)
    kinds = [type(effect) for effect in machine.effects[-6:]]
    assert kinds == [Record, Send, Send, Send, Send, Alarm]
    assert {effect.message.scalars for effect in machine.effects[-5:-1]} == {machine.decisions[0].scalars}


def test_the_first_round_waits_for_the_whole_roster_or_the_deadline():
    machine = bench("ann", "bob", "cy")
    for name in ("ann", "bob", "cy"):
        machine.vote(name, 1.0)
    assert machine.commits == []
    machine.late()
    assert machine.commits == [1.0]
    for name in ("ann", "bob", "cy"):
        machine.vote(name, 2.0)
    assert machine.commits == [1.0, 2.0]


def test_too_few_votes_extend_the_deadline_and_stand():
    machine = bench(longest=15.0)
    machine.vote("ann", 1.0)
    machine.vote("bob", 2.0)
    machine(Left(ClientStream("ann")))
    effects = machine.late()
    assert machine.commits == []
    assert [effect for effect in effects if isinstance(effect, Alarm)] == [Alarm(0, 1, 15.0)]
    assert [effect.stream.client for effect in effects if isinstance(effect, Send)] == ["cy", "dan"]
    assert machine.late(extension=0) == []
    machine.vote("cy", 3.0)
    assert machine.commits == [2.0]


def test_a_silent_client_holds_up_one_round_only():
    machine = bench()
    for name in ROSTER[:3]:
        machine.vote(name, 1.0)
    machine.late()
    for name in ROSTER[:3]:
        machine.vote(name, 2.0)
    assert machine.commits == [1.0, 2.0]
    machine.vote("dan", 9.0, number=1)
    for name in ROSTER[:3]:
        machine.vote(name, 3.0)
    assert machine.commits == [1.0, 2.0]
    machine.vote("dan", 3.0)
    assert machine.commits == [1.0, 2.0, 3.0]


def test_a_client_that_leaves_is_not_waited_for():
    machine = bench()
    for name in ROSTER[:3]:
        machine.vote(name, 1.0)
    machine(Left(ClientStream("dan")))
    assert machine.commits == [1.0]


def test_equivocators_are_out_for_the_round_and_back_in_the_next():
    machine = bench()
    machine.vote("ann", 1.0)
    machine.vote("ann", 2.0)
    for name in ROSTER[1:]:
        machine.vote(name, 3.0)
    assert [ballot.verdict for ballot in machine.decisions[0].ballots] == ["equivocation"] * 2 + ["counted"] * 3
    assert [rejection.verdict for rejection in machine.sent("ann", Rejection)] == ["equivocation"]
    for name in ROSTER:
        machine.vote(name, 4.0)
    assert len(machine.decisions[1].ballots) == 4


def test_a_late_vote_is_no_offence_and_a_late_resend_nothing_at_all():
    machine = bench()
    for name in ROSTER[:3]:
        machine.vote(name, 1.0)
    machine.late()
    assert machine.vote("ann", 1.0, number=0) == []
    assert machine.vote("ann", 5.0, number=0) == []
    send, _ = machine.vote("dan", 1.0, number=0)
    assert send.message.verdict == "late"
    assert machine.vote("dan", 2.0, number=0) == []
    for name in reversed(ROSTER):
        machine.vote(name, 1.0)
    ballots = [(ballot.client, ballot.verdict, ballot.reason) for ballot in machine.decisions[1].ballots[-2:]]
    assert ballots == [("dan", "late", "round 0 is decided"), ("dan", "counted", "")]


@pytest.mark.parametrize("number", [1, 2, 2**32 - 1])
def test_a_round_that_is_not_open_cannot_be_voted_on(number):
    machine = bench()
    (send,) = machine.vote("ann", 1.0, number=number)
    assert send.message.reason == f"round {number} is not open: 0 rounds are decided"


def test_who_is_not_invited_is_not_heard_nor_waited_for():
    machine = bench(participation=0.75)
    invited = machine.state.voters
    (other,) = set(ROSTER) - set(invited)
    (send,) = machine.vote(other, 1.0)
    assert send.message.reason == "it is not invited to round 0"
    for name in invited:
        machine.vote(name, 1.0)
    assert machine.commits == [1.0]


def test_a_rule_that_needs_more_than_2b_plus_1_has_its_own_quorum():
    names = tuple("abcdefgh")
    machine = bench(roster=names, rule="bulyan")
    for name in names[:6]:
        machine.vote(name, 1.0)
    machine.late()
    assert machine.commits == []
    machine.vote("g", 1.0)
    assert machine.commits == [1.0]
    with pytest.raises(InvalidAggregation):
        settings(rule="bulyan")


def test_settings_that_make_no_federation_are_refused():
    with pytest.raises(InvalidConfig, match="names a client twice"):
        settings(roster=("ann", "ann", "bob"))
    with pytest.raises(InvalidConfig, match="at most 1 may lie"):
        settings(byzantine=2)


def test_what_no_model_can_apply_is_not_committed():
    machine = bench(lr=1e20)
    for name in ROSTER[:3]:
        machine.vote(name, 3e38)
    machine.vote("dan", -1.0)
    assert machine.commits == []
    assert "cannot be decided" in machine.of(Notice)[-1].text
    assert machine.vote("ann", 3e38) == []
    machine.late()
    assert machine.of(Alarm)[-1].extension == 1


def test_the_end_is_told_to_those_present_and_to_those_who_come_later():
    machine = bench("ann", "bob", "cy", rounds=1)
    for name in ("ann", "bob", "cy"):
        machine.vote(name, 1.0)
    machine.late()
    assert [bye.finished for bye in machine.sent("ann", Bye)] == [True]
    effects = machine.come("dan")
    assert [type(effect) for effect in effects] == [Send, Replay, Send, Notice]
    assert effects[1] == Replay(ClientStream("dan"), 0, 1)
    assert effects[2].message.finished
    assert machine.vote("dan", 1.0)[0].message.verdict == "rejected"


# Fingerprints


def diverged():
    machine = bench(fingerprint_every=2)
    for name in ROSTER[1:]:
        machine.vote(name, 1.0, fingerprint=7)
    machine.vote("ann", 5.0, fingerprint=8)
    return machine


def test_who_differs_from_a_majority_is_not_counted_and_must_replay():
    machine = diverged()
    assert [ballot.verdict for ballot in machine.decisions[0].ballots] == ["rejected"] + ["counted"] * 3
    (rejection,) = machine.sent("ann", Rejection)
    assert rejection.replay
    assert machine.vote("ann", 1.0)[0].message.replay
    (bye,) = [effect.message for effect in machine.come("ann", commits=1, stream=1) if isinstance(effect, Send)]
    assert (bye.replay, bye.final) == (True, False)
    machine.come("ann", stream=2, commits=1, replayed=True)
    machine.vote("ann", 2.0, stream=2)
    for name in ROSTER[1:]:
        machine.vote(name, 2.0)
    assert [ballot.verdict for ballot in machine.decisions[1].ballots] == ["counted"] * 4


def test_who_has_replayed_has_no_second_vote_in_the_round_and_one_in_the_next():
    machine = bench(*ROSTER[:3], fingerprint_every=2)
    machine.vote("ann", 5.0, fingerprint=8)
    for name in ROSTER[1:3]:
        machine.vote(name, 1.0, fingerprint=7)
    machine.late()
    assert [rejection.replay for rejection in machine.sent("ann", Rejection)] == [True]
    machine.come("ann", replayed=True)
    assert machine.vote("ann", 2.0, fingerprint=7) == []
    assert machine.commits == []
    machine.come("dan")
    machine.vote("dan", 1.0, fingerprint=7)
    assert [ballot.verdict for ballot in machine.decisions[0].ballots] == ["rejected"] + ["counted"] * 3
    for name in ROSTER:
        machine.vote(name, 1.0)
    assert [ballot.verdict for ballot in machine.decisions[1].ballots] == ["counted"] * 4


def test_a_hello_sent_before_it_knew_is_no_replay():
    machine = bench(fingerprint_every=2)
    machine.vote("ann", 5.0, fingerprint=8)
    for name in ROSTER[1:3]:
        machine.vote(name, 1.0, fingerprint=7)
    machine.late()
    machine.come("ann")
    assert machine.sent("ann", Bye)[0].replay
    assert "ann" in machine.state.diverged
    machine.come("ann", replayed=True)
    assert "ann" not in machine.state.diverged


def test_without_a_majority_it_warns_and_goes_on():
    machine = bench()
    for mark, name in enumerate(ROSTER):
        machine.vote(name, 1.0, fingerprint=mark // 2)
    assert machine.commits == [1.0]
    assert any("no majority agrees" in notice.text for notice in machine.of(Notice))


def test_fingerprints_of_other_rounds_are_not_compared():
    machine = bench(fingerprint_every=2)
    for number in range(2):
        for name in ROSTER:
            machine.vote(name, 1.0, fingerprint=7 + number * (name == "ann"))
    assert machine.commits == [1.0, 1.0]
