"""The round machine: `step(state, event)` returns the next state and what is to be done. No clock, no I/O, no model.

A round is decided as soon as everybody it waits for has voted and a quorum is in. It waits for the invited clients
that are present and keep up: once a quorum is in, for some times as long as quorums took lately. Who has not voted by
then is not waited for until a vote of its comes again. With too few votes at the deadline it is extended, and the votes
that were admitted stand. The commit of a round opens the next one.

A vote counts if its client has signed it on the link of its round. Changes of the roster are written with the next
round that is decided, and are in force from the second round after it on.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from immutables import Map

from cyber0 import aggregation
from cyber0.errors import Cyber0Error, InvalidAggregation, InvalidCommit, InvalidRoster
from cyber0.protocol.admission import Votes, add_late, admit, differing, set_apart, without
from cyber0.protocol.arrival import DIVERGED, REPLACED, REVOKING, arrive, farewell, found, keys_of, leave
from cyber0.protocol.chain import advance
from cyber0.protocol.decide import decide
from cyber0.protocol.events import (
    Alarm,
    Arrived,
    ClientStream,
    Deadline,
    Effect,
    Evaluated,
    Event,
    HangUp,
    Impatience,
    Left,
    Notice,
    Patience,
    Proposed,
    Received,
    Record,
    Send,
)
from cyber0.protocol.messages import Bye, Committed, Evaluation, Recalled, Rejection, RoundOpen, Vote
from cyber0.protocol.records import Ballot, Decision, to_wire
from cyber0.protocol.recovery import go_on, overdue, shown, withheld
from cyber0.protocol.roster import Change, Roster, changes_to_bytes
from cyber0.protocol.state import State, Transition, begin, resume

PACE = 9  # rounds whose median time to a quorum is the pace of a run

__all__ = ["State", "begin", "resume", "step", "with_proposed"]


def step(state: State, event: Event, now: float = 0.0) -> Transition:
    """Return the state after an event, and the effects, to be executed in this order.

    `now` is the time of the event in seconds, by any clock that does not jump.

    >>> from cyber0.config import RunConfig
    >>> from cyber0.protocol.messages import Hello
    >>> from cyber0.protocol.settings import Settings
    >>> from cyber0.protocol.signing import encoded, new_key
    >>> alice, key = ClientStream("alice"), encoded(new_key().public_key())
    >>> state = begin(Settings.of(RunConfig(clients=1, byzantine=0, rule="mean", directions=1), ("alice",)))
    >>> state, _ = step(state, Arrived(alice, Hello("alice", bytes(32), bytes(32), key=key)))
    >>> state, effects = step(state, Received(alice, Vote(0, bytes(4))))
    >>> [type(effect).__name__ for effect in effects], state.round
    (['Record', 'Send', 'Alarm'], 1)
    """
    match event:
        case Arrived():
            state, effects = arrive(state, event)
        case Left(stream):
            state, effects = leave(state, stream), []
        case Received():
            state, effects = _receive(state, event)
        case Proposed(changes):
            state, effects = _propose(state, changes)
        case Deadline(number, extension):
            if (number, extension) != (state.round, state.extension):
                return state, []  # that round is decided
            return found(state) if state.identity is None else _at_deadline(state, now)
        case Impatience(number):
            return _out_of_patience(state, now) if number == state.round else (state, [])
    return _decide_if_complete(state, effects, now)


def _receive(state: State, event: Received) -> Transition:
    stream, message = event.stream, event.message
    if isinstance(message, Recalled):
        return shown(state, stream, message)
    if state.identity is None or not state.is_current(stream):
        return state, []
    if isinstance(message, Evaluation):
        evaluates = state.present[stream.client].hello.evaluates
        return state, [Evaluated(stream.client, message)] if evaluates else []
    behind = state.round - message.round
    if behind > 1:
        return state, []
    if reason := _reason_to_reject(state, event, message):
        return state, [Send(stream, Rejection(message.round, "rejected", reason, replay=reason == DIVERGED))]
    return _late(state, stream, message) if behind else _vote(state, stream, message)


def _reason_to_reject(state: State, event: Received, vote: Vote) -> str:
    """Return why a vote is not even recorded; an empty text if it is."""
    client, number, who = event.stream.client, state.round, state.who
    if vote.round > number or (vote.round == number and number >= who.last):
        return f"round {vote.round} is not open: {number} rounds are decided"
    if not event.signed:
        if who.key(client) != state.present[client].hello.key:
            return "its key is not in the chain yet: it counts two rounds after it has come"
        return f"it is not signed by {client} on the link after {vote.round} rounds"
    if vote.round == number and not state.settings.is_invited(client, number, who):
        return f"it is not invited to round {number}"
    return DIVERGED if client in state.diverged else ""


def _propose(state: State, changes: tuple[Change, ...]) -> Transition:
    """Take changes of the roster, to be written with the open round; a client that is revoked is cut off at once."""
    try:
        proposed = with_proposed(state, changes)
    except Cyber0Error as error:
        return state, [Notice(f"the roster stays as it is: {error}", level="warning")]
    gone = {change.name for change in changes if change.kind == "revoke"}
    effects: list[Effect] = [Notice(f"{change.text}: in force two rounds after it is written") for change in changes]
    for client in sorted(name for name in gone if name in state.present):
        stream = state.present[client].stream
        effects.append(HangUp(stream, REVOKING))
        state = leave(state, stream)
    return state.but(proposed=proposed, revoked=state.revoked | gone), effects


def with_proposed(state: State, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Return all changes that are to be written with the open round if these are, with the quorum that they make.

    Raise `InvalidRoster` if they cannot be made, alone or together with those that others asked for in this round.
    """
    if state.identity is None or state.roster is None:
        raise InvalidRoster("the roster cannot be changed before the run is founded: ask again when it has begun")
    if state.is_finished:
        raise InvalidRoster(f"all {state.who.last} rounds are decided: nothing can be written to this run any longer")
    plain = tuple(change for change in (*state.proposed, *changes) if change.kind != "quorum")
    state.roster.check(plain)
    later = state.roster.in_force()
    names = [*later.names, *(c.name for c in plain if c.kind == "admit" and c.name not in later.places)]
    clients = len(names) - sum(change.kind == "revoke" for change in plain)
    byzantine = next((c.number for c in reversed(plain) if c.kind == "byzantine"), later.byzantine)
    quorum = state.settings.quorum_of(clients, byzantine)
    completed = plain if quorum == later.quorum else (*plain, Change("quorum", number=quorum))
    state.roster.check(completed)
    return completed


