"""Folders of keys and certificates of the federator and the clients, and the credentials made of them.

keys/                     made by `cyber0 keys init`
├── ca.pem, ca-key.pem    the certificate authority; its key signs clients and federator, and serves for nothing else
├── federator/            ca.pem, cert.pem, key.pem: all that the federator's machine needs
└── clients/alice/        cert.pem: whom the authority knows as alice

alice/                    on alice's machine: ca.pem, cert.pem, key.pem (`cyber0.network.enrolment`)
"""

import re
import ssl
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from cyber0.errors import InvalidKeys
from cyber0.network import certificates
from cyber0.network.authentication import Authority, ClientCertificate
from cyber0.network.certificates import (
    LOOPBACK,
    Pair,
    common_name,
    federator_certificate,
    hosts_of,
    is_for_federator,
    subject_public_key,
)
from cyber0.network.channel import PROTOCOLS, Credentials, Peer
from cyber0.network.key_files import (
    certificate,
    check_issued,
    check_valid,
    client_key,
    expires_soon,
    make_folder,
    pair,
    read,
    replace_file,
)

__all__ = [
    "LONGEST",
    "certificate",
    "certificate_of_federator",
    "certificates_of_clients",
    "certify_federator",
    "channel_credentials",
    "check_days",
    "check_host",
    "check_name",
    "client_context",
    "client_name",
    "expiring",
    "federator_key",
    "init",
    "issue",
    "peer_name",
    "public_key_of",
    "read_authority",
    "server_context",
    "server_credentials",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
LONGEST = 36500  # days
NEW_FEDERATOR = "make a new one with cyber0 keys host"
NEW_CLIENT = "ask the operator to sign your request.pem again (cyber0 keys sign)"


def init(folder: Path, hosts: Iterable[str] = (), days: int = 3650) -> Path:
    """Make a folder with a new certificate authority and the federator's keys, and return the folder of the latter.

    >>> from tempfile import mkdtemp
    >>> sorted(path.name for path in init(Path(mkdtemp()) / "keys").iterdir())
    ['ca.pem', 'cert.pem', 'key.pem']
    """
    check_days(days)
    names = tuple(dict.fromkeys((*LOOPBACK, *map(check_host, hosts))))
    ca = certificates.authority("cyber0", days)
    made = certificates.federator(ca, names, days)
    make_folder(folder, {"ca.pem": ca.pem, "ca-key.pem": ca.key_pem})
    make_folder(folder / "federator", _files(ca, made))
    return folder / "federator"


def certify_federator(keys: Path, hosts: Iterable[str] = (), days: int = 3650, *, only: bool = False) -> Path:
    """Give the federator a new certificate for its key, for more hosts, and return the federator's folder.

    The clients need nothing new: authority and key are the same. The old certificate stays as `cert.pem.old`.

    >>> from tempfile import mkdtemp
    >>> keys = Path(mkdtemp()) / "keys"
    >>> folder = init(keys, ["old.example.org"])
    >>> certify_federator(keys, ["new.example.org"]) == folder
    True
    >>> hosts_of(certificate(folder / "cert.pem"))
    ('localhost', '127.0.0.1', '::1', 'old.example.org', 'new.example.org')

    Args:
        keys: The folder that `init` has made. The federator's private key need not be there.
        hosts: Names or addresses by which clients reach the federator, beside those of the old certificate.
        days: How long it is valid, but not beyond the authority.
        only: Drop the hosts of the old certificate; the machine's own names (localhost) stay.

    """
    check_days(days)
    named = tuple(map(check_host, hosts))
    ca, path = read_authority(keys), keys / "federator" / "cert.pem"
    old = certificate(path)
    key = old.public_key()
    check_issued(old, path, ca.certificate, keys / "ca.pem")
    if not is_for_federator(old) or not isinstance(key, EllipticCurvePublicKey):
        raise InvalidKeys(f"{path} is no federator's: give the folder made by cyber0 keys init")
    names = tuple(dict.fromkeys((*LOOPBACK, *(() if only else hosts_of(old)), *named)))
    made = federator_certificate(ca, names, key, days)
    replace_file(path, made.public_bytes(Encoding.PEM), old=".old")
    return path.parent


def issue(name: str, keys: Path, out: Path | None = None, days: int = 365) -> Path:
    """Make a client's folder with its private key in it, by default `keys/clients/NAME`, and return it.

    This is for trying things out. In earnest a client makes its key itself: see `cyber0.network.enrolment`.

    >>> from tempfile import mkdtemp
    >>> keys = Path(mkdtemp()) / "keys"
    >>> _ = init(keys)
    >>> client_name(issue("alice", keys))
    'alice'
    """
    check_name(name)
    check_days(abs(days))
    ca = read_authority(keys)
    folder = out or keys / "clients" / name
    make_folder(folder, _files(ca, certificates.client(ca, name, days)))
    return folder


def read_authority(keys: Path) -> Pair:
    """Return the certificate authority in the folder that `init` has made.

    >>> read_authority(Path("no/such/keys"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/keys/ca.pem: No such file or directory
    """
    ca = pair(keys / "ca-key.pem", keys / "ca.pem")
    check_valid(ca.certificate, keys / "ca.pem", "the federation needs a new authority: cyber0 keys init")
    return ca


def server_credentials(folder: Path) -> Credentials:
    """Return the federator's credentials: every client must show a certificate of its authority.

    `folder` is what `init` was given, or the `federator` folder in it.

    >>> server_credentials(Path("no/such/keys"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: no/such/keys holds no keys of a federator: make them with cyber0 keys init no/such/keys
    """
    folder = _federator(folder)
    _check_folder(folder, NEW_FEDERATOR)
    if not is_for_federator(certificate(folder / "cert.pem")):
        raise InvalidKeys(f"{folder / 'cert.pem'} is a client's: give the folder made by cyber0 keys init")
    own = certificate(folder / "cert.pem").public_bytes(Encoding.DER)
    authority = Authority(certificate(folder / "ca.pem"), own)
    return Credentials(server_context(folder / "cert.pem", folder / "key.pem"), authority=authority)


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS of a server with a certificate and a key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody resumes a session, and each would take memory
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(PROTOCOLS)
    return context


def client_context(authority: str) -> ssl.SSLContext:
    """Return the TLS of a client that trusts servers of an authority, in PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    context.set_alpn_protocols(PROTOCOLS)
    return context


def channel_credentials(folder: Path) -> Credentials:
    """Return a client's credentials.

    >>> channel_credentials(Path("no/such/folder"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/folder/ca.pem: No such file or directory
    """
    _check_folder(folder, NEW_CLIENT)
    own = certificate(folder / "cert.pem").public_bytes(Encoding.DER)
    return Credentials(
        client_context(read(folder / "ca.pem").decode()), own=ClientCertificate(own, client_key(folder / "key.pem"))
    )


def expiring(folder: Path) -> list[str]:
    """Return which certificates in the folder of a client or a federator expire within 30 days, and what to do then.

    That of the authority is the operator's matter, so it is named in the folder made by `init` alone.
    """
    if (folder / "federator").is_dir() or not (folder / "cert.pem").exists():
        places = [(_federator(folder) / "cert.pem", NEW_FEDERATOR)]
        if (folder / "ca.pem").exists():
            places.append((folder / "ca.pem", "make a new folder with cyber0 keys init, and certificates for all"))
    else:
        own = certificate(folder / "cert.pem")
        places = [(folder / "cert.pem", NEW_FEDERATOR if is_for_federator(own) else NEW_CLIENT)]
    return list(filter(None, (expires_soon(certificate(path), path, remedy) for path, remedy in places)))


def peer_name(peer: Peer) -> str:
    """Return the name on the certificate of who has connected.

    >>> made = certificates.client(certificates.authority("ours", days=1), "alice", days=1)
    >>> peer_name(Peer("", made.certificate.public_bytes(Encoding.DER)))
    'alice'
    """
    name = common_name(x509.load_der_x509_certificate(peer.certificate)) if peer.certificate else ""
    if not name:
        raise InvalidKeys("the caller's certificate has no name: ask for it with cyber0 keys request NAME")
    return check_name(name)


def federator_key(folder: Path) -> Path:
    """Return the file of the federator's private key, which also signs its ledger.

    >>> federator_key(Path("no/such/keys"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: no/such/keys holds no keys of a federator: make them with cyber0 keys init no/such/keys
    """
    return _federator(folder) / "key.pem"


def certificates_of_clients(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the certificates, in DER by name, that are kept for these clients where they were issued or signed."""
    paths = {name: folder / "clients" / name / "cert.pem" for name in names}
    return {n: certificate(path).public_bytes(Encoding.DER) for n, path in paths.items() if path.exists()}


def certificate_of_federator(folder: Path) -> bytes:
    """Return the federator's certificate, in DER."""
    return certificate(_federator(folder) / "cert.pem").public_bytes(Encoding.DER)


def public_key_of(folder: Path) -> bytes:
    """Return the public key of a client or a federator: its SubjectPublicKeyInfo in DER.

    `folder` is a client's, a federator's, or what `init` was given, for the federator. It need not hold a private key.

    >>> public_key_of(Path("no/such/folder"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/folder/cert.pem: No such file or directory
    """
    federator = folder / "federator" / "cert.pem"
    return subject_public_key(certificate(federator if federator.exists() else folder / "cert.pem"))


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


def check_days(days: int) -> int:
    """Return for how many days a certificate is to be valid; refuse a number that cannot be.

    >>> check_days(0)
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: days = 0: it must be from 1 to 36500
    """
    if not 0 < days <= LONGEST:
        raise InvalidKeys(f"days = {days}: it must be from 1 to {LONGEST}")
    return days


def _check_folder(folder: Path, remedy: str) -> None:
    """Refuse a folder whose key, certificate and authority do not fit: a failed handshake says little."""
    if (folder / "request.pem").exists() and not (folder / "cert.pem").exists():
        raise InvalidKeys(
            f"{folder} has no certificate yet: send {folder / 'request.pem'} to the federation's operator, and give "
            "what comes back to cyber0 keys install"
        )
    ca = certificate(folder / "ca.pem")
    own = pair(folder / "key.pem", folder / "cert.pem")
    check_valid(own.certificate, folder / "cert.pem", remedy)
    check_issued(own.certificate, folder / "cert.pem", ca, folder / "ca.pem")


def _federator(folder: Path) -> Path:
    for place in (folder / "federator", folder):
        if (place / "key.pem").exists():
            return place
    raise InvalidKeys(f"{folder} holds no keys of a federator: make them with cyber0 keys init {folder}")


def _files(ca: Pair, made: Pair) -> dict[str, bytes]:
    return {"ca.pem": ca.pem, "cert.pem": made.pem, "key.pem": made.key_pem}
