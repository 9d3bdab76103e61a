"""Whoever holds a certificate of the federator's authority is known by its name; nobody else comes in."""

import asyncio
import re
import stat
from datetime import UTC, datetime

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InvalidKeys, Refused
from cyber0.network import certificates
from cyber0.network.handshake import refusal
from cyber0.network.keys import (
    certificate,
    channel_credentials,
    check_name,
    client_name,
    federator_key,
    init,
    issue,
    peer_name,
    server_credentials,
)
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.network.tokens import Tokens, temporary_credentials, token_credentials
from cyber0.protocol.chain import Seal, genesis
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import is_signed, private_key, public_key, signed

AUTHORITY = certificates.authority("test", days=1)


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

    async def name(_, context):
        try:
            return who(context).encode()
        except InvalidKeys as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))

    async def play():
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(name)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Name": handler})])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            return await talk(port)
        finally:
            await server.stop(None)

    return asyncio.run(play())


def asks(credentials):
    async def talk(port):
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            return (await channel.unary_unary("/test/Name")(b"")).decode()

    return talk


def probes(folder):
    async def talk(port):
        return await asyncio.to_thread(refusal, f"127.0.0.1:{port}", folder)

    return talk


def refused_by(keys, credentials):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        served(server_credentials(keys), peer_name, asks(credentials))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def raw(folder):
    files = (folder / name for name in ("ca.pem", "key.pem", "cert.pem"))
    return grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))


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
    with pytest.raises(grpc.aio.AioRpcError):
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
    refused_by(keys, grpc.ssl_channel_credentials((keys / "ca.pem").read_bytes()))
    assert "cannot read" in served(server_credentials(keys), peer_name, probes(tmp_path))


def test_a_client_cannot_serve_and_a_federator_cannot_join(keys):
    refused_by(keys, raw(keys / "federator"))
    assert "it must be a client's" in served(server_credentials(keys), peer_name, probes(keys / "federator"))
    alice = keys / "clients/alice"
    with pytest.raises(InvalidKeys, match="is a client's: give the folder made by cyber0 keys init"):
        server_credentials(alice)
    key, cert, ca = ((alice / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
    passed = grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)
    with pytest.raises(grpc.aio.AioRpcError):
        served(passed, peer_name, asks(channel_credentials(alice)))


def test_a_server_that_speaks_no_tls_is_recognised(keys):
    async def play():
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await probes(keys / "clients/alice")(port)
        finally:
            await server.stop(None)

    assert "TLS" in asyncio.run(play())


def test_a_certificate_without_a_name_is_refused(keys, tmp_path):
    ca, key = private_key(keys / "ca-key.pem"), ec.generate_private_key(ec.SECP256R1())
    named = certificate(keys / "clients/alice/cert.pem")
    nameless = x509.CertificateBuilder(
        issuer_name=named.issuer,
        subject_name=x509.Name([]),
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=named.not_valid_before_utc,
        not_valid_after=named.not_valid_after_utc,
    ).sign(ca, SHA256())
    pair = certificates.Pair(key, nameless)
    for name, content in {
        "ca.pem": (keys / "ca.pem").read_bytes(),
        "cert.pem": pair.pem,
        "key.pem": pair.key_pem,
    }.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(grpc.aio.AioRpcError, match="has no name"):
        served(server_credentials(keys), peer_name, asks(channel_credentials(tmp_path)))


def test_a_federation_over_mutual_tls(tmp_path):
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
    assert is_signed(ledger.seals[-1], ledger.identity.digest, signer)


def test_a_token_stands_for_a_name_until_the_next_one():
    tokens, server = Tokens(), temporary_credentials()
    first, second = tokens.issue("bob"), tokens.issue("bob")
    assert served(server.credentials, tokens.peer_name, asks(token_credentials(server.authority, second))) == "bob"
    for credentials in (
        token_credentials(server.authority, first),
        token_credentials(server.authority, "guessed"),
        grpc.ssl_channel_credentials(server.authority),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="is not valid, or no longer"):
            served(server.credentials, tokens.peer_name, asks(credentials))


def test_a_token_is_not_shown_to_another_server():
    tokens = Tokens()
    credentials = token_credentials(temporary_credentials().authority, tokens.issue("bob"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        served(temporary_credentials().credentials, tokens.peer_name, asks(credentials))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_federators_key_signs_its_ledger(keys):
    seal = signed(Seal.of(genesis(bytes(32))), bytes(32), private_key(federator_key(keys)))
    assert is_signed(seal, bytes(32), public_key(keys / "federator" / "cert.pem"))


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


def test_the_commands(tmp_path):
    def said(*words):
        result = CliRunner().invoke(app, ["keys", *map(str, words)], catch_exceptions=True)
        return result.output + str(result.exception or "")

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
