"""Certificates in memory: a small certificate authority, what it signs, and requests to be signed by it.

Keys are ECDSA on P-256. A certificate serves one purpose: a federator's cannot join, a client's cannot serve.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

__all__ = [
    "LOOPBACK",
    "Pair",
    "authority",
    "client",
    "client_certificate",
    "common_name",
    "federator",
    "federator_certificate",
    "fingerprint",
    "fingerprint_of",
    "hosts_of",
    "is_authority",
    "is_for_client",
    "is_for_federator",
    "new_key",
    "new_request",
    "subject_public_key",
]

Named = x509.Certificate | x509.CertificateSigningRequest  # both have a name and a public key

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


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key.

    >>> new_key().curve.name
    'secp256r1'
    """
    return ec.generate_private_key(ec.SECP256R1())


def authority(name: str, days: int) -> Pair:
    """Return a new certificate authority, which can sign certificates but no further authorities.

    >>> common_name(authority("ours", days=1).certificate)
    'ours'
    """
    key = new_key()
    builder = _builder(name, name, key.public_key(), days).add_extension(x509.BasicConstraints(True, 0), critical=True)
    return Pair(key, _signed(builder, _usage(signs=True), key, key.public_key()))


def federator(ca: Pair, hosts: tuple[str, ...], days: int) -> Pair:
    """Return a new key and the certificate of a federator that clients reach under these names or addresses.

    >>> hosts_of(federator(authority("ours", days=1), ("localhost", "::1"), days=1).certificate)
    ('localhost', '::1')
    """
    key = new_key()
    return Pair(key, federator_certificate(ca, hosts, key.public_key(), days))


def federator_certificate(
    ca: Pair, hosts: tuple[str, ...], key: ec.EllipticCurvePublicKey, days: int
) -> x509.Certificate:
    """Return the certificate of a federator that has this key and is reached under these names or addresses.

    >>> ca, key = authority("ours", days=1), new_key().public_key()
    >>> common_name(federator_certificate(ca, ("localhost",), key, days=1))
    'federator'
    """
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    return _leaf(ca, "federator", key, names, ExtendedKeyUsageOID.SERVER_AUTH, days)


def client(ca: Pair, name: str, days: int) -> Pair:
    """Return a new key and the certificate of a client with this name.

    >>> common_name(client(authority("ours", days=1), "alice", days=1).certificate)
    'alice'
    """
    key = new_key()
    return Pair(key, client_certificate(ca, name, key.public_key(), days))


def client_certificate(ca: Pair, name: str, key: ec.EllipticCurvePublicKey, days: int) -> x509.Certificate:
    """Return the certificate of a client that has this name and this key.

    >>> made = client_certificate(authority("ours", days=1), "alice", new_key().public_key(), days=1)
    >>> is_for_client(made), is_for_federator(made), is_authority(made)
    (True, False, False)
    """
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    return _leaf(ca, name, key, names, ExtendedKeyUsageOID.CLIENT_AUTH, days)


def new_request(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateSigningRequest:
    """Return a request for the certificate of a client with this name, signed by its own key (PKCS#10).

    >>> asked = new_request("alice", new_key())
    >>> common_name(asked), asked.is_signature_valid
    ('alice', True)
    """
    return x509.CertificateSigningRequestBuilder().subject_name(_name(name)).sign(key, SHA256())


def common_name(named: Named) -> str:
    """Return the name on a certificate or a request; empty if it has none, or more than one.

    >>> common_name(authority("ours", days=1).certificate)
    'ours'
    """
    names = named.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def subject_public_key(named: Named) -> bytes:
    """Return the public key of a certificate or a request: its SubjectPublicKeyInfo in DER.

    >>> len(subject_public_key(new_request("alice", new_key())))
    91
    """
    return named.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(named: Named) -> str:
    """Return 128 bits of the SHA-256 of a public key, to be compared by eye or by telephone.

    A request and the certificates that are made of it have the same.

    >>> ca, key = authority("ours", days=1), new_key()
    >>> made = client_certificate(ca, "alice", key.public_key(), days=1)
    >>> fingerprint(new_request("alice", key)) == fingerprint(made) != fingerprint(ca.certificate)
    True
    >>> len(fingerprint(made).split())
    8
    """
    return fingerprint_of(subject_public_key(named))


def fingerprint_of(public: bytes) -> str:
    """Return 128 bits of the SHA-256 of a public key, which is its SubjectPublicKeyInfo in DER."""
    digest = sha256(public).hexdigest()[:32]
    return " ".join(digest[place : place + 4] for place in range(0, 32, 4))


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses that a certificate is for.

    >>> hosts_of(authority("ours", days=1).certificate)
    ()
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate is that of an authority, which may sign others.

    >>> is_authority(authority("ours", days=1).certificate)
    True
    """
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def is_for_client(certificate: x509.Certificate) -> bool:
    """Return whether a client can join with a certificate.

    >>> is_for_client(federator(authority("ours", days=1), LOOPBACK, days=1).certificate)
    False
    """
    return _is_for(certificate, ExtendedKeyUsageOID.CLIENT_AUTH)


def is_for_federator(certificate: x509.Certificate) -> bool:
    """Return whether a federator can serve with a certificate.

    >>> is_for_federator(federator(authority("ours", days=1), LOOPBACK, days=1).certificate)
    True
    """
    return _is_for(certificate, ExtendedKeyUsageOID.SERVER_AUTH)


def _is_for(certificate: x509.Certificate, purpose: ObjectIdentifier) -> bool:
    if is_authority(certificate):
        return False
    try:
        return purpose in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:  # it is good for anything
        return True


def _leaf(
    ca: Pair,
    name: str,
    key: ec.EllipticCurvePublicKey,
    also: x509.SubjectAlternativeName,
    purpose: ObjectIdentifier,
    days: int,
) -> x509.Certificate:
    """Return a certificate of which every extension is chosen here; what a request asks for is never copied."""
    issuer = common_name(ca.certificate)
    builder = _builder(name, issuer, key, days, ca.certificate.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(also, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    return _signed(builder, _usage(signs=False), ca.key, ca.key.public_key())


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
