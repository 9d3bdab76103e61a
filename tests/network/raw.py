"""Both ends of a channel without the code of a client or a federator, over real sockets."""

import asyncio
import threading
from collections import deque
from contextlib import asynccontextmanager, contextmanager

from cyber0.network.channel import GREETING, Channel
from cyber0.network.connect import connect
from cyber0.network.listener import Listener
from cyber0.network.older import answer


class Outlet:
    """What a federator writes to a client, kept."""

    def __init__(self):
        self.messages, self.sent, self.is_full, self.is_ended = deque(), 0, False, False

    def put(self, data):
        if not self.is_ended:
            self.messages.append(data)

    def put_all(self, parts):
        self.messages += parts

    def end(self):
        self.is_ended = True

    abort = end


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

    def opened(sock, peer, _):
        token = []

        def greeted(line):
            token.append(line.removeprefix(GREETING).strip().decode())
            return line.startswith(GREETING)

        def received(data):
            heard(channel, peer.__class__(peer.address, peer.certificate, token[0]), data)

        channel = Channel(sock, received, lambda: None, answers=True, greeted=greeted, foreign=answer)
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
