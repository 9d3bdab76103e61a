"""The commits that a client has applied, on its disk.

By them it goes on after a crash, and a federator that lost them gets them back. A record has a fixed length, so that
any round is found at once: a checksum, flags, the hash of the round's ballots, the federator's signature of the link
after it, the scalars: 101 bytes and 4 for each scalar. Changes of the roster, which are rare, are in a file beside it,
each with the digest of the roster after it.
Nothing waits for the disk: what a crash tears off is cut off, and comes again.
"""

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

from cyber0.network.log import Said
from cyber0.protocol.catching_up import CHUNK, Step
from cyber0.protocol.codec import CHANGES
from cyber0.protocol.messages import CatchUp, Recalled
from cyber0.protocol.records import u64
from cyber0.protocol.roster import canonical

__all__ = ["CommitLog"]

MAGIC = b"cyber0 commits 1"
HEAD = len(MAGIC) + 16  # bytes before the first record: also the bytes of a round's scalars, and the first round
FIXED = 101  # bytes of a record besides its scalars
SIGNED, CHANGED = 1, 2
MEMORY = 2**24  # bytes of a log that is kept in memory


class _Record(NamedTuple):
    scalars: bytes
    ballots: bytes
    signature: bytes
    changes: list[Any]
    roster: bytes  # the digest of that after the round, if it is another one than before


