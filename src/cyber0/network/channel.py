"""A channel: messages over a socket, with or without TLS, each as its length in four bytes, big-endian, and itself.

Each side begins with a line, `cyber0 3`, the client first. A client's may have a token in it, and a federator's a
challenge, which the client's first message must answer (`cyber0.network.authentication`). Whoever has said nothing for
some seconds sends an empty message, so that the other side knows that it is there. What waits to be written is bounded
in bytes.
"""

import asyncio
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from selectors import EVENT_READ, EVENT_WRITE
from typing import Protocol

from cyber0.network.authentication import Authority, ClientCertificate
from cyber0.network.poller import Poller
from cyber0.protocol.messages import VERSION

__all__ = [
    "GREETING",
    "ROOM",
    "Channel",
    "Credentials",
    "Owner",
    "Peer",
    "address_of",
    "greeting_and_word",
    "handshake",
    "host_and_port",
    "ready",
]

GREETING = f"cyber0 {VERSION}".encode()
PROTOCOLS = [GREETING.decode().replace(" ", "/"), "cyber0/2", "h2"]  # for TLS; who speaks an older one is told so
LINE = 256  # bytes of a greeting, at most
CHUNK = 2**14  # bytes that are read at a time: a record of TLS has no more
ROOM = 2**22  # bytes that may wait for the other side, besides a catch-up: some are slow, and none may fill the memory
PARTS = 8  # of a catch-up that are written before others have their turn
BEAT, SILENCE = 10.0, 40.0  # seconds until an empty message is sent, and until a silent side is given up
BEATS = 1024  # empty messages from one beat to the next, at most: more than one come where some have waited
GRACE = 2.0  # seconds that the other side has to take the last messages


class _Buffer(threading.local):
    """Room for what is read, one for each thread: new room for every message would leave holes in the memory."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK))


BUFFER = _Buffer()
BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True)
class Credentials:
    """How a side encrypts a channel, and what a client shows: a certificate, or a token.

    A federator with an `authority` asks every client for a certificate of it.
    """

    context: ssl.SSLContext
    token: str = ""
    own: ClientCertificate | None = None
    authority: Authority | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end: its address, and its token or the certificate that it proved to be its own.

    The certificate is in DER, and `key` is its public key, as rosters have it.
    """

    address: str
    certificate: bytes = b""
    token: str = ""
    key: bytes = b""


class Owner(Protocol):
    """Whom a channel tells of what comes: one object, and not five functions, each of which takes memory."""

    def greeted(self, line: bytes) -> bool:
        """Take the other side's greeting, and return whether to go on."""
        ...

    def foreign(self, data: bytes) -> bytes:
        """Take all that came so far from a side that does not speak cyber0; return all that is to be answered."""
        ...

    def received(self, message: bytes) -> None:
        """Take a message."""
        ...

    def too_long(self, text: str) -> bool:
        """Take a sentence where a message is longer than the limit; return whether it ends the channel itself.

        Nothing more is received then in any case.
        """
        ...

    def ended(self) -> None:
        """Learn, once, that nothing more can be received."""
        ...


