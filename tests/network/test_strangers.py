"""Whoever connects and says nothing: clients join and vote all the same, in a process with few descriptors."""

import asyncio
import re
import selectors
import socket
import ssl
import subprocess
from contextlib import ExitStack
from functools import partial

import grpc.aio
import pytest
from tests import processes
from tests.network.parties import recipe

from cyber0.network import keys
from cyber0.network.connection import Connection
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.strangers import MORE, Strangers
from cyber0.network.stream import METHOD, Outbox, client_options
from cyber0.network.stub_model import StubModel
from cyber0.protocol.codec import decode_from_federator, encode
from cyber0.protocol.events import ClientStream
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Ask, Bye
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import private_key

DESCRIPTORS, SILENT = 256, 600  # of the federator's process, and how many connections say nothing
NAMES = ("alice", "bob", "carol", "dave")
GIVE_UP = 60.0  # seconds: half of what gRPC itself gives a connection to begin


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers")
    keys.init(folder / "keys")
    for name in NAMES:
        keys.issue(name, folder / "keys", folder / name)
    return folder


@pytest.fixture
def port(folder, tmp_path):
    """The port of a real federator that may have few descriptors: half of them at first, and it asks for the rest."""
    before = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS // 2}, {DESCRIPTORS}))"
    words = f"serve --ledger {tmp_path / 'run.ledger'} --listen 127.0.0.1:0 --tls {folder / 'keys'} --byzantine 1"
    words = [*words.split(), "--roster", ",".join(NAMES), "--rounds", "5", "--directions", "4"]
    command = processes.command(*words, before=before)
    federator = processes.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield next(int(found[1]) for line in federator.stdout if (found := re.search(r"listening at \S+:(\d+)", line)))
    finally:
        federator.kill()
        federator.communicate()


def silent(stack, port, folder, kind):
    """A connection that goes as far as `kind` says, and then says nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), GIVE_UP))
    if kind == "half a handshake":
        theirs = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), theirs).do_handshake()
        plain.sendall(theirs.read()[:100])
    elif kind == "no stream":
        own = folder / "dave"  # a liar has a certificate, too
        context.load_cert_chain(own / "cert.pem", own / "key.pem")
        try:
            return stack.enter_context(context.wrap_socket(plain))
        except (ssl.SSLError, ConnectionError):  # there was no room for it
            return plain
    return plain


def joined(port, folder):
    """What clients with TLS end with, that come now and vote to the end."""

    def come(name):
        own = folder / name
        make = partial(Member, name=name, model=StubModel(4), key=private_key(own / "key.pem"))
        credentials = keys.channel_credentials(own)
        return attend(f"127.0.0.1:{port}", make, credentials=credentials, give_up=GIVE_UP)

    async def run():
        return [member.commits for member in await asyncio.gather(*map(come, NAMES))]

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["nothing", "half a handshake", "no stream"])
def test_clients_join_and_vote_while_silent_connections_are_open(port, folder, kind):
    with ExitStack() as stack:
        for _ in range(SILENT):
            silent(stack, port, folder, kind)
        assert joined(port, folder) == [5] * len(NAMES)


def test_a_connection_that_never_speaks_is_closed(port, folder):
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for kind in ("nothing", "half a handshake", "no stream"):
            selector.register(connection := silent(stack, port, folder, kind), selectors.EVENT_READ)
            connection.settimeout(GIVE_UP)
        while selector.get_map():
            ready = selector.select(GIVE_UP)
            assert ready
            for key, _ in ready:
                try:
                    said = key.fileobj.recv(2**16)
                except OSError:
                    said = b""
                if not said:
                    selector.unregister(key.fileobj)


def test_strangers_streams_are_bounded_and_the_oldest_ends_first():
    settings = Settings.of(recipe())
    federator = Federator(settings, Memory())
    most = len(settings.roster) + MORE

    async def run():
        address = f"127.0.0.1:{await federator.start('127.0.0.1:0')}"
        async with ExitStackOfChannels(address) as channels:
            calls = []
            for _ in range(most + 1):
                calls.append(channels.open())
                await calls[-1].write(encode(Ask()))
                await calls[-1].read()  # so that it is there before the next
            first = decode_from_federator(await calls[0].read(), 2**20)
            assert await calls[0].read() is grpc.aio.EOF
            held = len(federator._connections)
        federator.stop("enough")
        await federator.close()
        return first, held

    first, held = asyncio.run(run())
    assert first == Bye("too many streams: come again later")
    assert held <= most + 1


class ExitStackOfChannels:
    """Channels, each with a connection of its own, that are closed together."""

    def __init__(self, address):
        self.address, self.channels = address, []

    def open(self):
        self.channels.append(grpc.aio.insecure_channel(self.address, client_options(2**20)))
        return self.channels[-1].stream_stream(METHOD)()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for channel in self.channels:
            await channel.close()


@pytest.mark.parametrize(
    ("messages", "stream", "waits", "why"),
    [
        (0, None, False, "it has said nothing for 0.01 seconds"),
        (1, None, False, "it has said no Hello for 0.02 seconds: come again with it"),
        (1, None, True, None),
        (1, ClientStream("alice", 1), False, None),
    ],
)
def test_a_stream_without_a_hello_ends(messages, stream, waits, why):
    async def run():
        strangers = Strangers(lambda: 4, lambda _: False, first_word=0.01, hello=0.02)
        connection = Connection(1, None, Outbox(), messages=messages, stream=stream, waits=waits)
        strangers.add(connection)
        while strangers._clocks:
            await asyncio.wait([asyncio.ensure_future(connection.cut.wait())], timeout=0.01)
        sent = []

        async def write(data):
            sent.append(decode_from_federator(data, 2**20))

        connection.outbox.end()
        await connection.outbox.drain(write)
        return sent

    assert asyncio.run(run()) == ([] if why is None else [Bye(why)])
