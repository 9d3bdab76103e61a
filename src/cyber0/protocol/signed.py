"""Whether what a client sends to a federator is signed by it, for the state that the federation is in."""

import hashlib

from cyber0.protocol.chain import done_statement, vote_statement
from cyber0.protocol.messages import Done, Vote
from cyber0.protocol.signing import is_by
from cyber0.protocol.state import State

__all__ = ["done_is_signed", "vote_is_signed"]


def vote_is_signed(state: State, client: str, vote: Vote) -> bool:
    """Return whether a vote is signed by its client on the link of its round, which is open or the one before."""
    if state.identity is None or vote.round not in (state.round, state.round - 1):
        return False
    link = (state.head.link or b"") if vote.round == state.round else state.previous
    statement = vote_statement(state.identity.digest, vote.round, link, hashlib.sha256(vote.scalars).digest())
    return is_by(state.who.key(client), vote.signature, statement)


def done_is_signed(state: State, client: str, done: Done) -> bool:
    """Return whether a Done is of the end of the run, and signed by its client."""
    if state.identity is None or not state.is_finished or done.round != state.round:
        return False
    statement = done_statement(state.identity.digest, done.round, state.head.link or b"", done.fingerprint)
    return is_by(state.who.in_force().key(client), done.signature, statement)
