"""Clients come and go: who is refused and why, how a run is founded, and what a client that comes late is sent."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from heapq import nlargest, nsmallest

from immutables import Map

from cyber0.errors import InvalidIdentity
from cyber0.protocol.admission import without
from cyber0.protocol.chain import genesis, link_statement
from cyber0.protocol.events import (
    Alarm,
    Arrived,
    ClientStream,
    Effect,
    HangUp,
    Notice,
    RecordIdentity,
    RecordPromise,
    Replay,
    Send,
)
from cyber0.protocol.identity import FROZEN, Identity, meaning_from, unlike, unpacked_layout
from cyber0.protocol.messages import VERSION, Bye, Hello, RoundOpen, Welcome
from cyber0.protocol.outline import Outline
from cyber0.protocol.promise import broken, terms_digest
from cyber0.protocol.records import Promised
from cyber0.protocol.roster import Change
from cyber0.protocol.signing import decoded, is_by
from cyber0.protocol.state import State, Transition

__all__ = ["DIVERGED", "REPLACED", "REVOKING", "TAKEN", "arrive", "farewell", "found", "keys_of", "leave", "refused"]

DIVERGED = "its weights differ from the majority's: it must replay from round 0"
REVOKED = "it is revoked"
REVOKING = "it is revoked as soon as that is written"  # it may come again if the federator dies before
TAKEN = "another stream of this client took its place"
ALIKE = ("manifest", "base", "meaning", "run", "head", "layout")
SHORT = 2**16  # bytes: what a liar makes longer is not remembered
SHOWN = 5  # clients, and groups of them, in a notice
REPLACED = "its key was replaced by another: join with the new one"


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
        return leave(state, stream), refused(stream, reason)
    event = _alike(event)
    effects: list[Effect] = []
    if client in state.present and not state.is_current(stream):
        effects = [HangUp(state.present[client].stream, TAKEN)]
    if event.hello.commits > state.round:
        return _hold(state, event, effects)
    holders = state.holders.set(event.hello.key, client) if state.identity is None else state.holders
    state = state.but(present=state.present.set(client, event), holders=holders)
    state, more = _gather(state, client) if state.identity is None else _welcome(state, state.identity, event)
    return state, effects + more


def leave(state: State, stream: ClientStream) -> State:
    """Return the state after a stream has ended. A vote that came on it still counts."""
    if any(event.stream == stream for event in state.ahead.values()):
        ahead = {client: event for client, event in state.ahead.items() if event.stream != stream}
        return state.but(ahead=ahead, asked=None if state.asked == stream else state.asked)
    if not state.is_current(stream):
        return state
    gone, present = state.present[stream.client], state.present.delete(stream.client)
    holders = without(state.holders, gone.hello.key)
    return state.but(present=present, holders=holders).without_awaited([stream.client])


def farewell(state: State) -> Bye:
    """Return the message with which all clients are sent home after the last round."""
    return Bye(f"all {state.who.last} rounds are decided", finished=True, final=True)


def _refusal(state: State, event: Arrived) -> str:
    """Return why a client cannot take part; an empty text if it can."""
    hello, client = event.hello, event.stream.client
    if hello.version != VERSION:
        return f"it speaks version {hello.version} of the protocol: this federator speaks {VERSION}"
    if hello.name != client:
        return f"it calls itself {hello.name!r}, but its certificate says {client!r}"
    if not _knows_more(state, hello) and (reason := _other_entry(state, client, hello.key)):
        return reason
    try:
        meaning_from(hello.meaning)
    except InvalidIdentity as error:
        return str(error)
    layout = _other_layout(state, hello)
    return layout or _other_run(state.identity, hello) or _other_privacy(state, hello) or _other_past(state, event)


def _knows_more(state: State, hello: Hello) -> bool:
    """Return whether a client is to give back what the ledger lost: who is on the roster will be known after that."""
    return state.fresh and hello.commits > state.round and _is_ours(state, hello.commits, hello.head, hello.signature)


def _other_entry(state: State, client: str, key: bytes) -> str:
    """Return why a client cannot take part by the roster; an empty text if it can."""
    if client in state.revoked:
        return REVOKED if client not in state.who.in_force().places else REVOKING
    if client not in state.who.places and client not in state.who.in_force().places:
        return "it is not on the roster"
    return _other_key(state, client, key)


def _other_layout(state: State, hello: Hello) -> str:
    """Return what is wrong with the layout; of a run that is founded it is known, and is not worth the unpacking."""
    if state.identity is not None or not hello.layout:
        return ""
    if hashlib.sha256(unpacked_layout(hello.layout)).digest() == hello.manifest:
        return ""
    return f"its manifest {hello.manifest.hex()[:16]} is not the digest of the layout it sends"


def _other_key(state: State, client: str, key: bytes) -> str:
    known = _keys(state)
    if decoded(key) is None:
        return "it sends no public key that its votes could be checked by"
    if (owner := known.get(key)) not in (None, client):
        return f"its key is that of {owner}: every client needs its own"
    ours = keys_of(state, client)
    if not any(ours) or key in ours or state.settings.rotates:
        return ""
    return (
        f"its key is {key.hex()[:16]}, and the roster has {ours[-1].hex()[:16]}: join with the key it began with, "
        "or let the operator say cyber0 rotate"
    )


def keys_of(state: State, client: str) -> list[bytes]:
    """Return a client's key on the roster, then those that are to replace it, in this order."""
    changes = (*state.who.pending, *state.proposed)
    return [state.who.key(client), *(change.key for change in changes if _gives_key(change, client))]


