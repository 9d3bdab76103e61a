"""A small HTTP server beside a federator, in the same event loop: metrics, health, status and a live page. Read-only.

It is bounded: in connections, in the size of a request and in the time that a peer may take. A peer that sends slowly
or reads slowly is cut off; when there are too many, the one that has waited longest goes first. What all viewers of the
live page see is made once for all of them, a few times a second.
"""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, cast

from cyber0.errors import InvalidConfig
from cyber0.network.server import Federator
from cyber0.network.snapshot import health, metrics, snapshot, status

__all__ = ["Http", "is_loopback_host"]

REQUEST = 8192  # bytes of a request
PATIENCE = 5.0  # seconds for a request to come, and for what is sent to be taken
CONNECTIONS, VIEWERS = 64, 32
TICK, SHARE = 0.5, 50  # seconds from one state that viewers are sent to the next, and times as long as one took to make
FRESH = 0.1  # seconds for which metrics and the status are not made again
REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Http:
    """The server: `start` it where the federator runs, and `close` it.

    Args:
        federator: Whose run is shown.
        public: Whether other machines may ask. Otherwise only names of this machine are answered, so that no web site
            can have a browser read it under a name of its own.

    """

    def __init__(self, federator: Federator, *, public: bool = False) -> None:
        self.federator, self.public = federator, public
        self._page, self._policy = live_page()
        self._server: asyncio.Server | None = None
        self._waiting: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}  # for a whole request, oldest first
        self._viewers: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()  # of all connections
        self._made: dict[str, tuple[float, bytes]] = {}  # what was made lately, and until when it will do
        self._publisher: asyncio.Task[None] | None = None
        self._event, self._changed = b"", asyncio.Event()
        self._routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/": lambda: (200, "text/html; charset=utf-8", self._page),
            "/metrics": lambda: (200, PROMETHEUS, self._lately("/metrics", lambda: metrics(federator).encode())),
            "/status": lambda: (200, JSON, self._lately("/status", lambda: _json(status(federator)))),
            "/health": self._health,
        }

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        try:
            self._server = await asyncio.start_server(self._begin, host, port, limit=REQUEST)
        except OSError as error:
            raise InvalidConfig(f"metrics = '{host}:{port}' cannot be used: {error.strerror or error}") from None
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Send viewers the last state, and end all connections."""
        if self._server is not None:
            self._server.close()
        if self._viewers:
            self._publish()
            await asyncio.wait(self._viewers, timeout=0.1)
        tasks = [*self._tasks, *([self._publisher] if self._publisher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        while len(self._waiting) >= CONNECTIONS:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).transport.abort()
        self._waiting[task] = writer
        # it may be cut off at any time, by its peer or by us, and nobody else is to know
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._answer(task, reader, writer)
        self._waiting.pop(task, None)
        self._viewers.discard(task)
        writer.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()

    async def _answer(self, task: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            writer.write(self._response(400, TEXT, b"the request is too long\n"))
            return
        self._waiting.pop(task, None)
        method, path, problem = _parsed(head, public=self.public)
        if problem is not None:
            writer.write(self._response(problem, TEXT, f"{REASONS[problem]}\n".encode()))
        elif path == "/events" and method == "GET":
            await self._view(task, writer)
        else:
            code, kind, body = self._routes.get(path, lambda: (404, TEXT, b"Not Found\n"))()
            writer.write(self._response(code, kind, body, only_head=method == "HEAD"))
        async with asyncio.timeout(PATIENCE):
            await writer.drain()

    async def _view(self, task: Any, writer: asyncio.StreamWriter) -> None:
        """Send the state of the run again and again."""
        if len(self._viewers) >= VIEWERS:
            writer.write(self._response(503, TEXT, b"too many viewers\n"))
            return
        self._viewers.add(task)
        if self._publisher is None or self._publisher.done():
            self._publish()
            self._publisher = asyncio.ensure_future(self._keep_publishing())
        writer.write(b"HTTP/1.1 200 OK\r\n" + self._headers("text/event-stream") + b"\r\nretry: 2000\n\n")
        while True:
            changed = self._changed
            writer.write(self._event)
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
            if self.federator.over.is_set():
                return
            await changed.wait()

    async def _keep_publishing(self) -> None:
        loop = asyncio.get_running_loop()
        while self._viewers:
            begin = loop.time()
            self._publish()
            await asyncio.sleep(max(TICK, SHARE * (loop.time() - begin)))

    def _publish(self) -> None:
        """Make the state that all viewers are sent."""
        self._event = b"data: " + _json(snapshot(self.federator)) + b"\n\n"
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _lately(self, path: str, make: Callable[[], bytes]) -> bytes:
        """Return what was made lately, or make it again: who asks all the time does not slow the rounds."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        until, body = self._made.get(path, (0.0, b""))
        if begin >= until:
            body = make()
            end = loop.time()
            self._made[path] = end + max(FRESH, SHARE * (end - begin)), body
        return body

    def _health(self) -> tuple[int, str, bytes]:
        found = health(self.federator)
        return 200 if found["ok"] else 503, JSON, _json(found)

    def _response(self, code: int, kind: str, body: bytes, *, only_head: bool = False) -> bytes:
        first = f"HTTP/1.1 {code} {REASONS[code]}\r\nContent-Length: {len(body)}\r\n".encode()
        return first + self._headers(kind) + b"\r\n" + (b"" if only_head else body)

    def _headers(self, kind: str) -> bytes:
        return (
            f"Content-Type: {kind}\r\nCache-Control: no-store\r\nConnection: close\r\n"
            f"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
            f"Content-Security-Policy: {self._policy}\r\n"
        ).encode()


def live_page() -> tuple[bytes, str]:
    """Return the live page, and a policy by which a browser runs nothing but what is in it, and asks nobody else.

    >>> page, policy = live_page()
    >>> policy.split(";")[0]
    "default-src 'none'"
    """
    page = files("cyber0.network").joinpath("live.html").read_text(encoding="utf-8")
    digests = {name: _digest(re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)) for name in ("script", "style")}
    policy = (
        f"default-src 'none'; script-src {digests['script']}; style-src {digests['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy


def is_loopback_host(host: str) -> bool:
    """Return whether a host is a name or an address of this machine only.

    >>> is_loopback_host("localhost"), is_loopback_host("[::1]"), is_loopback_host("federator.example.org")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host.strip("[]")).is_loopback
    return False


def _parsed(head: bytes, *, public: bool) -> tuple[str, str, int | None]:
    r"""Return method and path of a request, and the status to refuse it with, if there is one.

    >>> _parsed(b"GET /health?x=1 HTTP/1.1\r\nHost: localhost:9000\r\n\r\n", public=False)
    ('GET', '/health', None)
    >>> _parsed(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", public=False)
    ('GET', '/', 403)
    """
    line, *rest = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", "", 400
    method, path = words[0], words[1].partition("?")[0]
    hosts = [value.strip() for name, _, value in (each.partition(":") for each in rest) if name.lower() == "host"]
    if method not in ("GET", "HEAD"):
        return method, path, 405
    if not public and not all(is_loopback_host(re.sub(r":\d+$", "", host)) for host in hosts):
        return method, path, 403
    return method, path, None


def _digest(parts: list[str]) -> str:
    (part,) = parts
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
