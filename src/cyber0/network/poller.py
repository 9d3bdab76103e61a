"""Tells many channels when their sockets are ready: for each of them an event loop takes four times the memory."""

import asyncio
import selectors
from typing import Protocol

__all__ = ["Poller", "Ready"]


class Ready(Protocol):
    """What waits for a socket."""

    def ready(self, events: int) -> None:
        """Do what the socket is ready for: `selectors.EVENT_READ`, `EVENT_WRITE`, or both."""
        ...


class Poller:
    """Watches sockets; it is itself one file that the running event loop watches.

    >>> import socket
    >>> class Reader:
    ...     def __init__(self, sock):
    ...         self.sock, self.read = sock, asyncio.get_running_loop().create_future()
    ...     def ready(self, events):
    ...         self.read.set_result((events, self.sock.recv(9)))
    >>> async def example():
    ...     ours, theirs = socket.socketpair()
    ...     with ours, theirs:
    ...         poller, reader = Poller(), Reader(ours)
    ...         poller.watch(ours.fileno(), reader, selectors.EVENT_READ, before=0)
    ...         theirs.send(b"hello")
    ...         found = await reader.read
    ...         poller.close()
    ...     return found
    >>> asyncio.run(example())
    (1, b'hello')
    """

    def __init__(self) -> None:
        self._loop, self._selector = asyncio.get_running_loop(), selectors.DefaultSelector()
        self._loop.add_reader(self._selector, self._tell)

    def watch(self, fd: int, who: Ready, events: int, before: int) -> None:
        """Tell somebody when a descriptor is ready for these events, and not for those before."""
        if not before:
            self._selector.register(fd, events, who)
        elif events:
            self._selector.modify(fd, events, who)
        else:
            self._selector.unregister(fd)

    def close(self) -> None:
        """Tell nobody any more."""
        self._loop.remove_reader(self._selector)
        self._selector.close()

    def _tell(self) -> None:
        for key, events in self._selector.select(0):
            try:
                key.data.ready(events)
            except Exception as error:  # of which the others know nothing
                what = {"message": "what waits for a socket has failed", "exception": error}
                self._loop.call_exception_handler(what)
