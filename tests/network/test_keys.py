"""Whoever holds a certificate of the federator's authority is known by its name; nobody else comes in."""

import asyncio
import os
import re
import shlex
import socket
import stat
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st
from tests.network.raw import call, serving
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InvalidKeys, Refused, RejectedMessage, Unreachable
from cyber0.network import certificates
from cyber0.network.authentication import ClientCertificate
from cyber0.network.certificates import fingerprint, hosts_of, new_key, subject_public_key
from cyber0.network.channel import Credentials
from cyber0.network.enrolment import install, request, sign
from cyber0.network.handshake import refusal
from cyber0.network.keys import (
    certificate,
    certify_federator,
    channel_credentials,
    check_name,
    client_context,
    client_name,
    federator_key,
    init,
    issue,
    peer_name,
    public_key_of,
    server_context,
    server_credentials,
)
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.network.tokens import Tokens, temporary_credentials, token_credentials
from cyber0.protocol import signing
from cyber0.protocol.chain import Seal, genesis
from cyber0.protocol.codec import decode_from_federator
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, is_by, private_key, public_key

AUTHORITY = certificates.authority("test", days=1)
PAGE = Path(__file__).parents[2] / "docs" / "keys.md"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "keys"
    init(folder, ["federator.example.org", "192.0.2.7"])
    issue("alice", folder)
    return folder


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers") / "keys"
    init(folder)
    issue("alice", folder)
    return folder


def served(credentials, who, talk):
    """What `talk(port)` gives while a server says to each caller what its name is."""

    def heard(channel, peer, _):
        try:
            channel.put(who(peer).encode())
        except InvalidKeys as error:
            channel.put(f"refused: {error}".encode())

    async def play():
        async with serving(heard, credentials) as port:
            return await talk(port)

    return asyncio.run(play())


def asks(credentials, host=None):
    """Ask a server who it takes us for; `host` is the name by which we mean to reach it."""

    async def talk(port):
        with patched(socket, "getaddrinfo", lambda _, *more, **options: found("127.0.0.1", *more, **options)):
            caller = await call(f"{host or '127.0.0.1'}:{port}", credentials)
        await caller.write(b"who am I?")
        said = await caller.read()
        caller.close()
        if said is None:
            raise Unreachable(caller.channel.channel.problem)
        with suppress(RejectedMessage):
            raise Refused(decode_from_federator(said).reason)
        if said.startswith(b"refused: "):
            raise Refused(said.decode())
        return said.decode()

    found = socket.getaddrinfo
    return talk


@contextmanager
def patched(module, name, value):
    """A host's name leads to this machine."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def probes(folder):
    async def talk(port):
        return await asyncio.to_thread(refusal, f"127.0.0.1:{port}", folder)

    return talk


def refused_by(keys, credentials, words="it must be a client's, made by cyber0 keys sign"):
    with pytest.raises(Refused, match=words):
        served(server_credentials(keys), peer_name, asks(credentials))


def raw(folder):
    """The credentials of a folder, without a look at it."""
    shown = certificate(folder / "cert.pem").public_bytes(Encoding.DER)
    return trusting((folder / "ca.pem").read_bytes(), ClientCertificate(shown, private_key(folder / "key.pem")))


def trusting(authority, own=None):
    return Credentials(client_context(authority.decode()), own=own)


def cannot_serve(folder):
    """Try to serve with a client's folder: its own credentials are refused, and forced ones persuade no client."""
    with pytest.raises(InvalidKeys, match="is a client's"):
        server_credentials(folder)
    forced = Credentials(server_context(folder / "cert.pem", folder / "key.pem"))
    with pytest.raises(Unreachable, match="is not to be trusted"):
        served(forced, peer_name, asks(channel_credentials(folder), client_name(folder)))