class CommitLog:
    """The log of a client's commits in a folder, or in memory, where only the last ones are kept.

    Args:
        folder: Where it is; None for one in memory.
        width: Bytes of the scalars of a round.
        notice: A function that is called with a sentence if the log cannot be written; the client goes on.

    It holds the rounds from `first` to `end - 1`.

    """

    def __init__(self, folder: Path | None, width: int, notice: Callable[[str], None] = lambda _: None) -> None:
        self.folder, self.width, self.notice = folder, width, notice
        self.first = self.end = 0
        self._size, self._broken = FIXED + width, False
        self._changes: dict[int, tuple[list[Any], bytes]] = {}
        self._file: Any = BytesIO()
        if folder is None:
            return
        try:
            for name in ("commits", "changes"):
                (folder / name).touch(mode=0o600)
            self._file = (folder / "commits").open("r+b", buffering=0)
            self._read()
        except OSError as error:
            self._give_up(error)

    def _read(self) -> None:
        """Find out which rounds are there: what is torn or damaged at the end is cut off."""
        head, length = self._file.read(HEAD), os.fstat(self._file.fileno()).st_size
        if len(head) < HEAD or not head.startswith(MAGIC + self.width.to_bytes(8, "little")):
            return
        self.first = int.from_bytes(head[-8:], "little")
        self.end = self.first + (length - HEAD) // self._size
        for line in (self.folder / "changes").read_bytes().splitlines() if self.folder else ():
            checksum, _, data = line.partition(b" ")
            if checksum == b"%08x" % zlib.crc32(data):
                number, changes, digest = json.loads(data)
                self._changes[number] = changes, bytes.fromhex(digest)
        while self.end > self.first and self._record(self.end - 1) is None:
            self.end -= 1
        self._cut()

    def _cut(self) -> None:
        """Remove what is after the last round."""
        self._file.truncate(HEAD + (self.end - self.first) * self._size)

    def append(self, steps: Iterable[Step]) -> None:
        """Keep rounds that the client has applied; what it holds of other rounds in their place is forgotten."""
        steps = list(dropwhile(self._holds, (step for step in steps if step.ballots)))
        if not steps or self._broken:
            return
        try:
            self._write(steps)
        except OSError as error:
            self._give_up(error)

    def _write(self, steps: list[Step]) -> None:
        begin = steps[0].round
        if not self.first <= begin <= self.end or self.first == self.end:
            self.first = self.end = begin
            self._cut()
            self._put(0, MAGIC + self.width.to_bytes(8, "little") + begin.to_bytes(8, "little"))
        if begin < self.end:
            self.end = begin
            self._cut()
        for step in steps:
            if _is_changed(step):
                self._write_changes(step)
        self._put(HEAD + (begin - self.first) * self._size, b"".join(map(self._bytes, steps)))
        self.end = steps[-1].round + 1
        if self.folder is None and (self.end - self.first) * self._size > MEMORY:
            self._forget_half()

    def _put(self, place: int, data: bytes) -> None:
        self._file.seek(place)
        if self._file.write(data) < len(data):  # without a buffer, a disk that becomes full is no error yet
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write_changes(self, step: Step) -> None:
        changes, digest = [change.fields() for change in step.changes], step.after.roster.digest
        self._changes[step.round] = changes, digest
        if self.folder is not None:
            data = canonical([step.round, changes, digest.hex()])
            with (self.folder / "changes").open("ab") as file:
                file.write(b"\n%08x %s\n" % (zlib.crc32(data), data))  # on a line of its own, whatever was torn before

    def _bytes(self, step: Step) -> bytes:
        signature = step.after.signature
        flags = SIGNED * bool(signature) | CHANGED * _is_changed(step)
        data = bytes([flags]) + step.ballots + signature.ljust(64, b"\0") + step.scalars
        return _checksum(step.round, data) + data

    def _forget_half(self) -> None:
        half = (self.first + self.end) // 2
        self._file.seek(HEAD + (half - self.first) * self._size)
        rest = self._file.read()
        self._file, self.first = BytesIO(bytes(HEAD) + rest), half

    def _record(self, number: int) -> _Record | None:
        """Return what was kept of a round; None if it is damaged."""
        self._file.seek(HEAD + (number - self.first) * self._size)
        return self._parsed(number, self._file.read(self._size))

    def _parsed(self, number: int, data: bytes) -> _Record | None:
        if len(data) < self._size or _checksum(number, data[4:]) != data[:4]:
            return None
        flags, changed = data[4], (list[Any](), b"")
        if flags & CHANGED:
            if number not in self._changes:
                return None
            changed = self._changes[number]
        return _Record(data[FIXED:], data[5:37], data[37:FIXED] if flags & SIGNED else b"", *changed)

    def _holds(self, step: Step) -> bool:
        """Return whether a round is there already, as it is."""
        if not self.first <= step.round < self.end:
            return False
        found = self._record(step.round)
        changes = [change.fields() for change in step.changes]
        kept = None if found is None else (found.scalars, found.ballots, found.changes)
        return kept == (step.scalars, step.ballots, changes)

    def recalled(self, first: int, most: int = CHUNK) -> Recalled:
        """Return the commits from a round on for a federator that knows the roster, as `caught_up` does."""
        held = self.caught_up(first, most)
        return Recalled(held.first, held.scalars, held.ballots, held.signature, held.changes)

    def caught_up(self, first: int, most: int = CHUNK) -> CatchUp:
        """Return the commits from a round on, about `most` bytes, up to a signed link; none if it is not here."""
        rounds = max(1, most // (self.width + 32))
        try:
            while self.first <= first < self.end:
                found = self._up_to_signed(first, min(rounds, self.end - first))
                changed = [[first + at, record.changes] for at, record in enumerate(found) if record.changes]
                changes = canonical(changed) if changed else b""
                if len(changes) > CHANGES and rounds > 1:
                    rounds //= 2
                elif found:
                    scalars, ballots = b"".join(r.scalars for r in found), b"".join(r.ballots for r in found)
                    digests = (u64(first + at) + record.roster for at, record in enumerate(found) if record.roster)
                    return CatchUp(first, scalars, ballots, found[-1].signature, changes, rosters=b"".join(digests))
                elif rounds >= self.end - first or len(changes) > CHANGES:
                    break
                else:
                    rounds *= 2  # they came in one message, of which only the last link was signed
        except OSError as error:
            self._give_up(error)
        return CatchUp(first, b"")

    def _up_to_signed(self, first: int, rounds: int) -> list[_Record]:
        self._file.seek(HEAD + (first - self.first) * self._size)
        data, found = self._file.read(rounds * self._size), list[_Record]()
        for at in range(rounds):
            record = self._parsed(first + at, data[at * self._size : (at + 1) * self._size])
            if record is None:  # damaged: what is after it is of no use
                break
            found.append(record)
        while found and not found[-1].signature:
            found.pop()
        return found

    def _give_up(self, error: OSError) -> None:
        """Say once that the log cannot be kept: the client needs it only if others lose theirs."""
        self._broken = True
        where = "memory" if self.folder is None else str(self.folder / "commits")
        text = f"{where} cannot be written ({error.strerror}): this client could not give commits back to a federator"
        self.notice(Said(f"{text} that lost them", "warning"))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_changed(step: Step) -> bool:
    """Return whether the roster after a round is another one; an outline of one does not know changes that wait."""
    before, after = step.before.roster, step.after.roster
    return bool(step.changes) or (after is not before and after.digest != before.digest)


def _checksum(number: int, data: bytes) -> bytes:
    return zlib.crc32(data, zlib.crc32(number.to_bytes(8, "little"))).to_bytes(4, "little")
