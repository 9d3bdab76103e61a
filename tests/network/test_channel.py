"""Framing and greetings: whatever the other side writes, and however it is cut, messages arrive whole or not at all."""

import asyncio
import socket
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.network.raw import Owner

from cyber0.errors import InvalidConfig
from cyber0.network.channel import BEATS, GREETING, LINE, Channel, host_and_port
from cyber0.network.connect import ClientChannel, connect

LIMIT = 1000
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing it resets the connection


def frames(*messages):
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


class Side:
    """A channel, and the bare socket at its other end."""

    def __init__(self, **options):
        ours, self.raw = socket.socketpair()
        ours.setblocking(False)
        self.raw.setblocking(False)
        self.said, self.ended, self.errors = [], asyncio.Event(), []
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context["exception"]))
        received = options.pop("received", self.said.append)
        own = {name: options.pop(name) for name in ("greeted", "foreign", "too_long") if name in options}
        owner = Owner(received, self.ended.set, **own)
        self.channel = Channel(ours, owner, **{"limit": LIMIT, "answers": True, **options})

    async def write(self, *parts):
        for part in parts:
            await self.loop.sock_sendall(self.raw, part)

    async def read(self):
        """All that the channel writes, to its end."""
        written = bytearray()
        while data := await self.loop.sock_recv(self.raw, 2**16):
            written += data
        return bytes(written)

    async def over(self):
        """End the other side, and wait until the channel is over."""
        with suppress(OSError):  # the channel may have ended it
            self.raw.shutdown(socket.SHUT_WR)
        await self.ended.wait()
        return self.said


def play(story, **options):
    async def run():
        side = Side(**options)
        try:
            return await asyncio.wait_for(story(side), 60)
        finally:
            side.channel.abort()
            side.raw.close()

    return asyncio.run(run())


def cut(data, places):
    places = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=LIMIT), max_size=8), st.lists(st.integers(0, 2**16), max_size=8))
def test_messages_arrive_whole_wherever_they_are_cut(messages, places):
    async def story(side):
        await side.write(*cut(GREETING + b"\n" + frames(*messages), places))
        return await side.over()

    assert play(story) == [message for message in messages if message]  # an empty one says only that somebody is there


@settings(max_examples=50)
@given(st.binary(max_size=4 * LIMIT), st.lists(st.integers(0, 2**16), max_size=8))
def test_any_bytes_give_messages_within_the_limit_or_none(data, places):
    async def story(side):
        with suppress(ConnectionError):  # the channel may be over already
            await side.write(*cut(GREETING + b"\n" + data, places))
        await side.over()
        return side.said, side.errors

    said, errors = play(story)
    assert not errors
    assert all(0 < len(message) <= LIMIT for message in said)
    assert frames(*said) == data[: len(frames(*said))] or b"\0\0\0\0" in data


@pytest.mark.parametrize("size", [LIMIT + 1, 2**31, 2**32 - 1])
def test_nothing_is_received_after_a_message_that_is_too_long(size):
    async def story(side):
        await side.write(GREETING + b"\n" + frames(b"one") + size.to_bytes(4, "big") + b"x" * 99, frames(b"two"))
        await side.ended.wait()
        return side.said, side.channel.problem

    said, problem = play(story)
    assert said == [b"one"]
    assert problem == f"a message of {size} bytes is too long: at most {LIMIT} are allowed"


def test_a_flood_of_empty_messages_ends_the_channel():
    async def story(side):
        await side.write(GREETING + b"\n" + frames(b"one") + bytes(4 * BEATS) + frames(b"two"))
        while len(side.said) < 2:
            await asyncio.sleep(0)
        await side.write(bytes(4))
        await side.ended.wait()
        return side.channel.problem

    assert play(story) == f"it sends more than {BEATS} empty messages in 10 seconds"


@pytest.mark.parametrize(
    ("greeting", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "what is there does not speak cyber0"),
        (b"\x16\x03\x01\x02\x00\x01", "what is there does not speak cyber0"),
        (GREETING + b" " + bytes(LINE), "its greeting is too long"),
        (b"cyber", ""),
        (b"", ""),
    ],
)
def test_what_is_no_greeting(greeting, problem):
    async def story(side):
        await side.write(greeting, *([] if problem else [b""]))
        if not problem:
            side.raw.shutdown(socket.SHUT_WR)
        written = await side.read()
        return side.said, side.channel.problem, written

    assert play(story) == ([], problem, b"")


