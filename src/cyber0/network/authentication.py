"""How a client shows who it is: it signs a challenge with the key of its certificate, on a channel with TLS.

TLS itself authenticates the federator alone: a connection whose other side has shown a certificate in its handshake
takes almost twice the memory for as long as it lasts. What a client signs has a domain of its own, the challenge, which
is new for each connection, and the digest of the certificate by which it knows the federator. So the signature is of no
use on another connection, nor to somebody between the two, who has to show the client another certificate.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from cyber0.errors import InvalidKeys, InvalidSigner
from cyber0.protocol.signing import PrivateKey, PublicKey, encoded, is_by, sign
from cyber0.protocol.trust import UNUSABLE, read_certificate

__all__ = ["LONGEST", "Authority", "ClientCertificate", "OtherTime", "new_challenge", "read_challenge"]

DOMAIN = b"cyber0 client 3\0"
CHALLENGE, SIGNATURE = 32, 64  # bytes
LONGEST = 4096  # bytes of an answer: a signature and a certificate, which has some 450
RIGHT = (
    "it must be a client's, made by cyber0 keys sign on the operator's machine, and not expired by the federator's "
    "clock"
)


class OtherTime(InvalidKeys):
    """A certificate is not valid at this time, by the clock of whoever looks at it: it may be at another."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client's certificate, in DER, and its private key.

    >>> from cryptography.hazmat.primitives.serialization import Encoding
    >>> from cyber0.network import certificates
    >>> ca = certificates.authority("ours", days=1)
    >>> alice, federator = certificates.client(ca, "alice", days=1), certificates.federator(ca, ("localhost",), days=1)
    >>> shown = federator.certificate.public_bytes(Encoding.DER)  # by the federator, in its handshake
    >>> challenge = read_challenge(new_challenge())
    >>> own = ClientCertificate(alice.certificate.public_bytes(Encoding.DER), alice.key)
    >>> certificate, key = Authority(ca.certificate, shown).proved(own.answer(challenge, shown), challenge)
    >>> certificate == own.certificate, key == encoded(alice.key.public_key())
    (True, True)
    """

    certificate: bytes
    key: PrivateKey

    def answer(self, challenge: bytes, federator: bytes) -> bytes:
        """Return what answers a challenge of a federator that has shown this certificate, in DER."""
        return sign(self.key, _statement(challenge, federator)) + self.certificate


class Authority:
    """The authority that a federator's clients have certificates of.

    Args:
        certificate: The authority's own.
        federator: The certificate that the federator shows, in DER.

    """

    def __init__(self, certificate: x509.Certificate, federator: bytes) -> None:
        self._store, self._federator = Store([certificate]), federator

    def proved(self, answer: bytes, challenge: bytes) -> tuple[bytes, bytes]:
        """Return the certificate, in DER, of who has answered a challenge, and its public key, as rosters have it.

        Raise `InvalidKeys` if the answer proves nothing.
        """
        signature, data = answer[:SIGNATURE], answer[SIGNATURE:]
        try:
            shown = read_certificate(data)
            self._verify(shown)
            key = _key(shown)
        except InvalidKeys:
            raise
        except UNUSABLE as error:
            raise InvalidKeys(f"its certificate cannot be read ({error}): {RIGHT}") from None
        if not is_by(key, signature, _statement(challenge, self._federator)):
            raise InvalidKeys(
                "its signature does not fit its certificate, this connection and the federator's certificate: let it "
                "connect to the federator itself, and to nothing that decrypts in between"
            )
        return data, key

    def _verify(self, shown: x509.Certificate) -> None:
        """Refuse a certificate that is not by this authority, not valid now, or not for a client."""
        now = datetime.now(UTC)
        policy = PolicyBuilder().store(self._store).time(now).max_chain_depth(0)
        try:
            policy.build_client_verifier().verify(shown, [])
        except VerificationError as error:
            why = str(error).partition(" (encountered")[0].removeprefix("validation failed: ")
            is_now = shown.not_valid_before_utc <= now <= shown.not_valid_after_utc
            raise (InvalidKeys if is_now else OtherTime)(f"its certificate cannot be used ({why}): {RIGHT}") from None


def new_challenge() -> str:
    """Return a challenge, as a federator's greeting has it."""
    return secrets.token_hex(CHALLENGE)


def read_challenge(text: str) -> bytes:
    """Return the bytes of a challenge; nothing if it is none.

    >>> read_challenge("00" * 32) == bytes(32), read_challenge("00" * 31), read_challenge("what?")
    (True, b'', b'')
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return b""
    return data if len(data) == CHALLENGE else b""


def _statement(challenge: bytes, federator: bytes) -> bytes:
    return DOMAIN + challenge + sha256(federator).digest()


def _key(shown: x509.Certificate) -> bytes:
    key = shown.public_key()
    if not isinstance(key, PublicKey):
        raise InvalidSigner("its key is neither ECDSA on P-256 nor Ed25519")
    return encoded(key)
