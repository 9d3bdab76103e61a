"""Credentials for clients that someone else has authenticated: a temporary certificate, and a token per client.

A token travels in a message only its client can read; a client shows it in its greeting, on an encrypted channel.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cyber0.errors import InvalidKeys
from cyber0.network import certificates
from cyber0.network.certificates import LOOPBACK
from cyber0.network.channel import Credentials, Peer
from cyber0.network.key_files import write_new
from cyber0.network.keys import client_context, server_context

__all__ = ["TemporaryCredentials", "Tokens", "temporary_credentials", "token_credentials"]


@dataclass(frozen=True)
class TemporaryCredentials:
    """Credentials of a server that live as long as its process, and the authority (PEM) by which a client knows it."""

    authority: bytes
    credentials: Credentials


def temporary_credentials(hosts: Iterable[str] = (), days: int = 365) -> TemporaryCredentials:
    """Return credentials of a new authority that is not written anywhere.

    >>> temporary_credentials(["192.0.2.7"]).authority.startswith(b"-----BEGIN CERTIFICATE-----")
    True
    """
    ca = certificates.authority("cyber0 temporary", days)
    made = certificates.federator(ca, tuple(dict.fromkeys((*LOOPBACK, *hosts))), days)
    with TemporaryDirectory() as folder:  # that nobody else can read; ssl takes keys from files only
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        write_new(cert, made.pem, 0o600)
        write_new(key, made.key_pem, 0o600)
        return TemporaryCredentials(ca.pem, Credentials(server_context(cert, key)))


def token_credentials(authority: bytes, token: str) -> Credentials:
    """Return credentials of a client that trusts servers of this authority, and shows them the token."""
    return Credentials(client_context(authority.decode()), token)


class Tokens:
    """The valid tokens, at most one per client.

    >>> tokens = Tokens()
    >>> old, new = tokens.issue("alice"), tokens.issue("alice")
    >>> tokens.name(new), tokens.name(old)
    ('alice', None)
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def issue(self, name: str) -> str:
        """Return a new token for a client; an older one is no longer valid."""
        token = secrets.token_urlsafe(32)
        others = {known: other for known, other in self._names.items() if other != name}
        self._names = others | {token: name}  # a new dictionary, as another thread may be reading the old one
        return token

    def name(self, token: str) -> str | None:
        """Return whose token this is; None if it is not valid."""
        found = None
        for known, name in self._names.items():  # all of them, so that the time it takes tells nothing
            if secrets.compare_digest(known.encode(), token.encode()):
                found = name
        return found

    def peer_name(self, peer: Peer) -> str:
        """Return the name of who has connected by its token; used in place of `keys.peer_name`."""
        name = self.name(peer.token)
        if name is None:
            raise InvalidKeys("the token is not valid, or no longer: a newer session has taken this client's place")
        return name
