"""A federator's end of its channels: it listens, does handshakes, and bounds those of whom nothing is known.

Strangers, who have not been told apart from the roster yet, share a number of connections: with one too many the
oldest is cut, and one that says nothing for some seconds is cut, too. So there is always room for the clients of a run.
"""

import asyncio
import errno
import gc
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from cyber0.errors import InvalidConfig
from cyber0.network.channel import handshake, host_and_port

__all__ = ["STRANGERS", "Listener", "collect_rarely", "descriptors", "raise_limit", "too_few"]

SECONDS = 10.0  # for a handshake and a first message
STRANGERS = 512  # connections of whom nothing is known, at most
AT_ONCE = 64  # connections that are accepted before others have their turn
BACKLOG = 1024
MOST, OWN = 2**16, 64  # descriptors that are asked for, and those for files and the like
RARELY = 20_000, 50, 100  # the thresholds of `gc`
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Speaker(Protocol):
    """Who is at the other end of a connection."""

    has_spoken: bool


class Listener:
    """Where a federator listens.

    Args:
        opened: A function that is called with the socket of a connection whose handshake is done, and its number.
        context: That of TLS; None for connections that are not encrypted.
        strangers: How many connections may be those of strangers.

    """

    def __init__(
        self,
        opened: Callable[[socket.socket, int], None],
        context: ssl.SSLContext | None = None,
        strangers: int = STRANGERS,
    ) -> None:
        self.opened, self.context, self.most = opened, context, strangers
        self.cut = 0  # connections of strangers that were cut to make room
        self._sockets: list[socket.socket] = []
        self._strangers: dict[int, Callable[[], object]] = {}
        self._watched: dict[int, tuple[float, Speaker]] = {}  # until when they are to speak
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    async def start(self, listen: str) -> int:
        """Listen at HOST:PORT, where port 0 is any free one, and return the port."""
        where = host_and_port(listen)
        try:
            if where is None:
                raise OSError
            host, port = where
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, *_, name in dict.fromkeys(found):
                address = (name[0], port, *name[2:])
                self._sockets.append(_listening(family, address))
                port = self._sockets[0].getsockname()[1]
        except OSError as error:
            self.stop()
            why = f" ({error.strerror})" if error.strerror else ""
            raise InvalidConfig(
                f"listen = {listen!r} cannot be used{why}: is the port taken, and the address one of this machine?"
            ) from None
        for sock in self._sockets:
            self._listen(sock)
        return port

    def stop(self) -> None:
        """Take no more connections, and cut those of strangers."""
        for sock in self._sockets:
            if sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock.fileno())
                sock.close()
        for task in self._tasks:
            task.cancel()
        for cut in list(self._strangers.values()):
            cut()
        if self._timer is not None:
            self._timer.cancel()

    def know(self, number: int) -> None:
        """Count a connection as that of a stranger no longer."""
        self._strangers.pop(number, None)
        self._watched.pop(number, None)

    def watch(self, number: int, cut: Callable[[], object], who: Speaker) -> None:
        """Count a connection as that of a stranger, which can be cut, and is if it has not spoken for too long."""
        self._strangers[number] = cut
        self._watched[number] = asyncio.get_running_loop().time() + SECONDS, who
        if self._timer is None:
            self._look_again()

    def _look_after(self) -> None:
        """Cut strangers that have not spoken in time; those who came first are the first."""
        self._timer, now = None, asyncio.get_running_loop().time()
        while self._watched and (number := next(iter(self._watched))) and self._watched[number][0] <= now:
            _, who = self._watched.pop(number)
            cut = self._strangers.get(number)
            if cut is not None and not who.has_spoken:
                cut()
        self._look_again()

    def _look_again(self) -> None:
        if self._watched:
            until, _ = next(iter(self._watched.values()))
            self._timer = asyncio.get_running_loop().call_at(until, self._look_after)

    def _listen(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in EXHAUSTED:  # try again when others may be gone
                    loop = asyncio.get_running_loop()
                    loop.remove_reader(listening.fileno())
                    loop.call_later(1.0, self._listen, listening)
                return
            is_crowded = self._make_room()
            self._begin(sock)
            if is_crowded:  # let go of those that are cut before the next one
                return

    def _begin(self, sock: socket.socket) -> None:
        self._count += 1
        task = asyncio.ensure_future(self._open(sock, self._count))
        self._strangers[self._count] = task.cancel
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                sock.close()

        task.add_done_callback(done)

    def _make_room(self) -> bool:
        """Cut the oldest strangers if there are too many; return whether there were."""
        is_crowded = len(self._strangers) >= self.most
        while len(self._strangers) >= self.most:
            number = next(iter(self._strangers))
            self.cut += 1
            self._strangers.pop(number)()
        return is_crowded

    async def _open(self, sock: socket.socket, number: int) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is not None:
                sock = secure = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                async with asyncio.timeout(SECONDS):
                    await handshake(secure)
        except (OSError, ValueError):  # it is gone, too slow, or speaks something else; a client says why
            self._let_go(sock, number)
            return
        except BaseException:
            self._strangers.pop(number, None)
            sock.close()
            raise
        self._strangers.pop(number, None)
        self.opened(sock, number)

    def _let_go(self, sock: socket.socket, number: int) -> None:
        """End a connection so that the other side can read why its handshake failed."""

        def close() -> None:
            self._strangers.pop(number, None)
            sock.close()

        self._strangers[number] = close
        try:
            sock.shutdown(socket.SHUT_WR)
            asyncio.get_running_loop().call_later(1.0, close)
        except OSError:
            close()


def descriptors() -> int:
    """Return how many connections this process may have, beside files and the like.

    >>> descriptors() > 0
    True
    """
    try:
        import resource
    except ImportError:  # not on every system
        return MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, soft - OWN)


def raise_limit() -> None:
    """Let this process have as many descriptors as the system allows it without asking, if it makes use of them."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def collect_rarely() -> None:
    """Let this process look for cyclic garbage a hundredth as often as it would.

    With ten thousand clients a look at all objects takes 0.3 s, several times a round, and hardly anything is found.
    """
    gc.set_threshold(*RARELY)


def too_few(clients: int, connections: int | None = None) -> str:
    """Return what to say where a process may have too few connections for its clients; else nothing.

    >>> too_few(400, connections=960)
    ''
    >>> too_few(5000, connections=960)
    '5,000 clients need more descriptors than the 1,024 that this process may have: give it 10,576 (ulimit -Hn)'
    """
    connections = descriptors() if connections is None else connections
    if connections >= 2 * clients + OWN:
        return ""
    return (
        f"{clients:,} clients need more descriptors than the {connections + OWN:,} that this process may have: give it "
        f"{2 * clients + STRANGERS + OWN:,} (ulimit -Hn)"
    )


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
