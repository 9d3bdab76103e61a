"""Clients come and go: who is refused and why, how a run is founded, and what a client that comes late is sent."""

import hashlib
from collections import Counter
from dataclasses import replace

from cyber0.errors import InvalidIdentity
from cyber0.protocol.admission import readmit
from cyber0.protocol.events import Alarm, Arrived, ClientStream, Effect, HangUp, Notice, RecordIdentity, Replay, Send
from cyber0.protocol.identity import meaning_from
from cyber0.protocol.messages import VERSION, Bye, Hello, RoundOpen, Welcome
from cyber0.protocol.state import Founded, State, Transition

__all__ = ["DIVERGED", "arrive", "farewell", "leave"]

DIVERGED = "its weights differ from the majority's: it must replay from round 0"


def arrive(state: State, event: Arrived) -> Transition:
    """Return what a client's Hello leads to: it is refused with a reason, waits for the founding, or is welcomed.

    >>> from cyber0.config import RunConfig
    >>> from cyber0.protocol.messages import Hello
    >>> from cyber0.protocol.state import begin
    >>> from cyber0.protocol.settings import Settings
    >>> state = begin(Settings.of(RunConfig(clients=3, byzantine=1), ("alice", "bob", "carol")))
    >>> _, effects = arrive(state, Arrived(ClientStream("eve"), Hello("eve", bytes(32), bytes(32))))
    >>> effects[-1].text
    'eve is refused: it is not on the roster'
    """
    stream, client = event.stream, event.stream.client
    if reason := _refusal(state, event):
        return leave(state, stream), _refused(stream, reason)
    effects: list[Effect] = []
    if client in state.present and not state.is_current(stream):
        effects = [HangUp(state.present[client].stream, "another stream of this client took its place")]
    state = replace(state, present={**state.present, client: event})
    state, more = _found(state) if state.founded is None else _welcome(state, state.founded, event)
    return state, effects + more


def leave(state: State, stream: ClientStream) -> State:
    """Return the state after a stream has ended. A vote that came on it still counts."""
    if not state.is_current(stream):
        return state
    present = {client: event for client, event in state.present.items() if client != stream.client}
    return replace(state, present=present, awaited=state.awaited - {stream.client})


def farewell(state: State) -> Bye:
    """Return the message with which all clients are sent home after the last round."""
    return Bye(f"all {state.settings.agreement.rounds} rounds are decided", finished=True, final=True)


def _refusal(state: State, event: Arrived) -> str:
    """Return why a client cannot take part; an empty text if it can."""
    hello, client = event.hello, event.stream.client
    if hello.version != VERSION:
        return f"it speaks version {hello.version} of the protocol: this federator speaks {VERSION}"
    if hello.name != client:
        return f"it calls itself {hello.name!r}, but its certificate says {client!r}"
    if client not in state.settings.roster:
        return "it is not on the roster"
    try:
        meaning_from(hello.meaning)
    except InvalidIdentity as error:
        return str(error)
    if hello.layout and hashlib.sha256(hello.layout).digest() != hello.manifest:
        return f"its manifest {hello.manifest.hex()[:16]} is not the digest of the layout it sends"
    return _other_run(state.founded, hello) or _other_past(state, event)


def _other_run(founded: Founded | None, hello: Hello) -> str:
    if founded is None:
        return f"it belongs to run {hello.run.hex()[:16]}: this one is not founded yet" if hello.run else ""
    pairs = [
        ("run", hello.run or founded.digest, founded.digest, "start the client anew"),
        ("manifest", hello.manifest, founded.manifest, "join with the same model and task"),
        ("base model", hello.base, founded.base, "join with the same pretrained weights"),
    ]
    for what, theirs, ours, instead in pairs:
        if theirs != ours:
            return f"its {what} is {theirs.hex()[:16]}: that of this run is {ours.hex()[:16]}; {instead}"
    return _other_meaning(founded, hello)


def _other_meaning(founded: Founded, hello: Hello) -> str:
    theirs, ours = meaning_from(hello.meaning), meaning_from(founded.meaning)
    parts = [part for part in sorted({*theirs, *ours}) if theirs.get(part) != ours.get(part)]
    if not parts:
        return ""
    differ = [f"{part} {theirs.get(part, 'none')[:16]} instead of {ours.get(part, 'none')[:16]}" for part in parts]
    return f"its labels mean something else: {', '.join(differ)}; join with the same {', '.join(parts)} as the others"


def _other_past(state: State, event: Arrived) -> str:
    hello = event.hello
    if hello.commits > state.round:
        return f"it holds {hello.commits} commits, but only {state.round} rounds are decided"
    if hello.head and event.head and hello.head != event.head:
        ours, theirs = event.head.hex()[:16], hello.head.hex()[:16]
        return f"after {hello.commits} commits its chain ends in {theirs}, and the ledger's in {ours}"
    return DIVERGED if event.stream.client in state.diverged and not hello.replayed else ""


def _refused(stream: ClientStream, reason: str) -> list[Effect]:
    diverged = reason == DIVERGED
    bye = Bye(reason, final=not diverged, replay=diverged)
    return [Send(stream, bye), HangUp(stream, reason), Notice(f"{stream.client} is refused: {reason}")]


def _found(state: State) -> Transition:
    """Found the run once a majority of the roster brings the same model and task; clients with others are refused."""
    hellos = [event.hello for event in state.present.values()]
    models = Counter((hello.manifest, hello.base, hello.meaning) for hello in hellos)
    (manifest, base, meaning), count = models.most_common(1)[0]
    if count < state.settings.majority:
        here = f"{len(state.present)} of {len(state.settings.roster)} are here"
        return state, [Notice(f"{here}: {state.settings.majority} must bring the same model and task")]
    applicants = state.present.values()
    layout = next((e.hello.layout for e in applicants if e.hello.layout and e.hello.manifest == manifest), b"")
    founded = Founded.of(state.settings.identity(manifest, base, layout, meaning_from(meaning)))
    state = replace(state, founded=founded, present={})
    effects: list[Effect] = [RecordIdentity(founded.identity)]
    for event in applicants:
        state, more = arrive(state, event)
        effects += more
    return state, effects


def _welcome(state: State, founded: Founded, event: Arrived) -> Transition:
    stream, client, commits = event.stream, event.stream.client, event.hello.commits
    known = replace(event, hello=replace(event.hello, layout=b""))  # recorded by now
    state = replace(state, present={**state.present, client: known})
    effects: list[Effect] = [Send(stream, Welcome(founded.identity, state.round))]
    if commits < state.round:
        effects.append(Replay(stream, commits, state.round))
    effects.append(Send(stream, farewell(state) if state.is_finished else RoundOpen(state.round)))
    effects.append(Notice(f"{client} is here, with {commits} of {state.round} commits"))
    if client in state.diverged:
        state = replace(state, diverged=state.diverged - {client}, votes=readmit(state.votes, client))
    keeps_up = commits == state.round  # a client that must replay first is awaited once it votes
    awaited = state.awaited | {client} if keeps_up else state.awaited - {client}
    gathering = state.gathering and len(state.present) < len(state.settings.roster)
    state = replace(state, awaited=awaited, gathering=gathering)
    if state.extension is None and not state.is_finished:
        state = replace(state, extension=0)
        effects.append(Alarm(state.round, 0, state.settings.seconds(0)))
    return state, effects