class Channel:
    """A connection to another side, whose handshake is done. `beat` is to be called every `BEAT` seconds.

    Args:
        sock: A socket that does not block.
        owner: Who is told of what comes.
        limit: Bytes that a message may have.
        room: Bytes that may wait to be written; more than that make the channel full, and nothing more is written.
        greeting: What this side begins with; to a side of another version it says no more than its own.
        answers: Whether the other side is to begin, as a client does.
        poller: What tells it that the socket is ready; by default the running loop.

    >>> class Sides:
    ...     def __init__(self):
    ...         self.said, self.over = [], asyncio.Event()
    ...     def greeted(self, line):
    ...         return line == GREETING
    ...     def received(self, message):
    ...         self.said.append(message)
    ...     def ended(self):
    ...         self.over.set()
    >>> async def example():
    ...     ours, theirs = socket.socketpair()
    ...     ours.setblocking(False), theirs.setblocking(False)
    ...     channel, there = Channel(ours, Sides()), Sides()
    ...     other = Channel(theirs, there)
    ...     channel.put(b"one")
    ...     channel.put_all([b"two", b"three"])
    ...     channel.end()
    ...     await there.over.wait()
    ...     other.abort()
    ...     return there.said
    >>> asyncio.run(example())
    [b'one', b'two', b'three']

    """

    __slots__ = (  # which take a fraction of the memory: there are thousands of channels
        *("limit", "room", "sent", "waiting", "is_full", "is_ended", "is_over", "problem", "_socket", "_owner"),
        *("_greeting", "_answers", "_answered", "_loop", "_fd", "_items", "_rest", "_is_greeted", "_is_paused"),
        *("_is_writing", "_is_shut", "_is_deaf", "_beats", "_heard", "_spoke", "_poller", "_events"),
    )

    def __init__(
        self,
        sock: socket.socket,
        owner: Owner,
        *,
        limit: int = 2**20,
        room: int = ROOM,
        greeting: bytes = GREETING,
        answers: bool = False,
        poller: Poller | None = None,
    ) -> None:
        self.limit, self.room, self.sent, self.waiting = limit, room, 0, 0
        self.is_full, self.is_ended, self.is_over = False, False, False
        self.problem = ""  # why it is over, if the other side did not simply end it
        self._socket, self._owner = sock, owner
        self._greeting, self._answers, self._answered = greeting + b"\n", answers, 0
        self._loop = asyncio.get_running_loop()
        self._fd = sock.fileno()
        self._items: deque[bytes | Iterator[bytes]] | None = None  # what waits to be written
        self._rest: bytearray | None = None  # what was read of a message that is not whole
        self._is_greeted, self._is_paused, self._is_writing = False, False, False
        self._is_shut, self._is_deaf, self._beats = False, False, 0
        self._heard = self._spoke = self._loop.time()
        self._poller, self._events = poller, 0
        self._watch()
        if not answers:
            self._write(self._greeting)

    @property
    def address(self) -> str:
        """Where the other side is; empty if that is not known any longer."""
        try:
            return address_of(self._socket.getpeername())
        except OSError:
            return ""

    # What is written

    def put(self, data: bytes) -> None:
        """Write a message after all that waits; none to a side that is to begin and has not."""
        if self.is_ended or self.is_full or (self._answers and not self._is_greeted):
            return
        self._write(len(data).to_bytes(4, "big") + data)
        self.sent += len(data)

    def put_all(self, parts: Iterable[bytes]) -> None:
        """Write messages, each of which is made only when its turn comes."""
        if not (self.is_ended or self.is_full):
            self._wait(iter(parts))
            self._flush()

    def end(self) -> None:
        """Write nothing after what waits; the other side has some seconds to take it."""
        if not self.is_ended:
            self.is_ended = True
            self._loop.call_later(GRACE, self.abort)
            self._flush()

    def abort(self) -> None:
        """End it at once."""
        self._lose("")

    def _write(self, frame: bytes) -> None:
        self._spoke = self._loop.time()
        if not (self._items or self._is_writing or self.is_over):
            sent = self._send(frame)
            if sent == len(frame):
                return
            frame = frame[sent:]
        if self.is_over:
            return
        if self.waiting + len(frame) > self.room:
            self.is_full = True
            self._lose("it reads too slowly")
            return
        self.waiting += len(frame)
        self._wait(frame)
        self._want_to_write(True)

    def _wait(self, item: bytes | Iterator[bytes]) -> None:
        if self._items is None:
            self._items = deque()
        self._items.append(item)

    def _send(self, frame: bytes) -> int:
        """Return how many bytes of a frame could be written."""
        try:
            return self._socket.send(frame)
        except BLOCKED:
            return 0
        except OSError as error:
            self._lose(error.strerror or str(error))
            return 0

    def _flush(self) -> None:
        items, left = self._items, PARTS
        while items and not self.is_over and left:
            item = items.popleft()
            if not isinstance(item, bytes):
                data = next(item, None)
                if data is None:
                    continue
                left -= 1
                self.sent += len(data)
                items.appendleft(item)
                item = len(data).to_bytes(4, "big") + data
            else:
                self.waiting -= len(item)
            rest = item[self._send(item) :]
            if rest and not self.is_over:
                self.waiting += len(rest)
                items.appendleft(rest)
                break
        if not self._items:
            self._items = None  # an empty one takes memory, too
        self._want_to_write(bool(self._items))
        if self.is_ended and not self._items and not self._is_shut and not self.is_over:
            self._is_shut = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)  # what comes meanwhile is read, so that our last words arrive

    def _want_to_write(self, wanted: bool) -> None:
        if wanted == self._is_writing or self.is_over:
            return
        self._is_writing = wanted
        self._watch()

    # What is read

    def pause(self) -> None:
        """Give no more messages until `resume`."""
        if not self._is_paused and not self.is_over:
            self._is_paused = True
            self._watch()

    def resume(self) -> None:
        """Give messages again."""
        if self._is_paused and not self.is_over:
            self._is_paused = False
            self._heard = self._loop.time()
            self._watch()
            self._take(b"")

    def _read(self) -> None:
        view = BUFFER.view
        try:
            size = self._socket.recv_into(view)
        except BLOCKED:
            return
        except OSError as error:
            self._lose(_why(error))
            return
        if not size:
            self._lose("")
        elif not (self._is_shut or self._is_deaf):
            self._heard = self._loop.time()
            self._take(bytes(view[:size]))

    def _take(self, data: bytes) -> None:
        """Give all messages that are whole."""
        if self._is_greeted and not self._rest and self.limit >= int.from_bytes(data[:4], "big") == len(data) - 4 > 0:
            self._give(data[4:])
            return
        rest = self._rest if self._rest is not None else bytearray()
        rest += data
        if self._is_greeted or self._greet(rest):
            self._give_all(rest)
        self._rest = rest if rest and not (self.is_over or self._is_deaf) else None  # an empty one takes memory, too

    def _give_all(self, rest: bytearray) -> None:
        """Give all messages that are whole, and leave the rest."""
        at = 0
        while len(rest) - at >= 4 and not (self._is_paused or self.is_over):
            size = int.from_bytes(rest[at : at + 4], "big")
            if size > self.limit:
                self._is_deaf = True
                text = f"a message of {size} bytes is too long: at most {self.limit} are allowed"
                if not self._owner.too_long(text):
                    self._lose(text)
                return
            if len(rest) - at < 4 + size:
                break
            message = bytes(rest[at + 4 : at + 4 + size])
            at += 4 + size
            if message:
                self._give(message)
            else:
                self._beats += 1
        del rest[:at]
        if self._beats > BEATS:
            self._lose(f"it sends more than {BEATS} empty messages in {BEAT:g} seconds")

    def _greet(self, rest: bytearray) -> bool:
        """Take the other side's greeting, and return whether messages follow."""
        begin = GREETING[:7]
        if not begin.startswith(rest[:7]) and not rest.startswith(begin):
            self._answer(bytes(rest))
            return False
        line, end, after = rest.partition(b"\n")
        if len(line) > LINE:
            self._lose("its greeting is too long")
            return False
        if not end:
            return False
        self._is_greeted = True
        rest[:] = after
        if self._answers:
            self._write(self._greeting if greeting_and_word(bytes(line))[0] == GREETING else GREETING + b"\n")
        self._greeting = b""
        if not self._owner.greeted(bytes(line)):
            self._is_deaf = True
            self.end()
            return False
        return True

    def _answer(self, data: bytes) -> None:
        """Answer a side that does not speak cyber0, and end it in any case."""
        answer = self._owner.foreign(data) if len(data) <= CHUNK else b""
        if not answer:
            self._lose("what is there does not speak cyber0")
            return
        if not self._answered:
            self._loop.call_later(GRACE, self.abort)
        self._write(answer[self._answered :])
        self._answered = len(answer)

    def _give(self, message: bytes) -> None:
        if not self.is_over:
            self._owner.received(message)

    # When the socket is ready

    def ready(self, events: int) -> None:
        """Do what the socket is ready for; an error that nobody foresaw ends this channel, and no other."""
        try:
            if events & EVENT_READ and not (self._is_paused or self.is_over):
                self._read()
            if events & EVENT_WRITE and not self.is_over:
                self._flush()
        except BaseException:
            self._lose("of an error")
            raise

    def _watch(self) -> None:
        """Say what the socket is to be ready for."""
        reads, writes = not (self._is_paused or self.is_over), self._is_writing and not self.is_over
        events, before = EVENT_READ * reads | EVENT_WRITE * writes, self._events
        self._events = events
        if events == before:
            return
        if self._poller is not None:
            self._poller.watch(self._fd, self, events, before)
            return
        for event, add, remove in (
            (EVENT_READ, self._loop.add_reader, self._loop.remove_reader),
            (EVENT_WRITE, self._loop.add_writer, self._loop.remove_writer),
        ):
            if events & event and not before & event:
                add(self._fd, self.ready, event)
            elif before & event and not events & event:
                remove(self._fd)

    # The end

    def beat(self) -> None:
        """Show that this side is there, and give up another one of which nothing was heard."""
        if self.is_over:
            return
        now = self._loop.time()
        if now - self._heard > SILENCE and not self._is_paused:
            self._lose(f"nothing was heard of it for {SILENCE:g} seconds")
            return
        if now - self._spoke >= BEAT / 2:  # at most three halves of a beat after the last word
            self.put(b"")
        self._beats = 0

    def _lose(self, problem: str) -> None:
        if self.is_over:
            return
        self.is_over = self.is_ended = True
        self.problem = self.problem or problem
        self._items = self._rest = None  # a timer may keep this channel for some seconds
        self._watch()
        with suppress(OSError):
            self._socket.close()
        self._loop.call_soon(self._owner.ended)  # not within what somebody does who writes to many channels