def mixed(keys, theirs, folder):
    """Certificate and key of `theirs`, with the authority of `keys`: what a liar would present."""
    folder.mkdir()
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_bytes((theirs / name).read_bytes())
    (folder / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    return folder


def test_a_client_is_known_by_the_name_on_its_certificate(keys):
    assert served(server_credentials(keys), peer_name, asks(channel_credentials(keys / "clients/alice"))) == "alice"


def test_the_federators_folder_alone_serves(keys):
    credentials = server_credentials(keys / "federator")
    assert served(credentials, peer_name, asks(channel_credentials(keys / "clients/alice"))) == "alice"
    assert served(credentials, peer_name, probes(keys / "clients/alice")) is None


def test_an_unknown_authority_is_refused(keys, strangers, tmp_path):
    liar = mixed(keys, strangers / "clients/alice", tmp_path / "liar")
    refused_by(keys, raw(liar))
    assert "was not issued by the authority in" in served(server_credentials(keys), peer_name, probes(liar))
    with pytest.raises(InvalidKeys, match=r"cert\.pem was not issued by the authority in .*ca\.pem"):
        channel_credentials(liar)


def test_a_client_does_not_speak_to_an_unknown_federator(keys, strangers):
    alice = keys / "clients/alice"
    with pytest.raises(Unreachable, match="its certificate is not to be trusted"):
        served(server_credentials(strangers), peer_name, asks(channel_credentials(alice)))
    assert "is no federator of the authority" in served(server_credentials(strangers), peer_name, probes(alice))


def test_join_says_why_it_is_refused_instead_of_trying_for_ever(keys, strangers):
    async def talk(port):
        words = ["join", f"127.0.0.1:{port}", "--tls", str(strangers / "clients/alice")]
        return str((await asyncio.to_thread(CliRunner().invoke, app, words)).exception)

    assert "is no federator of the authority" in served(server_credentials(keys), peer_name, talk)


def test_nobody_answers_is_no_refusal(keys):
    assert refusal("127.0.0.1:1", keys / "clients/alice") is None
    assert "give a host and a port" in refusal("127.0.0.1", keys / "clients/alice")


def test_an_expired_certificate_is_refused_on_both_sides(keys, tmp_path):
    late = issue("late", keys, tmp_path / "late", days=-1)
    refused_by(keys, raw(late))
    assert "cert.pem expired on" in served(server_credentials(keys), peer_name, probes(late))
    with pytest.raises(InvalidKeys, match=r"cert\.pem expired on 2"):
        channel_credentials(late)


def test_no_certificate_is_refused(keys, tmp_path):
    (tmp_path / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    refused_by(keys, trusting((keys / "ca.pem").read_bytes()), "the federator asks for a certificate: give --tls DIR")
    assert "cannot read" in served(server_credentials(keys), peer_name, probes(tmp_path))


def test_a_client_cannot_serve_and_a_federator_cannot_join(keys):
    refused_by(keys, raw(keys / "federator"))
    assert "it must be a client's" in served(server_credentials(keys), peer_name, probes(keys / "federator"))
    alice = keys / "clients/alice"
    with pytest.raises(InvalidKeys, match="is a client's: give the folder made by cyber0 keys init"):
        server_credentials(alice)
    cannot_serve(alice)


def test_a_server_that_speaks_no_tls_is_recognised(keys):
    async def play():
        async with serving(lambda *_: None) as port:
            return await probes(keys / "clients/alice")(port)

    assert "TLS" in asyncio.run(play())


def test_a_certificate_without_a_name_is_refused(keys, tmp_path):
    ca, key = private_key(keys / "ca-key.pem"), ec.generate_private_key(ec.SECP256R1())
    named = certificate(keys / "clients/alice/cert.pem")
    nameless = x509.CertificateBuilder(
        issuer_name=named.issuer,
        subject_name=x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "somebody")]),
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=named.not_valid_before_utc,
        not_valid_after=named.not_valid_after_utc,
        extensions=list(named.extensions),
    ).sign(ca, SHA256())
    pair = certificates.Pair(key, nameless)
    for name, content in {
        "ca.pem": (keys / "ca.pem").read_bytes(),
        "cert.pem": pair.pem,
        "key.pem": pair.key_pem,
    }.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match="has no name"):
        served(server_credentials(keys), peer_name, asks(channel_credentials(tmp_path)))


def test_a_federation_with_certificates(tmp_path):
    names = ("alice", "bob", "carol")
    init(tmp_path / "keys")
    folders = {name: issue(name, tmp_path / "keys") for name in names}
    settings = Settings.of(RunConfig(clients=3, byzantine=1, directions=2, rounds=5), names)
    ledger = Memory()

    def come(port, name, folder):
        credentials = channel_credentials(folder)
        return attend(f"127.0.0.1:{port}", lambda told: Member(told, name, StubModel(2)), credentials=credentials)

    async def play():
        key = private_key(federator_key(tmp_path / "keys"))
        federator = Federator(settings, ledger, peer_name=peer_name, key=key)
        port = await federator.start("127.0.0.1:0", server_credentials(tmp_path / "keys"))
        with pytest.raises(Refused, match="calls itself 'bob', but its certificate says 'alice'"):
            await come(port, "bob", folders["alice"])
        members = await asyncio.gather(*(come(port, name, folder) for name, folder in folders.items()))
        await federator.over.wait()
        await federator.close()
        return {member.model.fingerprint() for member in members}

    marks = asyncio.run(play())
    assert len(marks) == 1
    assert {ledger.seals[-1].fingerprint} == marks
    signer = public_key(tmp_path / "keys/federator/cert.pem")
    seal = ledger.seals[-1]
    assert is_by(encoded(signer), seal.signature, seal.statement(ledger.identity.digest))


