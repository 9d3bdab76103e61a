"""How a ledger's file is opened, locked, copied and left behind."""

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cyber0 import files
from cyber0.errors import InvalidLedger

__all__ = ["Lock", "check_whole", "connect", "copy", "leave_wal", "sync_folder", "trust"]

LARGEST = 2**28  # bytes of a text or blob
STEPS, PER_BYTE = 10**7, 20  # that SQLite may take to open a file, and for each byte of it
EVERY = 10**5  # steps
WAL_MODE = 2  # at byte 18 of a database whose newest content is in a file beside it
PAGES = 256  # of a database that are copied at a time

_locked: dict[tuple[int, int], "Lock"] = {}  # by this process: device and number of the file


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Return a connection to a database, which is made if it does not exist and is not `read_only`.

    >>> connect(Path("no/such/run.ledger"), read_only=True)
    Traceback (most recent call last):
    cyber0.errors.InvalidLedger: there is no ledger no/such/run.ledger
    """
    _check_place(path, read_only=read_only)
    modes = ["mode=ro", "mode=ro&immutable=1"] if read_only else ["mode=rwc"]
    if _beside(path, "-wal").exists():
        modes = modes[:1]  # an immutable database would be read without what is in there
    problem = ""
    for mode in modes:
        try:
            return _connection(path, mode)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # which may have a damaged name in its text
            problem = problem or str(error)
    raise InvalidLedger(_sentence(path, problem))


def _connection(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.resolve()))}?{mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
    left = (STEPS + PER_BYTE * (path.stat().st_size if path.exists() else 0)) // EVERY

    def counted() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(counted, EVERY)  # until the file is trusted
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def trust(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the pages of a file; an empty text if a table cannot be longer than the file."""
    try:
        ((found,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        found = str(error)
    connection.set_progress_handler(None, 0)
    return "" if found == "ok" else str(found)


def _check_place(path: Path, *, read_only: bool) -> None:
    if path.is_dir():
        raise InvalidLedger(f"{path} is a folder, not a ledger")
    if path.exists() and not path.is_file():
        raise InvalidLedger(f"{path} is a device, not a ledger")
    if read_only and not path.exists():
        raise InvalidLedger(f"there is no ledger {path}")
    if not read_only and not path.parent.is_dir():
        raise InvalidLedger(f"there is no folder {path.parent} to write a ledger to")
    if not read_only and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidLedger(f"{path} is read-only: a federator must be able to write it")


def _sentence(path: Path, problem: str) -> str:
    if "not a database" in problem:
        return f"{path} is not a ledger, nor an exported run"
    if "readonly" in problem or "unable to open" in problem:
        return f"{path} was left open by a federator, in a folder that is read-only here: copy it with its -wal file"
    return f"{path} cannot be opened: {problem}"


def check_whole(path: Path, lock: "Lock | None" = None) -> None:
    """Refuse a file without its write-ahead log: a copy of a ledger in use, or another name of one.

    A federator that is killed while it closes a ledger has put all into the file and removed the log, but not said so
    in the file. Under the name that a federator has locked before, the file is whole all the same.
    """
    name = _beside(path, "-lock")
    if name.exists() if lock is None else lock.was_there:
        return
    for _ in range(60):  # a federator that starts or ends makes or removes its log in this instant
        if not _lacks_log(path):
            return
        time.sleep(0.05)
    if lock is not None:
        name.unlink(missing_ok=True)  # it was made just now, and says nothing about this file
    raise InvalidLedger(
        f"{path} is not whole: a federator had it open when it was copied or got this name, and its newest rounds are "
        f"in a write-ahead log that is not here as {_beside(path, '-wal').name}. Copy a ledger in use by cyber0 ledger "
        "backup; of one that is not, copy both files; and use one name"
    )


def _lacks_log(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        head = _beginning(path)
    except OSError:  # SQLite says why
        return False
    in_log = head.startswith(b"SQLite format 3\0") and head[18:19] == bytes([WAL_MODE])
    return in_log and not _beside(path, "-wal").exists()


def _beginning(path: Path) -> bytes:
    held = _locked.get(_key(path))
    if held is not None:  # opening and closing it here would drop the locks that SQLite holds on it
        return held.beginning()
    with path.open("rb") as file:
        return file.read(20)


def _key(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


class Lock:
    """A lock of a ledger for this process, until it is closed or the process ends, however it ends.

    Both the file, whatever its name, and the name, whatever file it is of, are locked: a file may have several names
    (hard links, bind mounts), and another file may be put in the place of one that is in use. The file must stay open
    until SQLite has closed it: closing it drops the locks that SQLite holds on it.
    """

    def __init__(self, path: Path) -> None:
        def taken() -> InvalidLedger:
            return InvalidLedger(f"{path} is in use by another federator that has not ended")

        _check_place(path, read_only=False)
        if path.exists() and _key(path) in _locked:
            raise taken()
        self.was_there = _beside(path, "-lock").exists()  # since a federator has had this name open before
        try:
            self._name: Any = files.lock_file(_beside(path, "-lock"), taken)
            try:
                self._file: Any = files.lock_file(path, taken, mode="a+b")
            except BaseException:
                self._name.close()
                if not self.was_there:
                    _beside(path, "-lock").unlink(missing_ok=True)
                raise
        except OSError as error:
            raise InvalidLedger(f"{path} cannot be locked, in {path.resolve().parent}: {error.strerror}") from None
        self._key = _key(path)
        _locked[self._key] = self

    def beginning(self) -> bytes:
        """Return the first bytes of the file."""
        return os.pread(self._file.fileno(), 20, 0)

    def close(self) -> None:
        """Give both up."""
        _locked.pop(self._key, None)
        self._file.close()
        self._name.close()


def copy(source: sqlite3.Connection, path: Path) -> None:
    """Copy a database that others may be writing to a new file, as it is at one instant; all of it or nothing."""
    if path.exists():
        raise InvalidLedger(f"{path} exists: name a new file")
    if not path.parent.is_dir():
        raise InvalidLedger(f"there is no folder {path.parent} to write a copy to")
    draft = path.with_name(path.name + ".tmp")
    try:
        for suffix in ("", "-journal"):
            _beside(draft, suffix).unlink(missing_ok=True)
        target = sqlite3.connect(draft, isolation_level=None)
        try:
            source.execute("BEGIN")  # the copy is of this instant, however much is written meanwhile
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(target, pages=PAGES)
            source.execute("ROLLBACK")
            target.execute("PRAGMA journal_mode = DELETE").fetchone()  # so that it is one file
            target.execute("PRAGMA synchronous = FULL")
        finally:
            target.close()
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path)
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            draft.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidLedger(f"{path} cannot be written: {reason}") from None


def leave_wal(connection: sqlite3.Connection) -> None:
    """Put everything into the one file, so that reading needs no other beside it; not while somebody reads."""
    try:
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.Error:
        pass


def sync_folder(path: Path) -> None:
    """Write the folder of a new file to disk, so that the file's name is as durable as its content."""
    if os.name == "posix":
        folder = os.open(path.resolve().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _beside(path: Path, suffix: str) -> Path:
    path = path.resolve()  # so that two names of one file share a lock
    return path.with_name(path.name + suffix)
