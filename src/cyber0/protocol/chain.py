r"""The chain of a run: SHA-256 over its commits, and over everything that was said in each round.

    c[0] = l[0] = the identity's digest
    c[t + 1] = SHA-256("cyber0 commit 1\0" | c[t] | t | scalars)
    b[t]     = SHA-256("cyber0 ballots 2\0" | ballots)
    l[t + 1] = SHA-256("cyber0 link 2\0" | l[t] | c[t + 1] | b[t] | the digest of the roster after round t)

Numbers are 64-bit little-endian. Ballots are their number, then for each its client, verdict and reason, each as its
length in bytes and its UTF-8, the SHA-256 of its values, and its signature with its length: votes that are not kept are
covered too. Whoever holds the link l[t + 1] is bound to all that was committed and voted up to round t. The commits
alone give c, so that a run without its votes can still be checked against its last link.

In version 1 the link did not cover signatures or a roster: l[t + 1] = SHA-256("cyber0 votes 1\0" | l[t] | c[t + 1] |
ballots).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from cyber0.protocol.records import Ballot, Decision, ballots_hash, prefixed, u64
from cyber0.protocol.roster import Roster

__all__ = [
    "Anchor",
    "Head",
    "Seal",
    "advance",
    "ballots_hash",
    "commit_hash",
    "commit_hashes",
    "genesis",
    "link_statement",
    "vote_statement",
    "votes_hash",
]


@dataclass(frozen=True, slots=True)
class Head:
    """Where a run stands: the number of rounds, the last hash of its commits, and the last link of its chain.

    `link` is None in a run that was imported without it.
    """

    rounds: int
    commit: bytes
    link: bytes | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a link is made of besides the hash of the commits: by it commits without their votes fit a link."""

    link: bytes  # the one before
    ballots: bytes
    roster: bytes

    def following(self, commit: bytes) -> bytes:
        """Return the link after a round whose commits have this hash."""
        return link_hash(self.link, commit, self.ballots, self.roster)

    def to_bytes(self) -> bytes:
        """Return its 96 bytes."""
        return self.link + self.ballots + self.roster

    @classmethod
    def from_bytes(cls, data: bytes) -> "Anchor":
        """Return the anchor in 96 bytes."""
        return cls(data[:32], data[32:64], data[64:96])


@dataclass(frozen=True, slots=True)
class Seal:
    """A federator's statement about a head, signed or not, with the fingerprint that most clients reported there."""

    rounds: int
    commit: bytes
    link: bytes
    fingerprint: int | None = None
    signature: bytes | None = None

    @classmethod
    def of(cls, head: Head, fingerprint: int | None = None, signature: bytes | None = None) -> "Seal":
        """Return a seal on a head; where its link is not known, 32 zero bytes stand for it."""
        return cls(head.rounds, head.commit, head.link or bytes(32), fingerprint, signature)

    def statement(self, identity: bytes) -> bytes:
        """Return the bytes that are signed: a domain, the identity's digest, rounds, both hashes, the fingerprint."""
        reported = b"" if self.fingerprint is None else u64(self.fingerprint)
        return b"cyber0 seal 1\0" + identity + u64(self.rounds) + self.commit + self.link + reported


def genesis(identity: bytes) -> Head:
    """Return the head of a run without rounds, whose identity has this digest."""
    return Head(0, identity, identity)


def advance(head: Head, decision: Decision, roster: Roster | None) -> Head:
    """Return the head after one more round, after which the roster is this one; None in a run of version 1."""
    commit = commit_hash(head.commit, decision.round, decision.scalars)
    if head.link is None:
        link = None
    elif roster is None:
        link = votes_hash(head.link, commit, decision.ballots)
    else:
        link = link_hash(head.link, commit, decision.ballots_hash, roster.digest)
    return Head(head.rounds + 1, commit, link)


def commit_hash(previous: bytes, round: int, scalars: bytes) -> bytes:  # noqa: A002
    """Return the hash of a round in the chain of commits.

    >>> commit_hash(bytes(32), 0, b"").hex()[:16]
    'cc370752b01945ad'
    """
    return hashlib.sha256(b"cyber0 commit 1\0" + previous + u64(round) + scalars).digest()


def commit_hashes(identity: bytes, scalars: bytes, width: int) -> list[bytes]:
    """Return the hashes of all rounds in the chain of commits, from their scalars, of which a round has `width` bytes.

    >>> commit_hashes(bytes(32), b"abcd", 4) == [commit_hash(bytes(32), 0, b"abcd")]
    True
    """
    links = [identity]
    for round in range(len(scalars) // width):  # noqa: A001
        links.append(commit_hash(links[-1], round, scalars[round * width : (round + 1) * width]))
    return links[1:]


def link_hash(previous: bytes, commit: bytes, ballots: bytes, roster: bytes) -> bytes:
    """Return the link after a round.

    >>> link_hash(bytes(32), bytes(32), bytes(32), bytes(32)).hex()[:16]
    '6b0d22c9789fe28d'
    """
    return hashlib.sha256(b"cyber0 link 2\0" + previous + commit + ballots + roster).digest()


def votes_hash(previous: bytes, commit: bytes, ballots: Iterable[Ballot]) -> bytes:
    """Return the link after a round, as version 1 had it.

    >>> votes_hash(bytes(32), bytes(32), [Ballot.of("ann", "counted", b"")]).hex()[:16]
    '71a3e87180ef3134'
    """
    ballots = tuple(ballots)
    parts = [b"cyber0 votes 1\0", previous, commit, u64(len(ballots))]
    for ballot in ballots:
        parts += [prefixed(ballot.client), prefixed(ballot.verdict), prefixed(ballot.reason), ballot.digest]
    return hashlib.sha256(b"".join(parts)).digest()


def vote_statement(run: bytes, round: int, link: bytes, digest: bytes) -> bytes:  # noqa: A002
    """Return what a client signs: its scalars, by their SHA-256, are its vote in this round after this link.

    >>> len(vote_statement(bytes(32), 0, bytes(32), bytes(32)))
    118
    """
    return b"cyber0 vote 2\0" + run + u64(round) + link + digest


def link_statement(run: bytes, rounds: int, link: bytes) -> bytes:
    """Return what the federator signs: after so many rounds the chain of this run ends in this link."""
    return b"cyber0 signed link 2\0" + run + u64(rounds) + link


def done_statement(run: bytes, rounds: int, link: bytes, fingerprint: int) -> bytes:
    """Return what a client signs at the end: it holds this link, and weights with this fingerprint."""
    return b"cyber0 done 2\0" + run + u64(rounds) + link + u64(fingerprint)
