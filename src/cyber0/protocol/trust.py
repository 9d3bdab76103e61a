"""Whose keys the keys of a run are: the certificates by which an authority vouches for them."""

import warnings
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cyber0.errors import InvalidSigner
from cyber0.protocol.identity import Identity
from cyber0.protocol.roster import Roster
from cyber0.protocol.signing import PublicKey, encoded, is_by

__all__ = ["UNUSABLE", "read_certificate", "uncertified", "unpinned", "vouched"]

UNUSABLE = (
    *(ValueError, TypeError, IndexError, InvalidSignature, InvalidSigner, UnsupportedAlgorithm),
    *(x509.ExtensionNotFound, x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType),
)
FEDERATOR, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def vouched(certificates: Iterable[bytes], authority: x509.Certificate) -> set[tuple[str, bytes]]:
    """Return the names and public keys that certificates, in DER, of an authority are for; a federator's has no name.

    How long a certificate is valid does not matter: it was when its client joined.
    """
    found: set[tuple[str, bytes]] = set()
    for data in certificates:
        try:
            made = read_certificate(data)
            made.verify_directly_issued_by(authority)
            key, usage = made.public_key(), made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            if not isinstance(key, PublicKey):
                continue
            if CLIENT in usage:
                found.add((str(made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value), encoded(key)))
            if FEDERATOR in usage:
                found.add(("", encoded(key)))
        except UNUSABLE:
            continue
    return found


def read_certificate(data: bytes) -> x509.Certificate:
    """Return a certificate in DER; raise one of `UNUSABLE` if it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)  # it is damaged, and refused all the same
        return x509.load_der_x509_certificate(data)


def uncertified(
    identity: Identity, rosters: Iterable[Roster], certificates: Iterable[bytes], authority: x509.Certificate
) -> dict[tuple[str, bytes], str]:
    """Return for which names and keys of a run the authority does not vouch, each with a sentence that says so.

    A key that a client took by itself needs no certificate: its old key, known itself, signed for it. A federator has
    no name.
    """
    known, doubtful = vouched(certificates, authority), dict[tuple[str, bytes], str]()
    missing = "no certificate of this authority is here for the"
    if ("", identity.federator) not in known:
        doubtful["", identity.federator] = f"{missing} federator's key"
    for roster in rosters:
        known |= _handed_over(identity, roster, known)
        for name, key in zip(roster.names, roster.keys, strict=True):
            if key and (name, key) not in known:
                doubtful[name, key] = f"{missing} key {key.hex()[:16]} of {name}"
    return doubtful


def unpinned(identity: Identity, rosters: Iterable[Roster]) -> list[str]:
    """Return the clients with a key that is neither that of the run's beginning nor signed for with the one before."""
    known, names = set(zip(identity.roster.names, identity.roster.keys, strict=True)), dict[str, None]()
    for roster in rosters:
        known |= _handed_over(identity, roster, known)
        entries = zip(roster.names, roster.keys, strict=True)
        names.update(dict.fromkeys(name for name, key in entries if key and (name, key) not in known))
    return list(names)


def _handed_over(identity: Identity, roster: Roster, known: set[tuple[str, bytes]]) -> set[tuple[str, bytes]]:
    """Return the names and keys that clients are about to take, and signed for with keys that are known."""
    return {
        (change.name, change.key)
        for change in roster.pending
        if change.kind == "rotate"
        and (change.name, roster.key(change.name)) in known
        and is_by(roster.key(change.name), change.signature, change.statement(identity.digest))
    }