def test_a_token_stands_for_a_name_until_the_next_one():
    tokens, server = Tokens(), temporary_credentials()
    first, second = tokens.issue("bob"), tokens.issue("bob")
    assert served(server.credentials, tokens.peer_name, asks(token_credentials(server.authority, second))) == "bob"
    for credentials in (
        token_credentials(server.authority, first),
        token_credentials(server.authority, "guessed"),
        trusting(server.authority),
    ):
        with pytest.raises(Refused, match="is not valid, or no longer"):
            served(server.credentials, tokens.peer_name, asks(credentials))


def test_a_token_is_not_shown_to_another_server():
    tokens = Tokens()
    credentials = token_credentials(temporary_credentials().authority, tokens.issue("bob"))
    with pytest.raises(Unreachable, match="is not to be trusted"):
        served(temporary_credentials().credentials, tokens.peer_name, asks(credentials))


def test_the_federators_key_signs_its_ledger(keys):
    statement = Seal.of(genesis(bytes(32))).statement(bytes(32))
    signature = signing.sign(private_key(federator_key(keys)), statement)
    assert is_by(encoded(public_key(keys / "federator" / "cert.pem")), signature, statement)


def test_private_keys_are_for_their_owner_alone(keys):
    for path in keys.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_certificates_say_what_they_are_for(keys):
    made = certificate(keys / "federator" / "cert.pem")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "federator.example.org"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "::1", "192.0.2.7"]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    ca = certificate(keys / "ca.pem")
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert ca.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_a_clients_certificate_does_not_outlive_its_authority(tmp_path):
    init(tmp_path / "keys", days=3)
    alice = issue("alice", tmp_path / "keys", days=300)
    end = certificate(alice / "cert.pem").not_valid_after_utc
    assert end == certificate(tmp_path / "keys" / "ca.pem").not_valid_after_utc
    assert end > datetime.now(UTC)


def test_nothing_is_overwritten(keys):
    before = {path: path.read_bytes() for path in keys.rglob("*.pem")}
    for again in (lambda: init(keys), lambda: issue("alice", keys)):
        with pytest.raises(InvalidKeys, match="exists and is not empty: name a new folder"):
            again()
    assert {path: path.read_bytes() for path in keys.rglob("*.pem")} == before


def test_a_key_of_another_certificate_is_found(keys, tmp_path):
    mine = mixed(keys, keys / "clients/alice", tmp_path / "mine")
    (mine / "key.pem").write_bytes((keys / "federator/key.pem").read_bytes())
    with pytest.raises(InvalidKeys, match=r"key\.pem is not the key of the certificate"):
        channel_credentials(mine)
    (mine / "key.pem").write_bytes(b"nonsense")
    with pytest.raises(InvalidKeys, match="holds no private key in PEM"):
        channel_credentials(mine)
    (mine / "ca.pem").write_bytes(b"nonsense")
    with pytest.raises(InvalidKeys, match="holds no certificate in PEM"):
        channel_credentials(mine)


@given(st.text(max_size=80) | st.from_regex("[a-zA-Z0-9._-]{1,66}", fullmatch=True))
def test_a_name_is_a_certificates_name_or_is_refused(name):
    if not re.fullmatch("[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}", name, re.ASCII):
        with pytest.raises(InvalidKeys, match=re.escape(repr(name))):
            check_name(name)
        return
    made = certificates.client(AUTHORITY, check_name(name), days=1)
    assert certificates.common_name(made.certificate) == name


@pytest.mark.parametrize("host", ["", "a b", "-a.org", "http://a.org", "a.org:443", "x" * 300])
def test_a_host_that_is_none_is_refused(host, tmp_path):
    with pytest.raises(InvalidKeys, match="host = "):
        init(tmp_path / "keys", [host])
    assert not (tmp_path / "keys").exists()


