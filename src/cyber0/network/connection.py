"""One stream of a client as the federator holds it: who is at its other end, and what it may still send and take."""

import asyncio
from dataclasses import dataclass, field

from cyber0.network.stream import Outbox
from cyber0.protocol.codec import encode
from cyber0.protocol.events import ClientStream
from cyber0.protocol.messages import Bye

__all__ = ["GRACE", "MAX_MESSAGES", "Connection"]

MAX_MESSAGES = 64  # of a client in one round: an honest one sends two or three
GRACE = 2.0  # seconds that a stream has to take its last message


@dataclass(eq=False)
class Connection:
    """A stream: `client` is its name as the transport has authenticated it, `certificate` what it showed, in DER."""

    number: int
    client: str | None
    outbox: Outbox
    peer: str = ""  # where it comes from, as gRPC writes it
    certificate: bytes = b""
    key: bytes = b""  # of the certificate
    stream: ClientStream | None = None
    round: int = -1
    messages: int = 0
    waits: bool = False  # for the answer to a request
    cut: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, bye: Bye) -> None:
        """Send a Bye and end the stream; a client that does not read it is cut off after some seconds."""
        if not self.outbox.is_ended:
            self.outbox.put(encode(bye))
            self.outbox.end()
            asyncio.get_running_loop().call_later(GRACE, self.cut.set)

    def is_flood(self, current: int) -> bool:
        """Count one more message, and return whether there are too many in this round."""
        self.messages = self.messages + 1 if current == self.round else 1
        self.round = current
        return self.messages > MAX_MESSAGES
