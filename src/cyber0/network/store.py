"""What a client stores for one run: the vote it is about to send, and from time to time its weights.

A vote is on disk before it is sent, so that a client that crashes and comes back sends the same one again. Two slots
are written in turn, each with its digest, so that one of them is whole whatever happens.
"""

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyber0.errors import InvalidConfig, InvalidParameters
from cyber0.files import lock_folder, make_folder, naming
from cyber0.protocol.messages import Vote
from cyber0.replay.weights import Weights

__all__ = ["Store", "StoredVote"]


@dataclass(frozen=True, slots=True)
class StoredVote:
    """A vote, and the last hash of the chain of commits that it was made on."""

    vote: Vote
    head: bytes

    def to_bytes(self) -> bytes:
        """Return the vote as it is stored; the digest comes first."""
        mark = self.vote.fingerprint
        numbers = self.vote.round.to_bytes(8, "little") + (mark or 0).to_bytes(8, "little") + bytes([mark is not None])
        data = numbers + self.head + self.vote.scalars
        return hashlib.sha256(data).digest() + data

    @classmethod
    def from_bytes(cls, data: bytes) -> "StoredVote | None":
        """Return the vote that was stored; None if the bytes are damaged."""
        digest, data = data[:32], data[32:]
        if len(data) < 49 or hashlib.sha256(data).digest() != digest:
            return None
        mark = int.from_bytes(data[8:16], "little") if data[16] else None
        return cls(Vote(int.from_bytes(data[:8], "little"), data[49:], mark), data[17:49])


class Store:
    """A client's folder for one run, which one process holds at a time; without a folder, all is in memory only.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> with Store(folder) as store:
    ...     store.save_vote(StoredVote(Vote(7, bytes(8)), bytes(32)))
    >>> with Store(folder) as store:
    ...     store.vote(7), store.vote(8)
    (StoredVote(vote=Vote(round=7, scalars=b'...', fingerprint=None), head=b'...'), None)
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._file: Any = None
        self._lock: Any = None
        self._slots: list[StoredVote | None] = [None, None]
        if folder is not None:
            try:
                make_folder(folder)
                self._lock = lock_folder(folder, "client")
                (folder / "votes").touch(mode=0o600)
                self._file = (folder / "votes").open("r+b", buffering=0)
            except OSError as error:
                raise InvalidConfig(f"state = {str(folder)!r} cannot be used: {error.strerror}") from None
            self._read()

    def _read(self) -> None:
        data = self._file.read()
        size = int.from_bytes(data[:8], "little")
        parts = (data[8:][at : at + size] for at in (0, size))
        self._slots = [StoredVote.from_bytes(part) for part in parts]

    def vote(self, round: int) -> StoredVote | None:  # noqa: A002
        """Return the vote for a round, if one may have been sent."""
        return next((kept for kept in self._slots if kept is not None and kept.vote.round == round), None)

    @property
    def newest(self) -> int:
        """The last round that was voted in; -1 where there is none."""
        return max((kept.vote.round for kept in self._slots if kept is not None), default=-1)

    def save_vote(self, stored: StoredVote) -> None:
        """Store a vote; it is on disk when this returns."""
        slot = stored.vote.round % 2
        self._slots[slot] = stored
        if self.folder is not None:
            data = stored.to_bytes()
            with naming(self.folder / "votes"):
                self._write(0, len(data).to_bytes(8, "little"))
                self._write(8 + slot * len(data), data)
                os.fsync(self._file.fileno())

    def _write(self, place: int, data: bytes) -> None:
        self._file.seek(place)
        if self._file.write(data) < len(data):  # without a buffer, a disk that becomes full is no error yet
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def forget(self) -> None:
        """Delete all votes and the weights, because they were wrong."""
        self._slots = [None, None]
        if self.folder is not None:
            self._file.truncate(0)
            os.fsync(self._file.fileno())
            self._snapshot(self.folder).unlink(missing_ok=True)

    def save_weights(self, weights: Weights, facts: dict[str, str]) -> None:
        """Store weights and facts about them in one safetensors file, completely or not at all."""
        if self.folder is not None:
            header = {"__metadata__": facts, **{k: v for k, v in weights.header.items() if k != "__metadata__"}}
            Weights(header, weights.data).write(self._snapshot(self.folder))

    def load_weights(self) -> tuple[Weights, dict[str, str]] | None:
        """Return the weights that were stored last, and the facts about them; None if there is no file to be read."""
        if self.folder is None or not self._snapshot(self.folder).exists():
            return None
        try:
            weights = Weights.read(self._snapshot(self.folder))
        except InvalidParameters:
            return None
        return weights, weights.header.get("__metadata__", {})

    @staticmethod
    def _snapshot(folder: Path) -> Path:
        return folder / "weights.safetensors"

    def close(self) -> None:
        """Close the files and unlock the folder."""
        if self._file is not None:
            self._file.close()
            self._lock.close()
            self._file = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
