"""A federation over slow links: rounds a second beside the most that one round trip for each round allows.

    sudo python -m benchmarks.links

The federator and its clients, which are thin, are processes in network namespaces of their own. A link joins the two: a
TUN device in each, and between them a relay, here, that delays, drops and paces packets. The namespaces and devices end
with the processes. Packets and bytes are the relay's, headers of IP and TCP and the joining included. It needs Linux,
iproute2 and the right to make a network namespace, as root has it.
"""

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import random
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.network import Row, play, setup_of
from cyber0.network import keys
from cyber0.network.server import Federator
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings

COMMAND = "sudo python -m benchmarks.links"
CONTEXT = multiprocessing.get_context("spawn")
FEDERATOR, CLIENTS = "10.90.0.1", "10.90.0.2"
CLIENT_COUNT, DIRECTIONS = 5, 8
TUN, CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = "/dev/net/tun", 0x40000000, 0x400454CA, 0x0001, 0x1000
PACKET, WAITING = 2048, 1000  # bytes of a packet, and packets that wait for their turn, at most
PROBES = 15


@dataclass(frozen=True)
class Conditions:
    """What a link does to packets: seconds for both ways together, a share of them lost, bits a second each way."""

    name: str
    rounds: int
    round_trip: float = 0.0
    loss: float = 0.0
    rate: float = float("inf")


LINKS = (
    Conditions("no delay", 2000),
    Conditions("100 ms round trip", 300, 0.1),
    Conditions("100 ms, 1% of packets lost", 600, 0.1, loss=0.01),
    Conditions("100 ms, 1 Mbit/s each way", 300, 0.1, rate=1e6),
)


class NoLink(Exception):
    """There can be no link on this machine."""


class Way:
    """One way of a link, into a TUN device."""

    def __init__(self, conditions: Conditions, into: int, seed: int) -> None:
        self.conditions, self.into = conditions, into
        self.packets, self.bytes = 0, 0
        self._random, self._free = random.Random(seed), 0.0  # noqa: S311
        self._waiting: deque[tuple[float, bytes]] = deque()

    def take(self, packet: bytes) -> None:
        """Let a packet wait for its turn, or drop it."""
        self.packets, self.bytes = self.packets + 1, self.bytes + len(packet)
        if self._random.random() >= self.conditions.loss and len(self._waiting) < WAITING:
            self._free = max(self._free, time.perf_counter()) + 8 * len(packet) / self.conditions.rate
            self._waiting.append((self._free + self.conditions.round_trip / 2, packet))

    def give(self) -> float:
        """Write the packets whose time has come, and return the seconds until the next one, at most a tenth."""
        while self._waiting:
            left = self._waiting[0][0] - time.perf_counter()
            if left > 0:
                return min(left, 0.1)
            os.write(self.into, self._waiting.popleft()[1])
        return 0.1


def relay(ways: dict[int, Way], over: threading.Event) -> None:
    """Carry packets from each TUN device its way, until it is over."""
    with suppress(OSError):  # a process has ended, and its device with it
        while not over.is_set():
            ready, _, _ = select.select(list(ways), [], [], min(way.give() for way in ways.values()))
            for device in ready:
                packet = os.read(device, PACKET)
                if packet[0] >> 4 == 4:  # IPv6 asks for neighbours of its own accord
                    ways[device].take(packet)


