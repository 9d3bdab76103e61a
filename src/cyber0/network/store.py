"""What a client stores for one run: which run it is, the vote it is about to sign, from time to time its weights.

A vote is on disk before it is signed and sent, with the link it is cast on, so that a client that crashes and comes
back sends the same one again: it signs one vote per round in its life, and never forgets the last link it has signed.
Two slots are written in turn, each with its digest, so that one of them is whole whatever happens.
"""

import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from cyber0.errors import InvalidConfig, InvalidParameters
from cyber0.files import lock_folder, make_folder, naming, write_atomically
from cyber0.network.commit_log import CommitLog
from cyber0.protocol.messages import Vote
from cyber0.protocol.signing import PrivateKey, key_beside, new_key
from cyber0.replay.weights import Weights

__all__ = ["Marks", "Store", "StoredVote", "inherit_key"]


@dataclass(frozen=True, slots=True)
class StoredVote:
    """A vote without its signature, and the head that it is cast on: the hash of the commits, and the link.

    `signature` is the federator's, of that link; empty before the first round.
    """

    vote: Vote
    commit: bytes
    link: bytes
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the vote as it is stored; the digest comes first."""
        mark = self.vote.fingerprint
        numbers = self.vote.round.to_bytes(8, "little") + (mark or 0).to_bytes(8, "little") + bytes([mark is not None])
        data = numbers + self.commit + self.link + self.signature.ljust(64, b"\0") + self.vote.scalars
        return hashlib.sha256(data).digest() + data

    @classmethod
    def from_bytes(cls, data: bytes) -> "StoredVote | None":
        """Return the vote that was stored; None if the bytes are damaged."""
        digest, data = data[:32], data[32:]
        if len(data) < 145 or hashlib.sha256(data).digest() != digest:
            return None
        mark = int.from_bytes(data[8:16], "little") if data[16] else None
        vote, signature = Vote(int.from_bytes(data[:8], "little"), data[145:], mark), data[81:145]
        return cls(vote, data[17:49], data[49:81], signature if any(signature) else b"")


class Marks:
    """A folder beside a key, with a file for each run in which the key has signed a vote.

    By it a client that has lost its state knows that it must not vote again.

    >>> from tempfile import mkdtemp
    >>> marks = Marks(Path(mkdtemp()) / "runs")
    >>> marks.add(bytes(32))
    >>> marks.has(bytes(32)), marks.has(bytes(31) + b"1")
    (True, False)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, run: bytes) -> bool:
        """Return whether the key has voted in the run of a digest."""
        return (self.folder / run.hex()).exists()

    def add(self, run: bytes) -> None:
        """Note that the key votes in a run; it is on disk when this returns."""
        if not self.has(run):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(
                self.folder / run.hex(), b"a key that has voted in this run must not vote without its state\n"
            )


