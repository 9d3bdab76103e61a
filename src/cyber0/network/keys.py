"""Folders of keys and certificates of the federator and the clients, and the gRPC credentials made of them.

keys/                     made by `cyber0 keys init`
├── ca.pem, ca-key.pem    the certificate authority; its key signs new clients, and serves for nothing else
├── federator/            ca.pem, cert.pem, key.pem: all that the federator's machine needs
└── clients/alice/        ca.pem, cert.pem, key.pem: all that alice's machine needs
"""

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from cyber0.errors import InvalidKeys, InvalidSigner
from cyber0.network import certificates
from cyber0.network.certificates import LOOPBACK, Pair, common_name
from cyber0.protocol.signing import private_key

__all__ = [
    "certificate",
    "channel_credentials",
    "check_host",
    "check_name",
    "client_name",
    "federator_key",
    "init",
    "issue",
    "peer_name",
    "server_credentials",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
LONGEST = 36500  # days


def init(folder: Path, hosts: Iterable[str] = (), days: int = 3650) -> Path:
    """Make a folder with a new certificate authority and the federator's keys, and return the folder of the latter.

    >>> from tempfile import mkdtemp
    >>> sorted(path.name for path in init(Path(mkdtemp()) / "keys").iterdir())
    ['ca.pem', 'cert.pem', 'key.pem']
    """
    _check_days(days)
    names = tuple(dict.fromkeys((*LOOPBACK, *map(check_host, hosts))))
    ca = certificates.authority("cyber0", days)
    made = certificates.federator(ca, names, days)
    _make(folder, {"ca.pem": ca.pem, "ca-key.pem": ca.key_pem})
    _make(folder / "federator", _files(ca, made))
    return folder / "federator"


def issue(name: str, keys: Path, out: Path | None = None, days: int = 365) -> Path:
    """Make a client's folder, by default `keys/clients/NAME`, and return it.

    >>> from tempfile import mkdtemp
    >>> keys = Path(mkdtemp()) / "keys"
    >>> _ = init(keys)
    >>> client_name(issue("alice", keys))
    'alice'
    """
    check_name(name)
    _check_days(abs(days))
    ca = _pair(keys / "ca-key.pem", keys / "ca.pem")
    _check_valid(ca.certificate, keys / "ca.pem")
    folder = out or keys / "clients" / name
    _make(folder, _files(ca, certificates.client(ca, name, days)))
    return folder


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Return the federator's credentials: every client must present a certificate of its authority.

    `folder` is what `init` was given, or the `federator` folder in it.

    >>> server_credentials(Path("no/such/keys"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: no/such/keys holds no keys of a federator: make them with cyber0 keys init no/such/keys
    """
    folder = _federator(folder)
    key, cert, ca = _credentials(folder)
    if not _serves(certificate(folder / "cert.pem")):
        raise InvalidKeys(f"{folder / 'cert.pem'} is a client's: give the folder made by cyber0 keys init")
    return grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)


def channel_credentials(folder: Path) -> grpc.ChannelCredentials:
    """Return a client's credentials.

    >>> channel_credentials(Path("no/such/folder"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/folder/ca.pem: No such file or directory
    """
    key, cert, ca = _credentials(folder)
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


def peer_name(context: Any) -> str:
    """Return the name on the certificate of a caller, from the context of a gRPC call.

    >>> class Context:
    ...     def auth_context(self):
    ...         return {"x509_common_name": [b"alice"]}
    >>> peer_name(Context())
    'alice'
    """
    names = cast("dict[str, list[bytes]]", context.auth_context()).get("x509_common_name", [])
    if len(names) != 1 or not names[0]:
        raise InvalidKeys("the caller's certificate has no name: make it with cyber0 keys issue NAME")
    return check_name(names[0].decode("utf-8", errors="replace"))


def federator_key(folder: Path) -> Path:
    """Return the file of the federator's private key, which also signs its ledger.

    >>> federator_key(Path("no/such/keys"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: no/such/keys holds no keys of a federator: make them with cyber0 keys init no/such/keys
    """
    return _federator(folder) / "key.pem"


def client_name(folder: Path) -> str:
    """Return the name on the certificate in a client's folder.

    >>> client_name(Path("no/such/folder"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/folder/cert.pem: No such file or directory
    """
    return check_name(common_name(certificate(folder / "cert.pem")))


def check_name(name: str) -> str:
    """Return a client's name; refuse one that cannot be one.

    >>> check_name("alice-2")
    'alice-2'
    >>> check_name("alice & bob")
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: name = 'alice & bob': use up to 64 letters, digits, '-', '_' and '.', the first one a \
letter or digit
    """
    if NAME.fullmatch(name) is None:
        raise InvalidKeys(
            f"name = {name!r}: use up to 64 letters, digits, '-', '_' and '.', the first one a letter or digit"
        )
    return name


def check_host(host: str) -> str:
    """Return the name or address of a machine; refuse one that cannot be one.

    >>> check_host("federator.example.org"), check_host("0:0:0:0:0:0:0:1")
    ('federator.example.org', '::1')
    >>> check_host("example.org:443")
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: host = 'example.org:443': give a name such as federator.example.org, or an address such \
as 192.0.2.7
    """
    try:
        return str(ip_address(host))
    except ValueError:
        if HOST.fullmatch(host) is None or len(host) > 253:
            raise InvalidKeys(
                f"host = {host!r}: give a name such as federator.example.org, or an address such as 192.0.2.7"
            ) from None
    return host


def certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a PEM file.

    >>> certificate(Path("no/such/cert.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/cert.pem: No such file or directory
    """
    data = _read(path)
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise InvalidKeys(f"{path} holds no certificate in PEM: {error}") from None


def _credentials(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Return key, certificate and authority of a folder, in PEM; checked, since a failed handshake says little."""
    ca = certificate(folder / "ca.pem")
    pair = _pair(folder / "key.pem", folder / "cert.pem")
    _check_valid(pair.certificate, folder / "cert.pem")
    try:
        pair.certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        raise InvalidKeys(f"{folder / 'cert.pem'} was not issued by the authority in {folder / 'ca.pem'}") from None
    return pair.key_pem, pair.pem, _read(folder / "ca.pem")


def _check_valid(made: x509.Certificate, path: Path) -> None:
    now = datetime.now(UTC)
    if now > made.not_valid_after_utc:
        raise InvalidKeys(f"{path} expired on {made.not_valid_after_utc:%Y-%m-%d}: ask for a new one (cyber0 keys)")
    if now < made.not_valid_before_utc:
        start = f"{made.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise InvalidKeys(f"{path} is valid from {start} on: is this machine's clock right?")


def _pair(key_path: Path, path: Path) -> Pair:
    made = certificate(path)
    try:
        key = private_key(key_path)
    except InvalidSigner as error:
        raise InvalidKeys(str(error)) from None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != made.public_key():
        raise InvalidKeys(f"{key_path} is not the key of the certificate {path}")
    return Pair(key, made)


def _federator(folder: Path) -> Path:
    for place in (folder / "federator", folder):
        if (place / "key.pem").exists():
            return place
    raise InvalidKeys(f"{folder} holds no keys of a federator: make them with cyber0 keys init {folder}")


def _serves(made: x509.Certificate) -> bool:
    try:
        purposes = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:  # it is good for anything
        return True
    return ExtendedKeyUsageOID.SERVER_AUTH in purposes


def _files(ca: Pair, made: Pair) -> dict[str, bytes]:
    return {"ca.pem": ca.pem, "cert.pem": made.pem, "key.pem": made.key_pem}


def _make(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder and files in it that only their owner can read."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InvalidKeys(f"{folder} exists and is not empty: name a new folder")
        for made in reversed([folder, *folder.parents]):
            if not made.exists():
                made.mkdir(mode=0o700)
        folder.chmod(0o700)
        for name, content in files.items():
            with open(folder / name, "xb", opener=_private) as file:
                file.write(content)
    except OSError as error:
        raise InvalidKeys(f"cannot write {folder}: {error.strerror}") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidKeys(f"cannot read {path}: {error.strerror}") from None


def _check_days(days: int) -> None:
    if not 0 < days <= LONGEST:
        raise InvalidKeys(f"days = {days}: it must be from 1 to {LONGEST}")