def _gives_key(change: Change, client: str) -> bool:
    return change.name == client and change.kind in ("admit", "rotate")


def _keys(state: State) -> Mapping[bytes, str]:
    """Return whose public keys are known: those on the roster; before the run is founded, of those who are here."""
    if state.identity is not None:
        return state.who.owners
    return state.holders


def _other_run(identity: Identity | None, hello: Hello) -> str:
    if identity is None:
        other = (
            f"it belongs to run {hello.run.hex()[:16]}: this one is not founded yet; put a backup of the ledger of that"
        )
        return f"{other} run in place, or let it join with another --state" if hello.run else ""
    pairs = [
        ("run", hello.run.hex() or identity.digest.hex(), identity.digest.hex(), "start the client anew"),
        ("manifest", hello.manifest.hex(), identity.manifest, "join with the same model and task"),
        ("base model", hello.base.hex(), identity.base, "join with the same pretrained weights"),
    ]
    for what, theirs, ours, instead in pairs:
        if theirs != ours:
            return f"its {what} is {theirs[:16]}: that of this run is {ours[:16]}; {instead}"
    return _other_meaning(identity, hello)


def _other_meaning(identity: Identity, hello: Hello) -> str:
    theirs, ours = meaning_from(hello.meaning), identity.meaning
    parts = unlike(theirs, ours)
    if not parts:
        return ""
    if parts == [FROZEN]:
        known = theirs.get(FROZEN, "none")[:16], ours[FROZEN][:16]
        return (
            f"its frozen weights are {known[0]}: those of this run are {known[1]}; join with the same pretrained "
            "weights, packed in the same way"
        )
    differ = [f"{part} {theirs.get(part, 'none')[:16]} instead of {ours.get(part, 'none')[:16]}" for part in parts]
    return f"its labels mean something else: {', '.join(differ)}; join with the same {', '.join(parts)} as the others"


def _other_privacy(state: State, hello: Hello) -> str:
    settings = state.settings
    model = hello.manifest, hello.base, hello.meaning, state.federator
    terms = terms_digest(settings.agreement, *model, settings.parent) if hello.promise else b""
    return broken(settings.agreement, hello.name, hello.promise, hello.promise_signature, hello.key, terms)


def _other_past(state: State, event: Arrived) -> str:
    hello = event.hello
    if hello.commits > state.round:
        return _too_long(state, hello)
    if hello.head and event.head and hello.head != event.head:
        ours, theirs = event.head.hex()[:16], hello.head.hex()[:16]
        return f"after {hello.commits} commits its chain ends in {theirs}, and the ledger's in {ours}"
    return DIVERGED if event.stream.client in state.diverged and not hello.replayed else ""


def _too_long(state: State, hello: Hello) -> str:
    """Return why a client that holds more commits than the ledger is refused; empty if it may give them back."""
    holds = f"it holds {hello.commits} commits, but only {state.round} rounds are decided"
    if not _is_ours(state, hello.commits, hello.head, hello.signature):
        return f"{holds}, and it shows no signature of this federator after more"
    if state.fresh:
        return ""
    return f"{holds}, of which this federator has signed others since it was restored: go on by cyber0 ledger fork"


def _is_ours(state: State, rounds: int, link: bytes, signature: bytes) -> bool:
    """Return whether this federator has signed a link after so many rounds."""
    if state.identity is None:
        return False
    return is_by(state.identity.federator, signature, link_statement(state.identity.digest, rounds, link))


