"""Files that are written whole or not at all, and locks that end with the process that holds them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cyber0.errors import InvalidConfig

__all__ = ["lock_file", "lock_folder", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a crash leaves either the old content or all of the new.

    >>> from tempfile import mkdtemp
    >>> write_atomically(Path(mkdtemp()) / "note.txt", "all of it")
    """
    draft = path.with_name(path.name + ".tmp")
    with draft.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def lock_file(path: Path, taken: Callable[[], Exception]) -> Any:
    """Open a file and lock it for this process; the lock ends when the file is closed or the process ends.

    If another process holds the lock, the error that `taken()` returns is raised.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / ".lock"
    >>> lock = lock_file(path, lambda: InvalidConfig("it is in use"))
    >>> lock_file(path, lambda: InvalidConfig("it is in use"))
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: it is in use
    >>> lock.close()
    """
    file = path.open("w")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on this system
        pass
    except BlockingIOError:
        file.close()
        raise taken() from None
    except OSError:  # no locks on this file system
        pass
    return file


def lock_folder(folder: Path, what: str) -> Any:
    """Lock a folder for this process, which is a `what` (a run, a study, a client); return the open lock file.

    Raises InvalidConfig if another process holds it.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> lock = lock_folder(folder, "run")
    >>> lock_folder(folder, "run")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: ... is in use by another run that has not ended
    >>> lock.close()
    """
    return lock_file(
        folder / ".lock", lambda: InvalidConfig(f"{folder} is in use by another {what} that has not ended")
    )