# Clients make their own keys


def enrolled(name, keys, folder):
    """Return a client's folder, made by request, sign and install."""
    answer = sign(request(name, folder), keys, folder.with_suffix(".pem"))
    return install(answer, folder)


def asked_with(key, path, *extensions, names=("alice",), digest=None):
    """Write a request as somebody else's program would make it."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    path.write_bytes(builder.sign(key, digest).public_bytes(Encoding.PEM))
    return path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def operator(tmp_path):
    init(tmp_path / "operator/keys")
    return tmp_path / "operator/keys"


@pytest.fixture
def alice(operator, tmp_path):
    return enrolled("alice", operator, tmp_path / "alice")


def test_a_client_that_made_its_own_key_is_known_by_its_name(operator, alice):
    assert client_name(alice) == "alice"
    assert served(server_credentials(operator), peer_name, asks(channel_credentials(alice))) == "alice"
    assert served(server_credentials(operator), peer_name, probes(alice)) is None


def test_the_operator_never_has_a_clients_private_key(operator, alice):
    secret = (alice / "key.pem").read_bytes().splitlines()[1]
    seen = {**contents(operator.parent), alice.with_suffix(".pem"): alice.with_suffix(".pem").read_bytes()}
    assert not [path for path, content in seen.items() if secret in content]
    assert not list((operator / "clients").rglob("key*"))
    assert b"PRIVATE KEY" not in alice.with_suffix(".pem").read_bytes()


def test_what_is_secret_is_for_its_owner_alone_and_the_answer_is_for_anybody(alice):
    assert stat.S_IMODE(alice.stat().st_mode) == 0o700
    assert stat.S_IMODE((alice / "key.pem").stat().st_mode) == 0o600
    mask = os.umask(0o22)
    os.umask(mask)
    assert stat.S_IMODE(alice.with_suffix(".pem").stat().st_mode) == 0o644 & ~mask


@pytest.mark.parametrize(
    "extensions",
    [
        [x509.BasicConstraints(ca=True, path_length=None)],
        [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])],
        [
            x509.BasicConstraints(ca=True, path_length=3),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("bob")]),
        ],
    ],
    ids=["authority", "federator", "anything"],
)
def test_a_request_is_granted_no_more_than_to_join(operator, tmp_path, extensions):
    folder = tmp_path / "alice"
    path = request("alice", folder)
    asked_with(private_key(folder / "key.pem"), path, *extensions, digest=SHA256())
    made = certificate(install(sign(path, operator, tmp_path / "alice.pem"), folder) / "cert.pem")
    granted = {type(each.value): each.value for each in made.extensions}
    assert granted[x509.BasicConstraints] == x509.BasicConstraints(ca=False, path_length=None)
    assert list(granted[x509.ExtendedKeyUsage]) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not granted[x509.KeyUsage].key_cert_sign
    assert hosts_of(made) == ("alice",)
    cannot_serve(folder)


def test_a_client_cannot_sign_for_others(operator, alice):
    """A certificate that alice has signed is refused by the federator, even with alice's own beside it."""
    signer = certificates.Pair(private_key(alice / "key.pem"), certificate(alice / "cert.pem"))
    forged = certificates.client(signer, "bob", days=1)
    shown, beside = (each.certificate.public_bytes(Encoding.DER) for each in (forged, signer))
    for data in (shown, shown + beside):
        refused_by(operator, trusting((alice / "ca.pem").read_bytes(), ClientCertificate(data, forged.key)))


@pytest.mark.parametrize(
    ("key", "digest", "said"),
    [
        (rsa.generate_private_key(65537, 2048), SHA256(), "RSA of 2048 bits"),
        (ec.generate_private_key(ec.SECP384R1()), SHA256(), "ECDSA on secp384r1"),
        (ed25519.Ed25519PrivateKey.generate(), None, "Ed25519"),
    ],
    ids=["RSA", "P-384", "Ed25519"],
)
def test_another_kind_of_key_is_refused(operator, tmp_path, key, digest, said):
    path = asked_with(key, tmp_path / "request.pem", digest=digest)
    with pytest.raises(InvalidKeys, match=rf"key = {said}: it must be ECDSA on the curve P-256"):
        sign(path, operator, tmp_path / "alice.pem")
    assert not (operator / "clients").exists()


