"""Why a federator does not let a client in, or a client a federator, in words that say what to do."""

import socket
import ssl
from contextlib import suppress
from pathlib import Path

from cyber0.errors import InvalidKeys, RejectedMessage
from cyber0.network.authentication import ClientCertificate, read_challenge
from cyber0.network.channel import GREETING, LINE, PROTOCOLS, Credentials, greeting_and_word, host_and_port
from cyber0.network.connect import older_version
from cyber0.network.keys import channel_credentials
from cyber0.printable import printable
from cyber0.protocol.codec import LIMIT, decode_from_federator, encode
from cyber0.protocol.messages import Ask, Bye

__all__ = ["refusal", "speaks_tls"]

OTHER_NAME = (62, 64)  # OpenSSL's codes for a host and for an address that the certificate does not name


def refusal(address: str, folder: Path, timeout: float = 5.0) -> str | None:
    """Return why a client with this folder of keys is not let in at an address; None if it is.

    It opens a connection of its own, answers the federator's challenge, and ends it. None, too, if nobody answers, or
    what answers hangs up without a word, as a federator does that has no room at the moment: it may answer later.

    >>> refusal("localhost:1", Path("no/such/folder"))
    'cannot read no/such/folder/ca.pem: No such file or directory'
    """
    try:
        credentials = channel_credentials(folder)
        host, port = _host_and_port(address)
        with socket.create_connection((host, port), timeout) as plain:
            return _handshake(credentials, plain, address, folder)
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
    except ssl.SSLError as error:  # such as of one that speaks other versions of TLS
        return error.reason not in (
            None,
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
            "UNEXPECTED_EOF_WHILE_READING",
        )
    except OSError:
        return False


def _handshake(credentials: Credentials, plain: socket.socket, address: str, folder: Path) -> str | None:
    host, _ = _host_and_port(address)
    try:
        with credentials.context.wrap_socket(plain, server_hostname=host) as encrypted:
            if older := older_version(encrypted):
                return older
            reason = credentials.own and _refused(encrypted, credentials.own)
            return reason and f"the federator at {address} refuses {folder / 'cert.pem'}: {printable(reason)}"
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
        if isinstance(error, ssl.SSLEOFError | ConnectionError) and not _speaks_plainly(address):
            return None
        return (
            f"what answers at {address} does not speak TLS as a federator does: is the port right, and was the "
            "federator started with --tls?"
        )


def _refused(encrypted: ssl.SSLSocket, own: ClientCertificate) -> str | None:
    """Return why a federator refuses a client's certificate; None if it does not, or hangs up without a word."""
    with encrypted.makefile("rwb") as stream:
        stream.write(GREETING + b"\n")
        stream.flush()
        greeting, word = greeting_and_word(stream.readline(LINE).rstrip(b"\n"))
        if greeting != GREETING or not (challenge := read_challenge(word)):
            return None
        for message in (own.answer(challenge, encrypted.getpeercert(True) or b""), encode(Ask())):
            stream.write(len(message).to_bytes(4, "big") + message)
        stream.flush()
        size = int.from_bytes(stream.read(4), "big")
        try:
            said = decode_from_federator(stream.read(min(size, LIMIT)))
        except RejectedMessage:  # it ended too early
            return None
    return said.reason if isinstance(said, Bye) else None


def _speaks_plainly(address: str, timeout: float = 5.0) -> bool:
    """Return whether what answers at an address is a federator without TLS."""
    host, port = _host_and_port(address)
    with suppress(OSError), socket.create_connection((host, port), timeout) as plain:
        plain.sendall(GREETING + b"\n")
        return plain.recv(len(GREETING)).startswith(GREETING[:6])
    return False


def _host_and_port(address: str) -> tuple[str, int]:
    where = host_and_port(address)
    if where is None:
        raise InvalidKeys(f"address = {address!r}: give a host and a port, such as federator.example.org:8443")
    return where
