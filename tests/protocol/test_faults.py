"""Whole federations on a virtual clock, with a bad network, crashes and liars by seed.

Honest clients hold a toy model: a hash of the commits they applied. After every event the laws hold; once faults stop,
the run finishes.
"""

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.protocol.toys import BASE, KEYS, LIES, MANIFEST, PUBLIC, Honest, Liar, apply, measured

from cyber0.aggregation import get_rule
from cyber0.config import Agreement
from cyber0.errors import RejectedMessage
from cyber0.protocol.catching_up import catch_up
from cyber0.protocol.chain import Anchor, link_statement, vote_statement
from cyber0.protocol.codec import decode_from_client, decode_from_federator, encode
from cyber0.protocol.decide import decide
from cyber0.protocol.events import (
    Alarm,
    Arrived,
    ClientStream,
    Deadline,
    HangUp,
    Left,
    Received,
    Record,
    RecordIdentity,
    Replay,
    Send,
)
from cyber0.protocol.ledger import Memory
from cyber0.protocol.machine import begin, step
from cyber0.protocol.messages import Committed, Hello, Welcome
from cyber0.protocol.records import from_wire, to_wire
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import is_by, sign
from cyber0.protocol.state import restored
from cyber0.protocol.verify import verify

SECONDS_OF_FAULTS, LAST = 12.0, 2000.0