def test_a_request_that_was_changed_on_the_way_is_refused(operator, tmp_path):
    """Whoever carries the request cannot put its own name into it."""
    path = request("alice", tmp_path / "alice")
    der = x509.load_pem_x509_csr(path.read_bytes()).public_bytes(Encoding.DER)
    assert der.count(b"alice") == 1
    changed = x509.load_der_x509_csr(der.replace(b"alice", b"mallo"))
    path.write_bytes(changed.public_bytes(Encoding.PEM))
    with pytest.raises(InvalidKeys, match="is not signed by its own key"):
        sign(path, operator, tmp_path / "mallo.pem")
    assert not (operator / "clients").exists()


@pytest.mark.parametrize("names", [(), ("../alice",), ("alice & bob",), ("alice", "bob"), ("-", "x")])
def test_a_request_without_a_name_that_can_be_used_is_refused(operator, tmp_path, names):
    path = asked_with(new_key(), tmp_path / "request.pem", names=names, digest=SHA256())
    with pytest.raises(InvalidKeys, match=r"request\.pem: name = .*: use up to 64 letters"):
        sign(path, operator, tmp_path / "out.pem")
    assert not (operator / "clients").exists()
    assert not (tmp_path / "out.pem").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"nonsense", "holds no request for a certificate in PEM"),
        (AUTHORITY.pem, "holds no request for a certificate in PEM"),
        (AUTHORITY.key_pem, "holds a private key, which belongs on its client's machine alone"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\n" * 4000, "has more than 65536 bytes"),
    ],
    ids=["nonsense", "certificate", "key", "large"],
)
def test_what_is_no_request_is_refused(operator, tmp_path, content, said):
    path = tmp_path / "request.pem"
    path.write_bytes(content)
    with pytest.raises(InvalidKeys, match=said):
        sign(path, operator, tmp_path / "alice.pem")


def test_a_name_has_one_key_until_the_operator_replaces_it(operator, alice, tmp_path):
    other = request("alice", tmp_path / "other")
    before = contents(operator)
    with pytest.raises(InvalidKeys, match=r"name = 'alice' has a certificate for another key.*say --replace"):
        sign(other, operator, tmp_path / "other.pem")
    assert contents(operator) == before
    install(sign(other, operator, tmp_path / "other.pem", replace=True), tmp_path / "other")
    assert public_key_of(operator / "clients/alice") == public_key_of(tmp_path / "other") != public_key_of(alice)
    old = (operator / "clients/alice/cert.pem.old").read_bytes()
    assert old == (alice / "cert.pem").read_bytes()


def test_a_key_that_the_operator_had_made_is_set_aside_when_it_is_replaced(operator, tmp_path):
    made = issue("alice", operator)
    secret = (made / "key.pem").read_bytes()
    own = request("alice", tmp_path / "alice")
    with pytest.raises(InvalidKeys, match="say --replace"):
        sign(own, operator, tmp_path / "alice.pem")
    sign(own, operator, tmp_path / "alice.pem", replace=True)
    assert not (made / "key.pem").exists()
    assert (made / "key.pem.old").read_bytes() == secret
    assert public_key_of(made) == subject_public_key(x509.load_pem_x509_csr(own.read_bytes()))


def test_a_certificate_is_renewed_by_signing_the_same_request_again(operator, tmp_path):
    folder = tmp_path / "alice"
    install(sign(request("alice", folder), operator, tmp_path / "short.pem", days=1), folder)
    first = certificate(folder / "cert.pem")
    install(sign(folder / "request.pem", operator, tmp_path / "long.pem", days=100), folder)
    second = certificate(folder / "cert.pem")
    assert second.not_valid_after_utc > first.not_valid_after_utc
    assert fingerprint(second) == fingerprint(first)
    assert served(server_credentials(operator), peer_name, asks(channel_credentials(folder))) == "alice"


def test_a_folder_of_the_operators_making_can_be_renewed_by_a_request(operator, tmp_path):
    folder = issue("alice", operator, tmp_path / "alice", days=-1)
    key = (folder / "key.pem").read_bytes()
    with pytest.raises(InvalidKeys, match="expired on"):
        channel_credentials(folder)
    install(sign(request("alice", folder), operator, tmp_path / "alice.pem"), folder)
    assert (folder / "key.pem").read_bytes() == key
    assert served(server_credentials(operator), peer_name, asks(channel_credentials(folder))) == "alice"