def enter(address: str, pipe: Any) -> None:
    """Put this process into a network namespace with one end of a link, and hand its TUN device to the relay."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "a network namespace")
        device = os.open(TUN, os.O_RDWR)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"cyber0", IFF_TUN | IFF_NO_PI))
        other = CLIENTS if address == FEDERATOR else FEDERATOR
        for words in (f"address add {address} peer {other} dev cyber0", "link set lo up", "link set cyber0 up"):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError) as error:
        pipe.send(str(error))
        raise SystemExit(1) from None
    pipe.send("")
    send_handle(pipe, device, os.getppid())
    os.close(device)
    pipe.recv()  # until the link is up


def federate(pipe: Any, setup: Settings, folder: Path) -> None:
    """Be a federator at one end; tell its port, and at the end the share of votes that counted."""
    enter(FEDERATOR, pipe)
    pipe.send(asyncio.run(_federate(pipe, setup, folder)))


async def _federate(pipe: Any, setup: Settings, folder: Path) -> float:
    with Memory() as ledger:
        federator = Federator(setup, ledger, peer_name=keys.peer_name)
        pipe.send(await federator.start(f"{FEDERATOR}:0", keys.server_credentials(folder / "keys")))
        await federator.over.wait()
        await federator.close()
        ballots = [ballot for decision in ledger.decisions() for ballot in decision.ballots]
    counted = sum(ballot.verdict == "counted" for ballot in ballots)
    return counted / setup.agreement.rounds / len(setup.roster)


def attend_all(pipe: Any, setup: Settings, folder: Path) -> None:
    """Be all clients at the other end; tell the link's round trip, and at the end the rounds a second."""
    enter(CLIENTS, pipe)
    port = pipe.recv()
    pipe.send(round_trip())
    rate, _ = asyncio.run(play(setup, port, folder, host=FEDERATOR, tls=True, count=False))
    pipe.send(rate)


def round_trip() -> float:
    """Return the median of the seconds in which a port where nobody listens refuses a connection: one round trip."""
    times: list[float] = []
    for _ in range(PROBES):
        begin = time.perf_counter()
        with socket.socket() as sock:
            assert sock.connect_ex((FEDERATOR, 1)) != 0
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


@contextmanager
def joined(conditions: Conditions, pipes: list[Any]) -> Generator[list[Way]]:
    """Join two processes, each in its namespace, by a link."""
    for pipe in pipes:
        if problem := pipe.recv():
            raise NoLink(problem)
    here, there = (recv_handle(pipe) for pipe in pipes)
    ways = {here: Way(conditions, there, seed=1), there: Way(conditions, here, seed=2)}
    over = threading.Event()
    carrier = threading.Thread(target=relay, args=(ways, over), daemon=True)
    carrier.start()
    try:
        for pipe in pipes:
            pipe.send("joined")
        yield list(ways.values())
    finally:
        over.set()
        carrier.join()
        os.close(here)
        os.close(there)


def measured(conditions: Conditions) -> Row:
    setup = setup_of(CLIENT_COUNT, conditions.rounds, DIRECTIONS)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        keys.init(folder / "keys", [FEDERATOR])
        for name in setup.roster:
            keys.issue(name, folder / "keys")
        pairs = [CONTEXT.Pipe(), CONTEXT.Pipe()]
        processes = [
            CONTEXT.Process(target=party, args=(there, setup, folder), daemon=True)
            for party, (_, there) in zip((federate, attend_all), pairs, strict=True)
        ]
        for process, (_, there) in zip(processes, pairs, strict=True):
            process.start()
            there.close()
        federator, clients = (here for here, _ in pairs)
        with joined(conditions, [federator, clients]) as ways:
            clients.send(federator.recv())
            taken = clients.recv()
            rate, counted = clients.recv(), federator.recv()
            for process in processes:
                process.join(60)
    shares = conditions.rounds * CLIENT_COUNT
    return {
        "link": conditions.name,
        "rounds": conditions.rounds,
        "round trip, ms": 1e3 * taken,
        "1 / round trip": 1 / taken,
        "rounds a second": rate,
        "ratio": rate * taken,
        "votes counted": counted,
        "packets per client and round": sum(way.packets for way in ways) / shares,
        "bytes per client and round": sum(way.bytes for way in ways) / shares,
        "congestion control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
    }


def check_machine() -> None:
    """Raise `NoLink` where it is plain that there can be none."""
    if sys.platform != "linux":
        raise NoLink("network namespaces are Linux's")
    if os.geteuid() != 0:
        raise NoLink(f"it needs root, to make network namespaces: {COMMAND}")
    if not Path(TUN).exists():
        raise NoLink(f"there is no {TUN}: modprobe tun")
    if shutil.which("ip") is None:
        raise NoLink("there is no `ip`: install iproute2")


def main() -> None:
    try:
        check_machine()
        rows = [measured(conditions) for conditions in LINKS]
    except NoLink as problem:
        print(f"the benchmark of slow links is left out: {problem}")
        return
    from benchmarks.measure import report  # not above: a federator has no torch in its memory

    report("links", rows, COMMAND)


if __name__ == "__main__":
    main()
