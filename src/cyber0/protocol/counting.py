"""Many votes at once: those that simply count, and decide nothing, are put together into one state.

`cyber0.protocol.machine.step` takes one vote after another, each with a state of its own. With thousands of clients
that is what most of a federator's time would go to.
"""

from collections.abc import Iterable
from itertools import islice

from cyber0.protocol.admission import Votes, fault
from cyber0.protocol.events import Received
from cyber0.protocol.messages import Vote
from cyber0.protocol.records import Ballot
from cyber0.protocol.state import State

__all__ = ["count"]


def count(state: State, votes: Iterable[Received]) -> tuple[State, int]:
    """Return the state after as many of these events as do nothing but count a vote, and how many these are.

    They are the first ones that are waited for and sound, up to one that may decide the round or complete a quorum. For
    them `step`, one by one, comes to the same state, without effects; the next one is for `step`.
    """
    room = _room(state)
    if room <= 0:
        return state, 0
    number, length, taken = state.round, state.settings.vote_bytes, 0
    counted, waiting, marks = state.votes.counted.mutate(), state.waiting.mutate(), state.votes.fingerprints.mutate()
    for event in islice(votes, room):
        stream, vote = event.stream, event.message
        client = stream.client
        arrived = state.present.get(client)
        if not (
            isinstance(vote, Vote)
            and event.signed
            and vote.round == number
            and client in waiting
            and arrived is not None
            and (arrived.stream is stream or arrived.stream == stream)
            and client not in state.diverged
            and not fault(vote.scalars, length)
        ):
            break
        counted[client] = Ballot.of(client, "counted", vote.scalars, "", vote.signature, event.digest)
        del waiting[client]
        if vote.fingerprint is not None:
            marks[client] = vote.fingerprint
        taken += 1
    if not taken:
        return state, 0
    old = state.votes
    added = Votes(counted.finish(), marks.finish(), old.judged, old.excluded, old.late)
    return state.but(votes=added, waiting=waiting.finish()), taken


def _room(state: State) -> int:
    """Return how many votes can be counted before one may decide the round, or complete a quorum."""
    if state.identity is None or state.gathering or state.ahead or state.moved or state.is_finished:
        return 0
    room = len(state.waiting) - 1
    return room if state.took is not None else min(room, state.who.quorum - len(state.votes.counted) - 1)
