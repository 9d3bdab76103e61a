"""Why a TLS handshake with a federator fails, in words that say what to do."""

import socket
import ssl
from contextlib import suppress
from pathlib import Path

from cyber0.errors import InvalidKeys
from cyber0.network.channel import GREETING, PROTOCOLS, host_and_port
from cyber0.network.keys import channel_credentials

__all__ = ["refusal", "speaks_tls"]

OTHER_NAME = (62, 64)  # OpenSSL's codes for a host and for an address that the certificate does not name


def refusal(address: str, folder: Path, timeout: float = 5.0) -> str | None:
    """Return why the handshake of a client with this folder of keys fails at an address; None if it succeeds.

    It opens a connection of its own and ends it after the handshake. None, too, if nobody answers, or what answers
    hangs up without a word, as a federator does that has no room at the moment: it may answer later.

    >>> refusal("localhost:1", Path("no/such/folder"))
    'cannot read no/such/folder/ca.pem: No such file or directory'
    """
    try:
        channel_credentials(folder)
        host, port = _host_and_port(address)
        with socket.create_connection((host, port), timeout) as plain:
            return _handshake(_context(folder), plain, address, folder)
    except InvalidKeys as error:
        return str(error)
    except OSError:
        return None


def speaks_tls(address: str, timeout: float = 5.0) -> bool:
    """Return whether what answers at an address speaks TLS; whose certificate it shows does not matter.

    >>> speaks_tls("localhost:1")
    False
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(PROTOCOLS)
    host, port = _host_and_port(address)
    try:
        with socket.create_connection((host, port), timeout) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:  # one that asks for our certificate may end it early
        return error.reason not in (
            None,
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
            "UNEXPECTED_EOF_WHILE_READING",
        )
    except OSError:
        return False


def _handshake(context: ssl.SSLContext, plain: socket.socket, address: str, folder: Path) -> str | None:
    host, _ = _host_and_port(address)
    refused = (
        f"the federator at {address} refuses {folder / 'cert.pem'}: it must be a client's, made by cyber0 "
        "keys sign on the operator's machine, and not expired by the federator's clock"
    )
    try:
        with context.wrap_socket(plain, server_hostname=host) as encrypted:
            encrypted.sendall(GREETING + b"\n")
            encrypted.recv(1)  # in TLS 1.3 a server looks at a client's certificate after the client is done
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OTHER_NAME:
            return (
                f"the federator at {address} has no certificate for {host}: on the operator's machine, cyber0 keys "
                f"host {host} makes one"
            )
        return (
            f"what answers at {address} is no federator of the authority in {folder / 'ca.pem'}: {error.verify_message}"
        )
    except (ssl.SSLError, ConnectionError) as error:
        if "CERTIFICATE" in (reason := getattr(error, "reason", None) or "") or "UNKNOWN_CA" in reason:
            return refused
        if isinstance(error, ssl.SSLEOFError | ConnectionError) and not _speaks_plainly(address):
            return None
        return (
            f"what answers at {address} does not speak TLS as a federator does: is the port right, and was the "
            "federator started with --tls?"
        )
    return None  # also if it hung up: a server that refuses a certificate says so


def _speaks_plainly(address: str, timeout: float = 5.0) -> bool:
    """Return whether what answers at an address is a federator without TLS."""
    host, port = _host_and_port(address)
    with suppress(OSError), socket.create_connection((host, port), timeout) as plain:
        plain.sendall(GREETING + b"\n")
        return plain.recv(len(GREETING)).startswith(GREETING[:6])
    return False


def _context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(PROTOCOLS)
    return context


def _host_and_port(address: str) -> tuple[str, int]:
    where = host_and_port(address)
    if where is None:
        raise InvalidKeys(f"address = {address!r}: give a host and a port, such as federator.example.org:8443")
    return where