def test_two_clients_cannot_share_a_key(operator, alice, tmp_path):
    twin = asked_with(private_key(alice / "key.pem"), tmp_path / "bob.csr", names=("bob",), digest=SHA256())
    with pytest.raises(InvalidKeys, match=r"key = that of .*clients/alice/cert\.pem: every client makes a key"):
        sign(twin, operator, tmp_path / "bob.pem")
    federators = private_key(federator_key(operator))
    asked_with(federators, tmp_path / "bob.csr", names=("bob",), digest=SHA256())
    with pytest.raises(InvalidKeys, match=r"key = that of .*federator/cert\.pem"):
        sign(tmp_path / "bob.csr", operator, tmp_path / "bob.pem")
    with pytest.raises(InvalidKeys, match="is a federator's: name another folder"):
        request("bob", operator / "federator")


def test_a_folder_has_one_name(alice, operator, tmp_path):
    for folder in (alice, request("alice", tmp_path / "waiting").parent):
        with pytest.raises(InvalidKeys, match=r"name = 'bob', but .* belongs to 'alice': use that name"):
            request("bob", folder)
    key = private_key(tmp_path / "waiting/key.pem")
    asked_with(key, tmp_path / "bob.csr", names=("bob",), digest=SHA256())
    answer = sign(tmp_path / "bob.csr", operator, tmp_path / "bob.pem")
    with pytest.raises(InvalidKeys, match=r"bob\.pem: name = 'bob', but .*waiting belongs to 'alice'"):
        install(answer, tmp_path / "waiting")


def test_an_answer_is_for_one_key(alice, tmp_path):
    other = request("bob", tmp_path / "bob").parent
    before = contents(other)
    with pytest.raises(InvalidKeys, match=r"alice\.pem is not for the key .*bob/key\.pem"):
        install(alice.with_suffix(".pem"), other)
    with pytest.raises(InvalidKeys, match=r"cannot read the key .*nowhere/key\.pem"):
        install(alice.with_suffix(".pem"), tmp_path / "nowhere")
    assert contents(other) == before


def test_an_answer_of_another_federation_is_refused(alice, tmp_path):
    before = contents(alice)
    init(tmp_path / "others")
    answer = sign(alice / "request.pem", tmp_path / "others", tmp_path / "theirs.pem")
    with pytest.raises(InvalidKeys, match=r"ca\.pem is the authority of another federation than that of"):
        install(answer, alice)
    assert contents(alice) == before


def answers(alice, operator, strangers):
    """Return files that are no answer, and what is said of them."""
    own, ca = (alice / "cert.pem").read_bytes(), (alice / "ca.pem").read_bytes()
    authority = certificates.Pair(private_key(operator / "ca-key.pem"), certificate(operator / "ca.pem"))
    public = private_key(alice / "key.pem").public_key()
    serving = certificates.federator_certificate(authority, ("alice",), public, days=1)
    late = certificates.client_certificate(authority, "alice", public, days=-1)
    return {
        own: "is not a certificate followed by its authority",
        ca + own: "is not a certificate followed by its authority",
        own + ca + ca: "is not a certificate followed by its authority",
        own + (strangers / "ca.pem").read_bytes(): "was not issued by the authority in",
        serving.public_bytes(Encoding.PEM) + ca: "has no client's certificate",
        late.public_bytes(Encoding.PEM) + ca: "expired on",
        b"nonsense": "holds no certificate in PEM",
    }


def test_what_is_no_answer_is_refused(alice, operator, strangers, tmp_path):
    before = contents(alice)
    for content, said in answers(alice, operator, strangers).items():
        (tmp_path / "answer.pem").write_bytes(content)
        with pytest.raises(InvalidKeys, match=said):
            install(tmp_path / "answer.pem", alice)
    assert contents(alice) == before


def test_nothing_is_signed_where_the_answer_could_not_be_written(operator, tmp_path):
    path = request("alice", tmp_path / "alice")
    secret = (tmp_path / "alice/key.pem").read_bytes()
    with pytest.raises(InvalidKeys, match=r"out = .*key\.pem exists: name another file"):
        sign(path, operator, tmp_path / "alice/key.pem")
    assert (tmp_path / "alice/key.pem").read_bytes() == secret
    assert not (operator / "clients").exists()


