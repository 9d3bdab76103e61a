"""The streams of a federator: who is at the other end of each, what has come from them, and who has too many."""

import asyncio
import socket
import time
from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol, cast

from cryptography import x509

from cyber0.errors import Cyber0Error
from cyber0.network.authentication import LONGEST as LONGEST_ANSWER
from cyber0.network.authentication import Authority, OtherTime, new_challenge, read_challenge
from cyber0.network.channel import BEAT, GREETING, ROOM, Channel, Credentials, Peer, greeting_and_word
from cyber0.network.connection import Connection
from cyber0.network.listener import STRANGERS, Listener, descriptors
from cyber0.network.log import Level
from cyber0.network.older import answer
from cyber0.network.poller import Poller
from cyber0.protocol.messages import Bye
from cyber0.protocol.signing import PublicKey, encoded

__all__ = ["Streams", "key_of"]

MAX_STREAMS = 3  # of one client: one is in use, and others may not have been noticed to be dead

TURNS = 10  # in which streams beat

TOGETHER = 256  # messages that are handled together, at most: each takes memory until they are
FEW, MANY = 32, 64  # messages that came together, and that are waited for
EACH, LONGEST = 5e-5, 0.01  # seconds that are waited for each of the latter, a quarter of its work, and at most

Inbox = list[tuple[Connection, bytes]]
NOWHERE: Any = None  # until there is a channel


class Say(Protocol):
    """Gives a notice to whoever watches."""

    def __call__(self, text: str, level: Level = "info", client: str = "") -> None: ...


