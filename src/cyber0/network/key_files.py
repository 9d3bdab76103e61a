"""PEM files of keys, certificates and requests: checked when they are read, for their owner alone when written."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from cyber0.errors import InvalidKeys, InvalidSigner
from cyber0.files import write_atomically
from cyber0.network.certificates import Pair
from cyber0.protocol.signing import PrivateKey, private_key

__all__ = [
    "certificate",
    "certificate_request",
    "certificates",
    "check_issued",
    "check_valid",
    "client_key",
    "expires_soon",
    "make_folder",
    "make_private",
    "pair",
    "read",
    "replace_file",
    "write_new",
]

LARGEST = 65536  # bytes; a file with two certificates has some 1,500
CURVE = "secp256r1"
SOON = 30  # days before it expires that a certificate is worth a word
RIGHT = "it must be ECDSA on the curve P-256, as cyber0 keys request makes it"


def certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a PEM file.

    >>> certificate(Path("no/such/cert.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/cert.pem: No such file or directory
    """
    return certificates(path)[0]


def certificates(path: Path) -> list[x509.Certificate]:
    """Return all certificates in a PEM file, of which there is at least one.

    >>> certificates(Path("no/such/alice.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/alice.pem: No such file or directory
    """
    data = read(path)
    try:
        found = x509.load_pem_x509_certificates(data)
        for made in found:  # parsed when they are first asked for
            _ = made.public_key(), made.subject, made.extensions
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise InvalidKeys(f"{path} holds no certificate in PEM: {error}") from None
    return found


def certificate_request(path: Path) -> tuple[x509.CertificateSigningRequest, ec.EllipticCurvePublicKey]:
    """Return the request for a certificate in a PEM file and its public key, after a check of its signature.

    >>> certificate_request(Path("no/such/request.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/request.pem: No such file or directory
    """
    data = read(path)
    if b"PRIVATE KEY" in data:
        raise InvalidKeys(
            f"{path} holds a private key, which belongs on its client's machine alone: give a request.pem"
        )
    try:
        asked = x509.load_pem_x509_csr(data)
        key, authentic, _ = asked.public_key(), asked.is_signature_valid, asked.subject
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidKeys(f"{path} holds no request for a certificate in PEM (cyber0 keys request): {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != CURVE:
        raise InvalidKeys(f"{path}: key = {_kind(key)}: {RIGHT}")
    if not authentic:
        raise InvalidKeys(f"{path} is not signed by its own key: it was changed on the way; ask for it again")
    return asked, key


def client_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a private key on the curve P-256.

    >>> client_key(Path("no/such/key.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read the key no/such/key.pem: No such file or directory
    """
    key = _private_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != CURVE:
        raise InvalidKeys(f"{path}: key = {_kind(key.public_key())}: {RIGHT}")
    return key


def pair(key_path: Path, path: Path) -> Pair:
    """Return a private key and the certificate of its public half.

    >>> pair(Path("no/such/key.pem"), Path("no/such/cert.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/cert.pem: No such file or directory
    """
    made = certificate(path)
    key = _private_key(key_path)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != made.public_key():
        raise InvalidKeys(f"{key_path} is not the key of the certificate {path}")
    return Pair(key, made)


def check_valid(made: x509.Certificate, path: Path, remedy: str) -> None:
    """Refuse a certificate that is not valid today; `remedy` is what to do about one that has expired."""
    now = datetime.now(UTC)
    if now > made.not_valid_after_utc:
        raise InvalidKeys(f"{path} expired on {made.not_valid_after_utc:%Y-%m-%d}: {remedy}")
    if now < made.not_valid_before_utc:
        start = f"{made.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise InvalidKeys(f"{path} is valid from {start} on: is this machine's clock right?")


def expires_soon(made: x509.Certificate, path: Path, remedy: str, days: int = SOON) -> str:
    """Return that a certificate expires within so many days, and what to do about it; nothing if it does not."""
    left = made.not_valid_after_utc - datetime.now(UTC)
    if left > timedelta(days=days):
        return ""
    return f"{path} expires on {made.not_valid_after_utc:%Y-%m-%d}, in {max(0, left.days)} days: {remedy}"


def check_issued(made: x509.Certificate, path: Path, ca: x509.Certificate, ca_path: Path) -> None:
    """Refuse a certificate that this authority has not issued."""
    try:
        made.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        raise InvalidKeys(f"{path} was not issued by the authority in {ca_path}") from None


def make_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder, which must be new or empty, and files in it, for their owner alone."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InvalidKeys(f"{folder} exists and is not empty: name a new folder")
    except OSError as error:
        raise InvalidKeys(f"cannot write {folder}: {error.strerror}") from None
    make_private(folder)
    for name, content in files.items():
        write_new(folder / name, content, 0o600)


def make_private(folder: Path) -> None:
    """Make a folder where there is none, and leave it to its owner alone."""
    try:
        for made in reversed([folder, *folder.parents]):
            if not made.exists():
                made.mkdir(mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise InvalidKeys(f"cannot write {folder}: {error.strerror}") from None


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not exist yet."""
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise InvalidKeys(f"{path} exists: name another file, or move it away") from None
    except OSError as error:
        raise InvalidKeys(f"cannot write {path}: {error.strerror}") from None


def replace_file(path: Path, content: bytes, *, old: str = "") -> None:
    """Write a file whole or not at all; with `old`, what it held before stays under its name with that ending."""
    try:
        if old and path.exists():
            replace_file(path.with_name(path.name + old), path.read_bytes())
        write_atomically(path, content)
        path.chmod(0o600)
    except OSError as error:
        raise InvalidKeys(f"cannot write {path}: {error.strerror}") from None


def read(path: Path) -> bytes:
    """Return the content of a file of keys; refuse one that is too large to be any."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise InvalidKeys(f"cannot read {path}: {error.strerror}") from None
    if len(data) > LARGEST:
        raise InvalidKeys(f"{path} has more than {LARGEST} bytes: it is no file of keys or certificates")
    return data


def _private_key(path: Path) -> PrivateKey:
    try:
        return private_key(path)
    except InvalidSigner as error:
        raise InvalidKeys(str(error)) from None


def _kind(key: object) -> str:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"ECDSA on {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA of {key.key_size} bits"
    return type(key).__name__.lstrip("_").removesuffix("PublicKey")
