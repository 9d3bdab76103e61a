"""One stream of a client as the federator holds it: who is at its other end, and what it may still send."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cyber0.protocol.codec import encode
from cyber0.protocol.events import ClientStream
from cyber0.protocol.messages import Bye

__all__ = ["MAX_MESSAGES", "Connection", "Outlet"]

MAX_MESSAGES = 64  # of a client in one round: an honest one sends two or three


class Outlet(Protocol):
    """What messages to a client are given to: a `cyber0.network.channel.Channel`."""

    limit: int  # bytes of a message from the client
    sent: int
    is_full: bool
    is_ended: bool

    @property
    def address(self) -> str:
        """Where the other side is."""
        ...

    def put(self, data: bytes) -> None:
        """Write a message after all that waits."""

    def put_all(self, parts: Iterable[bytes]) -> None:
        """Write messages, each of which is made only when its turn comes."""

    def end(self) -> None:
        """Write nothing after what waits."""

    def abort(self) -> None:
        """End it at once."""

    def beat(self) -> None:
        """Do what is to be done every `BEAT` seconds."""


@dataclass(eq=False, slots=True)
class Connection:
    """A stream: `client` is its name as the transport has authenticated it, `certificate` what it showed, in DER."""

    number: int
    outlet: Outlet
    client: str | None = None
    certificate: bytes = b""
    key: bytes = b""  # of the certificate, where votes are signed with it
    shown: bytes = b""  # of the certificate, in any case
    stream: ClientStream | None = None
    round: int = -1
    messages: int = 0
    has_spoken: bool = False

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self.outlet.address

    def end(self, bye: Bye) -> None:
        """Send a Bye and end the stream; a client that does not read it is cut off after some seconds."""
        if not self.outlet.is_ended:
            self.outlet.put(encode(bye))
            self.outlet.end()

    def is_flood(self, current: int) -> bool:
        """Count one more message, and return whether there are too many in this round."""
        self.messages = self.messages + 1 if current == self.round else 1
        self.round, self.has_spoken = current, True
        return self.messages > MAX_MESSAGES
