"""What a federation costs: rounds a second, bytes on the wire, memory; thin clients that send constant votes.

The federator is a process of its own, all clients share another, on one machine. Bytes are counted by a proxy between
them, at the socket, with TLS.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cyber0.config import RunConfig
from cyber0.network import keys
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.parameters import Parameters
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import rebuild

Row = dict[str, Any]
COMMAND = "python -m benchmarks.network"
CONTEXT = multiprocessing.get_context("spawn")


def setup_of(clients: int, rounds: int, directions: int) -> Settings:
    options: dict[str, Any] = {
        "clients": clients,
        "byzantine": (clients - 1) // 4,
        "directions": directions,
        "rounds": rounds,
    }
    return Settings.of(RunConfig(**options))


def federate(setup: Settings, ledger: str, folder: Path, tls: bool, pipe: Any, certified: bool = False) -> None:
    """A federator in its own process; it tells its port, and at the end its memory.

    Where clients are `certified`, the keys of their votes are those of their certificates, as with `cyber0 serve`.
    """
    asyncio.run(_federate(setup, ledger, folder, tls, pipe, certified))


async def _federate(setup: Settings, ledger: str, folder: Path, tls: bool, pipe: Any, certified: bool) -> None:
    held = Memory() if ledger == "memory" else File(folder / "run.ledger", synchronous=ledger)
    with held:
        federator = Federator(setup, held, peer_name=keys.peer_name if tls else None, certified=certified)
        credentials = keys.server_credentials(folder / "keys") if tls else None
        pipe.send(await federator.start("127.0.0.1:0", credentials))
        await federator.over.wait()
        await federator.close()
    pipe.send(resident())


def resident() -> float:
    """The most memory this process had, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1e3


@contextmanager
def federator(setup: Settings, ledger: str, folder: Path, *, tls: bool) -> Generator[tuple[int, Any]]:
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=federate, args=(setup, ledger, folder, tls, there))
    process.start()
    try:
        yield here.recv(), here
    finally:
        process.join(60)


class Counter:
    """A proxy before a port that counts what passes, both ways."""

    def __init__(self, port: int) -> None:
        self.port, self.bytes = port, 0

    async def start(self) -> int:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError, OSError):
            while data := await reader.read(2**16):
                self.bytes += len(data)
                writer.write(data)
        writer.close()


async def play(
    setup: Settings,
    port: int,
    folder: Path,
    *,
    tls: bool,
    count: bool,
    host: str = "127.0.0.1",
    **more: Callable[[], Any],
) -> tuple[float, float]:
    """All clients, to the end: rounds a second and bytes per client and round, after the first tenth of the rounds.

    Bytes are counted on this machine only. `more` makes further arguments of each member.
    """
    proxy, rounds, scalars = Counter(port), setup.agreement.rounds, setup.plan.scalars
    marks: list[tuple[float, int]] = []

    def watch(member: Any) -> None:
        if (member.commits >= rounds // 10 and not marks) or (member.commits == rounds and len(marks) == 1):
            marks.append((time.perf_counter(), proxy.bytes))

    where = await proxy.start() if count else port
    parties: list[Any] = []
    for name in setup.roster:
        credentials = keys.channel_credentials(folder / "keys" / "clients" / name) if tls else None

        def make(told: Settings, name: str = name) -> Member:
            return Member(told, name, StubModel(scalars), **{key: made() for key, made in more.items()})

        seen = watch if name == setup.roster[0] else _ignore
        options: dict[str, Any] = {"credentials": credentials, "watch": seen, "threaded": False}
        parties.append(attend(f"{host}:{where}", make, **options))
    await asyncio.gather(*parties)
    (begin, first), (end, last) = marks
    played = rounds - rounds // 10
    return played / (end - begin), (last - first) / played / len(setup.roster)


def _ignore(_: Any) -> None:
    pass


def measured(
    clients: int, rounds: int, ledger: str, *, directions: int = 8, tls: bool = False, count: bool = False
) -> Row:
    setup = setup_of(clients, rounds, directions)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if tls:
            keys.init(folder / "keys")
            for name in setup.roster:
                keys.issue(name, folder / "keys")
        with federator(setup, ledger, folder, tls=tls) as (port, pipe):
            rate, size = asyncio.run(play(setup, port, folder, tls=tls, count=count))
            memory = pipe.recv()
        row: Row = {"clients": clients, "rounds": rounds, "ledger": ledger, "TLS": tls, "rounds a second": rate}
        row["bytes per client and round"] = size if count else ""
        row["federator, MB"] = memory
        path = folder / "run.ledger"
        row["ledger, MB"] = path.stat().st_size / 1e6 if path.exists() else ""
        row["verify, s"], row["replay (d = 7850), s"] = _read(path) if path.exists() else ("", "")
    return row


def _read(path: Path) -> tuple[float, float]:
    weights = Parameters({"w": np.zeros(7850, dtype=np.float32)})
    with File(path, read_only=True) as ledger:
        begin = time.perf_counter()
        assert not verify(ledger).findings
        middle = time.perf_counter()
        rebuild(ledger, weights)
        return middle - begin, time.perf_counter() - middle


def main() -> None:
    from benchmarks.measure import report  # not above: a federator has no torch in its memory

    rows = [measured(4, 4000, ledger) for ledger in ("memory", "NORMAL", "FULL")]
    rows.append(measured(4, 4000, "memory", tls=True, count=True))
    rows.append(measured(4, 4000, "FULL", tls=True))
    rows.append(measured(200, 400, "FULL"))
    rows.append(measured(4, 20_000, "FULL"))
    report("network", rows, COMMAND)


if __name__ == "__main__":
    main()
