"""How long a round waits: as long as a quorum takes, and some times as long for the others."""

import heapq
import random
from itertools import count

import pytest
from tests.protocol.bench import MANY, ROSTER, Bench, bench, resumed, settings

from cyber0.protocol.events import Alarm, ClientStream, Deadline, Impatience, Patience, Received, Send
from cyber0.protocol.messages import Committed, Rejection, RoundOpen, Vote
from cyber0.protocol.records import to_wire
from cyber0.protocol.settings import FLOOR


def quorum_after(machine, seconds, names=ROSTER[:3]):
    machine.now += seconds
    return [effect for name in names for effect in machine.vote(name, 1.0)]


def test_after_the_quorum_a_round_waits_some_times_as_long_as_quorums_took():
    machine = bench(rounds=50)
    for seconds in (1.0, 3.0, 2.0):
        quorum_after(machine, seconds)
        machine(Impatience(machine.state.round))
        machine.vote("dan", 1.0, number=machine.state.round - 1)  # it is late, and keeps up all the same
    (patience,) = [effect for effect in quorum_after(machine, 9.0) if isinstance(effect, Patience)]
    assert patience == Patience(3, 2.0 * 2.5)  # twice the median of 1, 2, 3 and 9


def test_who_is_too_late_is_told_and_counts_again_as_soon_as_it_keeps_up():
    machine = bench(rounds=50)
    quorum_after(machine, 1.0)
    assert machine.state.round == 0
    machine(Impatience(0))
    assert machine.state.round == 1
    machine.vote("dan", 7.0, number=0)
    assert [rejection.verdict for rejection in machine.sent("dan", Rejection)] == ["late"]
    machine.vote("dan", 7.0)
    quorum_after(machine, 1.0)
    assert [ballot.client for ballot in machine.decisions[-1].ballots if ballot.verdict == "counted"] == list(ROSTER)


def test_who_is_silent_is_waited_for_once():
    machine = bench(rounds=50)
    quorum_after(machine, 1.0)
    machine(Impatience(0))
    for number in range(1, 20):
        quorum_after(machine, 1.0)
        assert machine.state.round == number + 1  # at once


def test_a_quorum_that_is_lost_has_no_patience():
    """Two different votes of one client: neither counts, and the round waits for a quorum again."""
    machine = bench(rounds=50)
    quorum_after(machine, 1.0)
    machine.vote("cy", 2.0)
    machine(Impatience(0))
    assert machine.state.round == 0
    machine.now += 1.0
    assert machine.vote("dan", 1.0) != []
    assert machine.state.round == 1


def test_patience_ends_at_the_deadline():
    machine = bench(rounds=50, deadline=10.0)
    assert Patience(0, 10.0) in quorum_after(machine, 9.0)
    machine.late()
    assert machine.state.round == 1


# A federation by a clock of its own: who is how slow, and who lies how