def test_nothing_is_written_to_a_side_that_is_to_begin_and_has_not():
    async def story(side):
        side.channel.put(b"too early")
        await side.write(GREETING + b"\n" + frames(b"one"))
        while not side.said:
            await asyncio.sleep(0)
        side.channel.put(b"now")
        side.channel.end()
        return await side.read()

    assert play(story) == GREETING + b"\n" + frames(b"now")


def test_what_comes_after_the_end_is_ignored():
    async def story(side):
        await side.write(GREETING + b"\n" + frames(b"one"))
        while not side.said:
            await asyncio.sleep(0)
        side.channel.end()
        await side.write(frames(b"two"))
        return await side.over()

    assert play(story) == [b"one"]


@pytest.mark.parametrize("place", ["received", "greeted"])
def test_an_error_that_nobody_foresaw_ends_the_channel(place):
    """Nothing that comes after it may be taken for that of somebody who was let in."""
    seen = []

    def fail(data):
        seen.append(data)
        raise ZeroDivisionError

    async def story(side):
        await side.write(GREETING + b"\n" + frames(b"one"), frames(b"two"))
        await side.ended.wait()
        return side.said, [type(error) for error in side.errors]

    assert play(story, **{place: fail}) == ([], [ZeroDivisionError])
    assert len(seen) == 1


def test_what_fails_to_be_made_ends_the_channel():
    """Such as commits that cannot be read: what comes after them must not be taken for what follows."""

    def parts():
        yield bytes(2**22)
        raise ZeroDivisionError

    async def story(side):
        await side.write(GREETING + b"\n" + frames(b"one"))
        while not side.said:
            await asyncio.sleep(0)
        side.channel.put_all(parts())
        side.channel.put(b"after")
        return await side.read()

    assert play(story) == GREETING + b"\n" + frames(bytes(2**22))


def test_who_never_reads_is_given_up_before_it_fills_the_memory():
    async def story(side):
        await side.write(GREETING + b"\n" + frames(b"one"))
        while not side.said:
            await asyncio.sleep(0)
        side.channel.put_all(bytes(2**16) for _ in range(10**6))  # of which none is made before its turn
        while not side.channel.is_full:
            side.channel.put(bytes(LIMIT))
        await side.ended.wait()
        return side.channel.sent, side.channel.problem

    sent, problem = play(story, room=2**20)
    assert sent < 2**24
    assert problem == "it reads too slowly"


def test_a_reset_while_it_writes_is_its_end():
    async def story(side):
        await side.write(GREETING + b"\n" + frames(b"one"))
        while not side.said:
            await asyncio.sleep(0)
        side.channel.put_all(bytes(2**16) for _ in range(100))
        side.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        side.raw.close()
        await side.ended.wait()
        return side.errors, bool(side.channel.problem)

    assert play(story) == ([], True)


@pytest.mark.parametrize("address", ["::1:7360", "[::1]:7360", "[fe80::1%lo]:7360", "localhost:0", "ü.example:65535"])
def test_addresses(address):
    assert host_and_port(address) is not None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "foo",
        "foo:",
        ":7360",
        "foo:65536",
        "foo:-1",
        "foo:7360:8",
        "[::1",
        "[]:7360",
        "a..b:7360",
        "a" * 64 + ":7360",
    ],
)
def test_what_is_no_address_is_refused_in_a_sentence(address):
    with pytest.raises(InvalidConfig, match="give a host and a port, such as"):
        asyncio.run(connect(address, None, limit=LIMIT))


def test_a_federator_does_not_fill_the_memory_of_a_client_that_does_not_read():
    async def run():
        ours, raw = socket.socketpair()
        ours.setblocking(False)
        raw.setblocking(False)
        limit, sent = 2**16, 0
        client = ClientChannel(ours, limit=limit, token="")
        frame, silent = memoryview(frames(bytes(limit)) * 64), 0
        raw.sendall(GREETING + b"\n")
        while silent < 100 and sent < len(frame):
            try:
                sent += raw.send(frame[sent:])
                silent = 0
            except BlockingIOError:
                silent += 1
            await asyncio.sleep(0)
        held = len(await client.read())
        client.channel.abort()
        raw.close()
        return held

    assert asyncio.run(run()) <= 2