def _vote(state: State, stream: ClientStream, vote: Vote) -> Transition:
    client = stream.client
    votes = admit(state.votes, client, vote, state.settings.vote_bytes)
    state, before = state.with_awaited(client), state.votes
    state = state.but(votes=votes, waiting=without(state.waiting, client))
    if client in votes.excluded and client not in before.excluded:
        return state, _rejection(stream, vote.round, votes.ballots(client)[-1])
    return state, []


def _late(state: State, stream: ClientStream, vote: Vote) -> Transition:
    """Take a vote for the round before. It shows that the client keeps up, so the open round waits for it."""
    client = stream.client
    state, unheard = state.with_awaited(client).but(unheard=without(state.unheard, client)), state.unheard
    if client not in unheard or len(vote.scalars) != state.settings.vote_bytes:
        return state, []
    votes = add_late(state.votes, client, vote)
    return state.but(votes=votes), _rejection(stream, vote.round, votes.late[client])


def _rejection(stream: ClientStream, number: int, ballot: Ballot) -> list[Effect]:
    text = f"round {number}: the vote of {stream.client} does not count ({ballot.verdict}: {ballot.reason})"
    notice = Notice(text, stream.client, "info" if ballot.verdict == "late" else "warning")
    return [Send(stream, Rejection(number, ballot.verdict, ballot.reason, ballot.reason == DIVERGED)), notice]


def _at_deadline(state: State, now: float) -> Transition:
    """At the deadline, decide without those who have not voted; if that is not possible, extend it."""
    number = state.round
    state, effects = overdue(state)
    gathering = state.gathering and not state.has_heard
    alone = state.without_awaited(state.waiting).but(gathering=gathering, tried=frozenset())
    settled, effects = _decide_if_complete(alone, effects, now)
    if settled.round > number or settled.ahead or settled.is_finished:
        return settled, effects
    return _extend(settled, effects)


def _out_of_patience(state: State, now: float) -> Transition:
    """Decide without those who have not voted, if the quorum is still there; they count again once they are in time."""
    if len(state.votes.counted) < state.who.quorum:
        return state.but(took=None), []  # a vote turned out not to count: the next quorum has its own patience
    return _decide_if_complete(state.without_awaited(state.waiting), [], now)


def _note_quorum(state: State, effects: list[Effect], now: float) -> Transition:
    """Note how long the open round took to have a quorum, and how long it waits for others from then on."""
    if state.took is not None or len(state.votes.counted) < state.who.quorum or state.gathering or state.is_finished:
        return state, effects
    took = max(0.0, now - state.opened)
    state = state.but(took=took)
    if state.waiting:
        effects.append(Patience(state.round, state.settings.patient((*state.pace, took))))
    return state, effects


def _extend(state: State, effects: list[Effect]) -> Transition:
    settings, extension = state.settings, (state.extension or 0) + 1
    heard = (state.votes.counted, state.votes.excluded)
    missing = [name for name in state.voters if name in state.present and all(name not in group for group in heard)]
    effects += [Send(state.present[name].stream, RoundOpen(state.round)) for name in missing]
    have = f"{len(state.votes.counted)} votes of at least {state.who.quorum}"
    text = withheld(state) or f"round {state.round}: {have} at the deadline, which is extended"
    effects.append(Notice(text, level="error" if state.round < state.bound else "warning"))
    effects.append(Alarm(state.round, extension, settings.seconds(extension)))
    return state.but(extension=extension), effects