async def handshake(sock: ssl.SSLSocket) -> None:
    """Do a handshake on a socket that does not block."""
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await ready(sock)
        except ssl.SSLWantWriteError:
            await ready(sock, to="write")


async def ready(sock: socket.socket, to: str = "read") -> None:
    """Wait until a socket can be read from, or written to."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle() -> None:
        if not done.done():
            done.set_result(None)

    fd = sock.fileno()
    (loop.add_reader if to == "read" else loop.add_writer)(fd, settle)
    try:
        await done
    finally:
        (loop.remove_reader if to == "read" else loop.remove_writer)(fd)


def greeting_and_word(line: bytes) -> tuple[bytes, str]:
    """Return the greeting in a line, and the token or challenge after it, if there is one.

    >>> greeting_and_word(b"cyber0 3 secret"), greeting_and_word(b"cyber0 3")
    ((b'cyber0 3', 'secret'), (b'cyber0 3', ''))
    """
    name, _, rest = line.partition(b" ")
    version, _, word = rest.partition(b" ")
    return name + b" " + version, word.decode(errors="replace")


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return the host and the port of an address; None if it is none.

    >>> host_and_port("[::1]:7360"), host_and_port("federator.example.org"), host_and_port("[::1")
    (('::1', 7360), None, None)
    """
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_host(host) or not port.isdecimal() or int(port) >= 2**16:
        return None
    return host, int(port)


def _is_host(host: str) -> bool:
    try:
        return bool(host.encode("idna")) and (":" not in host or bool(IPv6Address(host)))
    except ValueError:
        return False


def address_of(name: tuple[object, ...]) -> str:
    """Return HOST:PORT of what a socket calls the other side.

    >>> address_of(("::1", 7360, 0, 0)), address_of(("10.0.0.1", 7360))
    ('[::1]:7360', '10.0.0.1:7360')
    """
    if len(name) < 2:  # such as that of a socket of this machine alone
        return ""
    host = f"[{name[0]}]" if ":" in str(name[0]) else str(name[0])
    return f"{host}:{name[1]}"


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
