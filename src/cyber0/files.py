"""Files that are written whole or not at all, and locks that end with the process that holds them."""

import errno
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cyber0.errors import InvalidConfig

__all__ = ["draft_of", "lock_file", "lock_folder", "make_folder", "naming", "state_directory", "write_atomically"]


def write_atomically(path: Path, *parts: str | bytes | memoryview, mode: int = 0o666) -> None:
    """Write a file so that a crash leaves either the old content or all of the new.

    Who may read it is as `mode` says, less what the umask takes away.

    >>> from tempfile import mkdtemp
    >>> write_atomically(Path(mkdtemp()) / "note.txt", "all ", "of it")
    """
    with draft_of(path) as draft, open(draft, "wb", opener=partial(os.open, mode=mode)) as file:
        for part in parts:
            file.write(part.encode() if isinstance(part, str) else part)
        file.flush()
        if draft != path:  # a device keeps nothing
            os.fsync(file.fileno())


@contextmanager
def draft_of(path: Path) -> Generator[Path]:
    """Give a draft to write, which takes the place of a file at the end; if anything goes wrong, it is removed.

    A device such as /dev/null has no draft: another file must not take its place.

    >>> with draft_of(Path("/dev/null")) as draft:
    ...     draft
    PosixPath('/dev/null')
    """
    whole = not path.exists() or path.is_file() or path.is_dir()
    draft = path.with_name(path.name + ".tmp") if whole else path
    with naming(path):
        try:
            yield draft
            if whole:
                draft.replace(path)
        except BaseException:
            if whole:
                with suppress(OSError):  # there is none
                    draft.unlink()
            raise


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Give an error of the system the name of the file that is written: a full disk does not say whose it is.

    >>> with naming(Path("metrics.jsonl")):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'metrics.jsonl'
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where there is none yet.

    >>> make_folder(Path("/dev/null"))
    Traceback (most recent call last):
    NotADirectoryError: [Errno 20] it is not a folder: '/dev/null'
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = "it is a link to nothing" if path.is_symlink() and not path.exists() else "it is not a folder"
        raise NotADirectoryError(errno.ENOTDIR, what, str(path)) from None


def lock_file(
    path: Path,
    taken: Callable[[], Exception],
    mode: str = "w",
    *,
    unsupported: Callable[[], Exception] | None = None,
    wait: bool = False,
) -> Any:
    """Open a file and lock it for this process; the lock ends when the file is closed or the process ends.

    If another process holds the lock, the error that `taken()` returns is raised; or with `wait` it is waited for.
    Where a system or a file system has no locks there is none, unless `unsupported()` returns an error to raise.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / ".lock"
    >>> lock = lock_file(path, lambda: InvalidConfig("it is in use"))
    >>> lock_file(path, lambda: InvalidConfig("it is in use"))
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: it is in use
    >>> lock.close()
    """
    file = path.open(mode)
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise taken() from None
    except (ImportError, OSError):  # no locks on this system, or on this file system
        if unsupported is not None:
            file.close()
            raise unsupported() from None
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


def state_directory() -> Path:
    """Return the default folder of clients' state: `$XDG_STATE_HOME/cyber0`, or `~/.local/state/cyber0`.

    >>> state_directory().name
    'cyber0'
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "cyber0"