def _decide_if_complete(state: State, effects: list[Effect], now: float) -> Transition:
    """Decide the open round if all votes that it waits for are in, and nothing is to come back that was lost."""
    if state.ahead or state.moved:
        state, effects = go_on(state, effects)
    state, effects = _note_quorum(state, effects, now)
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
        notice = Notice(f"round {state.round} cannot be decided: {error}", level="error")
        return state.but(tried=tried), [*effects, notice]
    return _commit(state.but(memory=memory), decision, effects, now)


def _is_complete(state: State) -> bool:
    """Return whether a quorum of votes is in, and the vote of everybody the round waits for."""
    counted = state.votes.counted
    if len(counted) < state.who.quorum or state.gathering or state.is_finished:
        return False
    if state.ahead or state.round < state.bound:  # what it has signed before must come back first
        return False
    if state.tried and state.tried == frozenset(counted):
        return False
    return not state.waiting


def _compare(state: State) -> Transition:
    """Reject the votes of clients whose weights differ from the majority's."""
    apart = frozenset[str]()
    if state.round % state.settings.fingerprint_every == 0:
        apart = differing(state.votes.fingerprints)
    if apart is None:
        text = f"round {state.round}: the clients' weights differ, and no majority agrees"
        return state, [Notice(text, level="error")]
    effects: list[Effect] = []
    for client in sorted(apart):
        votes = set_apart(state.votes, client, DIVERGED)
        state = state.but(votes=votes, diverged=state.diverged | {client}).without_awaited([client])
        if client in state.present:
            effects += _rejection(state.present[client].stream, state.round, votes.ballots(client)[-1])
    return state, effects


def _decision(state: State) -> tuple[Decision, Any]:
    """Return what the rule makes of the votes, in roster order, and its memory after that."""
    settings, roster, counted = state.settings, state.who, state.votes.counted
    own = [counted.get(name) for name in roster.names]
    values = b"".join([ballot.values or b"" for ballot in own if ballot is not None])
    votes = np.frombuffer(values, dtype="<f4").reshape(len(counted), settings.plan.rows, -1).swapaxes(0, 1)
    scalars = decide(settings.rule, votes, roster.byzantine, state.memory)
    settings.plan.commit(state.round, scalars)  # refuses what no model could apply
    ballots: Iterable[Ballot]
    if state.votes.judged or state.votes.late:
        ballots = (ballot for name in roster.names for ballot in state.votes.ballots(name))
    else:
        ballots = (ballot for ballot in own if ballot is not None)
    memory = aggregation.after(settings.rule, state.memory, scalars)
    return Decision(state.round, to_wire(scalars), tuple(ballots), state.proposed), memory


def _commit(state: State, decision: Decision, effects: list[Effect], now: float) -> Transition:
    roster = (state.roster or state.who).after(decision.changes)
    head = advance(state.head, decision, roster)
    hashed, changes = decision.ballots_hash, changes_to_bytes(decision.changes)
    moved = b"" if roster is state.roster else roster.digest
    commit = Committed(decision.round, decision.scalars, hashed, changes=changes, roster=moved)
    streams = [event.stream for event in state.present.values()]
    effects += [Record(decision, head), *(Send(stream, commit) for stream in streams)]
    counted, judged, previous = state.votes.counted, state.votes.judged, state.head.link or b""
    unheard = Map({name: None for name in state.who.names if name not in counted and name not in judged})
    pace = (*state.pace, state.took or 0.0)[-PACE:]
    state = state.but(head=head, previous=previous, votes=Votes(), unheard=unheard, extension=0, tried=frozenset())
    state = state.but(fresh=False) if state.fresh else state
    state, cut = _in_force(state, roster)
    state = state.but(pace=pace).opening(now)
    effects += cut
    if state.is_finished:
        bye = farewell(state)
        ends = [Send(event.stream, bye) for event in state.present.values()]
        return state.but(extension=None), [*effects, *ends, Notice(bye.reason)]
    return state, [*effects, Alarm(state.round, 0, state.settings.seconds(0))]


def _in_force(state: State, roster: Roster) -> Transition:
    """Return the state with the roster of the next round: who is gone, or has an old key, is not waited for."""
    if roster is state.roster:
        return state, []
    revoked = frozenset(change.name for change in roster.pending if change.kind == "revoke")
    rekeyed = {n for n, event in state.present.items() if roster.key(n) == event.hello.key != state.who.key(n)}
    awaited = (state.awaited | rekeyed) & roster.places.keys()
    unheard = state.unheard
    for client in rekeyed:
        unheard = without(unheard, client)
    state = state.but(awaited=frozenset(awaited), revoked=revoked, unheard=unheard)
    state, effects = state.but(roster=roster, proposed=()), list[Effect]()
    for client, event in state.present.items():
        if event.hello.key not in keys_of(state, client):
            effects += [Send(event.stream, Bye(REPLACED, final=True)), HangUp(event.stream, REPLACED)]
            state = leave(state, event.stream)
    return state, effects
