"""A client's end of a channel: it connects, and reads messages in its own time."""

import asyncio
import os
import socket
import ssl
from collections import deque
from typing import Any

from cyber0.errors import InvalidConfig, Refused, Unreachable
from cyber0.network.channel import (
    GREETING,
    PROTOCOLS,
    ROOM,
    Channel,
    Credentials,
    handshake,
    host_and_port,
)
from cyber0.printable import printable
from cyber0.protocol.messages import VERSION

__all__ = ["ClientChannel", "connect"]

WAITING = 64  # messages that may wait to be read, unless they have more bytes than one may have
TIMEOUT = 20.0  # seconds for a connection, and for its handshake


class ClientChannel:
    """A channel to a federator. `put` and `end` are those of a `Channel`."""

    def __init__(self, sock: socket.socket, *, limit: int, token: str) -> None:
        self._messages: deque[bytes] = deque()
        self._waiting = 0  # bytes
        self._more = asyncio.Event()
        self._refusal = ""
        self.channel = Channel(
            *(sock, self._received, self._more.set),
            limit=limit,
            room=max(ROOM, 4 * limit),
            greeting=GREETING + (f" {token}".encode() if token else b""),
            greeted=self._greeted,
            foreign=self._foreign,
        )

    @property
    def is_full(self) -> bool:
        """Whether the federator reads too slowly."""
        return self.channel.is_full

    def put(self, data: bytes) -> None:
        """Write a message after all that waits."""
        self.channel.put(data)

    async def read(self) -> list[bytes]:
        """Return the messages that have come, at least one; none at the end of the channel."""
        while not self._messages and not self.channel.is_over:
            self._more.clear()
            await self._more.wait()
        if self._refusal:
            raise Refused(self._refusal)
        messages = list(self._messages)
        self._forget()
        return messages

    async def end(self) -> None:
        """Write what waits, and wait until the federator has ended its side, too."""
        self.channel.end()
        while not self.channel.is_over:
            self._forget()
            self._more.clear()
            await self._more.wait()

    def _forget(self) -> None:
        """Forget the messages that wait, and let others come."""
        self._messages.clear()
        self._waiting = 0
        self.channel.resume()

    def _received(self, message: bytes) -> None:
        self._messages.append(message)
        self._waiting += len(message)
        if len(self._messages) >= WAITING or self._waiting >= self.channel.limit:
            self.channel.pause()
        self._more.set()

    def _greeted(self, line: bytes) -> bool:
        if line != GREETING:
            self._refusal = _other_version(printable(line[7:].decode(errors="replace")[:20]))
        return line == GREETING

    def _foreign(self, data: bytes) -> bytes:
        if data[3:4] in (b"\x04", b"\x07"):  # a frame of HTTP/2: settings, or a farewell
            self._refusal = _other_version("1")
        return b""


def _other_version(version: str) -> str:
    return (
        f"the federator speaks version {version} of the protocol, and this client {VERSION}: both need the same cyber0"
    )


async def connect(address: str, credentials: Credentials | None, *, limit: int) -> ClientChannel:
    """Return a channel to the federator at HOST:PORT; raise `Unreachable` with the reason if there is none.

    >>> asyncio.run(connect("127.0.0.1:1", None, limit=2**20))
    Traceback (most recent call last):
    cyber0.errors.Unreachable: Connection refused
    """
    where = host_and_port(address)
    if where is None:
        raise InvalidConfig(f"address = {address!r}: give a host and a port, such as federator.example.org:7360")
    try:
        async with asyncio.timeout(TIMEOUT):
            sock = await _connected(*where)
            if credentials is not None:
                sock = await _encrypted(sock, credentials.context, where[0])
    except TimeoutError:
        raise Unreachable(f"no answer within {TIMEOUT:g} seconds") from None
    except ssl.SSLError as error:
        raise Unreachable(_tls_problem(error)) from None
    except OSError as error:
        raise Unreachable(error.strerror or str(error)) from None
    return ClientChannel(sock, limit=limit, token="" if credentials is None else credentials.token)


async def _connected(host: str, port: int) -> socket.socket:
    """Return a connection to the first of a host's addresses that takes one."""
    loop, problem = asyncio.get_running_loop(), OSError(f"{host} has no address")
    for family, kind, protocol, _, name in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, name)
        except OSError as error:
            sock.close()
            problem = OSError(error.errno, os.strerror(error.errno) if error.errno else str(error))
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


async def _encrypted(sock: socket.socket, context: ssl.SSLContext, host: str) -> socket.socket:
    secure: Any = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        await handshake(secure)
        if secure.selected_alpn_protocol() == PROTOCOLS[1]:
            raise Refused(_other_version("1"))
    except BaseException:
        secure.close()
        raise
    return secure


def _tls_problem(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message}"
    return f"the TLS handshake fails: {(error.reason or str(error)).replace('_', ' ').lower()}"
