"""A federation in a thread, over real sockets, with the HTTP server that shows it."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection

import numpy as np

from cyber0.config import RunConfig
from cyber0.network.http import Http
from cyber0.network.liars import Liar
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.network.watch import Watch
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import to_wire
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import new_key

PATIENCE = 60.0
HONEST, LIARS = ("ann", "bob", "carol", "dan", "emma"), {"minus": "sf", "nan": "nan"}


class Voter(StubModel):
    """Votes alike in every round, up to some noise, and takes its time."""

    def __init__(self, seed, pause=0.005):
        super().__init__(8)
        self.rng, self.pause = np.random.default_rng(seed), pause

    def vote(self, round):  # noqa: ARG002
        time.sleep(self.pause)  # it computes
        return to_wire(1 + 0.3 * self.rng.standard_normal(8))

    def evaluate(self):
        return 0.5, 1.25, 10


class Watched:
    """The federation: `get` asks its HTTP server, `call` runs something where the federator runs."""

    def __init__(self, names, liars, ledger, settings, options):
        self.names, self.liars, self.ledger = names, liars, ledger or Memory()
        roster = (*names, *liars)
        given = {"clients": len(roster), "byzantine": len(liars), "directions": 8, "rounds": 100_000, **settings}
        timing = {name: given.pop(name) for name in ("deadline", "evaluate_every") if name in given}
        self.settings = Settings.of(RunConfig(rule="cwtm", **given), roster, **timing)
        self.keys = {name: new_key() for name in roster}
        self.said, self.options = [], options
        self.ready, self.tasks, self.failure = threading.Event(), {}, None
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self):
        try:
            asyncio.run(self._play())
        except BaseException as error:
            self.failure = error
        self.ready.set()

    async def _play(self):
        self.loop = asyncio.get_running_loop()
        linger = self.options.pop("linger", 0.0)
        self.federator = Federator(
            self.settings, self.ledger, notice=self.said.append, watch=Watch(measures=True), linger=linger
        )
        self.address = f"127.0.0.1:{await self.federator.start('127.0.0.1:0')}"
        http = Http(self.federator, **self.options)
        self.port = await http.start("127.0.0.1", 0)
        for name in self.federator.settings.roster:
            self._join(name)
        self.ready.set()
        await self.federator.over.wait()
        await self.federator.close()
        await http.close()
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    def _join(self, name, place="", notice=lambda _: None):
        def make(told):
            number = sorted(self.keys).index(name)
            member = Member(told, name, Voter(number), evaluates=name in self.names, key=self.keys[name])
            return Liar(member, self.liars[name]) if name in self.liars else member

        self.tasks[name + place] = asyncio.ensure_future(attend(self.address, make, notice=notice))

    def join(self, name, place="", **options):
        self.call(lambda: self._join(name, place, **options))

    def leave(self, *names):
        self.call(lambda: [self.tasks[name].cancel() for name in names])

    def call(self, function):
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(PATIENCE)

    def get(self, path, method="GET", **headers):
        there = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            there.request(method, path, headers=headers)
            answer = there.getresponse()
            return answer.status, answer.read().decode()
        finally:
            there.close()

    def status(self):
        return json.loads(self.get("/status")[1])

    def until(self, condition):
        """Ask again and again until a condition holds of the status."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if condition(status := self.status()):
                return status
        raise AssertionError(f"it never came to that: {status}")


@contextmanager
def watched(names=HONEST, liars=LIARS, ledger=None, *, settings=(), **options):
    made = Watched(names, dict(liars), ledger, dict(settings), options)
    made.thread.start()
    assert made.ready.wait(PATIENCE)
    if made.failure is not None:
        raise made.failure
    try:
        yield made
    finally:
        if made.thread.is_alive():
            made.loop.call_soon_threadsafe(made.federator.stop, "enough")
        made.thread.join(PATIENCE)
        if made.failure is not None:
            raise made.failure
