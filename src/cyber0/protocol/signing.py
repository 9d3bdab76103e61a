"""Signatures of a federator, by any key that TLS certificates are made for: ECDSA or Ed25519, in PEM."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from cyber0.errors import InvalidSigner
from cyber0.protocol.chain import Seal

__all__ = ["is_signed", "private_key", "public_key", "signed"]

PrivateKey = EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = EllipticCurvePublicKey | Ed25519PublicKey


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


def signed(seal: Seal, identity: bytes, key: PrivateKey) -> Seal:
    """Return a seal with its signature by a key.

    >>> from cyber0.protocol.chain import genesis
    >>> key = Ed25519PrivateKey.generate()
    >>> seal = signed(Seal.of(genesis(bytes(32))), bytes(32), key)
    >>> is_signed(seal, bytes(32), key.public_key()), is_signed(replace(seal, rounds=1), bytes(32), key.public_key())
    (True, False)
    """
    statement = seal.statement(identity)
    if isinstance(key, Ed25519PrivateKey):
        return replace(seal, signature=key.sign(statement))
    return replace(seal, signature=key.sign(statement, ECDSA(SHA256())))


def is_signed(seal: Seal, identity: bytes, key: PublicKey) -> bool:
    """Return whether a seal is signed by the private key that belongs to this public key.

    >>> from cyber0.protocol.chain import genesis
    >>> is_signed(Seal.of(genesis(bytes(32))), bytes(32), Ed25519PrivateKey.generate().public_key())
    False
    """
    if seal.signature is None:
        return False
    statement = seal.statement(identity)
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(seal.signature, statement)
        else:
            key.verify(seal.signature, statement, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSigner(f"cannot read the key {path}: {error.strerror}") from None
