"""How many connections a federator holds at once: bounded, with room for its clients whoever else connects.

A connection costs a descriptor, of which a process may have so many. gRPC closes one that makes no handshake, or has no
stream, after some seconds (`cyber0.network.stream.server_options`), and accepts no more than there is room for.
Strangers who come again and again could still hold all of them. So where they are too many, the oldest ones are closed:
a client is a stranger only for the moment of its handshake.
"""

import asyncio
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

__all__ = ["Sockets", "most_connections", "raise_limit", "too_few"]

MOST = 2**16  # descriptors that are asked for: more are of no use to one process
OWN = 128  # descriptors for other things than clients: the ledger, the live page and its viewers
FEW = 256  # descriptors where nothing says how many there may be
STREAMS = 3  # connections that a client may have for a moment: the one in use, and others not yet noticed to be dead
LOOK, PRESSED = 1.0, 0.05  # seconds from one look at the sockets to the next, and while strangers are too many
SHARE, SHARE_PRESSED = 100, 4  # times what a look took that are spent on other things before the next
FOLDERS = ("/proc/self/fd", "/dev/fd")  # of Linux, of macOS

Peer = tuple[str, int]


def limit() -> int:
    """Return how many descriptors this process may have."""
    try:
        import resource
    except ImportError:  # not on Windows
        return FEW
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Let this process have as many descriptors as the system allows without asking, and return how many those are.

    >>> raise_limit() == limit()
    True
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def most_connections(descriptors: int) -> int:
    """Return how many connections are accepted by a process that may have so many descriptors.

    >>> most_connections(1024), most_connections(256)
    (896, 192)
    """
    return descriptors - min(OWN, descriptors // 4)


def most_strangers(connections: int, clients: int) -> int:
    """Return how many of these connections strangers may have, with so many clients on the roster.

    >>> most_strangers(896, 4), most_strangers(896, 800)
    (884, 224)
    """
    return max(connections // 4, connections - STREAMS * clients)


def too_few(descriptors: int, clients: int) -> str:
    """Return what to say where the clients of the roster and some strangers need more descriptors; else nothing.

    >>> too_few(1024, 600)
    ''
    >>> too_few(1024, 5000)
    '5,000 clients need more than the 1,024 descriptors that this process may have: give it 6,795 (ulimit -n, or \
LimitNOFILE=)'
    """
    connections = most_connections(descriptors)
    if connections - most_strangers(connections, clients) >= clients:
        return ""
    return (
        f"{clients:,} clients need more than the {descriptors:,} descriptors that this process may have: give it "
        f"{-(-4 * clients // 3) + OWN:,} (ulimit -n, or LimitNOFILE=)"
    )


def parsed(peer: str) -> Peer:
    """Return the address of a peer as gRPC writes it.

    >>> parsed("ipv4:192.0.2.7:40312"), parsed("ipv6:%5B2001:db8::7%5D:40312")
    (('192.0.2.7', 40312), ('2001:db8::7', 40312))
    """
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return _host(host.strip("[]")), int(port) if port.isdecimal() else 0


def _host(text: str) -> str:
    """Return an address in its one form: an IPv4 address that came by IPv6 is one of IPv4."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class Sockets:
    """The connections to a port of this process; where strangers have too many, the oldest ones are closed.

    Args:
        port: The port that clients connect to.
        connections: How many are accepted at most.
        clients: Returns how many clients are on the roster.
        known: Returns the peers, as gRPC writes them, whose connections are those of clients.
        say: Called with a sentence where connections are closed.

    """

    def __init__(
        self,
        port: int,
        connections: int,
        clients: Callable[[], int],
        known: Callable[[], Iterable[str]],
        say: Callable[[str], None],
    ) -> None:
        self.port, self.connections, self.clients, self.known, self.say = port, connections, clients, known, say
        self._peers: dict[int, Peer | None] = {}  # by the inode of a socket, oldest first; None for other sockets

    async def watch(self) -> None:
        """Look at the connections now and then, for ever."""
        folder = next((Path(name) for name in FOLDERS if Path(name).is_dir()), None)
        while folder is not None:
            begin, pressed = time.monotonic(), False
            with suppress(OSError):  # none is left to read the folder with
                pressed = self._look([int(name) for name in os.listdir(folder)])  # noqa: PTH208, paths cost thrice
            took = time.monotonic() - begin
            await asyncio.sleep(max(PRESSED, SHARE_PRESSED * took) if pressed else max(LOOK, SHARE * took))

    def _look(self, descriptors: list[int]) -> bool:
        """Close strangers' connections if they are too many; return whether they were."""
        allowed = most_strangers(self.connections, self.clients())
        if len(descriptors) <= allowed:  # the least work where there is nothing to do
            self._peers.clear()
            return False
        known = {parsed(peer) for peer in self.known()}
        here = self._here(descriptors)
        strangers = [(inode, here[inode]) for inode, peer in self._peers.items() if peer and peer not in known]
        if len(strangers) <= allowed:
            return False
        closed = sum(_close(inode, descriptor) for inode, descriptor in strangers[: len(strangers) - allowed // 2])
        if closed:
            self.say(f"{closed:,} connections of strangers are closed: they are too many, and left no room for clients")
        return True

    def _here(self, descriptors: list[int]) -> dict[int, int]:
        """Return the descriptor of each socket by its inode, and keep the peers of those that are new."""
        here = dict(_sockets(descriptors))
        self._peers = {inode: peer for inode, peer in self._peers.items() if inode in here}
        for inode, descriptor in here.items():
            if inode not in self._peers:
                self._peers[inode] = _peer(inode, descriptor, self.port)
        return here


def _sockets(descriptors: list[int]) -> Iterator[tuple[int, int]]:
    for descriptor in sorted(descriptors):
        with suppress(OSError):  # it was closed meanwhile
            found = os.fstat(descriptor)
            if stat.S_ISSOCK(found.st_mode):
                yield found.st_ino, descriptor


def _held(inode: int, descriptor: int) -> socket.socket:
    """Return a socket by a descriptor of its own, so that it stays this one; raise OSError if it is another by now."""
    held = socket.socket(fileno=os.dup(descriptor))
    if os.fstat(held.fileno()).st_ino != inode:
        held.close()
        raise OSError
    return held


def _peer(inode: int, descriptor: int, port: int) -> Peer | None:
    """Return who is connected to the port by a socket; None if it is no such connection."""
    with suppress(OSError), _held(inode, descriptor) as held:
        if held.family in (socket.AF_INET, socket.AF_INET6) and held.getsockname()[1] == port:
            host, number = held.getpeername()[:2]
            return _host(host), number
    return None


def _close(inode: int, descriptor: int) -> bool:
    """End a connection under gRPC, which then lets go of it."""
    with suppress(OSError), _held(inode, descriptor) as held:
        held.shutdown(socket.SHUT_RDWR)
        return True
    return False
