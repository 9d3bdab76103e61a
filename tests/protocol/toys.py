"""Clients with a toy model, a hash of the commits they applied: honest ones, and liars of many kinds."""

import hashlib
import random
from dataclasses import dataclass, field

import numpy as np

from cyber0.protocol.messages import Bye, CatchUp, Committed, Hello, Rejection, RoundOpen, Vote
from cyber0.protocol.records import to_wire
from cyber0.protocol.settings import Settings

MANIFEST, BASE = bytes([7] * 32), bytes(32)
LENGTH = 8
LIES = ["absent", "silent", "random", "length", "nan", "stale", "equivocate", "flood", "fingerprint", "other_model"]


def apply(weights, scalars):
    return hashlib.sha256(weights + scalars).digest()


def measured(name, number, weights):
    seen = hashlib.sha256(weights + name.encode() + bytes([number])).digest()
    return to_wire(np.frombuffer(seen[:2], dtype=np.int8))


@dataclass
class Honest:
    """A client: what it stores survives a crash; it stores a vote before it sends it."""

    name: str
    settings: Settings
    commits: list[bytes] = field(default_factory=list)
    stored: Vote | None = None
    weights: bytes = BASE
    finished: bool = False

    def restart(self):
        self.weights = BASE
        for scalars in self.commits:
            self.weights = apply(self.weights, scalars)

    def hello(self, replayed=False):
        return [Hello(self.name, MANIFEST, BASE, len(self.commits), replayed=replayed)]

    def receive(self, message, world):
        match message:
            case Committed(number, scalars):
                return self.advance(number, scalars) or self.vote(number + 1)
            case CatchUp(first, scalars):
                parts = range(0, len(scalars), LENGTH)
                gaps = [self.advance(first + at // LENGTH, scalars[at : at + LENGTH]) for at in parts]
                return self.hello() if any(gaps) else []
            case RoundOpen(number):
                return self.hello() if number > len(self.commits) else self.vote(number)
            case Rejection(verdict=verdict, replay=replay):
                assert replay or verdict == "late", f"an honest client met {message}"
                return self.reset(world) if replay else []
            case Bye(finished=finished, replay=replay):
                assert finished or replay, f"an honest client was refused: {message}"
                self.finished = len(self.commits) == self.settings.agreement.rounds
                return self.reset(world) if replay else [] if self.finished else self.hello()
            case _:
                return []

    def advance(self, number, scalars):
        """Apply the next commit; those before it are known; after it there is a gap."""
        if number > len(self.commits):
            return self.hello()
        if number == len(self.commits):
            self.commits.append(scalars)
            self.weights = apply(self.weights, scalars)
        assert self.commits[number] == scalars
        return []

    def vote(self, number):
        if (
            number != len(self.commits)
            or number >= self.settings.agreement.rounds
            or self.name not in self.settings.voters(number)
        ):
            return []
        if self.stored is None or self.stored.round != number:
            mark = int.from_bytes(self.weights[:8]) if number % 2 == 0 else None
            self.stored = Vote(number, measured(self.name, number, self.weights), mark)
        return [self.stored]

    def reset(self, world):
        assert self.name in world.once_corrupted, "an honest client was told that its weights are wrong"
        world.corrupted.discard(self.name)
        self.stored = None
        self.restart()
        return self.hello(replayed=True)


@dataclass
class Liar:
    """A Byzantine client that follows the rounds and lies in its own way."""

    name: str
    lie: str
    rng: random.Random
    finished: bool = True
    commits: list[bytes] = field(default_factory=list)

    def restart(self):
        pass

    def hello(self):
        base = MANIFEST if self.lie == "other_model" else BASE
        return [] if self.lie == "absent" else [Hello(self.name, MANIFEST, base)]

    def receive(self, message, _world):
        match message:
            case RoundOpen(number):
                return self.votes(number)
            case Committed(number):
                return self.votes(number + 1)
        return []

    def scalars(self, size=2):
        return to_wire([self.rng.choice([-1e30, 0.0, 3e38, -500.0]) for _ in range(size)])

    def votes(self, number):
        match self.lie:
            case "random":
                return [Vote(number, self.scalars())]
            case "length":
                return [Vote(number, self.scalars(self.rng.choice([0, 1, 3, 50])))]
            case "nan":
                return [Vote(number, to_wire([np.nan, 1.0])), Vote(number, self.scalars())]
            case "stale":
                return [Vote(max(0, number + step), self.scalars()) for step in (-1, -2, 1)]
            case "equivocate":
                return [Vote(number, self.scalars()), Vote(number, to_wire([7.0, 7.0]))]
            case "flood":
                junk = [self.rng.randbytes(self.rng.randrange(9)) for _ in range(2)]
                return [Vote(number, self.scalars()) for _ in range(5)] + self.hello() + junk
            case "fingerprint":
                return [Vote(number, self.scalars(), self.rng.getrandbits(64))]
        return []
