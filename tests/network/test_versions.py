"""Parties of different versions refuse each other with a sentence, over real sockets.

The bytes of version 1 are what its own code sent.
"""

import asyncio
import ssl

import grpc
import grpc.aio
import pytest
from tests.network.parties import recipe
from tests.network.raw import answering, call

from cyber0.errors import Refused
from cyber0.network import older
from cyber0.network.handshake import refusal
from cyber0.network.keys import channel_credentials, init, issue, peer_name, server_credentials
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.protocol.codec import decode_from_federator
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Bye
from cyber0.protocol.settings import Settings

ASK = bytes.fromhex("22020801")
HELLO = bytes.fromhex(
    "0a5408011208636c69656e742d301a201c97ca21ca80832a785b3e30b914e599fa9cd16abefa8ef9fbecfd2684202c24222000000000000000"
    "000000000000000000000000000000000000000000000000005a027b7d"
)
BYE = bytes.fromhex(
    "323a0a367468697320666564657261746f7220737065616b732076657273696f6e2031206f66207468652070726f746f636f6c2c206e6f7420"
    "321801"
)
INVITATION = b':\x81\x04\x08\x01\x12\xfc\x03{"agreement": {"batch": 16, "byzantine": 1, "clients": 4, "directions": 4, \
"family": "sphere", "horizon": null, "local_epochs": 1, "lr": 0.01, "model": null, "mu": 0.001, "participation": 1.0, \
"precision": "float32", "rounds": 400, "rule": "cwtm", "scale": "unbiased", "schedule": "constant", "scheme": \
"unbiased", "seed": 0, "task": "mnist"}, "deadline": 60.0, "evaluate_every": 10, "fingerprint_every": 100, \
"keep_votes": true, "longest": 3600.0, "roster": ["client-0", "client-1", "client-2", "client-3"]}'


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (ASK, "this federator speaks version 3 of the protocol, not 1"),
        (HELLO, "it speaks version 1 of the protocol: this federator speaks 3"),
    ],
    ids=["ask", "hello"],
)
def test_messages_of_version_1_are_answered_with_a_sentence(data, sentence):
    async def run():
        federator = Federator(Settings.of(recipe()), Memory())
        port = await federator.start("127.0.0.1:0")
        caller = await call(f"127.0.0.1:{port}")
        await caller.write(data)
        answer = await caller.read()
        caller.close()
        federator.stop("enough")
        await federator.close()
        return decode_from_federator(answer)

    assert asyncio.run(run()) == Bye(sentence, final=True)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (BYE, "the federator refuses this client: this federator speaks version 1 of the protocol, not 2"),
        (INVITATION, "the federator speaks version 1 of the protocol, and this client 3: both need the same cyber0"),
    ],
    ids=["bye", "invitation"],
)
def test_a_federator_that_sends_messages_of_version_1_is_refused(answer, sentence):
    async def run(address):
        await attend(address, lambda told: Member(told, "client-0", StubModel(4)))

    with answering(answer) as address, pytest.raises(Refused) as caught:
        asyncio.run(run(address))
    assert str(caught.value) == sentence


# Version 1 spoke gRPC


METHOD = "/cyber0.v1.Federator/Talk"


