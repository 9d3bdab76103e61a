"""The least that votes cost a server in Python: TLS, a signature checked for each, and an answer to each, and no more.

TLS authenticates the server alone, as it does a federator. Its clients send one signed vote over and over. When all
have sent it, all are answered. No message is decoded, nobody is known, nothing is counted, and nothing is kept.
"""

import asyncio
import multiprocessing
import socket
import ssl
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cyber0.network import keys
from cyber0.protocol.signing import encoded, is_by, new_key, sign

CONTEXT = multiprocessing.get_context("spawn")
STATEMENT, VOTE, COMMIT = bytes(118), bytes(45), bytes(144)  # bytes of each: of a vote, all but its signature
KNOWN = 100  # clients before which no memory is measured


def bare(clients: int, rounds: int) -> tuple[float, float]:
    """Return the microseconds of CPU for a vote, and the kilobytes for a connection."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "keys"
        keys.init(folder)
        keys.issue("thin", folder)
        here, there = CONTEXT.Pipe()
        key = new_key()
        process = CONTEXT.Process(target=_serve, args=(folder, clients, rounds, encoded(key.public_key()), there))
        process.start()
        _send_votes(here.recv(), folder, clients, rounds, VOTE + sign(key, STATEMENT))
        cost = here.recv()
        process.join(60)
    return cost


def _send_votes(port: int, folder: Path, clients: int, rounds: int, vote: bytes) -> None:
    context = keys.channel_credentials(folder / "clients" / "thin").context
    sockets = [
        context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        for _ in range(clients)
    ]
    for _ in range(rounds):
        for sock in sockets:
            sock.sendall(vote)
        for sock in sockets:
            sock.recv(2**14)


def _serve(folder: Path, clients: int, rounds: int, key: bytes, pipe: Any) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    pipe.send(listening.getsockname()[1])
    context, sockets, before = keys.server_credentials(folder).context, list[ssl.SSLSocket](), 0.0
    for number in range(clients):
        if number == min(KNOWN, clients // 2):
            before = _kilobytes()
        sockets.append(context.wrap_socket(listening.accept()[0], server_side=True))
        sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[-1].setblocking(False)
    memory = (_kilobytes() - before) / (clients - min(KNOWN, clients // 2))
    pipe.send((asyncio.run(_rounds(sockets, rounds, key)) / rounds / clients * 1e6, memory))


async def _rounds(sockets: list[ssl.SSLSocket], rounds: int, key: bytes) -> float:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    left, begin, end = [rounds * len(sockets)], time.process_time(), 0.0

    def read(sock: ssl.SSLSocket) -> None:
        nonlocal end
        try:
            vote = sock.recv(2**14)
        except ssl.SSLWantReadError:
            return
        assert is_by(key, vote[-64:], STATEMENT)
        left[0] -= 1
        if left[0] % len(sockets) == 0:
            for each in sockets:
                each.send(COMMIT)
        if not left[0]:
            end = time.process_time()
            over.set()
            for each in sockets:
                loop.remove_reader(each.fileno())

    for sock in sockets:
        loop.add_reader(sock.fileno(), read, sock)
    await over.wait()
    return end - begin


def _kilobytes() -> float:
    status = Path("/proc/self/status").read_text()
    return float(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
