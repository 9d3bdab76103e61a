"""Both ends of a channel without the code of a client or a federator, over real sockets."""

import asyncio
import threading
from collections import deque
from contextlib import asynccontextmanager, contextmanager

from cyber0.errors import InvalidKeys
from cyber0.network.authentication import new_challenge, read_challenge
from cyber0.network.channel import GREETING, Channel, Peer, address_of, greeting_and_word
from cyber0.network.connect import connect
from cyber0.network.listener import Listener
from cyber0.network.older import answer
from cyber0.protocol.codec import encode
from cyber0.protocol.messages import Bye


class Outlet:
    """What a federator writes to a client, kept."""

    def __init__(self):
        self.messages, self.sent, self.is_full, self.is_ended = deque(), 0, False, False
        self.address, self.limit = "", 2**20

    def put(self, data):
        if not self.is_ended:
            self.messages.append(data)

    def put_all(self, parts):
        self.messages += parts

    def end(self):
        self.is_ended = True

    abort = end

    def beat(self):
        pass


class Owner:
    """Functions that a channel calls."""

    def __init__(self, received, ended=lambda: None, *, greeted=None, foreign=lambda _: b"", too_long=lambda _: False):
        self.received, self.ended, self.foreign, self.too_long = received, ended, foreign, too_long
        self.greeted = greeted or (lambda line: line == GREETING)


class Caller:
    """One message after the other."""

    def __init__(self, channel):
        self.channel, self.waiting = channel, deque()

    async def write(self, data):
        self.channel.put(data)

    async def read(self):
        """The next message; None at the end."""
        if not self.waiting:
            self.waiting += await self.channel.read()
        return self.waiting.popleft() if self.waiting else None

    def close(self):
        self.channel.channel.abort()


async def call(address, credentials=None, limit=2**22):
    return Caller(await connect(address, credentials, limit=limit))


@asynccontextmanager
async def serving(heard, credentials=None, listen="127.0.0.1:0"):
    """A server that calls `heard(channel, peer, message)` for each message; its port."""
    channels = []

    def opened(sock, _):
        address = address_of(sock.getpeername())
        peers, authority = [], credentials and credentials.authority
        challenge = new_challenge() if authority else ""

        def greeted(line):
            greeting, token = greeting_and_word(line)
            if not challenge:
                peers.append(Peer(address, token=token))
            return greeting == GREETING

        def received(data):
            if peers:
                heard(channel, peers[0], data)
                return
            try:
                peers.append(Peer(address, *authority.proved(data, read_challenge(challenge))[:1]))
            except InvalidKeys as error:
                channel.put(encode(Bye(str(error), final=True)))
                channel.end()

        greeting = GREETING + f" {challenge}".rstrip().encode()
        owner = Owner(received, greeted=greeted, foreign=answer)
        channel = Channel(sock, owner, answers=True, greeting=greeting)
        channels.append(channel)

    listener = Listener(opened, credentials and credentials.context)
    try:
        yield await listener.start(listen)
    finally:
        listener.stop()
        for channel in channels:
            channel.abort()


@contextmanager
def answering(*answers):
    """A federator that answers each message of a client with the next of these; its address."""
    loop, started, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports, left = [], {}

    def heard(channel, peer, _):
        mine = left.setdefault(peer.address, list(answers))
        if mine:
            channel.put(mine.pop(0))
        if not mine:
            channel.end()

    async def serve():
        async with serving(heard) as port:
            ports.append(port)
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    started.wait()
    try:
        yield f"127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
