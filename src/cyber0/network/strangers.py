"""Streams of strangers, who have said no Hello by a name on the roster: how many there may be, and for how long."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice

from cyber0.network.connection import Connection
from cyber0.protocol.messages import Bye

__all__ = ["Strangers"]

FIRST_WORD = 10.0  # seconds until a stream must have said anything
HELLO = 120.0  # seconds until its Hello: a client that has asked for an invitation may have to load its model first
MORE = 64  # streams of strangers, besides as many as there are names on the roster: all clients may come at once


class Strangers:
    """The streams that are not those of clients, oldest first. A client is known by its certificate, or its Hello.

    Args:
        clients: Returns how many clients are on the roster.
        is_client: Returns whether a stream is a client's.
        first_word: Seconds until a stream must have said anything.
        hello: Seconds until it must have said Hello.

    """

    def __init__(
        self,
        clients: Callable[[], int],
        is_client: Callable[[Connection], bool],
        first_word: float = FIRST_WORD,
        hello: float = HELLO,
    ) -> None:
        self.clients, self.is_client, self.first_word, self.hello = clients, is_client, first_word, hello
        self._clocks: dict[Connection, asyncio.TimerHandle] = {}  # oldest first

    def add(self, connection: Connection) -> None:
        """Take a stream that was opened; if there are too many, the oldest ones end."""
        self._later(connection, self.first_word, self._check_word)
        excess = len(self._clocks) - self.clients() - MORE
        if excess > 0:
            known = [stream for stream in self._clocks if self.is_client(stream)]
            for stream in known:
                self.remove(stream)
            self._end(islice(list(self._clocks), max(0, excess - len(known))), "too many streams: come again later")

    def remove(self, connection: Connection) -> None:
        """Forget a stream that has ended, or is a client's."""
        if clock := self._clocks.pop(connection, None):
            clock.cancel()

    def _later(self, connection: Connection, seconds: float, check: Callable[[Connection], None]) -> None:
        self._clocks[connection] = asyncio.get_running_loop().call_later(seconds, check, connection)

    def _check_word(self, connection: Connection) -> None:
        if connection.messages:
            self._later(connection, self.hello - self.first_word, self._check_hello)
        else:
            self._end([connection], f"it has said nothing for {self.first_word:g} seconds")

    def _check_hello(self, connection: Connection) -> None:
        if connection.stream is None and not connection.waits:
            self._end([connection], f"it has said no Hello for {self.hello:g} seconds: come again with it")
        self.remove(connection)

    def _end(self, streams: Iterable[Connection], why: str) -> None:
        for stream in list(streams):
            self.remove(stream)
            stream.end(Bye(why))
