"""Keys and signatures: P-256 (ECDSA with SHA-256), as in TLS certificates, or Ed25519. A signature has 64 bytes.

A public key is written in few bytes: 33 for P-256 (its compressed point), 32 for Ed25519.
"""

from pathlib import Path
from typing import Any, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from cyber0.errors import InvalidSigner
from cyber0.files import write_atomically

__all__ = ["PrivateKey", "PublicKey", "encoded", "is_by", "key_beside", "new_key", "private_key", "public_key", "sign"]

PrivateKey = EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = EllipticCurvePublicKey | Ed25519PublicKey
SCHEME, CURVE = ECDSA(SHA256()), SECP256R1()
KEYS, MOST_KEYS = dict[bytes, PublicKey](), 64  # of those that were used
ROOTS, MOST_ROOTS = dict[bytes, bytes](), 2**14  # and their second coordinates
SMALL = {  # points of Ed25519 by which anybody could sign, their sign bit left out
    bytes.fromhex(point.ljust(64, "0") if len(point) < 64 else point)
    for point in (
        *("00", "01", "ec" + 30 * "ff" + "7f", "ed" + 30 * "ff" + "7f", "ee" + 30 * "ff" + "7f"),
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    )
}


def new_key() -> PrivateKey:
    """Return a new P-256 key: it signs and verifies quicker than Ed25519 here, and TLS takes it too."""
    return generate_private_key(SECP256R1())


def private_key(path: Path) -> PrivateKey:
    """Return the private key in a PEM file without a password.

    >>> private_key(Path("no/such/key.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidSigner: cannot read the key no/such/key.pem: No such file or directory
    """
    data = _read(path)
    try:
        key: Any = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidSigner(f"{path} holds no private key in PEM without a password: {error}") from None
    if not isinstance(key, PrivateKey):
        raise InvalidSigner(f"{path} holds a {type(key).__name__}: use an ECDSA or Ed25519 key")
    return key


def public_key(path: Path) -> PublicKey:
    """Return the public key in a PEM file that holds a certificate or a public key.

    >>> public_key(Path("no/such/certificate.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidSigner: cannot read the key no/such/certificate.pem: No such file or directory
    """
    data = _read(path)
    try:
        certificate = b"BEGIN CERTIFICATE" in data
        key: Any = x509.load_pem_x509_certificate(data).public_key() if certificate else load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidSigner(f"{path} holds no certificate or public key in PEM: {error}") from None
    if not isinstance(key, PublicKey):
        raise InvalidSigner(f"{path} holds a {type(key).__name__}: use an ECDSA or Ed25519 key")
    return key


def key_beside(path: Path, like: Path | None = None) -> PrivateKey:
    """Return the key in a file that only its owner can read; it is made if it is not there, or copied from another.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "key.pem"
    >>> encoded(key_beside(path).public_key()) == encoded(key_beside(path).public_key())
    True
    """
    if not path.exists():
        try:
            made = new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            data = made if like is None else like.read_bytes()
            write_atomically(path, data, mode=0o600)  # a key that was cut short would be in the way for good
        except OSError as error:
            raise InvalidSigner(f"cannot write the key {path}: {error.strerror}") from None
    return private_key(path)


def encoded(key: PublicKey) -> bytes:
    """Return the bytes of a public key, as identities and rosters have them.

    >>> len(encoded(new_key().public_key())), len(encoded(Ed25519PrivateKey.generate().public_key()))
    (33, 32)
    """
    if isinstance(key, Ed25519PublicKey):
        return key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    if not isinstance(key.curve, SECP256R1):
        raise InvalidSigner(f"a key on the curve {key.curve.name} signs no votes and links: use P-256 or Ed25519")
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def decoded(data: bytes) -> PublicKey | None:
    """Return the public key in these bytes; None if they are none, or one by which anybody could sign.

    The first ones are remembered: of thousands, which would take 2 kB each, one is made for each check, in 16 us.
    """
    key = KEYS.get(data)
    if key is None and (key := _made(data)) is not None and len(KEYS) < MOST_KEYS:
        KEYS[data] = key
    return key


def _made(data: bytes) -> PublicKey | None:
    try:
        if len(data) == 32:
            if data[:31] + bytes([data[31] & 0x7F]) in SMALL:
                return None
            return Ed25519PublicKey.from_public_bytes(data)
        return EllipticCurvePublicKey.from_encoded_point(CURVE, _point(data)) if len(data) == 33 else None
    except (ValueError, UnsupportedAlgorithm):
        return None


def _point(data: bytes) -> bytes:
    """Return both coordinates of a compressed point. The second is a root, which takes 20 us, and is remembered."""
    root = ROOTS.get(data)
    if root is None:
        key = EllipticCurvePublicKey.from_encoded_point(CURVE, data)
        root = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[33:]
        if len(ROOTS) >= MOST_ROOTS:  # others have come
            ROOTS.clear()
            KEYS.clear()
        ROOTS[data] = root
    return b"\x04" + data[1:] + root


def sign(key: PrivateKey, statement: bytes) -> bytes:
    """Return the 64 bytes of a signature.

    >>> key = new_key()
    >>> signature = sign(key, b"yes")
    >>> is_by(encoded(key.public_key()), signature, b"yes"), is_by(encoded(key.public_key()), signature, b"no")
    (True, False)
    """
    if isinstance(key, Ed25519PrivateKey):
        return key.sign(statement)
    r, s = decode_dss_signature(key.sign(statement, SCHEME))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def is_by(key: bytes, signature: bytes, statement: bytes) -> bool:
    """Return whether a statement was signed with the private key that belongs to an encoded public key.

    >>> is_by(b"no key", bytes(64), b"yes")
    False
    """
    public = decoded(key)
    if public is None or len(signature) != 64:
        return False
    try:
        if len(key) == 32:
            cast("Ed25519PublicKey", public).verify(signature, statement)
        else:
            r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
            cast("EllipticCurvePublicKey", public).verify(encode_dss_signature(r, s), statement, SCHEME)
    except InvalidSignature:
        return False
    return True


def is_signed(key: PublicKey, signature: bytes, statement: bytes) -> bool:
    """Return whether a statement was signed, as ledgers of version 1 have it: in DER, by a key of any curve."""
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, statement)
        else:
            key.verify(signature, statement, SCHEME)
    except InvalidSignature:
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSigner(f"cannot read the key {path}: {error.strerror}") from None
