"""A channel: messages over a socket, with or without TLS, each as its length in four bytes, big-endian, and itself.

Each side begins with a line, `cyber0 2`; a client's may have a token in it. Whoever has said nothing for some seconds
sends an empty message, so that the other side knows that it is there. What waits to be written is bounded in bytes.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Never

from cyber0.protocol.messages import VERSION

__all__ = ["GREETING", "ROOM", "Channel", "Credentials", "Peer", "address_of", "handshake", "host_and_port", "ready"]

GREETING = f"cyber0 {VERSION}".encode()
PROTOCOLS = [GREETING.decode().replace(" ", "/"), "h2"]  # for TLS; version 1 spoke HTTP/2, and is told so
LINE = 256  # bytes of a greeting, at most
CHUNK = 2**14  # bytes that are read at a time: a record of TLS has no more
ROOM = 2**22  # bytes that may wait for the other side, besides a catch-up: some are slow, and none may fill the memory
PARTS = 8  # of a catch-up that are written before others have their turn
BEAT, SILENCE = 10.0, 40.0  # seconds until an empty message is sent, and until a silent side is given up
BEATS = 1024  # empty messages from one beat to the next, at most: more than one come where some have waited
GRACE = 2.0  # seconds that the other side has to take the last messages

BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True)
class Credentials:
    """How a side encrypts a channel; a client may show a token, too."""

    context: ssl.SSLContext
    token: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end: its address, the certificate that it showed, in DER, and its token."""

    address: str
    certificate: bytes = b""
    token: str = ""


