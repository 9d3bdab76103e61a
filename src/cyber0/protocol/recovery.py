"""A federator whose ledger was restored from a backup gets back from its clients the commits that it has lost.

A client that holds more commits than the ledger proves it in its Hello, by the federator's own signature of its last
link. It is asked for what is missing: the longest chain first, another client if that one does not answer by the
deadline. What it shows must follow the ledger's head and end in a link that this federator has signed itself; then it
is written down. All this is over before the first link is signed after a start: so a federator that lost rounds does
not decide them a second time, and never signs a link after as many rounds as it has seen a signature of its own for.
"""

from dataclasses import replace

from immutables import Map

from cyber0 import aggregation
from cyber0.errors import Cyber0Error
from cyber0.protocol.admission import Votes
from cyber0.protocol.arrival import arrive, refused
from cyber0.protocol.catching_up import Position, Step, follow
from cyber0.protocol.events import Adopt, Alarm, Arrived, ClientStream, Effect, Notice, Send
from cyber0.protocol.messages import CatchUp, Recall, Recalled
from cyber0.protocol.records import Decision, from_wire
from cyber0.protocol.state import State, Transition

__all__ = ["go_on", "overdue", "shown", "withheld"]


def go_on(state: State, effects: list[Effect]) -> Transition:
    """Ask the client that holds most for what the ledger lacks; once nobody holds more, welcome all who wait."""
    longer = [event for event in state.ahead.values() if event.hello.commits > state.round]
    if longer and state.asked is None:
        return _ask(state, longer, effects)
    if longer or not (state.ahead or state.moved):
        return state, effects
    waiting = [*state.present.values(), *state.ahead.values()]
    if state.moved:
        effects.append(
            Notice(f"clients have given back what was lost: {state.round} rounds are decided", level="warning")
        )
    state = state.but(ahead={}, asked=None, moved=False, present=Map(), awaited=frozenset(), waiting=Map())
    state = state.but(extension=None)
    for event in waiting:
        state, more = arrive(state, event)
        effects += more
    return state, effects


def _ask(state: State, longer: list[Arrived], effects: list[Effect]) -> Transition:
    """Ask the client with the longest chain; one that has not answered before comes last."""
    best = max(longer, key=lambda event: (event.stream.client not in state.silent, event.hello.commits))
    extension = state.extension or 0
    state = state.but(asked=best.stream, extension=extension)
    return state, [
        *effects,
        Send(best.stream, Recall(state.round)),
        Alarm(state.round, extension, state.settings.seconds(0)),
    ]


def shown(state: State, stream: ClientStream, message: Recalled) -> Transition:
    """Take commits that a client was asked for, if they are what this federator has signed; otherwise refuse it."""
    event = next((event for event in state.ahead.values() if event.stream == stream), None)
    if event is None or stream != state.asked or state.identity is None or state.roster is None:
        return state, []
    if message.first != state.round or not message.scalars or not message.ballots:
        return _drop(state, event, f"it cannot show the commits that it holds from round {state.round} on")
    position = Position(state.identity, state.head, state.roster)
    commits = CatchUp(message.first, message.scalars, message.ballots, message.signature, message.changes)
    try:
        _, steps = follow(position, commits)
        state = _after(state, steps)
    except Cyber0Error:
        said = (
            f"what it shows from round {state.round} on does not follow the ledger, or this federator did not sign it"
        )
        return _drop(state, event, said, final=True)
    decisions = ((Decision(s.round, s.scalars, (), s.changes, s.ballots), s.after.signature) for s in steps)
    rounds = f"{steps[0].round} to {steps[-1].round}" if len(steps) > 1 else f"{steps[0].round}"
    text = f"{event.stream.client} gives back the commits of rounds {rounds}: their votes are lost"
    return state, [Adopt(tuple(decisions)), Notice(text, event.stream.client, "warning")]


def _after(state: State, steps: list[Step]) -> State:
    """Return the state after rounds that were decided before: no vote for them counts any longer."""
    last, memory, rule = steps[-1], state.memory, state.settings.rule
    if isinstance(rule.rule, aggregation.RuleWithMemory):
        for step in steps:
            memory = aggregation.after(rule, memory, from_wire(step.scalars, state.settings.plan.rows))
    links = {step.after.head.rounds: step.after.head.link or b"" for step in steps}
    ahead = {
        client: replace(event, head=links.get(event.hello.commits, event.head)) for client, event in state.ahead.items()
    }
    head, roster = last.after.head, last.after.roster
    revoked = frozenset(change.name for change in roster.pending if change.kind == "revoke")
    return state.but(
        head=head,
        previous=last.before.head.link or b"",
        roster=roster,
        proposed=(),
        revoked=revoked,
        ahead=ahead,
        asked=None,
        moved=True,
        lost=head.rounds,
        votes=Votes(),
        unheard=Map(),
        tried=frozenset(),
        took=None,
        extension=None,
        memory=memory,
    )


def overdue(state: State) -> Transition:
    """Go on without a client that was asked and has not answered by the deadline; it may come again."""
    event = next((event for event in state.ahead.values() if event.stream == state.asked), None)
    if event is None:
        return state, []
    return _drop(state, event, f"it has not shown the commits that it holds from round {state.round} on in time")


def _drop(state: State, event: Arrived, reason: str, *, final: bool = False) -> Transition:
    client = event.stream.client
    ahead = {name: other for name, other in state.ahead.items() if name != client}
    state = state.but(ahead=ahead, asked=None, silent=state.silent | {client})
    return state, refused(event.stream, reason, final=final)


def withheld(state: State) -> str:
    """Return why no link may be signed though votes are in: one was signed that nobody shows; empty if one may be."""
    if state.round >= state.bound:
        return ""
    return (
        f"round {state.round}: this federator has signed a link after {state.bound} rounds, which nobody who is here "
        "shows: it waits for a client that does, since it signs no round twice; to go on without it, stop and make a "
        "new run of this one by cyber0 ledger fork"
    )
