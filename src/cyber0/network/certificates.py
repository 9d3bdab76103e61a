"""Certificates in memory: a small certificate authority, and the pairs of key and certificate that it signs.

Keys are ECDSA on P-256. A certificate serves one purpose: a federator's cannot join, a client's cannot serve.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

__all__ = ["LOOPBACK", "Pair", "authority", "client", "common_name", "federator"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SLACK = timedelta(hours=1)  # clocks of two machines differ


@dataclass(frozen=True)
class Pair:
    """A private key and the certificate of its public half."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The private key, in PEM without a password."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def pem(self) -> bytes:
        """The certificate, in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)


def authority(name: str, days: int) -> Pair:
    """Return a new certificate authority, which can sign certificates but no further authorities.

    >>> common_name(authority("ours", days=1).certificate)
    'ours'
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, name, key.public_key(), days).add_extension(x509.BasicConstraints(True, 0), critical=True)
    return Pair(key, _signed(builder, _usage(signs=True), key, key.public_key()))


def federator(ca: Pair, hosts: tuple[str, ...], days: int) -> Pair:
    """Return the key and certificate of a federator that clients reach under these names or addresses.

    >>> made = federator(authority("ours", days=1), ("localhost", "::1"), days=1)
    >>> made.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
    ...     x509.DNSName
    ... )
    ['localhost']
    """
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    return _leaf(ca, "federator", names, ExtendedKeyUsageOID.SERVER_AUTH, days)


def client(ca: Pair, name: str, days: int) -> Pair:
    """Return the key and certificate of a client with this name.

    >>> common_name(client(authority("ours", days=1), "alice", days=1).certificate)
    'alice'
    """
    return _leaf(ca, name, x509.SubjectAlternativeName([x509.DNSName(name)]), ExtendedKeyUsageOID.CLIENT_AUTH, days)


def common_name(certificate: x509.Certificate) -> str:
    """Return the name on a certificate; empty if it has none.

    >>> common_name(authority("ours", days=1).certificate)
    'ours'
    """
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _leaf(ca: Pair, name: str, also: x509.SubjectAlternativeName, purpose: ObjectIdentifier, days: int) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = common_name(ca.certificate)
    builder = _builder(name, issuer, key.public_key(), days, ca.certificate.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(also, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    return Pair(key, _signed(builder, _usage(signs=False), ca.key, ca.key.public_key()))


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePublicKey, days: int, latest: datetime | None = None
) -> x509.CertificateBuilder:
    """Valid from now for so many days, but not beyond the authority; in the past where `days` is negative."""
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - SLACK)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    usage: x509.KeyUsage,
    key: ec.EllipticCurvePrivateKey,
    public: ec.EllipticCurvePublicKey,
) -> x509.Certificate:
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    return builder.sign(key, SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    """An authority signs certificates; everyone else signs handshakes (and a federator, its ledger)."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
