"""The round machine: `step(state, event)` returns the next state and what is to be done. No clock, no I/O, no model.

A round is decided as soon as everybody it waits for has voted and a quorum is in. It waits for the invited clients
that are present and keep up; at the deadline it stops waiting for those that have not voted. With too few votes by
then the deadline is extended, and the votes that were admitted stand. The commit of a round opens the next one.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from cyber0 import aggregation
from cyber0.errors import InvalidAggregation, InvalidCommit
from cyber0.protocol.admission import Votes, add_late, admit, differing, set_apart
from cyber0.protocol.arrival import DIVERGED, arrive, farewell, leave
from cyber0.protocol.decide import decide
from cyber0.protocol.events import (
    Alarm,
    Arrived,
    ClientStream,
    Deadline,
    Effect,
    Evaluated,
    Event,
    Left,
    Notice,
    Received,
    Record,
    Send,
)
from cyber0.protocol.messages import Committed, Evaluation, Rejection, RoundOpen, Vote
from cyber0.protocol.records import Ballot, Decision, to_wire
from cyber0.protocol.state import Founded, State, Transition, begin, resume

__all__ = ["Founded", "State", "begin", "resume", "step"]


def step(state: State, event: Event) -> Transition:
    """Return the state after an event, and the effects, to be executed in this order.

    >>> from cyber0.config import RunConfig
    >>> from cyber0.protocol.messages import Hello
    >>> from cyber0.protocol.settings import Settings
    >>> alice = ClientStream("alice")
    >>> state = begin(Settings.of(RunConfig(clients=1, byzantine=0, rule="mean", directions=1), ("alice",)))
    >>> state, _ = step(state, Arrived(alice, Hello("alice", bytes(32), bytes(32))))
    >>> state, effects = step(state, Received(alice, Vote(0, bytes(4))))
    >>> [type(effect).__name__ for effect in effects], state.round
    (['Record', 'Send', 'Alarm'], 1)
    """
    match event:
        case Arrived():
            state, effects = arrive(state, event)
        case Left(stream):
            state, effects = leave(state, stream), []
        case Received(stream, message):
            state, effects = _receive(state, stream, message)
        case Deadline(number, extension):
            if (number, extension) != (state.round, state.extension):
                return state, []  # that round is decided
            return _at_deadline(state)
    return _decide_if_complete(state, effects)


def _receive(state: State, stream: ClientStream, message: Vote | Evaluation) -> Transition:
    if state.founded is None or not state.is_current(stream):
        return state, []
    if isinstance(message, Evaluation):
        evaluates = state.present[stream.client].hello.evaluates
        return state, [Evaluated(stream.client, message)] if evaluates else []
    if message.round < state.round:
        return _late(state, stream, message)
    if reason := _reason_to_reject(state, stream.client, message):
        return state, [Send(stream, Rejection(message.round, "rejected", reason, replay=reason == DIVERGED))]
    return _vote(state, stream, message)


def _reason_to_reject(state: State, client: str, vote: Vote) -> str:
    if vote.round > state.round or state.is_finished:
        return f"round {vote.round} is not open: {state.round} rounds are decided"
    if client not in state.settings.voters(vote.round):
        return f"it is not invited to round {vote.round}"
    return DIVERGED if client in state.diverged else ""


def _vote(state: State, stream: ClientStream, vote: Vote) -> Transition:
    client = stream.client
    votes = admit(state.votes, client, vote, state.settings.vote_bytes)
    state, before = replace(state, votes=votes, awaited=state.awaited | {client}), state.votes
    if client in votes.excluded and client not in before.excluded:
        return state, _rejection(stream, vote.round, votes.ballots(client)[-1])
    return state, []


def _late(state: State, stream: ClientStream, vote: Vote) -> Transition:
    """Take a vote for a decided round. It shows that the client keeps up, so the open round waits for it."""
    client, last = stream.client, state.round - 1
    if vote.round < last or client in state.diverged or client not in state.settings.voters(last):
        return state, []
    state, voted = replace(state, awaited=state.awaited | {client}, voted=state.voted | {client}), state.voted
    if client in voted or len(vote.scalars) != state.settings.vote_bytes:
        return state, []
    votes = add_late(state.votes, client, vote)
    return replace(state, votes=votes), _rejection(stream, last, votes.late[client])


def _rejection(stream: ClientStream, number: int, ballot: Ballot) -> list[Effect]:
    text = f"round {number}: the vote of {stream.client} does not count ({ballot.verdict}: {ballot.reason})"
    return [Send(stream, Rejection(number, ballot.verdict, ballot.reason, ballot.reason == DIVERGED)), Notice(text)]


def _at_deadline(state: State) -> Transition:
    """At the deadline, decide without those who have not voted; if that is not possible, extend it."""
    laggards = _waited_for(state)
    missed = {**state.missed, **{client: state.missed.get(client, 0) + 1 for client in laggards}}
    alone = replace(state, awaited=state.awaited - laggards, missed=missed, gathering=False, tried=frozenset())
    settled, effects = _decide_if_complete(alone, [])
    return (settled, effects) if settled.round > state.round else _extend(settled, effects)


def _waited_for(state: State) -> frozenset[str]:
    """Return whose votes the round waits for.

    A client that missed m deadlines is waited for in one round of 2**m, so that no liar can delay every round.
    """
    excused = {client for client, times in state.missed.items() if state.round % 2**times}
    missing = state.awaited - state.votes.counted.keys() - state.votes.excluded - excused
    return missing.intersection(state.settings.voters(state.round)) if missing else missing


def _extend(state: State, effects: list[Effect]) -> Transition:
    settings, extension = state.settings, (state.extension or 0) + 1
    missing = set(settings.voters(state.round)) - state.votes.counted.keys() - state.votes.excluded
    effects += [Send(event.stream, RoundOpen(state.round)) for name, event in state.present.items() if name in missing]
    have = f"{len(state.votes.counted)} votes of at least {settings.quorum}"
    effects.append(Notice(f"round {state.round}: {have} at the deadline, which is extended"))
    effects.append(Alarm(state.round, extension, settings.seconds(extension)))
    return replace(state, extension=extension), effects


def _decide_if_complete(state: State, effects: list[Effect]) -> Transition:
    """Decide the open round if all votes that it waits for are in."""
    if not _is_complete(state):
        return state, effects
    state, found = _compare(state)
    effects += found
    if not _is_complete(state):
        return state, effects
    try:
        decision, memory = _decision(state)
    except (InvalidAggregation, InvalidCommit) as error:
        tried = frozenset(state.votes.counted)
        return replace(state, tried=tried), [*effects, Notice(f"round {state.round} cannot be decided: {error}")]
    return _commit(replace(state, memory=memory), decision, effects)


def _is_complete(state: State) -> bool:
    """Return whether a quorum of votes is in, and the vote of everybody the round waits for."""
    counted = state.votes.counted
    if len(counted) < state.settings.quorum or state.gathering or state.is_finished:
        return False
    if state.tried and state.tried == frozenset(counted):
        return False
    return not _waited_for(state)


def _compare(state: State) -> Transition:
    """Reject the votes of clients whose weights differ from the majority's."""
    apart = frozenset[str]()
    if state.round % state.settings.fingerprint_every == 0:
        apart = differing(state.votes.fingerprints)
    if apart is None:
        return state, [Notice(f"round {state.round}: the clients' weights differ, and no majority agrees")]
    effects: list[Effect] = []
    for client in sorted(apart):
        votes = set_apart(state.votes, client, DIVERGED)
        state = replace(state, votes=votes, diverged=state.diverged | {client}, awaited=state.awaited - {client})
        if client in state.present:
            effects += _rejection(state.present[client].stream, state.round, votes.ballots(client)[-1])
    return state, effects


