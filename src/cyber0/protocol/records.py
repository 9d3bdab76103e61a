"""What a ledger keeps of a round: the scalars that were decided, and every vote with its verdict."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cyber0.protocol.roster import Change

__all__ = ["Ballot", "Decision", "Promised", "Verdict", "ballots_hash", "from_wire", "prefixed", "to_wire", "u64"]

Verdict = Literal["counted", "equivocation", "late", "rejected"]

PARTS = 2**9  # of ballots that are hashed at a time: for each of thousands they would take memory at once


@dataclass(frozen=True, slots=True)
class Ballot:
    """A vote as it was judged: whose, its verdict, its values unless they are not kept, their SHA-256, and a reason.

    `signature` is its client's, of the vote's statement; votes of version 1 and of simulations have none.

    >>> ballot = Ballot.of("alice", "counted", to_wire([[1.0, 2.0]]))
    >>> ballot.digest.hex()[:8]
    'b9c80b5a'
    >>> ballot.without_values().values is None, ballot.without_values().digest == ballot.digest
    (True, True)
    """

    client: str
    verdict: Verdict
    values: bytes | None
    digest: bytes
    reason: str = ""
    signature: bytes = b""

    @classmethod
    def of(
        cls,
        client: str,
        verdict: Verdict,
        values: bytes,
        reason: str = "",
        signature: bytes = b"",
        digest: bytes = b"",
    ) -> "Ballot":
        """Return a ballot with its values, whose digest may be known."""
        return cls(client, verdict, values, digest or hashlib.sha256(values).digest(), reason, signature)

    def without_values(self) -> "Ballot":
        """Return the same ballot for a ledger that keeps no votes."""
        return replace(self, values=None)


@dataclass(frozen=True)
class Decision:
    """A decided round: the aggregated scalars as they travel, the ballots in roster order, changes of the roster.

    `lost` is the hash of its ballots where these are lost: of a round whose commit clients have given back.
    """

    round: int
    scalars: bytes
    ballots: tuple[Ballot, ...]
    changes: tuple[Change, ...] = ()
    lost: bytes = b""

    @cached_property
    def ballots_hash(self) -> bytes:
        """The hash of its ballots."""
        return self.lost or ballots_hash(self.ballots)


@dataclass(frozen=True, slots=True)
class Promised:
    """A promise of privacy as a ledger keeps it: whose, before which round it came, and its signature."""

    client: str
    round: int
    promise: bytes
    signature: bytes


def ballots_hash(ballots: Iterable[Ballot]) -> bytes:
    """Return the hash of all ballots of a round, with their signatures, as `cyber0.protocol.chain` has it."""
    ballots = tuple(ballots)
    parts, hashed = [b"cyber0 ballots 2\0", u64(len(ballots))], hashlib.sha256()
    judged: dict[tuple[str, str, int], tuple[bytes, bytes]] = {}  # what many have in common
    for ballot in ballots:
        if len(parts) > PARTS:
            hashed.update(b"".join(parts))
            parts.clear()
        name, what = ballot.client.encode(), (ballot.verdict, ballot.reason, len(ballot.signature))
        if what not in judged:
            judged[what] = _judged(*what)
        verdict, length = judged[what]
        parts += (u64(len(name)), name, verdict, ballot.digest, length, ballot.signature)
    hashed.update(b"".join(parts))
    return hashed.digest()


def _judged(verdict: str, reason: str, length: int) -> tuple[bytes, bytes]:
    return prefixed(verdict) + prefixed(reason), u64(length)


def u64(value: int) -> bytes:
    """Return a number as 8 bytes, little-endian."""
    return value.to_bytes(8, "little")


def prefixed(text: str) -> bytes:
    """Return a text as its length in bytes and its UTF-8."""
    data = text.encode()
    return u64(len(data)) + data


def to_wire(scalars: object) -> bytes:
    """Return the bytes of scalars [rows, directions]: little-endian float32, row by row.

    >>> to_wire([[1.0, -2.0]]).hex()
    '0000803f000000c0'
    """
    return np.asarray(scalars, dtype="<f4").tobytes()


def from_wire(data: bytes, rows: int) -> NDArray[np.float32]:
    """Return the scalars [rows, directions] in bytes, whose length must have been checked.

    >>> from_wire(to_wire([[1.0], [2.0]]), rows=2)
    array([[1.],
           [2.]], dtype=float32)
    """
    return np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(rows, -1)
