"""Credentials for clients that someone else has authenticated: a temporary certificate, and a token per client.

A token travels in a message only its client can read; on the stream it is an ordinary bearer token.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import grpc

from cyber0.errors import InvalidKeys
from cyber0.network import certificates
from cyber0.network.certificates import LOOPBACK

__all__ = ["TemporaryCredentials", "Tokens", "temporary_credentials", "token_credentials"]

BEARER = "Bearer "


@dataclass(frozen=True)
class TemporaryCredentials:
    """Credentials of a server that live as long as its process, and the authority (PEM) by which a client knows it."""

    authority: bytes
    credentials: grpc.ServerCredentials


def temporary_credentials(hosts: Iterable[str] = (), days: int = 365) -> TemporaryCredentials:
    """Return credentials of a new authority that is not written anywhere.

    >>> temporary_credentials(["192.0.2.7"]).authority.startswith(b"-----BEGIN CERTIFICATE-----")
    True
    """
    ca = certificates.authority("cyber0 temporary", days)
    made = certificates.federator(ca, tuple(dict.fromkeys((*LOOPBACK, *hosts))), days)
    return TemporaryCredentials(ca.pem, grpc.ssl_server_credentials([(made.key_pem, made.pem)]))


def token_credentials(authority: bytes, token: str) -> grpc.ChannelCredentials:
    """Return credentials of a client that trusts servers of this authority, and sends the token with each call."""
    return grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(root_certificates=authority), grpc.access_token_call_credentials(token)
    )


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

    def peer_name(self, context: Any) -> str:
        """Return the name of a caller by its token; used in place of `keys.peer_name`."""
        metadata = cast("Iterable[tuple[str, str | bytes]]", context.invocation_metadata() or ())
        shown = next((str(value) for key, value in metadata if key == "authorization"), "")
        name = self.name(shown.removeprefix(BEARER)) if shown.startswith(BEARER) else None
        if name is None:
            raise InvalidKeys("the token is not valid, or no longer: a newer session has taken this client's place")
        return name