def _hold(state: State, event: Arrived, effects: list[Effect]) -> Transition:
    """Let a client wait that holds more commits than the ledger: it is to give them back."""
    client, commits = event.stream.client, event.hello.commits
    before = state.ahead.get(client)
    if before is not None and before.stream != event.stream:
        effects.append(HangUp(before.stream, TAKEN))
    for older in (state.present.get(client), before):
        state = state if older is None else leave(state, older.stream)
    text = f"{client} holds {commits} commits, and the ledger {state.round}: it was restored from an older copy"
    bound, heard = max(state.bound, commits), state.heard | {client}
    state = state.but(ahead={**state.ahead, client: event}, bound=bound, heard=heard)
    return state, [*effects, Notice(text, client, "warning")]


def refused(stream: ClientStream, reason: str, *, final: bool = True) -> list[Effect]:
    """Return what a client that is refused is told; one for which that is not final may come again."""
    diverged = reason == DIVERGED
    bye = Bye(reason, final=final and reason not in (DIVERGED, REVOKING), replay=diverged)
    notice = Notice(f"{stream.client} is refused: {reason}", stream.client, "warning")
    return [Send(stream, bye), HangUp(stream, reason), notice]


def _gather(state: State, client: str) -> Transition:
    """Found the run once the whole roster is here. With enough of it, wait for the others until a deadline.

    The identity pins the keys of those who are here; that of who comes later is written to the chain when it comes.
    """
    names, present = state.settings.roster, len(state.present)
    founders = state.settings.founders
    if present < founders or _most_common(state)[1] < founders:
        said: list[Effect] = [Notice(f"{present} of {len(names)} are here: {_needed(state)}")]
        if present >= founders:  # said of the client that came, who may come with something else each time
            said.append(Notice(_disagreement(state), client))
        return state, said
    if present == len(names):
        return found(state)
    if state.extension is not None:
        return state, []
    seconds = state.settings.seconds(0)
    text = f"{present} of {len(names)} are here: the run begins without the others in {seconds:g} seconds"
    return state.but(extension=0), [Alarm(0, 0, seconds), Notice(text)]


def _brings(hello: Hello) -> tuple[bytes, bytes, bytes]:
    return hello.manifest, hello.base, hello.meaning


def _most_common(state: State) -> tuple[tuple[bytes, bytes, bytes], int]:
    """Return what most of those who are here train, and how many they are."""
    models = Counter(_brings(event.hello) for event in state.present.values())
    return models.most_common(1)[0] if models else ((b"", b"", b""), 0)


def _needed(state: State) -> str:
    return f"{state.settings.founders} must bring the same model and task"


def _disagreement(state: State) -> str:
    """Return in what those who are here differ, and who from whom; not in words of theirs, nor all of them."""
    groups: dict[tuple[bytes, bytes, bytes], list[str]] = {}
    for client, event in state.present.items():
        groups.setdefault(_brings(event.hello), []).append(client)
    largest = nlargest(SHOWN, groups.items(), key=lambda group: len(group[1]))
    differing = sorted({part for brought, _ in largest for part in _differing(brought, largest[0][0])})
    shown = sorted(", ".join(nsmallest(SHOWN, names)) + " ..." * (len(names) > SHOWN) for _, names in largest)
    shown += ["..."] * (len(groups) > SHOWN)
    return f"those who are here differ in {', '.join(differing)}: {' | '.join(shown)}"


def _differing(theirs: tuple[bytes, bytes, bytes], ours: tuple[bytes, bytes, bytes]) -> list[str]:
    """Return in which parts what a client brings differs from what another one does."""
    parts = [part for part, one, other in zip(("layout", "base model"), theirs, ours, strict=False) if one != other]
    if theirs[2] == ours[2]:
        return parts
    meanings = [meaning_from(meaning) for _, _, meaning in (theirs, ours)]
    frozen = [meaning.pop(FROZEN, "") for meaning in meanings]
    other = meanings[0] != meanings[1] or frozen[0] == frozen[1]
    return parts + [FROZEN] * (frozen[0] != frozen[1]) + ["what labels mean"] * other


