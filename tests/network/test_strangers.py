"""Whoever connects and says nothing: clients join and vote all the same, in a process with few descriptors."""

import asyncio
import os
import re
import selectors
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from tests import processes
from tests.network.parties import recipe

from cyber0.network import channel, keys, streams
from cyber0.network.authentication import read_challenge
from cyber0.network.channel import GREETING, PROTOCOLS, greeting_and_word
from cyber0.network.handshake import refusal
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.protocol.codec import encode
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Ask
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import private_key

DESCRIPTORS, SILENT = 256, 600  # of the federator's process, and how many connections say nothing
NAMES = ("alice", "bob", "carol", "dave")
GIVE_UP = 60.0  # seconds
KINDS = ("nothing", "half a handshake", "no greeting", "no answer", "no word", "no Hello")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers")
    keys.init(folder / "keys")
    for name in (*NAMES, "eve"):
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


@pytest.fixture(scope="module")
def context(folder):
    """How Eve does handshakes."""
    return keys.channel_credentials(folder / "eve").context


@pytest.fixture(scope="module")
def own(folder):
    """Eve has a certificate, but is no client."""
    return keys.channel_credentials(folder / "eve").own


def silent(stack, port, context, own, kind):
    """A connection that goes as far as `kind` says, and then says nothing."""
    plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), GIVE_UP))
    if kind == "nothing":
        return plain
    if kind == "half a handshake":
        theirs = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), theirs, server_hostname="127.0.0.1").do_handshake()
        plain.sendall(theirs.read()[:100])
        return plain
    try:
        secure = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
        if kind != "no greeting":
            secure.sendall(GREETING + b"\n")
        if kind in ("no word", "no Hello"):
            _, word = greeting_and_word(secure.recv(2**10).rstrip())
            messages = [own.answer(read_challenge(word), secure.getpeercert(True)), encode(Ask())]
            for message in messages[: 1 + (kind == "no Hello")]:
                secure.sendall(len(message).to_bytes(4, "big") + message)
        return secure
    except (ssl.SSLError, ConnectionError):  # there was no room for it
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


@pytest.mark.parametrize("kind", KINDS)
def test_clients_join_and_vote_while_silent_connections_are_open(port, folder, context, own, kind):
    with ExitStack() as stack:
        for _ in range(SILENT):
            silent(stack, port, context, own, kind)
        assert refusal(f"127.0.0.1:{port}", folder / "alice") is None
        assert joined(port, folder) == [5] * len(NAMES)


def test_a_connection_that_never_speaks_is_cut(port, context, own):
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for kind in KINDS[:5]:
            selector.register(connection := silent(stack, port, context, own, kind), selectors.EVENT_READ)
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


def test_what_hangs_up_without_a_word_is_no_refusal(folder):
    """As a federator does that has no room: it may answer later."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(20.0)
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        async def play():
            asked = asyncio.ensure_future(asyncio.to_thread(refusal, address, folder / "alice"))
            with suppress(TimeoutError):  # of one that was closed before it knew that it was open, it asks no more
                for _ in range(2):  # with TLS, and without
                    (await asyncio.to_thread(listening.accept))[0].close()
            return await asked

        assert asyncio.run(play()) is None


def test_what_is_killed_after_the_handshake_has_refused_nobody(folder):
    """A federator that is gone by then has not said what it thinks of the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "keys/federator/cert.pem", folder / "keys/federator/key.pem")
    context.set_alpn_protocols(PROTOCOLS)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            encrypted = context.wrap_socket(listening.accept()[0], server_side=True)
            encrypted.recv(len(GREETING) + 1)
            os.close(encrypted.detach())  # without a word of TLS, as the system closes it

        with ThreadPoolExecutor() as threads:
            served = threads.submit(serve)
            assert refusal(f"127.0.0.1:{listening.getsockname()[1]}", folder / "alice") is None
            served.result()


def test_who_is_silent_hears_that_the_federator_is_there_until_it_is_given_up(monkeypatch):
    """One timer is for all streams."""
    for module, name, seconds in ((streams, "BEAT", 0.1), (channel, "BEAT", 0.1), (channel, "SILENCE", 1.0)):
        monkeypatch.setattr(module, name, seconds)

    async def play():
        federator = Federator(Settings.of(recipe()), Memory())
        port = await federator.start("127.0.0.1:0")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING + b"\n")
        said = await reader.read()
        writer.close()
        federator.stop("enough")
        await federator.close()
        return said

    said = asyncio.run(play())
    assert said.startswith(GREETING + b"\n")
    beats = said.removeprefix(GREETING + b"\n")
    assert len(beats) >= 8
    assert not any(beats)