def _decision(state: State) -> tuple[Decision, Any]:
    """Return what the rule makes of the votes, in roster order, and its memory after that."""
    settings, counted = state.settings, state.votes.counted
    values = b"".join(counted[name].values or b"" for name in settings.roster if name in counted)
    votes = np.frombuffer(values, dtype="<f4").reshape(len(counted), settings.plan.rows, -1).swapaxes(0, 1)
    scalars = decide(settings.rule, votes, settings.agreement.byzantine, state.memory)
    settings.plan.commit(state.round, scalars)  # refuses what no model could apply
    ballots = (ballot for name in settings.roster for ballot in state.votes.ballots(name))
    memory = aggregation.after(settings.rule, state.memory, scalars)
    return Decision(state.round, to_wire(scalars), tuple(ballots)), memory


def _commit(state: State, decision: Decision, effects: list[Effect]) -> Transition:
    commit, links = Committed(decision.round, decision.scalars), [event.stream for event in state.present.values()]
    effects += [Record(decision), *(Send(stream, commit) for stream in links)]
    voted = frozenset(state.votes.counted) | frozenset(state.votes.judged)
    state = replace(state, round=state.round + 1, votes=Votes(), voted=voted, extension=0, tried=frozenset())
    if state.is_finished:
        bye = farewell(state)
        return replace(state, extension=None), [*effects, *(Send(stream, bye) for stream in links), Notice(bye.reason)]
    return state, [*effects, Alarm(state.round, 0, state.settings.seconds(0))]
