"""Store how far a replay is, so that one that was stopped goes on from there.

A checkpoint is a line of JSON, the facts, and the bytes of all tensors in flat order. The facts say of which run the
weights are, after which commit of its chain, and their SHA-256; so a checkpoint of another run, another history or
damaged weights is not used. It is as trustworthy as who can write it: one that others can write is not used either.
"""

import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cyber0.errors import InvalidParameters
from cyber0.files import make_folder, write_atomically
from cyber0.parameters import Parameters
from cyber0.protocol.chain import commit_hashes
from cyber0.protocol.ledger import ExportedRun

__all__ = ["Checkpoint"]

FORMAT = "cyber0 replay 1"
EVERY = 5.0  # seconds from one checkpoint to the next, or
SHARE = 20  # times what the last one took, if that is more
LONGEST = 4096  # bytes of the facts


class Checkpoint:
    """The file in which a replay stores its weights from time to time.

    Args:
        path: The file.
        notice: A function that is called with a sentence when a checkpoint is used, is not used, or cannot be written.
        every: Seconds of work from one checkpoint to the next, if writing one takes much less.

    >>> import numpy as np
    >>> from tempfile import mkdtemp
    >>> from cyber0.config import Agreement
    >>> from cyber0.protocol.identity import Identity
    >>> weights = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> run = ExportedRun(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], weights), bytes(8))
    >>> checkpoint = Checkpoint(Path(mkdtemp()) / "model.replay", print, every=0)
    >>> checkpoint.resume(run, weights)
    (0, 0.0)
    >>> checkpoint.save(run, 1, 0.0, weights)
    >>> checkpoint.resume(run, weights)
    going on after round 1 of 2, which is stored in /.../model.replay
    (1, 0.0)

    """

    def __init__(self, path: Path, notice: Callable[[str], None] = lambda _: None, every: float | None = None) -> None:
        self.path, self.notice, self.every = path, notice, EVERY if every is None else every
        self._pause, self._last, self._refused = self.every, time.monotonic(), False

    @property
    def usable(self) -> bool:
        """Whether there is one that a replay could go on from."""
        return os.path.isfile(self.path) and not self._refused  # noqa: PTH113 - is_file raises where a folder is closed

    def room(self, folder: Path) -> int:
        """Return how many bytes it takes on the disk of a folder."""
        try:
            found = self.path.stat()
        except OSError:
            return 0
        here = stat.S_ISREG(found.st_mode) and found.st_dev == folder.stat().st_dev
        return getattr(found, "st_blocks", found.st_size // 512) * 512 if here else 0

    def resume(self, run: ExportedRun, parameters: Parameters) -> tuple[int, float]:
        """Load what is stored of a run into its base weights; return how many rounds they have, and the moment.

        What cannot be used leaves the weights as they are: 0 rounds.
        """
        self._last = time.monotonic()
        try:
            with open(self.path, "rb", opener=_without_waiting) as file:
                facts = self._facts(file, run)
                self._check_content(file, facts, parameters)
                for _, flat in parameters:
                    file.readinto(memoryview(flat).cast("B"))
        except (FileNotFoundError, NotADirectoryError):
            return 0, 0.0
        except OSError as error:
            self._refused = True
            self.notice(f"{self.path} cannot be read ({error.strerror}): the replay begins anew")
            return 0, 0.0
        except InvalidParameters as error:
            self._refused = True
            self.notice(f"{self.path} is not used, since {error}: the replay begins anew")
            return 0, 0.0
        rounds = facts["rounds"]
        self.notice(f"going on after round {rounds:,} of {run.rounds:,}, which is stored in {self.path}")
        return rounds, float.fromhex(facts["moment"])

    def keep(self, run: ExportedRun, rounds: int, moment: float, weights: Callable[[], Parameters]) -> None:
        """Store weights, if that is due. If they cannot be written, the replay goes on without."""
        begin = time.monotonic()
        if begin - self._last < self._pause:
            return
        try:
            self.save(run, rounds, moment, weights())
        except OSError as error:
            self.notice(f"{self.path} cannot be written ({error.strerror}): if this is stopped, it begins anew")
            self._pause = float("inf")
            return
        self._last = time.monotonic()
        self._pause = max(self.every, SHARE * (self._last - begin))

    def save(self, run: ExportedRun, rounds: int, moment: float, parameters: Parameters) -> None:
        """Store weights after so many rounds of a run, and the second moment of its step rule, on disk."""
        parts = [memoryview(flat).cast("B") for _, flat in parameters]
        facts = {**_of(run, rounds), "moment": moment.hex(), "weights": _sha256(parts)}
        if self.path.exists() and not self.path.is_file():
            raise OSError(errno.EEXIST, "it is no file")
        make_folder(self.path.parent)
        write_atomically(self.path, _line({**facts, "digest": _digest(facts)}), *parts, mode=0o600)
        self._refused = False

    def remove(self) -> None:
        """Delete the file: the replay is done, or needs the room. One that cannot be deleted is named in a notice."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            if os.path.exists(self.path):  # noqa: PTH110 - as above
                self.notice(f"{self.path} cannot be deleted ({error.strerror}): it is not needed any longer")

    def _facts(self, file: Any, run: ExportedRun) -> dict[str, Any]:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise InvalidParameters("it is no file")
        if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
            raise InvalidParameters("others can write it")
        try:
            facts: dict[str, Any] = json.loads(file.readline(LONGEST))
            digest, rounds = facts.pop("digest"), int(facts["rounds"])
            float.fromhex(facts["moment"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise InvalidParameters("it is damaged") from None
        if digest != _digest(facts):
            raise InvalidParameters("it is damaged")
        if not 0 <= rounds <= run.rounds:
            raise InvalidParameters(f"it has {rounds:,} rounds, and {run.rounds:,} are asked for")
        if any(facts.get(name) != value for name, value in _of(run, rounds).items()):
            raise InvalidParameters("it is of another run")
        return facts

    @staticmethod
    def _check_content(file: Any, facts: dict[str, Any], parameters: Parameters) -> None:
        begin, hashed = file.tell(), hashlib.sha256()
        while part := file.read(2**20):
            hashed.update(part)
        size = sum(flat.nbytes for _, flat in parameters)
        if file.tell() - begin != size or hashed.hexdigest() != facts["weights"]:
            raise InvalidParameters("its weights are damaged")
        file.seek(begin)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; one that is a pipe at once, and not when somebody writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _of(run: ExportedRun, rounds: int) -> dict[str, Any]:
    """Return what binds weights to a run: its digest, which covers base and layout, and its chain up to a round."""
    width = 4 * run.identity.plan.scalars
    hashes = [run.identity.digest, *commit_hashes(run.identity.digest, run.scalars[: rounds * width], width)]
    return {"format": FORMAT, "run": run.identity.digest.hex(), "rounds": rounds, "commit": hashes[-1].hex()}


def _sha256(parts: list[memoryview]) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(_line(facts)).hexdigest()


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":"), sort_keys=True).encode() + b"\n"
