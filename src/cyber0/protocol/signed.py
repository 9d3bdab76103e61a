"""Whether what a client sends to a federator is signed by it, for the state that the federation is in."""

import hashlib

from cyber0.protocol.chain import done_statement, vote_statement
from cyber0.protocol.messages import Done, Vote
from cyber0.protocol.signing import is_by
from cyber0.protocol.state import State

__all__ = ["Signatures", "done_is_signed"]


class Signatures:
    """Tells whether votes are signed by their clients on the link of their round, which is open or the one before.

    It is made for one state, and for many votes.
    """

    def __init__(self, state: State) -> None:
        run, number = b"" if state.identity is None else state.identity.digest, state.round
        links = {} if state.identity is None else {number: state.head.link or b"", number - 1: state.previous}
        self._statements = {at: vote_statement(run, at, link, b"") for at, link in links.items() if at >= 0}
        self._who = state.who

    def of(self, client: str, vote: Vote) -> bytes:
        """Return the SHA-256 of a vote's scalars if it is signed; otherwise nothing."""
        statement = self._statements.get(vote.round)
        if statement is None:
            return b""
        digest = hashlib.sha256(vote.scalars).digest()
        return digest if is_by(self._who.key(client), vote.signature, statement + digest) else b""


def done_is_signed(state: State, client: str, done: Done) -> bool:
    """Return whether a Done is of the end of the run, and signed by its client."""
    if state.identity is None or not state.is_finished or done.round != state.round:
        return False
    statement = done_statement(state.identity.digest, done.round, state.head.link or b"", done.fingerprint)
    return is_by(state.who.in_force().key(client), done.signature, statement)
