"""Parties of different versions refuse each other with a sentence, over real sockets.

The bytes of version 1 are what its own code sent.
"""

import asyncio

import grpc
import grpc.aio
import pytest
from tests.network.parties import recipe

from cyber0.errors import Refused
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stream import METHOD, SERVICE, TALK
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
        (ASK, "this federator speaks version 2 of the protocol, not 1"),
        (HELLO, "it speaks version 1 of the protocol: this federator speaks 2"),
    ],
    ids=["ask", "hello"],
)
def test_a_client_of_version_1_is_told_so(data, sentence):
    async def run():
        federator = Federator(Settings.of(recipe()), Memory())
        port = await federator.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(METHOD)()
            await call.write(data)
            answer = await call.read()
        federator.stop("enough")
        await federator.close()
        return decode_from_federator(answer)

    assert asyncio.run(run()) == Bye(sentence, final=True)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (BYE, "the federator refuses this client: this federator speaks version 1 of the protocol, not 2"),
        (INVITATION, "the federator speaks version 1 of the protocol, and this client 2: both need the same cyber0"),
    ],
    ids=["bye", "invitation"],
)
def test_a_federator_of_version_1_is_refused(answer, sentence):
    async def talk(_, context):
        await context.read()
        await context.write(answer)

    async def run():
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(talk)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {TALK: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await attend(f"127.0.0.1:{port}", lambda told: Member(told, "client-0", StubModel(4)))
        finally:
            await server.stop(0)

    with pytest.raises(Refused) as caught:
        asyncio.run(run())
    assert str(caught.value) == sentence
