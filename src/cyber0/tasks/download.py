"""Downloads whose checksums are verified before the files get their names."""

import hashlib
import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console

from cyber0.errors import InvalidData
from cyber0.files import lock_file
from cyber0.progress import Progress
from cyber0.tasks.files import DataFile

__all__ = ["download"]

TIMEOUT = 5.0  # seconds without an answer, after which a mirror is given up
CHUNK = 2**16
LARGEST = 2**30  # bytes of a file whose size is not known
BEYOND = 416  # what HTTP answers if a file has no bytes where it is to go on


def download(files: Sequence[DataFile], mirrors: Sequence[str], into: Path) -> None:
    """Fetch the files that are not there yet, each from the first mirror that serves the published bytes.

    A file is written under another name, and renamed once its checksum is right, so that there is never half a file
    under its name, even if two processes download it. What was fetched before an interruption is not fetched again.

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
    with _begun(file, into) as out:
        found = _received(f"{mirror}/{file.name}", file, out)
        if found != file.sha256:
            out.truncate(0)
            raise InvalidData(f"what it serves has the SHA-256 {found}, it must be {file.sha256}")
    with suppress(FileNotFoundError):  # another process was as quick
        Path(out.name).replace(into / file.name)


@contextmanager
def _begun(file: DataFile, into: Path) -> Generator[Any]:
    """Open what an earlier try has left of a file; a new one while another process goes on with that."""
    path = into / f".{file.name}.part"
    try:
        out = lock_file(path, BlockingIOError, "a+b")
        if not path.exists() or not os.path.samestat(os.fstat(out.fileno()), path.stat()):
            out.close()  # it has just got its name
            raise BlockingIOError
    except BlockingIOError:
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=into)
        os.close(handle)
        path = Path(name)
        out = path.open("a+b")
    try:
        with out:
            yield out
    finally:
        if path.exists() and path.stat().st_size == 0:
            path.unlink()


def _received(url: str, file: DataFile, out: Any) -> str:
    """Fetch what is missing of a file, and return the checksum of the whole."""
    out.seek(0)
    digest = hashlib.file_digest(out, "sha256")
    begun = out.tell()
    if digest.hexdigest() == file.sha256:
        return file.sha256
    request = Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})  # noqa: S310
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            if begun and answer.status != 206:  # all of it, from the beginning
                out.truncate(0)
                begun, digest = 0, hashlib.sha256()
            found = _copy(answer, out, file, begun, digest)
    except HTTPError as error:
        if error.code != BEYOND:
            raise
        found = "none"
    if found == file.sha256 or not begun:
        return found
    out.truncate(0)  # what was there before is of another file
    return _received(url, file, out)


def _copy(answer: Any, out: Any, file: DataFile, begun: int, digest: Any) -> str:
    """Copy at most one byte more than the file should have, as a mirror may never end; return the checksum."""
    length = answer.headers.get("Content-Length", "")
    promised = begun + int(length) if length.isdigit() else None
    most, done = (file.size or LARGEST) + 1, begun
    with Progress(Console(stderr=True), f"downloading {file.name}", file.size or promised, unit="bytes") as progress:
        while done < most and (chunk := answer.read(min(CHUNK, most - done))):
            done += len(chunk)
            digest.update(chunk)
            out.write(chunk)
            progress.update(done)
    if promised is not None and done < min(promised, most):
        raise ConnectionError(f"the connection broke after {done:,} of {promised:,} bytes")
    return digest.hexdigest()