class Clocked:
    """Clients that take some time for a vote from when they hear of a round, and liars that choose theirs."""

    def __init__(self, honest, liars, rounds, rng=None):
        self.rng = rng
        self.names = MANY[: len(honest) + len(liars)]
        self.honest = dict(zip(self.names, honest, strict=False))
        self.liars = dict(zip(self.names[len(honest) :], liars, strict=True))
        agreed = settings(self.names, deadline=60.0, byzantine=len(liars), rounds=rounds)
        self.machine, self.queue, self.order = Bench(resumed(agreed, 0)), [], count()
        self.busy, self.ends, self.newest = set(), [0.0], -1
        for name in self.names:
            self.after(self.machine.come(name))

    def at(self, seconds, event):
        heapq.heappush(self.queue, (self.machine.now + seconds, next(self.order), event))

    def after(self, effects):
        for effect in effects:
            match effect:
                case Patience(number, seconds):
                    self.at(seconds, Impatience(number))
                case Alarm(number, extension, seconds):
                    self.at(seconds, Deadline(number, extension))
                case Send(stream, Committed(number)):
                    self.vote(stream.client, number + 1)
                case Send(stream, RoundOpen(number)):
                    self.vote(stream.client, number)

    def vote(self, name, number):
        """It begins with its vote; an honest client that is at work on one begins with the newest when it is done."""
        if number > self.newest:
            self.newest = number
            self.ends.append(self.machine.now)
        if name in self.honest and name not in self.busy:
            self.busy.add(name)
            self.at(self.honest[name](), (name, number))
        elif name in self.liars and (seconds := self.liars[name](self)) is not None:
            self.at(seconds, (name, number))

    def play(self, rounds):
        while self.queue and self.machine.state.round < rounds:
            self.machine.now, _, event = heapq.heappop(self.queue)
            if isinstance(event, tuple):
                name, number = event
                event = Received(ClientStream(name), Vote(number, to_wire([[1.0]])))
                self.busy.discard(name)
                if name in self.honest and number < self.newest:
                    self.vote(name, self.newest)
            self.after(self.machine(event))
        return [later - earlier for earlier, later in zip(self.ends[1:], self.ends[2:], strict=False)]

    def shares(self):
        counted = [b.client for d in self.machine.decisions for b in d.ballots if b.verdict == "counted"]
        return {name: counted.count(name) / len(self.machine.decisions) for name in self.names}


LIARS = {
    "silent": lambda _: None,
    "at once": lambda _: 0.0,
    "a moment before patience ends": lambda _: 0.97 * 3.0,
    "a moment after": lambda _: 1.05 * 3.0,
    "before the deadline": lambda _: 59.0,
    "now and then": lambda world: world.rng.choice([0.0, 2.9, 3.1, 30.0]),
}


@pytest.mark.parametrize("lie", LIARS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_liars_slow_a_run_by_a_factor_and_push_nobody_out(lie, seed):
    """Seven honest clients take 0.8 to 1 seconds; a quorum of ten, of which three lie, is seven: patience is 2."""
    rng = random.Random(seed)  # noqa: S311
    world = Clocked([lambda: rng.uniform(0.8, 1.0)] * 7, [LIARS[lie]] * 3, rounds=80, rng=rng)
    assert world.machine.state.who.quorum == 7
    seconds = world.play(80)
    assert len(seconds) >= 78
    slowest = 1.0  # of the seven honest clients that are a quorum
    assert max(seconds[1:]) <= slowest * (1 + 2.0) + 1e-9
    shares = world.shares()
    assert all(shares[name] == 1.0 for name in world.honest), shares


@pytest.mark.parametrize("lie", ["at once", "now and then"])
def test_who_is_not_slower_than_the_factor_counts_in_every_round(lie):
    """With b quick liars a quorum has the q - b quickest honest clients: the others may take three times as long."""
    rng = random.Random(1)  # noqa: S311
    speeds = [1.0] * 4 + [2.9] * 3
    world = Clocked([lambda speed=speed: speed for speed in speeds], [LIARS[lie]] * 3, rounds=60, rng=rng)
    world.play(60)
    shares = world.shares()
    assert all(shares[name] == 1.0 for name in world.honest), shares


def test_a_client_that_is_far_slower_holds_nobody_up_and_counts_again_once_it_is_quick():
    speeds = [lambda: 0.1] * 6 + [lambda: 5.0]
    world = Clocked(speeds, [], rounds=600)
    seconds = world.play(300)
    assert sorted(seconds)[len(seconds) // 2] < 0.2
    assert world.shares()["c06"] < 0.2
    world.honest["c06"] = lambda: 0.1
    world.play(600)
    last = world.machine.decisions[-200:]
    assert all("c06" in {b.client for b in decision.ballots if b.verdict == "counted"} for decision in last)


def test_a_floor_keeps_rounds_of_milliseconds_from_losing_votes_by_chance():
    machine = bench(rounds=50)
    assert Patience(0, FLOOR) in quorum_after(machine, 0.001)