class Store:
    """A client's folder for one run, which one process holds at a time; without a folder, all is in memory only.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> with Store(folder) as store:
    ...     store.save_vote(StoredVote(Vote(7, bytes(8)), bytes(32), bytes(32)))
    >>> with Store(folder) as store:
    ...     store.vote(7).vote, store.vote(8)
    (Vote(round=7, scalars=b'...', fingerprint=None, signature=b''), None)
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._file: Any = None
        self._lock: Any = None
        self._log: CommitLog | None = None
        self._slots: list[StoredVote | None] = [None, None]
        self.newest = -1  # the last round that was voted in; -1 where there is none
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
        self.newest = max((kept.vote.round for kept in self.signed), default=-1)

    def vote(self, round: int) -> StoredVote | None:  # noqa: A002
        """Return the vote for a round, if one may have been sent."""
        return next((kept for kept in self._slots if kept is not None and kept.vote.round == round), None)

    def save_vote(self, stored: StoredVote) -> None:
        """Store a vote; it is on disk when this returns."""
        slot = stored.vote.round % 2
        self._slots[slot], self.newest = stored, max(self.newest, stored.vote.round)
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

    @property
    def signed(self) -> list[StoredVote]:
        """The last votes, which may have been signed and sent."""
        return [kept for kept in self._slots if kept is not None]

    def forget_weights(self) -> None:
        """Delete the weights, because they were wrong; what was signed is never forgotten."""
        if self.folder is not None:
            self._snapshot(self.folder).unlink(missing_ok=True)

    def save_run(self, identity: bytes, roster: bytes) -> None:
        """Store which run this is, for good: a folder holds one."""
        if self.folder is not None:
            write_atomically(self.folder / "run.json", identity + b"\n" + roster)

    def load_run(self) -> tuple[bytes, bytes] | None:
        """Return the identity and the first roster of the run that was stored; None if there is none."""
        if self.folder is None or not (self.folder / "run.json").exists():
            return None
        identity, _, roster = (self.folder / "run.json").read_bytes().partition(b"\n")
        return identity, roster

    def commits(self, width: int, notice: Callable[[str], None]) -> CommitLog:
        """Return the log of the commits of this run, of which a round has `width` bytes of scalars."""
        if self._log is None:
            self._log = CommitLog(self.folder, width, notice)
        return self._log

    def save_evidence(self, evidence: bytes) -> str:
        """Store evidence that a party has lied, and return where it is and what to do with it, in words."""
        path = (self.folder or Path.cwd()) / f"evidence-{hashlib.sha256(evidence).hexdigest()[:16]}.json"
        try:
            write_atomically(path, evidence)
        except OSError as error:
            return f"the evidence could not be written to {path}: {error.strerror}"
        return f"the evidence is in {path}: whoever runs cyber0 verify on it can see that"

    def key(self) -> PrivateKey:
        """Return a key of this folder's own, for a client that has no other."""
        return new_key() if self.folder is None else key_beside(self.folder / "key.pem")

    def save_weights(self, weights: Weights, facts: dict[str, str]) -> None:
        """Store weights and facts about them in one safetensors file, completely or not at all."""
        if self.folder is not None:
            known = weights.header.get("__metadata__", {})
            Weights({**weights.header, "__metadata__": {**known, **facts}}, weights.data).write(
                self._snapshot(self.folder)
            )

    def load_weights(self) -> tuple[Weights, dict[str, str]] | None:
        """Return the weights that were stored last, and the facts about them; None if there is no file to be read."""
        if self.folder is None or not self._snapshot(self.folder).exists():
            return None
        try:
            weights = Weights.read(self._snapshot(self.folder))
        except InvalidParameters:
            return None
        return weights, weights.header.get("__metadata__", {})

    def file_of(self, fingerprint: int) -> Path | None:
        """Return the file that has the weights of this fingerprint; None if none was stored."""
        found = self.load_weights()
        same = found is not None and found[1].get("fingerprint") == f"{fingerprint:016x}"
        return self._snapshot(self.folder) if same and self.folder is not None else None

    @staticmethod
    def _snapshot(folder: Path) -> Path:
        return folder / "weights.safetensors"

    def close(self) -> None:
        """Close the files and unlock the folder."""
        if self._file is not None:
            self._file.close()
            self._lock.close()
            self._file = None
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def inherit_key(folder: Path, run: bytes) -> None:
    """Give a new folder the key of the one that holds another run of the same client, if there is one.

    That of a run that begins with the rounds of that one: its roster has the keys of the parent's clients.
    """
    _, _, name = folder.name.partition("-")
    for other in sorted(folder.parent.glob(f"*-{escape(name)}")):
        known = other / "run.json"
        if other == folder or not known.exists() or not (other / "key.pem").exists():
            continue
        if hashlib.sha256(known.read_bytes().partition(b"\n")[0]).digest() == run:
            make_folder(folder)
            key_beside(folder / "key.pem", other / "key.pem")
