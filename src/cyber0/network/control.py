"""The operator's way to a federator that runs: a socket beside its ledger, which only its own user can open.

A request is one line of JSON, and so is the answer, which comes once a change is on disk: `{"said": ...}`, or
`{"refused": ...}` with the reason. A federation never waits for it.
"""

import asyncio
import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from cryptography import x509

from cyber0.errors import Cyber0Error, InvalidRoster, Refused, Unreachable
from cyber0.network.keys import check_name
from cyber0.network.server import Federator
from cyber0.protocol.roster import Change, when
from cyber0.protocol.trust import vouched

__all__ = ["Control", "ask", "control_path"]

LARGEST = 2**16  # bytes of a request
LARGEST_ANSWER = 2**24
MOST = 16  # requests at a time
PATIENCE = 10.0  # seconds that a request may take to come, and an answer to go
KINDS = ("admit", "revoke", "rotate", "extend")


def control_path(ledger: Path) -> Path:
    """Return where the socket of a ledger's federator is.

    >>> control_path(Path("runs/run.ledger")).name
    'run.ledger-control'
    """
    return ledger.with_name(ledger.name + "-control")


class Control:
    """The socket of a federator: `open` it when the federator has started, `close` it at the end.

    Args:
        federator: Whose roster is to be changed.
        ledger: The file of its ledger, beside which the socket is made.
        authority: The authority of a federation with TLS: certificates of others are refused.

    """

    def __init__(self, federator: Federator, ledger: Path, authority: x509.Certificate | None = None) -> None:
        self.federator, self.path, self.authority = federator, control_path(ledger), authority
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """Listen, and return an empty text; if that is not possible, why: a federator can do without."""
        try:
            self._server = await asyncio.start_unix_server(self._begin, sock=_bound(self.path), limit=LARGEST)
        except (OSError, AttributeError) as error:  # there are systems without such sockets
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return f"the roster cannot be changed while this federator runs: no socket at {self.path}: {why}"
        return ""

    async def close(self) -> None:
        """Answer what was asked, and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        if self._requests:
            await asyncio.wait(self._requests, timeout=1.0)
        self.path.unlink(missing_ok=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader)
        except Cyber0Error as error:
            answer = {"refused": str(error)}
        with suppress(OSError, TimeoutError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), PATIENCE)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))
        except (ValueError, TimeoutError, RecursionError):  # a line that is too long is a ValueError, too
            raise InvalidRoster(f"the request is not a line of JSON of at most {LARGEST:,} bytes") from None
        if len(self._requests) > MOST:
            raise InvalidRoster(f"more than {MOST} requests wait for an answer: ask again when a round is decided")
        if not isinstance(request, dict):
            raise InvalidRoster(f"the request is {type(request).__name__}: it must be an object of JSON")
        fields = cast("dict[str, Any]", request)
        return self._shown() if fields.get("kind") == "show" else await self._change(fields)

    def _shown(self) -> dict[str, Any]:
        state = self.federator.state
        proposed = [change.text for change in state.proposed]
        return {"said": "", "round": state.round, "present": sorted(state.present), "proposed": proposed}

    async def _change(self, request: dict[str, Any]) -> dict[str, Any]:
        change, certificate = _parsed(request)
        if certificate:
            self._check_certificate(change, certificate)
        written = await self.federator.propose([change], certificate)
        if written is None:
            raise InvalidRoster("the federator stopped before it was written: ask again when it is back")
        return {"said": when([change], written, self.federator.state.who.last)}

    def _check_certificate(self, change: Change, certificate: bytes) -> None:
        if self.authority is None:
            raise InvalidRoster(
                "certificate: this federator runs without TLS, so that no authority vouches for it; give the key"
            )
        if (change.name, change.key) not in vouched([certificate], self.authority):
            raise InvalidRoster(
                f"certificate: it is none of a client {change.name} by this federation's authority: cyber0 keys sign "
                "makes one of its request"
            )


def _parsed(request: dict[str, Any]) -> tuple[Change, bytes]:
    """Return the change that a request asks for, and a certificate."""
    kind, name, number = (request.get(field, default) for field, default in (("kind", ""), ("name", ""), ("rounds", 0)))
    if kind not in KINDS or not isinstance(name, str) or type(number) is not int:
        raise InvalidRoster(f"kind = {kind!r}: it must be one of show, {', '.join(KINDS)}, with a name or rounds")
    try:
        key, certificate = (bytes.fromhex(request.get(field, "")) for field in ("key", "certificate"))
    except (ValueError, TypeError):
        raise InvalidRoster("key and certificate must be given in hexadecimal digits") from None
    if kind != "extend":
        check_name(name)
    return Change(kind, name, key, number), certificate


def ask(ledger: Path, request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Ask the federator that serves a ledger, and return its answer; raise `Refused` with its reason.

    >>> ask(Path("no/such/run.ledger"), {"kind": "show"}, timeout=1.0)
    Traceback (most recent call last):
    cyber0.errors.Unreachable: no federator answers at no/such/run.ledger-control: ...
    """
    path = control_path(ledger)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(timeout)
            stream.connect(_short(path))
            with suppress(BrokenPipeError):  # it may have answered before it has read all
                stream.sendall(json.dumps(request).encode() + b"\n")
            with stream.makefile("rb") as file:
                answer = cast("dict[str, Any]", json.loads(file.readline(LARGEST_ANSWER)))
    except TimeoutError:
        raise Unreachable(
            f"not written within {timeout:g} seconds, for the open round is not decided yet: it may still be written, "
            "which cyber0 roster shows"
        ) from None
    except AttributeError:
        raise Unreachable("this system has no Unix sockets, by which a federator could be asked") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it ended before it answered"
        raise Unreachable(
            f"no federator answers at {path}: {why}; --ledger must name the ledger of a cyber0 serve that runs on this "
            "machine, as this user"
        ) from None
    if "refused" in answer:
        raise Refused(str(answer["refused"]))
    return answer


def _bound(path: Path) -> socket.socket:
    """Return a socket at a path, for its owner alone; one that a federator before it left behind is replaced.

    Nobody else serves the ledger now: the federator has locked it.
    """
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(made.fileno(), 0o600)  # so that nobody can open it before the next line
        made.bind(_short(path))
        path.chmod(0o600)
    except BaseException:
        made.close()
        raise
    return made


def _short(path: Path) -> str:
    """Return a path as it is, or from here, whichever is shorter: the system takes about 100 characters."""
    return min(str(path), os.path.relpath(path), key=len)
