"""The round machine under any sequence of events, against a small model."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.protocol.bench import ROSTER, Bench, resumed, settings

from cyber0.protocol.events import (
    ClientStream,
    Deadline,
    Left,
    Record,
    Send,
)
from cyber0.protocol.messages import Committed

LAST = 4


class AgainstAModel(RuleBasedStateMachine):
    """The machine, and beside it a few sets and dictionaries that say what it should have done."""

    names = st.sampled_from(ROSTER)
    values = st.sampled_from([-2.0, 0.0, 1.0, 5.0, float("nan")])

    @initialize(commits=st.integers(0, 2))
    def start(self, commits):
        self.machine = Bench(resumed(settings(rounds=LAST), commits))
        self.round, self.commits, self.gathering, self.extension = commits, [], True, None
        self.here, self.keeping_up = {}, set()
        self.votes, self.excluded, self.missed = {}, set(), dict.fromkeys(ROSTER, 0)

    def settle(self):
        if len(self.votes) < 3 or self.waited_for() or self.round == LAST or self.gathering:
            return
        self.commits.append(float(np.median(sorted(self.votes.values()))))
        self.round += 1
        self.extension = 0 if self.round < LAST else None
        self.votes, self.excluded = {}, set()

    def waited_for(self):
        missing = self.keeping_up - self.votes.keys() - self.excluded
        return {name for name in missing if self.round % 2 ** self.missed[name] == 0}

    @rule(name=names, stream=st.integers(0, 1), commits=st.integers(0, 7))
    def come(self, name, stream, commits):
        self.machine.come(name, stream=stream, commits=commits)
        if commits > self.round:
            self.gone(name, stream)
        else:
            self.here[name] = stream
            self.keeping_up.discard(name)
            if commits == self.round:
                self.keeping_up.add(name)
            self.gathering = self.gathering and len(self.here) < 4
            if self.extension is None and self.round < LAST:
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
        if self.here.get(name) != stream or self.round == number == LAST:
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

    @precondition(lambda self: self.extension is not None)
    @rule(stale=st.booleans())
    def deadline(self, stale):
        self.machine(Deadline(self.round, self.extension + stale))
        if stale:
            return
        before, self.gathering, laggards = self.round, False, self.waited_for()
        self.keeping_up -= laggards
        for name in laggards:
            self.missed[name] += 1
        self.settle()
        if self.round == before:
            self.extension += 1

    @invariant()
    def agrees(self):
        state = self.machine.state
        assert state.round == self.round
        assert self.machine.commits == self.commits
        assert set(state.votes.counted) == set(self.votes)
        assert {name: event.stream.number for name, event in state.present.items()} == self.here
        assert state.extension == self.extension

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