@pytest.fixture
def folder(tmp_path):
    init(tmp_path / "keys")
    issue("client-0", tmp_path / "keys")
    return tmp_path / "keys"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_client_that_speaks_grpc_is_told_so(folder, tls):
    async def run():
        federator = Federator(Settings.of(recipe()), Memory(), peer_name=peer_name if tls else None)
        port = await federator.start("127.0.0.1:0", server_credentials(folder) if tls else None)
        own = [(folder / "clients/client-0" / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
        secure = grpc.ssl_channel_credentials(*own)
        made = grpc.aio.secure_channel if tls else grpc.aio.insecure_channel
        async with made(f"127.0.0.1:{port}", *([secure] if tls else [])) as channel:
            stream = channel.stream_stream(METHOD)()
            told = await stream.code(), await stream.details()
        federator.stop("enough")
        await federator.close()
        return told

    sentence = "this federator speaks version 3 of the protocol, not 1: both need the same cyber0"
    assert asyncio.run(run()) == (grpc.StatusCode.FAILED_PRECONDITION, sentence)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_federator_that_speaks_grpc_is_refused(folder, tls):
    async def talk(_, context):
        await context.read()

    async def run():
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(talk)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("cyber0.v1.Federator", {"Talk": handler}),)
        )
        own = [(folder / "federator" / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem")]
        secure = grpc.ssl_server_credentials([own[:2]], own[2], require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", secure) if tls else server.add_insecure_port("127.0.0.1:0")
        await server.start()
        credentials = channel_credentials(folder / "clients/client-0") if tls else None
        try:
            await attend(f"127.0.0.1:{port}", lambda _: None, credentials=credentials, give_up=20)
        finally:
            await server.stop(0)

    sentence = "the federator speaks version 1 of the protocol, and this client 3: both need the same cyber0"
    with pytest.raises(Refused, match=sentence):
        asyncio.run(run())


def test_another_version_of_the_greeting_is_answered_with_ours():
    async def run():
        federator = Federator(Settings.of(recipe()), Memory())
        reader, writer = await asyncio.open_connection("127.0.0.1", await federator.start("127.0.0.1:0"))
        writer.write(b"cyber0 4 secret\n")
        said = await reader.read()
        writer.close()
        federator.stop("enough")
        await federator.close()
        return said

    assert asyncio.run(run()) == b"cyber0 3\n"


# Version 2 spoke as version 3 does, and a client showed its certificate in the handshake


def test_a_client_of_version_2_is_told_so(folder):
    async def run():
        federator = Federator(Settings.of(recipe()), Memory(), peer_name=peer_name)
        port = await federator.start("127.0.0.1:0", server_credentials(folder))
        context, own = ssl.create_default_context(cafile=folder / "ca.pem"), folder / "clients/client-0"
        context.load_cert_chain(own / "cert.pem", own / "key.pem")
        context.set_alpn_protocols(["cyber0/2", "h2"])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        spoken = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.write(b"cyber0 2\n")
        said = await reader.read()
        writer.close()
        federator.stop("enough")
        await federator.close()
        return spoken, said

    assert asyncio.run(run()) == ("cyber0/2", b"cyber0 3\n")  # of which it makes a sentence


def test_a_federator_of_version_2_is_refused(folder):
    context, own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), folder / "federator"
    context.load_cert_chain(own / "cert.pem", own / "key.pem")
    context.load_verify_locations(own / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["cyber0/2", "h2"])

    async def run():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        port, credentials = server.sockets[0].getsockname()[1], channel_credentials(folder / "clients/client-0")
        try:
            before = await asyncio.to_thread(refusal, f"127.0.0.1:{port}", folder / "clients/client-0")
            assert before == sentence  # which `cyber0 join` asks for first
            await attend(f"127.0.0.1:{port}", lambda _: None, credentials=credentials, give_up=20)
        finally:
            server.close()

    sentence = "the federator speaks version 2 of the protocol, and this client 3: both need the same cyber0"
    with pytest.raises(Refused, match=sentence):
        asyncio.run(run())


def test_a_browser_is_told_what_the_port_is_for():
    async def run():
        federator = Federator(Settings.of(recipe()), Memory())
        reader, writer = await asyncio.open_connection("127.0.0.1", await federator.start("127.0.0.1:0"))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        said = await reader.read()
        writer.close()
        federator.stop("enough")
        await federator.close()
        return said

    said = asyncio.run(run())
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"cyber0 serve --metrics" in said


def test_calls_without_end_are_not_answered_without_end():
    headers = bytes([0, 0, 0, 1, 5, 0, 0, 0, 1])
    few, many = (older.answer(older.PREFACE + headers * count) for count in (3, 1500))
    assert few.count(b"grpc-status") == 3
    assert many.count(b"grpc-status") == older.FRAMES
