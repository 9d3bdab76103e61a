"""How a client gets a certificate without showing its private key to anybody.

1. `request`, on the client's machine, makes a key, and a request that is signed by it. The request is sent.
2. `sign`, on the operator's machine, makes a certificate of the request. One file with nothing secret goes back.
3. `install`, on the client's machine, puts that certificate beside the key.

To renew a certificate, sign the same request again.
"""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cyber0.errors import InvalidKeys
from cyber0.network.certificates import (
    client_certificate,
    common_name,
    is_authority,
    is_for_client,
    new_key,
    new_request,
    subject_public_key,
)
from cyber0.network.key_files import (
    certificate,
    certificate_request,
    certificates,
    check_issued,
    check_valid,
    client_key,
    make_folder,
    make_private,
    replace_file,
    write_new,
)
from cyber0.network.keys import check_days, check_name, read_authority

__all__ = ["install", "request", "sign"]


def request(name: str, folder: Path | None = None) -> Path:
    """Make a client's key and a request for its certificate in a folder, by default `NAME`; return the request's file.

    A key that is there already is kept: the request is for a new certificate of it.

    >>> from tempfile import mkdtemp
    >>> request("alice", Path(mkdtemp()) / "alice").name
    'request.pem'
    """
    check_name(name)
    folder = folder or Path(name)
    path = folder / "request.pem"
    if (folder / "key.pem").exists():
        _check_own(name, folder)
        asked = new_request(name, client_key(folder / "key.pem"))
        replace_file(path, asked.public_bytes(Encoding.PEM))
        return path
    key = new_key()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    make_folder(folder, {"key.pem": secret, "request.pem": new_request(name, key).public_bytes(Encoding.PEM)})
    return path


def sign(path: Path, keys: Path, out: Path | None = None, days: int = 365, *, replace: bool = False) -> Path:
    """Make the certificate that a request asks for, and return the file to send back: certificate and authority.

    Of the request only name and key are used: what else it asks for is not granted. The certificate is kept in
    `keys/clients/NAME`, too.

    >>> from tempfile import mkdtemp
    >>> from cyber0.network.keys import client_name, init
    >>> operator, alice = Path(mkdtemp()), Path(mkdtemp()) / "alice"
    >>> _ = init(operator / "keys")
    >>> answer = sign(request("alice", alice), operator / "keys", operator / "alice.pem")
    >>> client_name(install(answer, alice))
    'alice'

    Args:
        path: The request.
        keys: The folder that `cyber0.network.keys.init` has made.
        out: The file to make, by default `NAME.pem`; it must not exist.
        days: How long the certificate is valid, but not beyond the authority.
        replace: Give a client that has a certificate one for another key; the old one stays as `cert.pem.old`.

    """
    check_days(days)
    asked, key = certificate_request(path)
    name = _name_of(asked, path)
    out = out or Path(f"{name}.pem")
    if out.exists():
        raise InvalidKeys(f"out = {out} exists: name another file, or move it away")
    ca = read_authority(keys)
    folder = keys / "clients" / name
    _check_key(asked, path, keys, name, replace=replace)
    made = client_certificate(ca, name, key, days)
    make_private(folder)
    _set_aside(folder, made)
    replace_file(folder / "cert.pem", made.public_bytes(Encoding.PEM), old=".old")  # before anybody can use it
    write_new(out, made.public_bytes(Encoding.PEM) + ca.pem, 0o644)
    return out


def install(path: Path, folder: Path | None = None) -> Path:
    """Put what `sign` has made into the folder with the key it is for, by default `NAME`; return the folder.

    >>> install(Path("no/such/alice.pem"))
    Traceback (most recent call last):
    cyber0.errors.InvalidKeys: cannot read no/such/alice.pem: No such file or directory
    """
    made, ca = _answer(path)
    name = check_name(common_name(made))
    folder = folder or Path(name)
    if client_key(folder / "key.pem").public_key() != made.public_key():
        raise InvalidKeys(
            f"{path} is not for the key {folder / 'key.pem'}: give the folder that its request was made in"
        )
    _check_own(name, folder, f"{path}: ")
    present = folder / "ca.pem"
    if present.exists() and subject_public_key(certificate(present)) != subject_public_key(ca):
        raise InvalidKeys(
            f"{present} is the authority of another federation than that of {path}: make a folder and a request for "
            "each federation"
        )
    replace_file(present, ca.public_bytes(Encoding.PEM))
    replace_file(folder / "cert.pem", made.public_bytes(Encoding.PEM))
    return folder


def _answer(path: Path) -> tuple[x509.Certificate, x509.Certificate]:
    """Return a client's certificate and its authority, of a file that `sign` has made."""
    found = certificates(path)
    if len(found) != 2 or not is_authority(found[1]):
        raise InvalidKeys(f"{path} is not a certificate followed by its authority: give the file cyber0 keys sign made")
    made, ca = found
    check_issued(made, path, ca, path)
    if not is_for_client(made):
        raise InvalidKeys(f"{path} has no client's certificate: give the file cyber0 keys sign made")
    check_valid(made, path, "ask the operator to sign your request.pem again (cyber0 keys sign)")
    return made, ca


def _name_of(asked: x509.CertificateSigningRequest, path: Path) -> str:
    try:
        return check_name(common_name(asked))
    except InvalidKeys as error:
        raise InvalidKeys(f"{path}: {error}") from None


def _check_own(name: str, folder: Path, where: str = "") -> None:
    """Refuse a name that is not the one a client's folder has been made for, and a folder that is a federator's."""
    if (folder / "cert.pem").exists():
        made = certificate(folder / "cert.pem")
        if not is_for_client(made):
            raise InvalidKeys(f"{where}{folder} is a federator's: name another folder")
        present = common_name(made)
    elif (folder / "request.pem").exists():
        present = common_name(certificate_request(folder / "request.pem")[0])
    else:
        return
    if name != present:
        raise InvalidKeys(
            f"{where}name = {name!r}, but {folder} belongs to {present!r}: use that name, or another folder"
        )


def _check_key(asked: x509.CertificateSigningRequest, path: Path, keys: Path, name: str, *, replace: bool) -> None:
    """Refuse a key that somebody else has, and another key for a name that has one."""
    key, own = subject_public_key(asked), keys / "clients" / name / "cert.pem"
    for known in (keys / "ca.pem", keys / "federator" / "cert.pem", *sorted(keys.glob("clients/*/cert.pem"))):
        if known != own and known.exists() and subject_public_key(certificate(known)) == key:
            raise InvalidKeys(f"{path}: key = that of {known}: every client makes a key of its own")
    if not replace and own.exists() and subject_public_key(certificate(own)) != key:
        raise InvalidKeys(
            f"{path}: name = {name!r} has a certificate for another key, {own}: if its key has changed, say --replace; "
            "if this is somebody else, it needs another name"
        )


def _set_aside(folder: Path, made: x509.Certificate) -> None:
    """Rename a private key that `cyber0.network.keys.issue` has left, unless it is that of the new certificate."""
    path = folder / "key.pem"
    if not path.exists() or client_key(path).public_key() == made.public_key():
        return
    try:
        path.replace(path.with_name("key.pem.old"))
    except OSError as error:
        raise InvalidKeys(f"cannot rename {path}: {error.strerror}") from None
