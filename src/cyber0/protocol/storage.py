"""How a ledger's file is opened, locked and left behind."""

import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cyber0 import files
from cyber0.errors import InvalidLedger

__all__ = ["connect", "leave_wal", "lock", "sync_folder", "trust"]

LARGEST = 2**28  # bytes of a text or blob
STEPS, PER_BYTE = 10**7, 20  # that SQLite may take to open a file, and for each byte of it
EVERY = 10**5  # steps


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


def lock(path: Path) -> Any:
    """Return a file beside the ledger, locked for this process until the process ends, however it ends.

    The ledger itself cannot be locked so: closing it would drop the locks that SQLite holds on it.
    """
    try:
        return files.lock_file(
            _beside(path, "-lock"),
            lambda: InvalidLedger(f"{path} is in use by another federator that has not ended"),
        )
    except OSError as error:
        raise InvalidLedger(f"{path} cannot be locked, in {path.resolve().parent}: {error.strerror}") from None


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
