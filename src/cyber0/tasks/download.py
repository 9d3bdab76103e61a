"""Downloads whose checksums are verified before the files get their names."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rich.console import Console

from cyber0.errors import InvalidData
from cyber0.progress import Progress
from cyber0.tasks.files import DataFile

__all__ = ["download"]

TIMEOUT = 5.0  # seconds without an answer, after which a mirror is given up
CHUNK = 2**16


def download(files: Sequence[DataFile], mirrors: Sequence[str], into: Path) -> None:
    """Fetch the files that are not there yet, each from the first mirror that serves the published bytes.

    A file is written under a temporary name and renamed once its checksum is right, so that there is never half a file
    under its name, even if two processes download it.

    >>> nobody = "http://127.0.0.1:9"
    >>> download([DataFile("letters-idx1-ubyte.gz", 1000, "8d42", "0fa7")], [nobody], Path(tempfile.mkdtemp()))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: letters-idx1-ubyte.gz could not be downloaded (http://127.0.0.1:9: Connection refused)
    """
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidData(f"{into} cannot be made, so nothing can be downloaded there: {error.strerror}") from error
    missing = [file for file in files if not (into / file.name).exists()]
    for file in missing:
        _fetch(file, mirrors, into)


def _fetch(file: DataFile, mirrors: Sequence[str], into: Path) -> None:
    reasons: list[str] = []
    for mirror in mirrors:
        try:
            return _fetch_from(mirror, file, into)
        except (OSError, HTTPException, InvalidData) as error:
            reasons.append(f"{mirror}: {_reason(error)}")
    raise InvalidData(f"{file.name} could not be downloaded ({'; '.join(reasons)})")


def _reason(error: Any) -> str:
    cause = getattr(error, "reason", error)  # urllib wraps what the socket said
    return str(getattr(cause, "strerror", None) or cause or type(cause).__name__)


def _fetch_from(mirror: str, file: DataFile, into: Path) -> None:
    if not mirror.startswith(("http://", "https://")):
        raise InvalidData("a mirror's address must begin with http:// or https://")
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=into)
    try:
        with os.fdopen(handle, "wb") as out, urlopen(f"{mirror}/{file.name}", timeout=TIMEOUT) as answer:  # noqa: S310
            found = _copy(answer, out, file)
        if found != file.sha256:
            raise InvalidData(f"what it serves has the SHA-256 {found}, it must be {file.sha256}")
        Path(temporary).replace(into / file.name)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _copy(answer: Any, out: Any, file: DataFile) -> str:
    """Copy at most one byte more than the file should have, as a mirror may never end; return the checksum."""
    digest, left = hashlib.sha256(), file.size + 1
    with Progress(Console(stderr=True), f"downloading {file.name}", file.size, unit="bytes") as progress:
        while left > 0 and (chunk := answer.read(min(CHUNK, left))):
            left -= len(chunk)
            digest.update(chunk)
            out.write(chunk)
            progress.update(file.size + 1 - left)
    return digest.hexdigest()