@cache
def settings_of(clients, rule, rounds, few_invited):
    agreed = {"clients": clients, "byzantine": (clients - 1) // 3, "rule": rule, "rounds": rounds, "directions": 2}
    agreement = Agreement(**agreed, participation=0.8 if few_invited else 1.0)
    roster = tuple(f"c{number}" for number in range(clients))
    return Settings(agreement, roster, deadline=1.0, longest=4.0, fingerprint_every=2)


class World:
    """The network, the disk and the clock; `rng` decides all that goes wrong.

    Votes and links are signed where asked; otherwise it is taken for granted that they are what they say.
    """

    def __init__(self, seed, machine=step, *, signs=False):
        self.signs, self.federator = signs, PUBLIC["federator"] if signs else b""
        self.rng = rng = random.Random(seed)  # noqa: S311
        self.machine = machine
        clients = rng.choice([4, 4, 5, 7])
        few = clients == 5 and rng.random() < 0.5
        self.settings = settings_of(clients, rng.choice(["median", "cwtm", "nnm+cwtm"]), rng.randrange(2, 10), few)
        names = list(self.settings.roster)
        rng.shuffle(names)
        liars = rng.randrange(self.settings.agreement.byzantine + 1)
        self.clients = {name: Liar(name, rng.choice(LIES), rng) for name in names[:liars]}
        self.honest = {name: Honest(name, self.settings, signs) for name in names[liars:]}
        self.clients |= self.honest
        self.bad_day(liars)
        self.now, self.count, self.queue = 0.0, 0, []
        self.disk, self.ledger, self.weights = Memory(), [], [BASE]
        self.state, self.incarnation, self.opened = begin(self.settings, self.federator), 0, 0
        self.streams = {}  # name: its open link
        self.cut = set()  # names behind a partition
        self.slots = {}  # (link, direction): when the last message on it arrives, for a stream that keeps order
        self.corrupted, self.once_corrupted = set(), set()
        for name in self.clients:
            self.after(rng.random() * 2, self.connect, name)
            self.after(rng.random() * 3, self.tick, name)
        for _ in range(rng.randrange(8)):
            self.after(rng.random() * SECONDS_OF_FAULTS, self.fault)

    def bad_day(self, liars):
        rng = self.rng
        self.keeps_order = rng.random() < 0.5
        self.drops = rng.choice([0, 0, 0.05, 0.2])
        self.doubles = 0 if self.keeps_order else rng.choice([0, 0.2])
        self.slow = rng.choice([0.01, 0.3, 2.0])
        self.may_corrupt = self.keeps_order and liars < self.settings.agreement.byzantine

    # The clock

    def after(self, seconds, action, *arguments):
        self.count += 1
        heapq.heappush(self.queue, (self.now + seconds, self.count, action, arguments))

    def run(self):
        while self.queue and self.now < LAST:
            self.now, _, action, arguments = heapq.heappop(self.queue)
            action(*arguments)
            assert self.count < 50_000, "no end of events"
            if self.calm and all(client.finished for client in self.honest.values()):
                return self
        raise AssertionError(f"round {self.state and self.state.round} after {self.now} s: no progress")

    @property
    def calm(self):
        return self.now > SECONDS_OF_FAULTS

    # The network

    def connect(self, name):
        if name in self.streams or (self.clients[name].finished and self.ledger_is_full):
            return
        if name in self.cut or self.state is None:
            self.after(0.5, self.connect, name)
            return
        self.opened += 1
        self.streams[name] = ClientStream(name, self.opened)
        self.up(self.streams[name], self.clients[name].hello())

    @property
    def ledger_is_full(self):
        return len(self.ledger) == self.settings.agreement.rounds

    def break_link(self, name, noticed=True):
        stream = self.streams.pop(name, None)
        if stream and noticed:
            self.after(self.rng.random(), self.happens, Left(stream), self.incarnation)
        self.after(self.rng.random(), self.connect, name)

    def up(self, stream, messages):
        for message in messages:
            data = message if isinstance(message, bytes) else encode(message)
            self.travel(stream, "up", self.at_federator, stream, data, self.incarnation)

    def travel(self, stream, direction, action, *arguments):
        rng = self.rng
        if not self.calm and rng.random() < self.drops:
            return
        for _ in range(1 + (not self.calm and rng.random() < self.doubles)):
            delay = rng.random() * (0.01 if self.calm else self.slow)
            if self.keeps_order:
                arrival = max(self.now + delay, self.slots.get((stream, direction), 0.0))
                self.slots[stream, direction] = arrival
                delay = arrival - self.now
            self.after(delay, action, *arguments)

    def at_federator(self, stream, data, incarnation):
        if incarnation != self.incarnation or self.state is None or stream.client in self.cut:
            return
        try:
            message = decode_from_client(data)
        except RejectedMessage:
            self.happens(Left(stream), incarnation)
            if self.streams.get(stream.client) == stream:
                self.break_link(stream.client)
            return
        if isinstance(message, Hello):
            self.happens(Arrived(stream, message), incarnation)
        else:
            self.happens(self.received(stream, message), incarnation)

    def received(self, stream, vote):
        """A vote, with its signature checked; liars sign whatever they say."""
        state, client = self.state, stream.client
        if not self.signs or vote.round not in (state.round, state.round - 1) or state.identity is None:
            return Received(stream, vote, bool(state.who.key(client)))
        link = state.head.link if vote.round == state.round else state.previous
        digest = hashlib.sha256(vote.scalars).digest()
        statement = vote_statement(state.identity.digest, vote.round, link, digest)
        if client not in self.honest:
            vote = replace(vote, signature=sign(KEYS[client], statement))
        return Received(stream, vote, is_by(state.who.key(client), vote.signature, statement))

    def at_client(self, stream, data):
        if self.streams.get(stream.client) == stream and stream.client not in self.cut:
            client = self.clients[stream.client]
            self.up(stream, client.receive(decode_from_federator(data), self))
            self.check_client(client)

    def tick(self, name):
        """A client that has heard nothing of the end asks again."""
        client = self.clients[name]
        if not client.finished and name in self.streams:
            self.up(self.streams[name], client.hello())
        elif name not in self.streams:
            self.connect(name)
        if not (client.finished and self.calm):
            self.after(3 + self.rng.random(), self.tick, name)

    # The federator

    def happens(self, event, incarnation):
        if self.state is None or incarnation != self.incarnation:
            return
        before = self.state
        self.state, effects = self.machine(self.state, event)
        if isinstance(event, Deadline) and len(before.votes.counted) < self.settings.quorum:
            assert not any(isinstance(effect, Record) for effect in effects), "too few votes, and yet a commit"
        crash = self.rng.randrange(len(effects) + 1) if self.rng.random() < 0.01 and not self.calm else None
        for number, effect in enumerate(effects):
            if number == crash:
                self.crash_federator()
                return
            self.execute(effect)

    def execute(self, effect):
        match effect:
            case RecordIdentity(identity):
                assert not self.disk.founded, "founded twice"
                keys = dict(zip(identity.roster.names, identity.roster.keys, strict=True))
                model = self.settings.identity(MANIFEST, BASE, keys=keys, federator=self.federator)
                assert identity == model, "founded on a liar's model"
                assert all(key in (b"", PUBLIC[name]) for name, key in keys.items()), "founded with another's key"
                self.disk.found(identity)
            case Record(decision, head):
                self.record(decision, head)
            case Send(stream, message):
                self.down(stream, message)
            case Replay(stream, first, stop):
                assert stop <= len(self.ledger), "a commit is sent that is not on disk"
                for message in catch_up(self.disk, first, stop, chunk=100):
                    self.down(stream, message)
            case Alarm(number, extension, seconds):
                self.after(seconds, self.happens, Deadline(number, extension), self.incarnation)
            case HangUp(stream):
                self.travel(stream, "down", self.hung_up, stream)

    def hung_up(self, stream):
        if self.streams.get(stream.client) == stream:
            self.break_link(stream.client)

    def down(self, stream, message):
        if isinstance(message, Committed):
            assert message.round < len(self.ledger), "a commit is sent that is not on disk"
            assert message.scalars == self.ledger[message.round].scalars
            self.check_link(message)
            (written,) = self.disk.written(message.round, message.round + 1)
            message = replace(message, signature=written.signature)
        if isinstance(message, Welcome):
            assert self.disk.identity.to_bytes() == message.identity, "welcomed to a run that is not on disk"
        self.travel(stream, "down", self.at_client, stream, encode(message))

    def check_link(self, message):
        """Whoever holds the link before a commit comes to that on disk by what is sent with the commit."""
        after = self.disk.head_at(message.round + 1)
        anchor = Anchor(self.disk.head_at(message.round).link, message.ballots, self.disk.roster.digest)
        assert after != self.disk.head or anchor.following(after.commit) == after.link

    def record(self, decision, head):
        assert decision.round == len(self.ledger), "one commit per round, in order"
        self.check_decision(decision)
        statement = link_statement(self.disk.identity.digest, head.rounds, head.link)
        signature = sign(KEYS["federator"], statement) if self.signs else b""
        assert self.disk.append(decision, signature) == head, "another link on disk than in memory"
        self.ledger.append(decision)
        self.weights.append(apply(self.weights[-1], decision.scalars))

    def crash_federator(self):
        self.state, self.incarnation = None, self.incarnation + 1
        for name in list(self.streams):
            self.break_link(name, noticed=False)
        self.after(self.rng.random() * 2, self.restart_federator)

    def restart_federator(self):
        self.state = restored(self.settings, self.disk, self.federator)

    # What goes wrong

    def fault(self):
        name = self.rng.choice(sorted(self.clients))
        kind = self.rng.choice(["break", "half_open", "crash", "partition", "federator", "corrupt", "corrupt"])
        if kind in ("break", "half_open"):
            self.break_link(name, noticed=kind == "break")
        elif kind == "crash":
            self.clients[name].restart()
            self.break_link(name)
        elif kind == "partition":
            self.cut.add(name)
            self.break_link(name, noticed=self.rng.random() < 0.5)
            self.after(self.rng.random() * 4, self.cut.discard, name)
        elif kind == "federator" and self.state is not None:
            self.crash_federator()
        elif kind == "corrupt" and self.may_corrupt and name in self.honest:
            self.may_corrupt = False
            self.corrupted.add(name)
            self.once_corrupted.add(name)
            self.honest[name].weights = b"corrupted" + bytes(23)

    # The laws

    def check_client(self, client):
        if client.name in self.honest:
            known = len(client.commits)
            assert known <= len(self.ledger), "a client holds a commit that is not on disk"
            if client.name not in self.corrupted:
                assert client.weights == self.weights[known], "the same commits, and other weights"

    def check_decision(self, decision):
        for ballot in decision.ballots:
            if ballot.client in self.honest:
                assert ballot.verdict != "equivocation", "an honest client is recorded as equivocating"
                assert ballot.verdict in ("counted", "late") or ballot.client in self.once_corrupted
        counted = {ballot.client: ballot.values for ballot in decision.ballots if ballot.verdict == "counted"}
        assert len(counted) >= self.settings.quorum
        for name in counted.keys() & self.honest.keys():
            if decision.round % 2 == 0 or name not in self.once_corrupted:
                assert counted[name] == measured(name, decision.round, self.weights[-1]), "a vote from other weights"
        assert all(ballot.client not in counted for ballot in decision.ballots if ballot.verdict == "equivocation")
        votes = np.stack([from_wire(counted[name], 1) for name in self.settings.roster if name in counted], axis=1)
        assert decision.scalars == to_wire(
            decide(get_rule(self.settings.agreement.rule), votes, self.settings.agreement.byzantine)
        )
        if self.settings.agreement.rule == "nnm+cwtm":  # it mixes coordinates, so that the next law is not its own
            return
        true = [name for name in counted if name in self.honest and name not in self.once_corrupted]
        truth = np.stack([from_wire(counted[name], 1) for name in true], axis=1)
        scalars = from_wire(decision.scalars, 1)
        assert (truth.min(axis=1) <= scalars).all(), "liars moved a decision below every honest vote"
        assert (scalars <= truth.max(axis=1)).all(), "liars moved a decision above every honest vote"


def outcome(seed, machine: Callable = step):
    world = World(seed, machine).run()
    return [decision.scalars for decision in world.ledger]


@pytest.mark.parametrize("block", range(10))
def test_the_laws_hold_whatever_goes_wrong(block):
    for seed in range(40 * block, 40 * block + 40):
        world = World(seed).run()
        assert len(world.ledger) == world.settings.agreement.rounds
        for client in world.honest.values():
            assert client.commits == [decision.scalars for decision in world.ledger]


@pytest.mark.parametrize("seed", range(100))
def test_what_is_recorded_is_a_sound_ledger(seed):
    world = World(seed, signs=True).run()
    report, rounds = verify(world.disk, expect=world.disk.identity.digest), world.settings.agreement.rounds
    assert (report.findings, report.aggregates, report.signed) == ([], rounds, rounds)
    assert report.votes == sum(len(decision.ballots) for decision in world.ledger)
    for client in world.honest.values():
        assert client.position.head == world.disk.head


def test_a_seed_tells_the_same_story_twice():
    assert outcome(3) == outcome(3)
