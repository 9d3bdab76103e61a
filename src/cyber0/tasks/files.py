"""Data files: find them, verify them, and read them."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData

__all__ = ["DataFile", "cache_directory", "check", "find", "locate", "parse_idx", "read_idx"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A published file, known by its checksums: as published (gzip), and unpacked if it is read so, too.

    >>> DataFile("letters-idx1-ubyte.gz", 1000, "8d42", "0fa7").names
    ('letters-idx1-ubyte.gz', 'letters-idx1-ubyte')
    """

    name: str
    size: int | None
    sha256: str
    unpacked_sha256: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """Return the names it may have in a folder: as published, and unpacked."""
        return self.name, self.name.removesuffix(".gz")


def cache_directory(name: str) -> Path:
    """Return the folder for downloads of a data set: `$XDG_CACHE_HOME/cyber0/name`, or `~/.cache/cyber0/name`.

    >>> cache_directory("mnist").parts[-2:]
    ('cyber0', 'mnist')
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"  # as XDG says
    return root / "cyber0" / name


def find(
    directory: Path | str | None, look: Callable[[Path], T | None], cached: Callable[[], T | None], missing: str
) -> T | None:
    """Return what `look` finds in the folder given, else in the one that CYBER0_DATA names, else what is cached.

    The folder given must hold it, and `missing` says what to put there; the one of CYBER0_DATA may hold other data.

    >>> find("no-such-folder", lambda folder: None, lambda: None, "MNIST")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: there is no folder no-such-folder
    >>> find(".", lambda folder: None, lambda: None, "MNIST: put its four files there")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: . holds no MNIST: put its four files there
    """
    if directory is not None:
        found = look(_folder(Path(directory)))
        if found is None:
            raise InvalidData(f"{directory} holds no {missing}")
        return found
    named = os.environ.get("CYBER0_DATA")
    return (look(_folder(Path(named), " (it is named by CYBER0_DATA)")) if named else None) or cached()


def _folder(path: Path, why: str = "") -> Path:
    if not path.is_dir():
        raise InvalidData(f"there is no folder {path}{why}")
    return path


def locate(directory: Path, files: Sequence[DataFile], folders: Sequence[str] = ("",)) -> list[Path] | None:
    """Return the paths of all files, in the directory or one of its folders; None where none of them is there.

    If only some of them are there, that is an error.

    >>> locate(Path("no-such-folder"), [DataFile("letters-idx1-ubyte.gz", 1000, "8d42", "0fa7")]) is None
    True
    """
    for folder in folders:
        here = directory / folder
        found = [next((here / name for name in file.names if (here / name).exists()), None) for file in files]
        present = [path for path in found if path is not None]
        if len(present) == len(files):
            return present
        if present:
            missing = ", ".join(file.name for file, path in zip(files, found, strict=True) if path is None)
            raise InvalidData(f"{here} is not complete: it lacks {missing}")
    return None


def check(content: bytes, expected: str, name: object) -> None:
    """Refuse content whose SHA-256 is not the expected one.

    >>> check(b"altered", "8d42", "letters-idx1-ubyte.gz")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: letters-idx1-ubyte.gz (7 bytes) is truncated or altered: its SHA-256 is \
4aa009153649a0a7c1425387f3da9c72330ad069ea9f69ce1640abe46f92a83b, it must be 8d42; delete it and fetch it again
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise InvalidData(
            f"{name} ({len(content)} bytes) is truncated or altered: its SHA-256 is {found}, it must be {expected}; "
            "delete it and fetch it again"
        )


def read_idx(path: Path, file: DataFile) -> NDArray[np.uint8]:
    """Return the array in an idx file, packed or not, once its checksum is verified.

    >>> read_idx(Path("no-such-file"), DataFile("letters-idx1-ubyte.gz", 1000, "8d42", "0fa7"))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: no-such-file cannot be read: No such file or directory
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidData(f"{path} cannot be read: {error.strerror}") from error
    packed = path.name == file.name
    check(content, file.sha256 if packed else file.unpacked_sha256, path)
    return parse_idx(_unpacked(content, path) if packed else content, path)


def _unpacked(content: bytes, name: object) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidData(f"{name} is not a whole gzip file: {error}") from error


def parse_idx(content: bytes, name: object = "the file") -> NDArray[np.uint8]:
    """Return the array in bytes of the idx format: 0, 0, type, rank; each length as a big-endian word; then the values.

    >>> parse_idx(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6)))
    array([[0, 1, 2],
           [3, 4, 5]], dtype=uint8)
    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 9, 7]))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: the file says it holds 9 values and holds 1
    """
    start = 4 + 4 * content[3] if len(content) > 3 else 4
    if content[:3] != b"\0\0\x08" or len(content) < start:
        raise InvalidData(f"{name} is no idx file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}")
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], dtype=">u4"))
    if prod(shape) != len(content) - start:
        raise InvalidData(f"{name} says it holds {prod(shape)} values and holds {len(content) - start}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
