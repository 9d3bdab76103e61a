"""The round machine under any sequence of events, changes of the roster among them, against a small model."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.protocol.bench import KEYS, ROSTER, Bench, resumed, settings

from cyber0.protocol.events import (
    ClientStream,
    Deadline,
    Impatience,
    Left,
    Patience,
    Proposed,
    Record,
    Send,
)
from cyber0.protocol.machine import resume
from cyber0.protocol.messages import Committed
from cyber0.protocol.roster import Change

LAST = 4
NAMES = (*ROSTER, "eve", "fay")


def quorum(clients):
    """More than half of the clients and the liar, where the honest alone can reach that; else 2b + 1."""
    final = (clients + 1) // 2 + 1
    return final if clients - 1 >= final else 3


def made(names, changes):
    """The names after some changes."""
    revoked = {change.name for change in changes if change.kind == "revoke"}
    return {*names} - revoked | {change.name for change in changes if change.kind == "admit"}


class AgainstAModel(RuleBasedStateMachine):
    """The machine, and beside it a few sets and dictionaries that say what it should have done."""

    names = st.sampled_from(NAMES)
    values = st.sampled_from([-2.0, 0.0, 1.0, 5.0, float("nan")])

    @initialize(commits=st.integers(0, 2))
    def start(self, commits):
        self.machine = Bench(resumed(settings(rounds=LAST), commits))
        self.round, self.commits, self.gathering, self.extension = commits, [], True, None
        self.here, self.keeping_up, self.heard = {}, set(), set()
        self.votes, self.excluded = {}, set()
        self.roster, self.pending, self.proposed, self.last = set(ROSTER), [], [], LAST
        self.first = self.machine.state.roster

    def settle(self):
        few = len(self.votes) < quorum(len(self.roster))
        if few or self.waited_for() or self.round == self.last or self.gathering:
            return
        self.commits.append(float(np.median(sorted(self.votes.values()))))
        self.round += 1
        before, self.roster = self.roster, made(self.roster, self.pending)
        self.pending, self.proposed = self.proposed, []
        self.keeping_up = (self.keeping_up | (self.roster - before) & self.here.keys()) & self.roster
        self.last = max(self.last, *(change.number for change in self.pending), 0)
        self.extension = 0 if self.round < self.last else None
        self.votes, self.excluded = {}, set()

    @property
    def revoked(self):
        return {change.name for change in (*self.pending, *self.proposed) if change.kind == "revoke"}

    @precondition(lambda self: self.round < self.last)
    @rule(name=names, kind=st.sampled_from(["admit", "revoke"]))
    def change(self, name, kind):
        change = Change(kind, name, KEYS[name] if kind == "admit" else b"")
        later, revoked = made(self.roster, self.pending), [c for c in self.proposed if c.kind == "revoke"]
        may = (name in later) == (kind == "revoke") and name not in {c.name for c in self.proposed}
        if kind == "revoke":
            leaving = len(self.revoked | {name})
            may = may and len(revoked) < len(later) - quorum(len(later))
            may = may and leaving <= len(self.roster) - quorum(len(self.roster))
        self.propose(change, may)
        if may and kind == "revoke":
            self.gone(name, self.here.get(name, -1))
        self.settle()

    @precondition(lambda self: self.round < self.last)
    @rule(number=st.integers(LAST - 1, LAST + 2))
    def extend(self, number):
        most = max(self.last, *(change.number for change in self.proposed), 0)
        self.propose(Change("extend", number=number), number > most)
        self.settle()

    def propose(self, change, may):
        before = self.machine.state
        self.machine(Proposed((change,)))
        if may:
            self.proposed.append(change)
        else:
            assert self.machine.state == before

    @rule()
    def federator_dies(self):
        state, effects = self.machine.state, self.machine.effects
        self.machine = Bench(resume(state.settings, state.identity, state.head, state.roster, state.previous))
        self.machine.effects = effects
        self.here, self.keeping_up, self.votes, self.excluded, self.proposed = {}, set(), {}, set(), []
        self.gathering, self.extension, self.heard = True, None, set()

    def has_heard(self):
        return len(self.heard & self.roster) >= quorum(len(self.roster))

    def waited_for(self):
        return self.keeping_up - self.votes.keys() - self.excluded

    @rule(name=names, stream=st.integers(0, 1), commits=st.integers(0, 7))
    def come(self, name, stream, commits):
        self.machine.come(name, stream=stream, commits=commits)
        known = name in self.roster | made(self.roster, self.pending) and name not in self.revoked
        if commits > self.round or not known:
            self.gone(name, stream)
        else:
            self.here[name] = stream
            self.keeping_up.discard(name)
            if commits == self.round and name in self.roster:
                self.keeping_up.add(name)
            self.gathering = self.gathering and not self.roster <= self.here.keys() | self.revoked
            begins = self.gathering and not self.has_heard()
            self.heard |= {name} if begins else set()
            if self.extension is None and self.round < self.last:
                self.extension = 0
        self.settle()

    @rule(name=names, stream=st.integers(0, 1))
    def leave(self, name, stream):
        self.machine(Left(ClientStream(name, stream)))
        self.gone(name, stream)
        self.settle()

    def gone(self, name, stream):
        if self.here.get(name) == stream:
            del self.here[name]
            self.keeping_up.discard(name)

    @rule(name=names, stream=st.just(0) | st.integers(0, 1), value=values, back=st.sampled_from([0, 0, 0, 1, 2, -1]))
    def vote(self, name, stream, value, back):
        number = max(0, self.round - back)
        self.machine.vote(name, value, number=number, stream=stream)
        if self.here.get(name) != stream or self.round == number == self.last or name not in self.roster:
            return
        if number == self.round:
            self.cast(name, value)
        if number in (self.round, self.round - 1):
            self.keeping_up.add(name)
        self.settle()

    def cast(self, name, value):
        if name in self.excluded:
            return
        if (name in self.votes and self.votes[name] != value) or np.isnan(value):
            self.votes.pop(name, None)
            self.excluded.add(name)
        else:
            self.votes[name] = value

    @rule(name=names, value=st.sampled_from([0.0, 1.0]))
    def comes_and_votes(self, name, value):
        self.come(name, 0, self.round)
        self.vote(name, 0, value, 0)

    @rule(value=st.sampled_from([0.0, 1.0]), more=st.sampled_from([(), ("eve",)]))
    def all_come_and_vote(self, value, more):
        for name in (*sorted(self.roster - self.revoked), *more):
            self.comes_and_votes(name, value)

    @precondition(lambda self: self.extension is not None)
    @rule(stale=st.booleans())
    def deadline(self, stale):
        self.machine(Deadline(self.round, self.extension + stale))
        if stale:
            return
        before, self.gathering, laggards = self.round, self.gathering and not self.has_heard(), self.waited_for()
        self.keeping_up -= laggards
        self.settle()
        if self.round == before:
            self.extension += 1

    @rule(back=st.integers(0, 1))
    def impatience(self, back):
        """The time after the quorum is over, or was that of the round before."""
        self.machine(Impatience(self.round - back))
        if not back and len(self.votes) >= quorum(len(self.roster)):
            self.keeping_up -= self.waited_for()
            self.settle()

    @invariant()
    def a_round_that_waits_for_others_after_its_quorum_does_so_for_a_time(self):
        state = self.machine.state
        if len(self.votes) >= quorum(len(self.roster)) and not self.gathering and self.round < self.last:
            assert state.took is not None
            assert Patience in {type(effect) for effect in self.machine.effects} or not self.waited_for()

    @invariant()
    def agrees(self):
        state = self.machine.state
        assert state.round == self.round
        assert self.machine.commits == self.commits
        assert set(state.votes.counted) == set(self.votes)
        assert set(state.waiting) == self.waited_for() & self.roster
        assert {name: event.stream.number for name, event in state.present.items()} == self.here
        assert state.extension == self.extension
        assert (set(state.who.names), state.who.last) == (self.roster, self.last)
        assert state.who.quorum == quorum(len(self.roster))

    @invariant()
    def changes_are_in_force_two_rounds_after_they_are_recorded_and_no_sooner(self):
        names, pending, roster = set(ROSTER), (), self.first
        for effect in self.machine.of(Record):
            assert {ballot.client for ballot in effect.decision.ballots} <= names
            roster.check(effect.decision.changes)  # as every client does
            roster = roster.after(effect.decision.changes)
            names, pending = made(names, pending), effect.decision.changes
            assert set(roster.names) == names
        assert self.machine.state.roster == roster

    @invariant()
    def every_commit_is_recorded_once_and_before_it_is_sent(self):
        recorded = []
        for effect in self.machine.effects:
            if isinstance(effect, Record):
                recorded.append(effect.decision.round)
            if isinstance(effect, Send) and isinstance(effect.message, Committed):
                assert effect.message.round == recorded[-1]
        assert recorded == sorted(set(recorded))


TestAgainstAModel = AgainstAModel.TestCase
