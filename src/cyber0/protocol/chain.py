r"""Two chains of SHA-256 over a run: one of its commits, which needs no votes to be checked, and one of its votes.

    c[0] = v[0] = the identity's digest
    c[t + 1] = SHA-256("cyber0 commit 1\0" | c[t] | t | scalars)
    v[t + 1] = SHA-256("cyber0 votes 1\0" | v[t] | c[t + 1] | ballots)

Numbers are 64-bit little-endian. Ballots are their number, then for each its client, verdict and reason, each as its
length in bytes and its UTF-8, and the SHA-256 of its values: votes that are not kept are covered too.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from cyber0.protocol.records import Ballot, Decision

__all__ = ["Head", "Seal", "advance", "commit_hash", "commit_hashes", "genesis", "votes_hash"]


@dataclass(frozen=True, slots=True)
class Head:
    """Where a ledger ends: the number of rounds, and the last hash of each chain.

    `votes` is None in a run that was imported without its votes, whose chain of votes is not known.
    """

    rounds: int
    commit: bytes
    votes: bytes | None


@dataclass(frozen=True, slots=True)
class Seal:
    """A federator's statement about a head, signed or not, with the fingerprint that most clients reported there."""

    rounds: int
    commit: bytes
    votes: bytes
    fingerprint: int | None = None
    signature: bytes | None = None

    @classmethod
    def of(cls, head: Head, fingerprint: int | None = None, signature: bytes | None = None) -> "Seal":
        """Return a seal on a head; where the votes' chain is not known, 32 zero bytes stand for it."""
        return cls(head.rounds, head.commit, head.votes or bytes(32), fingerprint, signature)

    def statement(self, identity: bytes) -> bytes:
        """Return the bytes that are signed: a domain, the identity's digest, rounds, both hashes, the fingerprint."""
        reported = b"" if self.fingerprint is None else _number(self.fingerprint)
        return b"cyber0 seal 1\0" + identity + _number(self.rounds) + self.commit + self.votes + reported


def genesis(identity: bytes) -> Head:
    """Return the head of a run without rounds, whose identity has this digest."""
    return Head(0, identity, identity)


def advance(head: Head, decision: Decision) -> Head:
    """Return the head after one more round."""
    commit = commit_hash(head.commit, decision.round, decision.scalars)
    votes = None if head.votes is None else votes_hash(head.votes, commit, decision.ballots)
    return Head(head.rounds + 1, commit, votes)


def commit_hash(previous: bytes, round: int, scalars: bytes) -> bytes:  # noqa: A002
    """Return the hash of a round in the chain of commits.

    >>> commit_hash(bytes(32), 0, b"").hex()[:16]
    'cc370752b01945ad'
    """
    return hashlib.sha256(b"cyber0 commit 1\0" + previous + _number(round) + scalars).digest()


def commit_hashes(identity: bytes, scalars: bytes, width: int) -> list[bytes]:
    """Return the hashes of all rounds in the chain of commits, from their scalars, of which a round has `width` bytes.

    >>> commit_hashes(bytes(32), b"abcd", 4) == [commit_hash(bytes(32), 0, b"abcd")]
    True
    """
    links = [identity]
    for round in range(len(scalars) // width):  # noqa: A001
        links.append(commit_hash(links[-1], round, scalars[round * width : (round + 1) * width]))
    return links[1:]


def votes_hash(previous: bytes, commit: bytes, ballots: Iterable[Ballot]) -> bytes:
    """Return the hash of a round in the chain of votes.

    >>> votes_hash(bytes(32), bytes(32), [Ballot.of("ann", "counted", b"")]).hex()[:16]
    '71a3e87180ef3134'
    """
    ballots = tuple(ballots)
    parts = [b"cyber0 votes 1\0", previous, commit, _number(len(ballots))]
    for ballot in ballots:
        parts += [_text(ballot.client), _text(ballot.verdict), _text(ballot.reason), ballot.digest]
    return hashlib.sha256(b"".join(parts)).digest()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _text(text: str) -> bytes:
    data = text.encode()
    return _number(len(data)) + data