def found(state: State) -> Transition:
    """Found the run on the model and task of those who are here, if they are enough; who has others is refused."""
    (manifest, base, meaning), count = _most_common(state)
    state = state.but(extension=None)
    if count < state.settings.founders:
        return state, [Notice(f"the run does not begin yet: {_needed(state)}")]
    applicants = state.present.values()
    same = [event.hello for event in applicants if _brings(event.hello) == (manifest, base, meaning)]
    layout = unpacked_layout(next((hello.layout for hello in same if hello.layout), b""))
    found = {hello.name: hello.key for hello in same}  # who is refused may come back with another one
    keys = {**state.settings.keys, **found}
    identity = state.settings.identity(
        manifest, base, layout, meaning_from(meaning), keys=keys, federator=state.federator
    )
    first = {"head": genesis(identity.digest), "roster": identity.roster}
    state = state.but(identity=identity, **first, present=Map(), holders=Map(), gathering=False)
    effects: list[Effect] = [RecordIdentity(identity)]
    for event in applicants:
        state, more = arrive(state, event)
        effects += more
    return state, effects


def _welcome(state: State, identity: Identity, event: Arrived) -> Transition:
    stream, client, commits = event.stream, event.stream.client, event.hello.commits
    known = replace(event, hello=replace(event.hello, layout=b""))  # recorded by now
    state = _enrolled(state.but(present=state.present.set(client, known)), client, event.hello.key)
    roster = Outline.of_roster(identity.roster) if event.hello.brief else identity.roster
    told = _welcoming(identity.to_bytes(), state.round, roster.to_bytes(), state.lost)
    effects: list[Effect] = [Send(stream, told)]
    if promise := event.hello.promise:
        effects.append(RecordPromise(Promised(client, state.round, promise, event.hello.promise_signature)))
    if commits < state.round:
        effects.append(Replay(stream, commits, state.round))
    effects.append(Send(stream, farewell(state) if state.is_finished else _opening(state.round)))
    effects.append(Notice(f"{client} is here, with {commits} of {state.round} commits", client))
    state = state.but(diverged=state.diverged - {client})
    keeps_up = commits == state.round  # a client that must replay first is awaited once it votes
    counts = state.who.key(client) == event.hello.key  # else from two rounds after its new key is written
    state = state.with_awaited(client) if keeps_up and counts else state.without_awaited([client])
    gathering = state.gathering and not _is_whole(state)
    state = state.but(gathering=gathering)
    hello = event.hello
    if hello.voted > state.round and _is_ours(state, hello.voted, hello.voted_link, hello.voted_signature):
        state = state.but(bound=max(state.bound, hello.voted))  # it has lost commits, too
    waits = state.extension is not None
    if gathering and not state.has_heard:
        state = state.but(heard=state.heard | {client})
        waits = waits and not state.has_heard  # the others have a whole deadline from there on
    if not waits and not state.is_finished:
        state = state.but(extension=state.extension or 0)
        effects.append(Alarm(state.round, state.extension or 0, state.settings.seconds(0)))
    return state, effects


def _alike(event: Arrived) -> Arrived:
    """Return an event in which what all clients bring alike is the same object."""
    alike = {name: value for name in ALIKE if len(value := getattr(event.hello, name)) <= SHORT}
    alike = {name: _once(value) for name, value in alike.items()}
    return Arrived(event.stream, replace(event.hello, name=event.stream.client, **alike), _once(event.head))


@lru_cache(maxsize=64)
def _once(data: bytes) -> bytes:
    """Return the same object for all bytes that are equal: thousands of clients bring them at once."""
    return data


@lru_cache(maxsize=2)
def _welcoming(identity: bytes, number: int, roster: bytes, lost: int) -> Welcome:
    """Return a Welcome, the same object for all who are told the same."""
    return Welcome(identity, number, roster, lost=lost)


@lru_cache(maxsize=2)
def _opening(number: int) -> RoundOpen:
    return RoundOpen(number)


def _is_whole(state: State) -> bool:
    """Return whether the whole roster is here, apart from those who are not to be waited for."""
    excused = state.revoked | state.silent
    if len(state.present) + len(excused) < state.who.size:  # the rest takes time with many clients
        return False
    return all(name in state.present or name in excused for name in state.who.names)


def _enrolled(state: State, client: str, key: bytes) -> State:
    """Return the state in which the key of a client will be written to the chain, if it is not there or on its way.

    That is a client that comes for the first time, whose votes count at once, or, where keys rotate by themselves, one
    with another key than before.
    """
    known = keys_of(state, client)
    if known[-1] == key or (any(known) and not state.settings.rotates):
        return state
    change = Change("rotate" if any(known) else "admit", client, key)
    others = tuple(other for other in state.proposed if not (other.kind == "rotate" and other.name == client))
    return state.but(proposed=(*others, change))