class Streams:
    """All streams of a federator.

    Args:
        limit: Bytes that a message may have.
        peer_name: A function of a `Peer` that returns its name; without it a client is whoever it says it is.
        certified: Whether the key of a client's certificate must be that of its votes.
        known: The clients that are no strangers.
        handle: A function that is called with all messages that have come since the last time, in their order, each
            with its stream. What came at the same time is handled together: the same work many times in a row takes a
            fraction of the time that it takes in between other work.
        ended: A function that is called with a stream that is over; what came from it is handled before.
        say: What is called with notices.
        awaited: A function that returns how many messages are waited for. Where these are many, and few came together,
            it is waited until more are there: each one that comes alone takes a turn of the loop.

    """

    def __init__(
        self,
        limit: int,
        peer_name: Callable[[Peer], str] | None,
        certified: bool,
        known: Container[str],
        handle: Callable[[Inbox], None],
        ended: Callable[[Connection], None],
        say: Say,
        awaited: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limit, self.peer_name, self.certified, self.known = limit, peer_name, certified, known
        self._handle, self._ended, self._say, self._awaited = handle, ended, say, awaited
        self._open: dict[int, Connection] = {}
        self._of: dict[tuple[str, bytes], tuple[Connection, ...]] = {}  # by client and key, as they were authenticated
        self._inbox: Inbox = []
        self._room = max(ROOM, 4 * limit)
        self._listener: Listener | None = None
        self._authority: Authority | None = None
        self._poller: Poller | None = None
        self._beats: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()  # no stream is left

    async def start(self, listen: str, credentials: Credentials | None, clients: int) -> int:
        """Listen at HOST:PORT, with room for so many clients, and return the port."""
        self._authority = None if credentials is None else credentials.authority
        strangers = min(STRANGERS, descriptors() - 2 * clients)
        self._listener = Listener(
            self._opened, None if credentials is None else credentials.context, max(16, strangers)
        )
        port = await self._listener.start(listen)
        self._poller = Poller()
        self._beat(0)
        return port

    def _beat(self, turn: int) -> None:
        """Let a tenth of all streams beat, once a second: a timer for each of them would take memory."""
        loop = asyncio.get_running_loop()
        self._beats = loop.call_later(BEAT / TURNS, self._beat, (turn + 1) % TURNS)
        for connection in list(self._open.values()):
            if connection.number % TURNS == turn:
                connection.outlet.beat()

    async def close(self) -> None:
        """Take no more connections, and wait until those that are there have taken their last messages."""
        if self._listener is not None:
            self._listener.stop()
        if self._open:
            await self._empty.wait()
        if self._beats is not None:
            self._beats.cancel()
        if self._poller is not None:
            self._poller.close()

    @property
    def open(self) -> Mapping[int, Connection]:
        """Those that are not over, by their numbers."""
        return self._open

    @property
    def cut(self) -> int:
        """How many connections of strangers were cut to make room."""
        return 0 if self._listener is None else self._listener.cut

    def dismiss(self, connection: Connection, bye: Bye) -> None:
        """End a stream because of what its client did."""
        connection.end(bye)
        if connection.stream is not None and not bye.finished:
            client = connection.stream.client
            self._say(f"{client} is sent away: {bye.reason}", "warning", client)

    def know(self, connection: Connection) -> None:
        """Take a stream from among those of strangers."""
        if self._listener is not None:
            self._listener.know(connection.number)

    def receive(self, connection: Connection, data: bytes) -> None:
        """Take a message, to be handled with those that come before the loop has its next turn."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._inbox.append((connection, data))
        if len(self._inbox) >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Handle all that has come."""
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            self._handle(inbox)
            if len(inbox) < FEW and (awaited := self._awaited()) > MANY:
                time.sleep(min(awaited * EACH, LONGEST))

    def add(self, connection: Connection) -> None:
        """Count a stream among those that are open."""
        self._open[connection.number] = connection
        self._empty.clear()

    def remove(self, connection: Connection) -> None:
        """Forget a stream that is over."""
        self.flush()
        del self._open[connection.number]
        if connection.client is not None:
            who = connection.client, connection.shown
            own = tuple(other for other in self._of.pop(who, ()) if other is not connection)
            if own:
                self._of[who] = own
        self.know(connection)
        if not self._open:
            self._empty.set()
        self._ended(connection)

    def _opened(self, sock: socket.socket, number: int) -> None:
        """Take a connection whose handshake is done."""
        challenge = "" if self._authority is None else new_challenge()
        connection = _Served(self, number, challenge)
        outlet = connection.outlet = Channel(
            *(sock, connection),
            limit=LONGEST_ANSWER if challenge else self.limit,
            room=self._room,
            answers=True,
            greeting=GREETING + f" {challenge}".rstrip().encode(),
            poller=self._poller,
        )
        self.add(connection)
        if self._listener is not None:
            self._listener.watch(number, outlet.abort, connection)

    def greet(self, connection: Connection, line: bytes, challenge: str) -> bool:
        """Take a greeting, and return whether it is of this version; who is not to answer a challenge is known then."""
        greeting, token = greeting_and_word(line)
        if greeting == GREETING and not challenge:
            self._admit(connection, lambda: Peer(connection.address, token=token))
        return greeting == GREETING

    def prove(self, connection: Connection, answer: bytes, challenge: str) -> None:
        """Take the answer to a challenge, by which a client is known."""
        if (authority := self._authority) is None:
            return
        connection.outlet.limit = self.limit

        def who() -> Peer:
            certificate, key = authority.proved(answer, read_challenge(challenge))
            return Peer(connection.address, certificate, key=key)

        self._admit(connection, who)

    def _admit(self, connection: Connection, who: Callable[[], Peer]) -> None:
        """Learn who is there, or send it away."""
        try:
            self._identify(connection, who())
        except Cyber0Error as error:
            connection.end(Bye(str(error), final=not isinstance(error, OtherTime)))
            return
        self._make_room(connection)
        if connection.client is not None and connection.client in self.known:
            self.know(connection)

    def _identify(self, connection: Connection, peer: Peer) -> None:
        """Note what the transport knows of who is there."""
        connection.client, connection.shown = self.peer_name(peer) if self.peer_name else None, peer.key
        if self.certified and peer.certificate:
            connection.certificate, connection.key = peer.certificate, peer.key

    def _make_room(self, connection: Connection) -> None:
        """End a client's oldest stream if it has too many, so that it cannot use up the streams of all.

        Whoever has a certificate for the same name with another key ends none of them.
        """
        if connection.client is None:
            return
        who = connection.client, connection.shown
        own = self._of[who] = *self._of.get(who, ()), connection
        live = [other for other in own if not other.outlet.is_ended]
        if len(live) > MAX_STREAMS:
            self.dismiss(live[0], Bye(f"more than {MAX_STREAMS} streams of one client"))
        for other in own[: -2 * MAX_STREAMS]:  # they were ended long ago
            other.outlet.abort()


class _Served(Connection):
    """A stream that owns its channel: both in one object, as there are thousands."""

    __slots__ = ("challenge", "streams")

    def __init__(self, streams: Streams, number: int, challenge: str) -> None:
        super().__init__(number, NOWHERE)
        self.streams, self.challenge = streams, challenge

    def received(self, message: bytes) -> None:
        if self.challenge:
            challenge, self.challenge = self.challenge, ""
            self.streams.prove(self, message, challenge)
        else:
            self.streams.receive(self, message)

    def ended(self) -> None:
        self.streams.remove(self)

    def greeted(self, line: bytes) -> bool:
        return self.streams.greet(self, line, self.challenge)

    def foreign(self, data: bytes) -> bytes:
        return answer(data)

    def too_long(self, text: str) -> bool:
        self.streams.dismiss(self, Bye(text))
        return True


def key_of(certificate: bytes) -> bytes:
    """Return the public key of a certificate in DER, as rosters have it."""
    return encoded(cast("PublicKey", x509.load_der_x509_certificate(certificate).public_key()))
