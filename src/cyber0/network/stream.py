"""The stream between a client and the federator: its gRPC method and options, and a queue that is bounded in bytes."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator

__all__ = ["METHOD", "ROOM", "SERVICE", "TALK", "Outbox", "client_options", "server_options"]

SERVICE, TALK = "cyber0.v1.Federator", "Talk"
METHOD = f"/{SERVICE}/{TALK}"
PING, PATIENCE = 20_000, 20_000  # milliseconds: how often a silent peer is asked, and how long it may take to answer
HANDSHAKE, IDLE = 10_000, 20_000  # milliseconds that a connection may take for its handshake, and be without a stream
ROOM = 2**22  # bytes that may wait for a client, besides a catch-up: some are slow, and none may fill the memory

Options = list[tuple[str, int]]
COMMON: Options = [
    ("grpc.keepalive_time_ms", PING),
    ("grpc.keepalive_timeout_ms", PATIENCE),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),  # a probe costs more bytes than the votes it would speed up
    ("grpc.max_metadata_size", 8192),
]


def client_options(limit: int) -> Options:
    """Return the options of a client's channel, for messages of up to `limit` bytes."""
    return [
        *COMMON,
        ("grpc.max_receive_message_length", limit),
        ("grpc.use_local_subchannel_pool", 1),  # reconnect at once, without waiting for gRPC's back-off
    ]


def server_options(limit: int, connections: int) -> Options:
    """Return the options of a federator's server, for messages of up to `limit` bytes and that many connections."""
    return [
        *COMMON,
        ("grpc.max_receive_message_length", limit),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE),  # gRPC's own is two minutes
        ("grpc.max_connection_idle_ms", IDLE),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.so_reuseport", 0),  # one federator to an address
    ]


class Outbox:
    """A queue of what is to be written to a stream, in order.

    More than `room` bytes that wait make it full: then nothing more is written, and the client may come again.

    >>> async def example():
    ...     outbox, written = Outbox(room=3), []
    ...     async def write(data):
    ...         written.append(data)
    ...     outbox.put(b"ab")
    ...     outbox.put_all([b"c"] * 3)
    ...     outbox.end()
    ...     await outbox.drain(write)
    ...     return written
    >>> asyncio.run(example())
    [b'ab', b'c', b'c', b'c']
    """

    def __init__(self, room: int = ROOM) -> None:
        self.room, self.waiting, self.sent = room, 0, 0
        self.is_full, self.is_ended = False, False
        self._items: deque[bytes | Iterator[bytes]] = deque()
        self._more = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Write data after all that waits."""
        if self.is_ended or self.is_full:
            return
        if self.waiting + len(data) > self.room:
            self.is_full = True
        else:
            self.waiting += len(data)
            self._items.append(data)
        self._more.set()

    def put_all(self, parts: Iterable[bytes]) -> None:
        """Write parts, each of which is made only when its turn comes."""
        if not (self.is_ended or self.is_full):
            self._items.append(iter(parts))
            self._more.set()

    def end(self) -> None:
        """Write nothing after what waits."""
        self.is_ended = True
        self._more.set()

    async def drain(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write until the queue is ended or full."""
        while not self.is_full:
            while self._items and not self.is_full:
                await self._write(self._items.popleft(), write)
            if self.is_ended or self.is_full:
                return
            self._more.clear()
            await self._more.wait()

    async def _write(self, item: bytes | Iterator[bytes], write: Callable[[bytes], Awaitable[object]]) -> None:
        if isinstance(item, bytes):
            self.waiting -= len(item)
            item = iter((item,))
        for data in item:
            if self.is_full:
                return
            await write(data)
            self.sent += len(data)