def test_an_authority_that_has_expired_signs_nothing(operator, tmp_path):
    late = certificates.authority("cyber0", days=-1)
    (operator / "ca.pem").write_bytes(late.pem)
    (operator / "ca-key.pem").write_bytes(late.key_pem)
    path = request("alice", tmp_path / "alice")
    for attempt in (lambda: sign(path, operator, tmp_path / "a.pem"), lambda: certify_federator(operator)):
        with pytest.raises(InvalidKeys, match=r"ca\.pem expired on .*: the federation needs a new authority"):
            attempt()


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_days_out_of_range_are_refused(operator, tmp_path, days):
    path = request("alice", tmp_path / "alice")
    for attempt in (lambda: sign(path, operator, days=days), lambda: certify_federator(operator, days=days)):
        with pytest.raises(InvalidKeys, match=f"days = {days}: it must be from 1 to 36500"):
            attempt()


def test_join_says_that_the_certificate_is_still_to_come(tmp_path):
    folder = request("alice", tmp_path / "alice").parent
    with pytest.raises(InvalidKeys, match=r"has no certificate yet: send .*request\.pem to the federation's operator"):
        channel_credentials(folder)


# A federator moves to another host


def test_a_federator_gets_another_host_and_clients_need_nothing_new(operator, alice):
    credentials, key = channel_credentials(alice), public_key_of(operator)
    with pytest.raises(Unreachable, match="Hostname mismatch"):
        served(server_credentials(operator), peer_name, asks(credentials, "new.example.org"))
    before = contents(operator)
    certify_federator(operator, ["new.example.org"])
    assert served(server_credentials(operator), peer_name, asks(credentials, "new.example.org")) == "alice"
    assert served(server_credentials(operator), peer_name, asks(credentials)) == "alice"
    assert public_key_of(operator) == key
    changed = {path.name for path, content in contents(operator).items() if before.get(path) != content}
    assert changed == {"cert.pem", "cert.pem.old"}
    path = operator / "federator/cert.pem"
    assert path.with_name("cert.pem.old").read_bytes() == before[path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_hosts_are_added_unless_they_are_the_only_ones(tmp_path):
    loopback, path = certificates.LOOPBACK, tmp_path / "keys/federator/cert.pem"
    init(tmp_path / "keys", ["old.example.org"], days=3)
    certify_federator(tmp_path / "keys", ["192.0.2.7", "old.example.org"])
    assert hosts_of(certificate(path)) == (*loopback, "old.example.org", "192.0.2.7")
    certify_federator(tmp_path / "keys", ["new.example.org"], only=True)
    assert hosts_of(certificate(path)) == (*loopback, "new.example.org")
    certify_federator(tmp_path / "keys")
    assert hosts_of(certificate(path)) == (*loopback, "new.example.org")
    assert certificate(path).not_valid_after_utc == certificate(tmp_path / "keys/ca.pem").not_valid_after_utc
    refused_by(tmp_path / "keys", raw(tmp_path / "keys/federator"))


def test_the_federators_private_key_is_not_needed_for_another_host(operator):
    secret = operator / "federator/key.pem"
    moved = secret.rename(operator.parent / "elsewhere.pem")
    certify_federator(operator, ["new.example.org"])
    moved.rename(secret)
    server_credentials(operator)


def test_a_certificate_that_is_no_federators_gets_no_hosts(operator, strangers):
    path = operator / "federator/cert.pem"
    path.write_bytes((strangers / "federator/cert.pem").read_bytes())
    with pytest.raises(InvalidKeys, match="was not issued by the authority in"):
        certify_federator(operator, ["new.example.org"])
    issue("alice", operator)
    path.write_bytes((operator / "clients/alice/cert.pem").read_bytes())
    with pytest.raises(InvalidKeys, match="is no federator's"):
        certify_federator(operator, ["new.example.org"])
    with pytest.raises(InvalidKeys, match="host = 'a b'"):
        certify_federator(operator, ["a b"])


def test_the_handshake_names_the_command_for_another_host(operator, alice):
    async def talk(port):
        return await asyncio.to_thread(refusal, f"127.0.0.2:{port}", alice)

    async def play():
        async with serving(lambda *_: None, server_credentials(operator), "127.0.0.2:0") as port:
            return await talk(port)

    assert "cyber0 keys host 127.0.0.2 makes one" in asyncio.run(play())
    certify_federator(operator, ["127.0.0.2"])
    assert asyncio.run(play()) is None


# Public keys


def test_a_callers_certificate_is_the_one_it_was_given(operator, alice):
    def shown(peer):
        return subject_public_key(x509.load_der_x509_certificate(peer.certificate)).hex()

    seen = served(server_credentials(operator), shown, asks(channel_credentials(alice)))
    key = private_key(alice / "key.pem").public_key()
    assert bytes.fromhex(seen) == public_key_of(alice) == public_key_of(operator / "clients/alice")
    assert public_key_of(alice) == key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_a_caller_without_a_certificate_has_none():
    tokens, server = Tokens(), temporary_credentials()
    credentials = token_credentials(server.authority, tokens.issue("bob"))
    assert served(server.credentials, lambda peer: str(peer.certificate), asks(credentials)) == "b''"


def test_a_federators_public_key_is_found_from_either_folder(operator):
    signer = public_key(operator / "federator/cert.pem")
    assert public_key_of(operator) == public_key_of(operator / "federator")
    assert public_key_of(operator) == signer.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


# The commands


def said(*words):
    result = CliRunner().invoke(app, ["keys", *map(str, words)], catch_exceptions=True)
    return result.output + str(result.exception or "")


def test_the_commands(tmp_path):
    folder = tmp_path / "keys"
    assert "192.0.2.7" in said("init", folder, "--host", "192.0.2.7")
    assert "valid until" in said("issue", "alice", "--keys", folder, "--out", tmp_path / "usb")
    assert client_name(tmp_path / "usb") == "alice"
    assert "exists and is not empty" in said("init", folder)
    assert "use up to 64 letters" in said("issue", "../alice", "--keys", folder)
    assert "cannot read" in said("issue", "bob", "--keys", tmp_path / "elsewhere")
    shown = said("show", folder)
    assert "federator" in shown
    assert "reached as localhost" in shown
    assert "alice" in said("show", tmp_path / "usb")
    assert "holds no certificates" in said("show", tmp_path / "elsewhere")


def test_the_commands_of_an_enrolment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    authority = re.search(r"key +((\w{4} ?){8})", said("init", "keys"))[1]
    key = re.search(r"key +((\w{4} ?){8})", said("request", "alice"))[1]
    assert f"request, not signed yet, key {key}, alice/request.pem" in said("show", "alice")
    assert f"request, not signed yet, key {key}, alice/request.pem" in said("show", "alice/request.pem")
    signed_words = said("sign", "alice/request.pem", "--keys", "keys", "--days", 30)
    assert "cyber0 keys install alice.pem" in signed_words
    assert f"{key}: send nothing back unless alice sees the same" in signed_words
    assert f"{authority}: the operator must see the same" in said("install", "alice.pem")
    assert client_name(Path("alice")) == "alice"
    shown = said("show", "keys")
    assert re.search(f"alice +client, .*, key {key}, keys/clients/alice/cert.pem, private key elsewhere\n", shown)
    assert re.search(f"cyber0 +authority, .*, key {authority}, keys/ca.pem\n", shown)
    shown = said("show", "alice")
    assert re.search("alice/cert.pem, private key here\n", shown)
    assert "not signed yet" not in shown
    assert "alice.pem exists" in said("sign", "alice/request.pem", "--keys", "keys")
    assert "new.example.org" in said("host", "new.example.org", "--keys", "keys")
    assert "reached as localhost, 127.0.0.1, ::1, new.example.org" in said("show", "keys")
    assert "for localhost, 127.0.0.1, ::1\n" in said("host", "--keys", "keys", "--only")
    said("request", "alice", "--out", "new")
    assert "say --replace" in said("sign", "new/request.pem", "--keys", "keys", "--out", "new.pem")
    assert "valid until" in said("sign", "new/request.pem", "--keys", "keys", "--out", "new.pem", "--replace")


def test_what_a_request_says_does_not_steer_the_terminal(tmp_path):
    asked_with(new_key(), tmp_path / "request.pem", names=("\x1b[2Jalice\r",), digest=SHA256())
    asked_with(rsa.generate_private_key(65537, 2048), tmp_path / "other.pem", digest=SHA256())
    shown = said("show", tmp_path)
    assert r"\x1b[2Jalice\r" in shown
    assert "\x1b" not in shown
    assert "request that cannot be signed" in shown


def test_the_commands_of_the_page_can_be_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    commands = [words[2:] for words in lines if words[:2] == ["cyber0", "keys"]]
    assert {words[0] for words in commands} == {"init", "request", "sign", "install", "host", "show", "issue"}
    for words in commands:
        result = CliRunner().invoke(app, ["keys", *words])
        assert result.exit_code == 0, (words, result.output, result.exception)
    assert served(server_credentials(Path("keys")), peer_name, asks(channel_credentials(Path("alice")))) == "alice"