class Channel:
    """A connection to another side, whose handshake is done.

    Args:
        sock: A socket that does not block.
        received: A function that is called with each message.
        ended: A function that is called once, when nothing more can be received.
        limit: Bytes that a message may have.
        room: Bytes that may wait to be written; more than that make the channel full, and nothing more is written.
        greeting: What this side begins with.
        answers: Whether the other side is to begin, as a client does.
        greeted: A function that is called with the other side's greeting; it returns whether to go on.
        foreign: A function that is called with all that came so far, where the other side does not speak cyber0; it
            returns all that is to be answered to that.
        too_long: A function that is called with a sentence where a message is longer than the limit; nothing more is
            received then, and by default the channel is over.

    >>> async def example():
    ...     ours, theirs = socket.socketpair()
    ...     ours.setblocking(False), theirs.setblocking(False)
    ...     said, over = [], asyncio.Event()
    ...     channel = Channel(ours, print, lambda: None)
    ...     other = Channel(theirs, said.append, over.set)
    ...     channel.put(b"one")
    ...     channel.put_all([b"two", b"three"])
    ...     channel.end()
    ...     await over.wait()
    ...     other.abort()
    ...     return said
    >>> asyncio.run(example())
    [b'one', b'two', b'three']

    """

    __slots__ = (  # which take a fraction of the memory: there are thousands of channels
        *("limit", "room", "sent", "waiting", "is_full", "is_ended", "is_over", "problem", "_socket", "_received"),
        *("_ended", "_greeting", "_answers", "_greeted", "_foreign", "_answered", "_too_long", "_loop", "_fd"),
        *("_items", "_rest", "_is_greeted", "_is_paused", "_is_writing", "_is_shut", "_is_deaf", "_beats"),
        *("_heard", "_spoke", "_timer", "__weakref__"),
    )

    def __init__(
        self,
        sock: socket.socket,
        received: Callable[[bytes], None],
        ended: Callable[[], None],
        *,
        limit: int = 2**20,
        room: int = ROOM,
        greeting: bytes = GREETING,
        answers: bool = False,
        greeted: Callable[[bytes], bool] = lambda line: line == GREETING,
        foreign: Callable[[bytes], bytes] = lambda _: b"",
        too_long: Callable[[str], None] | None = None,
    ) -> None:
        self.limit, self.room, self.sent, self.waiting = limit, room, 0, 0
        self.is_full, self.is_ended, self.is_over = False, False, False
        self.problem = ""  # why it is over, if the other side did not simply end it
        self._socket, self._received, self._ended = sock, received, ended
        self._greeting, self._answers, self._greeted = greeting + b"\n", answers, greeted
        self._foreign, self._answered, self._too_long = foreign, 0, too_long or self._lose
        self._loop = asyncio.get_running_loop()
        self._fd = sock.fileno()
        self._items: deque[bytes | Iterator[bytes]] | None = None  # what waits to be written
        self._rest = bytearray()  # what was read of a message that is not whole
        self._is_greeted, self._is_paused, self._is_writing = False, False, False
        self._is_shut, self._is_deaf, self._beats = False, False, 0
        self._heard = self._spoke = self._loop.time()
        self._timer = self._loop.call_later(BEAT, self._beat)
        self._loop.add_reader(self._fd, self._guard, self._read)
        if not answers:
            self._write(self._greeting)

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
        if wanted:
            self._loop.add_writer(self._fd, self._guard, self._flush)
        else:
            self._loop.remove_writer(self._fd)

    # What is read

    def pause(self) -> None:
        """Give no more messages until `resume`."""
        if not self._is_paused and not self.is_over:
            self._is_paused = True
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Give messages again."""
        if self._is_paused and not self.is_over:
            self._is_paused = False
            self._heard = self._loop.time()
            self._loop.add_reader(self._fd, self._guard, self._read)
            self._take(b"")

    def _read(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except BLOCKED:
            return
        except OSError as error:
            self._lose(_why(error))
            return
        if not data:
            self._lose("")
        elif not (self._is_shut or self._is_deaf):
            self._heard = self._loop.time()
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Give all messages that are whole."""
        if self._is_greeted and not self._rest and int.from_bytes(data[:4], "big") == len(data) - 4 > 0:
            self._give(data[4:])
            return
        rest = self._rest
        rest += data
        if not self._is_greeted and not self._greet(rest):
            return
        at = 0
        while len(rest) - at >= 4 and not (self._is_paused or self.is_over):
            size = int.from_bytes(rest[at : at + 4], "big")
            if size > self.limit:
                self._is_deaf = True
                self._too_long(f"a message of {size} bytes is too long: at most {self.limit} are allowed")
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
        if not end:
            if len(rest) > LINE:
                self._lose("its greeting is too long")
            return False
        self._is_greeted = True
        rest[:] = after
        if self._answers:
            self._write(self._greeting)
        is_welcome = self._greeted(bytes(line))
        self._greeted = self._foreign = _never  # so that what they hold can be freed
        if not is_welcome:
            self._is_deaf = True
            self.end()
            return False
        return True

    def _answer(self, data: bytes) -> None:
        """Answer a side that does not speak cyber0, and end it in any case."""
        answer = self._foreign(data) if len(data) <= CHUNK else b""
        if not answer:
            self._lose("what is there does not speak cyber0")
            return
        if not self._answered:
            self._loop.call_later(GRACE, self.abort)
        self._write(answer[self._answered :])
        self._answered = len(answer)

    def _give(self, message: bytes) -> None:
        if not self.is_over:
            self._received(message)

    # The end

    def _guard(self, work: Callable[[], None]) -> None:
        """Do what the socket is ready for; an error that nobody foresaw ends this channel, and no other."""
        try:
            work()
        except BaseException:
            self._lose("of an error")
            raise

    def _beat(self) -> None:
        now = self._loop.time()
        if now - self._heard > SILENCE and not self._is_paused:
            self._lose(f"nothing was heard of it for {SILENCE:g} seconds")
            return
        if now - self._spoke >= BEAT:
            self.put(b"")
        self._beats = 0
        if not self.is_over:
            self._timer = self._loop.call_later(BEAT, self._beat)

    def _lose(self, problem: str) -> None:
        if self.is_over:
            return
        self.is_over = self.is_ended = True
        self.problem = self.problem or problem
        self._timer.cancel()
        self._items = None
        self._rest.clear()  # a timer may keep this channel for some seconds
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        with suppress(OSError):
            self._socket.close()
        self._loop.call_soon(self._ended)  # not within what somebody does who writes to many channels


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


def _never(_: bytes) -> Never:
    raise AssertionError("a channel is greeted once")


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
