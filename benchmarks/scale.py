"""What many clients cost a federator: CPU for a signed vote, memory, and bytes to join; with TLS, eight numbers a vote.

    python -m benchmarks.scale
    python -m benchmarks.scale 200 1000

The federator is a process of its own, and its ledger is on disk. All clients are thin, real members, each with a
certificate of its own, by which it is known and whose key signs its votes. They have another process, on the same
machine, so what counts is the federator's CPU, not rounds a second. A client of 10,000 needs a descriptor on each side:
`ulimit -n`. Beside it stands what the least server costs that Python can be (`benchmarks.bare_server`), in the same
minute.
"""

import asyncio
import gc
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from benchmarks.bare_server import bare
from benchmarks.network import CONTEXT, federate
from cyber0.config import RunConfig
from cyber0.errors import Unreachable
from cyber0.network import certificates, connect, keys
from cyber0.network.authentication import ClientCertificate
from cyber0.network.channel import Credentials
from cyber0.network.listener import collect_rarely, raise_limit
from cyber0.network.member import Member
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.protocol.settings import Settings

Row = dict[str, Any]
COMMAND = "python -m benchmarks.scale"
CLIENTS = (200, 1_000, 5_000, 10_000)
DIRECTIONS, VOTES = 8, 60_000  # and about so many votes are measured
AT_ONCE = 100  # that join at a time
LONG = 3600.0  # seconds of a deadline, which is not to come


def settings_of(clients: int, rounds: int) -> Settings:
    given: Row = {"clients": clients, "byzantine": (clients - 1) // 4, "directions": DIRECTIONS, "rounds": rounds}
    return Settings.of(RunConfig(**given, rule="cwtm"), deadline=LONG, patience=100.0, fingerprint_every=10**6)


class Process:
    """What the kernel knows of another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def cpu(self) -> float:
        """Seconds that it has computed."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def kilobytes(self) -> float:
        """Its memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return float(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


class Crowd:
    """All clients, and what is noted of the federator when they have joined, and at the end."""

    def __init__(self, settings: Settings, port: int, folder: Path, federator: Process) -> None:
        self.settings, self.address, self.federator = settings, f"127.0.0.1:{port}", federator
        self.ca = keys.read_authority(folder / "keys")
        self.context = keys.client_context(self.ca.pem.decode())
        self.rounds, self.joined, self.bytes = settings.agreement.rounds, 0, 0
        self.before = federator.kilobytes
        self.marks: list[tuple[float, float]] = []
        self.held = 0.0
        self._room = asyncio.Semaphore(AT_ONCE)
        self._first: Any = None

    async def play(self) -> None:
        gc.freeze()
        await asyncio.gather(*(self._attend(name, place) for place, name in enumerate(self.settings.roster)))

    async def _attend(self, name: str, place: int) -> None:
        member: list[Member] = []
        own = certificates.client(self.ca, name, days=1)
        shown = ClientCertificate(own.certificate.public_bytes(Encoding.DER), own.key)

        def make(told: Settings) -> Member:
            member.append(Member(told, name, StubModel(DIRECTIONS), key=own.key))
            self._room.release()
            return member[0]

        def watch(one: Any) -> None:
            if place == 0:
                self._note(one)

        await self._room.acquire()
        credentials = Credentials(self.context, own=shown)
        options: Row = {"credentials": credentials, "watch": watch, "threaded": False, "give_up": 60.0}
        with suppress(Unreachable):  # one that was cut off near the end may find nobody
            await attend(self.address, make, name, **options)

    def _note(self, member: Member) -> None:
        begin, end = (2, self.rounds) if self.rounds > 2 else (1, self.rounds)
        if member.commits >= begin and not self.marks:
            self.held = self.federator.kilobytes
        if (member.commits >= begin and not self.marks) or (member.commits >= end and len(self.marks) == 1):
            self.marks.append((self.federator.cpu, time.perf_counter()))


def counting_bytes(sizes: list[int]) -> Callable[..., Any]:
    """Return a channel that notes how many bytes the first connection has read and written before its first vote."""
    plain = connect.ClientChannel

    class Counted(plain):
        def put(self, data: bytes) -> None:
            if len(sizes) < 1 and data[:1] == b"\x12":  # a vote, whose field in the envelope is the second
                info = self.channel._socket.getsockopt(6, 11, 256)  # TCP_INFO  # pyright: ignore[reportPrivateUsage]
                sizes.append(sum(struct.unpack_from("QQ", info, 120)))
            super().put(data)

    return Counted


def measured(clients: int) -> Row:
    rounds = max(6, min(302, 2 + VOTES // clients))
    settings, sizes = settings_of(clients, rounds), list[int]()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        keys.init(folder / "keys")
        here, there = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_federate, args=(settings, folder, there))
        process.start()
        begin = time.perf_counter()
        crowd = Crowd(settings, here.recv(), folder, Process(process.pid or 0))
        plain, connect.ClientChannel = connect.ClientChannel, counting_bytes(sizes)  # pyright: ignore
        try:
            asyncio.run(crowd.play())
        finally:
            connect.ClientChannel = plain
        here.recv()
        process.join(60)
    least, memory = bare(clients, max(3, VOTES // 4 // clients))
    (first, opened), (last, closed) = crowd.marks
    votes = (rounds - 2) * clients
    return {
        "clients": clients,
        "votes": votes,
        "federator's CPU per vote, us": (last - first) / votes * 1e6,
        "bare server's CPU per vote, us": least,
        "rounds a second": (rounds - 2) / (closed - opened),
        "memory per client, kB": (crowd.held - crowd.before) / clients,
        "bare server's memory per client, kB": memory,
        "bytes to join": sizes[0],
        "until the first round, s": opened - begin,
    }


def _federate(settings: Settings, folder: Path, pipe: Any) -> None:
    raise_limit()  # as `cyber0 serve` does
    collect_rarely()
    federate(settings, "FULL", folder, True, pipe, certified=True)


def main(clients: list[int]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows: list[Row] = []
    for many in clients:
        rows.append(measured(many))
        print(rows[-1], flush=True)
    from benchmarks.measure import report  # not above: a federator has no torch in its memory

    report("scale", rows, COMMAND)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or list(CLIENTS))
