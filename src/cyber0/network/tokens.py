"""Clients that someone else has authenticated: TLS with a temporary certificate, and a secret token per client.

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
    """A new authority and a server's certificate, neither of which is written anywhere.

    >>> temporary_credentials(["192.0.2.7"]).authority.startswith(b"-----BEGIN CERTIFICATE-----")
    True
    """
    ca = certificates.authority("cyber0 temporary", days)
    made = certificates.federator(ca, tuple(dict.fromkeys((*LOOPBACK, *hosts))), days)
    return TemporaryCredentials(ca.pem, grpc.ssl_server_credentials([(made.key_pem, made.pem)]))


def token_credentials(authority: bytes, token: str) -> grpc.ChannelCredentials:
    """The client's side: a server of this authority is trusted, and is shown the token with each call."""
    return grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(root_certificates=authority), grpc.access_token_call_credentials(token)
    )


class Tokens:
    """The tokens that are good now, at most one per client.

    >>> tokens = Tokens()
    >>> old, new = tokens.issue("alice"), tokens.issue("alice")
    >>> tokens.name(new), tokens.name(old)
    ('alice', None)
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def issue(self, name: str) -> str:
        """A new token for a client; an older one is no longer good."""
        token = secrets.token_urlsafe(32)
        others = {known: other for known, other in self._names.items() if other != name}
        self._names = others | {token: name}  # a new one: another thread may be looking at the old
        return token

    def name(self, token: str) -> str | None:
        """Whose token this is."""
        found = None
        for known, name in self._names.items():  # all of them, so that the time it takes tells nothing
            if secrets.compare_digest(known.encode(), token.encode()):
                found = name
        return found

    def peer_name(self, context: Any) -> str:
        """The name of the caller, by the token it shows; in place of `keys.peer_name`."""
        metadata = cast("Iterable[tuple[str, str | bytes]]", context.invocation_metadata() or ())
        shown = next((str(value) for key, value in metadata if key == "authorization"), "")
        name = self.name(shown.removeprefix(BEARER)) if shown.startswith(BEARER) else None
        if name is None:
            raise InvalidKeys("the token is not, or no longer, good: a newer session has taken this client's place")
        return name
