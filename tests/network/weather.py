"""What blows around a federation, and who looks on: slow links, strangers, and a viewer of its live page."""

import asyncio
import json
import random
import socket
import ssl
import threading
import time
from collections import Counter, defaultdict, deque
from contextlib import suppress
from http.client import HTTPConnection, HTTPException

PATIENCE = 10.0  # seconds for an answer of the live page


def quiet_port():
    """A port that is free, and stays so while nobody listens: the system gives it to no outgoing connection."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Links:
    """Links to a federator, one for each name: bytes are passed on, late, or not for a while, or never again."""

    def __init__(self, port, names):
        self.port, self.bytes = port, 0
        self.ports = {name: quiet_port() for name in names}
        self.delays, self.stalls = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        self.open, self.servers = defaultdict(set), []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        for name, at in self.ports.items():
            self.loop.run_until_complete(self._listen(name, at))
        self.thread.start()

    async def _listen(self, name, port):
        async def pair(reader, writer):
            try:
                source, sink = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:  # the federator is dead
                writer.transport.abort()
                return
            self.open[name].add(ends := (writer, sink))
            try:
                await asyncio.gather(self._pass(name, reader, sink), self._pass(name, source, writer))
            finally:
                self.open[name].discard(ends)
                for end in ends:
                    end.transport.abort()

        self.servers.append(await asyncio.start_server(pair, "127.0.0.1", port))

    async def _pass(self, name, reader, writer):
        with suppress(OSError):
            while data := await reader.read(65536):
                self.bytes += len(data)
                await asyncio.sleep(max(self.delays[name], self.stalls[name] - time.monotonic()))
                writer.write(data)
                await writer.drain()
        writer.close()

    def slow(self, name, seconds):
        """Let everything take longer from now on."""
        self.delays[name] = seconds

    def stall(self, name, seconds):
        """Let nothing pass for a while."""
        self.stalls[name] = time.monotonic() + seconds

    def cut(self, name):
        """Reset all connections."""

        def abort():
            for ends in list(self.open[name]):
                for writer in ends:
                    writer.transport.abort()

        self.loop.call_soon_threadsafe(abort)

    def calm(self):
        for name in self.ports:
            self.slow(name, 0.0)
            self.stall(name, 0.0)

    def close(self):
        """Close all connections, and listen no longer."""
        for server in self.servers:
            self.loop.call_soon_threadsafe(server.close)
        for name in self.ports:
            self.cut(name)
        asyncio.run_coroutine_threadsafe(self._settled(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _settled(self):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Strangers:
    """Connections of nobody: they say nothing, or garbage, within TLS or without it; some are left open."""

    def __init__(self, port):
        self.port, self.open, self.count = port, [], 0

    def come(self, rng, number):
        self.go()
        for _ in range(number):
            with suppress(OSError):
                one = socket.create_connection(("127.0.0.1", self.port), timeout=1.0)
                self.open.append(one)
                self.count += 1
                match rng.randrange(4):
                    case 0:
                        one.sendall(rng.randbytes(rng.randrange(1, 4096)))
                    case 1:
                        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    case 2:
                        self._greet(one)
                    case _:
                        pass

    def _greet(self, one):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.open.append(context.wrap_socket(one))

    def go(self):
        for one in self.open:
            one.close()
        self.open.clear()


class Viewer:
    """Looks at the live page's events, at /health and at /metrics all the time, and notes what they show."""

    def __init__(self, port, kept):
        self.port, self.kept = port, kept
        self.last, self.paces = {}, deque([0.0], maxlen=120)  # of the last minute
        self.started, self.changes, self.evidence, self.said = {}, set(), set(), Counter()
        self.away, self.here, self.doubts = defaultdict(list), {}, Counter()
        self.health, self.metrics, self.events = Counter(), Counter(), 0
        self.totals = {}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._view, self._poll)]
        for thread in self._threads:
            thread.start()

    def _view(self):
        with self.kept.open("w", encoding="utf-8") as kept:
            while not self._over.wait(0.2):
                there = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
                with suppress(OSError, HTTPException):
                    there.request("GET", "/events")
                    for line in there.getresponse():
                        if line.startswith(b"data:"):
                            self._note(json.loads(line[5:]), kept)
                        if self._over.is_set():
                            break
                there.close()

    def _note(self, shown, kept):
        now = time.monotonic()
        self.last, self.events = shown, self.events + 1
        self.paces.append(shown["pace"])
        self.started.setdefault(shown["started"], shown["rounds"])
        self.totals[shown["started"]] = shown["received"], shown["sent"], shown["pages"]
        self.changes |= {change["text"] for change in shown["changes"]}
        self.evidence |= set(shown["evidence"])
        self.said.update({text["text"] for text in shown["said"]} - self.said.keys())
        standings = {one["name"]: one["standing"] for one in shown["clients"]}
        for name, standing in standings.items():
            if standing == "away":
                self.away[name].append(now)
        self.here = {name for name, standing in standings.items() if standing != "away"}
        doubts = {one["name"]: one["doubts"] for one in shown["clients"] if one["doubts"]}
        for name, found in doubts.items():
            self.doubts.update((name, doubt) for doubt in found)
        fields = ("now", "started", "condition", "rounds", "of", "pace", "present", "evidence")
        kept.write(json.dumps({**{name: shown[name] for name in fields}, "doubts": doubts}) + "\n")

    def _poll(self):
        while not self._over.wait(1.0):
            for path, seen in (("/health", self.health), ("/metrics", self.metrics)):
                there = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
                try:
                    there.request("GET", path)
                    answer = there.getresponse()
                    body = answer.read().decode()
                    seen[json.loads(body)["condition"] if path == "/health" else str(answer.status)] += 1
                except (OSError, HTTPException):
                    seen["no answer"] += 1
                there.close()

    @property
    def pace(self):
        """The most rounds per second of the last minute."""
        return max(tuple(self.paces))

    def stands_out(self, name):
        """How often the page showed a doubt of a client."""
        return sum(count for (who, _), count in self.doubts.items() if who == name)

    def close(self):
        self._over.set()
        for thread in self._threads:
            thread.join()
