"""A client's end of a channel: it connects, and reads messages in its own time."""

import asyncio
import os
import socket
import ssl
from collections import deque

from cyber0.errors import InvalidConfig, Refused, Unreachable
from cyber0.network.authentication import ClientCertificate, read_challenge
from cyber0.network.channel import (
    BEAT,
    GREETING,
    ROOM,
    Channel,
    Credentials,
    greeting_and_word,
    handshake,
    host_and_port,
)
from cyber0.printable import printable
from cyber0.protocol.messages import VERSION

__all__ = ["ClientChannel", "connect", "older_version"]

WAITING = 64  # messages that may wait to be read, unless they have more bytes than one may have
TIMEOUT = 20.0  # seconds for a connection, and for its handshake


class ClientChannel:
    """A channel to a federator. `put` and `end` are those of a `Channel`.

    `own` answers the federator's challenge, if it has one; `federator` is the certificate that it showed, in DER.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        limit: int,
        token: str,
        own: ClientCertificate | None = None,
        federator: bytes = b"",
    ) -> None:
        self._own, self.federator, self._is_greeted = own, federator, False
        self._messages: deque[bytes] = deque()
        self._waiting = 0  # bytes
        self._more = asyncio.Event()
        self._refusal = ""
        greeting = GREETING + (f" {token}".encode() if token else b"")
        self.channel = Channel(sock, self, limit=limit, room=max(ROOM, 4 * limit), greeting=greeting)
        asyncio.get_running_loop().call_later(BEAT, self._beat)

    @property
    def is_full(self) -> bool:
        """Whether the federator reads too slowly."""
        return self.channel.is_full

    def put(self, data: bytes) -> None:
        """Write a message after all that waits."""
        self.channel.put(data)

    async def begun(self) -> None:
        """Wait until the federator has greeted, and its challenge is answered."""
        while not self._is_greeted and not self.channel.is_over:
            self._more.clear()
            await self._more.wait()

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

    def _beat(self) -> None:
        if not self.channel.is_over:
            self.channel.beat()
            asyncio.get_running_loop().call_later(BEAT, self._beat)

    # What the channel tells

    def received(self, message: bytes) -> None:
        """Keep a message until it is read."""
        self._messages.append(message)
        self._waiting += len(message)
        if len(self._messages) >= WAITING or self._waiting >= self.channel.limit:
            self.channel.pause()
        self._more.set()

    def greeted(self, line: bytes) -> bool:
        """Take the federator's greeting, and answer its challenge if it has one."""
        self._is_greeted = True
        self._more.set()
        greeting, word = greeting_and_word(line)
        if greeting != GREETING:
            self._refusal = _other_version(printable(greeting[7:].decode(errors="replace")[:20]))
        elif word:
            self._answer(read_challenge(word))
        return not self._refusal

    def _answer(self, challenge: bytes) -> None:
        """Answer the federator's challenge, before all other messages."""
        if self._own is None:
            self._refusal = "the federator asks for a certificate: give --tls DIR (see cyber0 keys)"
        elif not challenge:
            self._refusal = "what answers greets as no federator does"
        else:
            self.channel.put(self._own.answer(challenge, self.federator))

    def foreign(self, data: bytes) -> bytes:
        """Recognise a federator of version 1."""
        if data[3:4] in (b"\x04", b"\x07"):  # a frame of HTTP/2: settings, or a farewell
            self._refusal = _other_version("1")
        return b""

    def too_long(self, text: str) -> bool:
        """Let the channel end with the sentence."""
        del text
        return False

    def ended(self) -> None:
        """Wake who waits."""
        self._more.set()


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
            return await _opened(*where, credentials, limit)
    except TimeoutError:
        raise Unreachable(f"no answer within {TIMEOUT:g} seconds") from None
    except ssl.SSLError as error:
        raise Unreachable(_tls_problem(error)) from None
    except OSError as error:
        raise Unreachable(error.strerror or str(error)) from None


async def _opened(host: str, port: int, credentials: Credentials | None, limit: int) -> ClientChannel:
    """Return a channel on which messages can be put; with a certificate, after the federator's challenge."""
    sock = await _connected(host, port)
    if credentials is None:
        return ClientChannel(sock, limit=limit, token="")
    secure = await _encrypted(sock, credentials.context, host)
    shown = secure.getpeercert(True) or b""
    channel = ClientChannel(secure, limit=limit, token=credentials.token, own=credentials.own, federator=shown)
    if credentials.own is not None:
        try:
            await channel.begun()
        except BaseException:
            channel.channel.abort()
            raise
    return channel


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


async def _encrypted(sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        await handshake(secure)
        if older := older_version(secure):
            raise Refused(older)
    except BaseException:
        secure.close()
        raise
    return secure


def older_version(secure: ssl.SSLSocket) -> str:
    """Return what to say of a federator that chose the protocol of an older version in its handshake; else nothing."""
    older = {"cyber0/2": "2", "h2": "1"}.get(secure.selected_alpn_protocol() or "")
    return "" if older is None else _other_version(older)


def _tls_problem(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message}"
    return f"the TLS handshake fails: {(error.reason or str(error)).replace('_', ' ').lower()}"
