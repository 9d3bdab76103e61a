"""Clients with a toy model, a hash of the commits they applied: honest ones, and liars of many kinds."""

import hashlib
import random
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cyber0.protocol.catching_up import Position, follow
from cyber0.protocol.chain import vote_statement
from cyber0.protocol.identity import Identity
from cyber0.protocol.messages import Bye, CatchUp, Committed, Hello, Rejection, RoundOpen, Vote, Welcome
from cyber0.protocol.records import to_wire
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, sign

KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
    for name in ("federator", *(f"c{number}" for number in range(7)))
}
PUBLIC = {name: encoded(key.public_key()) for name, key in KEYS.items()}
MANIFEST, BASE = bytes([7] * 32), bytes(32)
LENGTH = 8
LIES = ["absent", "silent", "random", "length", "nan", "stale", "equivocate", "flood", "fingerprint", "other_model"]


def apply(weights, scalars):
    return hashlib.sha256(weights + scalars).digest()


def measured(name, number, weights):
    seen = hashlib.sha256(weights + name.encode() + bytes([number])).digest()
    return to_wire(np.frombuffer(seen[:2], dtype=np.int8))


def signed(name, position, number, scalars):
    """A client's signature of its vote, on the link that it holds."""
    digest = hashlib.sha256(scalars).digest()
    statement = vote_statement(position.identity.digest, number, position.head.link, digest)
    return sign(KEYS[name], statement)


@dataclass
class Honest:
    """A client: what it stores survives a crash; it stores a vote before it sends it.

    In a world that signs it follows the chain by its links, and signs each vote on the one it holds.
    """

    name: str
    settings: Settings
    signs: bool = False
    position: Position | None = None
    spoiled: int = -1  # the round in which it has cast a vote of wrong weights
    commits: list[bytes] = field(default_factory=list)
    stored: Vote | None = None
    weights: bytes = BASE
    finished: bool = False

    def restart(self):
        self.weights = BASE
        for scalars in self.commits:
            self.weights = apply(self.weights, scalars)

    def hello(self, replayed=False):
        return [Hello(self.name, MANIFEST, BASE, len(self.commits), replayed=replayed, key=PUBLIC[self.name])]

    def receive(self, message, world):
        if self.signs and isinstance(message, Committed | CatchUp) and not self.followed(message):
            return self.hello()  # a gap
        match message:
            case Welcome(identity, roster=roster) if self.signs and self.position is None:
                self.position = Position.start(Identity.from_bytes(identity, roster))
                return []
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

    def followed(self, message):
        """Whether the message continues the chain; one that came before its Welcome, or out of order, does not."""
        first = message.round if isinstance(message, Committed) else message.first
        if self.position is None or first > self.position.head.rounds:
            return False
        self.position, _ = follow(self.position, message)
        return True

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
            or number == self.spoiled
            or self.name not in self.settings.voters(number, self.settings.first)
            or (self.signs and self.position is None)
        ):
            return []
        if self.stored is None or self.stored.round != number:
            mark = int.from_bytes(self.weights[:8]) if number % 2 == 0 else None
            scalars = measured(self.name, number, self.weights)
            signature = signed(self.name, self.position, number, scalars) if self.signs else b""
            self.stored = Vote(number, scalars, mark, signature)
        return [self.stored]

    def reset(self, world):
        assert self.name in world.once_corrupted, "an honest client was told that its weights are wrong"
        world.corrupted.discard(self.name)
        self.spoiled = -1 if self.stored is None else self.stored.round  # it signs no second vote for a round
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
        return [] if self.lie == "absent" else [Hello(self.name, MANIFEST, base, key=PUBLIC[self.name])]

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
