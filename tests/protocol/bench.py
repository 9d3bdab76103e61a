"""A federator's machine on a bench: four clients, one scalar, and the list of all effects."""

from cyber0 import aggregation
from cyber0.config import Agreement
from cyber0.protocol.chain import Head
from cyber0.protocol.counting import count
from cyber0.protocol.events import (
    Arrived,
    ClientStream,
    Deadline,
    Received,
    Record,
    Send,
)
from cyber0.protocol.machine import begin, resume, step
from cyber0.protocol.messages import Hello, Vote
from cyber0.protocol.records import from_wire, to_wire
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, new_key

ROSTER = ("ann", "bob", "cy", "dan")
MANIFEST, BASE = bytes([7] * 32), bytes(32)
NAMES = (*ROSTER, "eve", "fay", *"abcdefgh", *(f"client {number}" for number in range(5)))
MANY = tuple(f"c{place:02}" for place in range(12))
KEYS = {name: encoded(new_key().public_key()) for name in (*NAMES, *MANY)}
FEDERATOR = encoded(new_key().public_key())


def settings(roster=ROSTER, deadline=10.0, **changes):
    timing = {name: changes.pop(name) for name in ("longest", "fingerprint_every") if name in changes}
    agreed = {"clients": len(roster), "byzantine": 1, "directions": 1, "rule": "median", "rounds": 3, **changes}
    made = Settings(Agreement(**agreed), roster, deadline=deadline, **timing)
    assert made.quorum
    return made


def identity(agreed=None, **options):
    return (agreed or settings()).identity(MANIFEST, BASE, **{"keys": KEYS, "federator": FEDERATOR, **options})


def resumed(agreed, commits, **options):
    """A machine after so many rounds, whatever was decided in them."""
    founded = identity(agreed)
    return resume(agreed, founded, Head(commits, bytes([commits] * 32), bytes([commits + 1] * 32)), **options)


def hello(name, **changes):
    return Hello(**{"name": name, "manifest": MANIFEST, "base": BASE, "key": KEYS[name], **changes})


class Bench:
    """A machine, all effects it has had, and what each client was sent."""

    def __init__(self, state):
        self.state, self.effects, self.now = state, [], 0.0

    def __call__(self, event):
        alone, taken = count(self.state, [event]) if isinstance(event, Received) else (self.state, 0)
        self.state, effects = step(self.state, event, self.now)
        assert not taken or (alone, []) == (self.state, effects)
        self.effects += effects
        return effects

    def come(self, *names, stream=0, head=b"", **changes):
        arrivals = [Arrived(ClientStream(name, stream), hello(name, **changes), head) for name in names]
        return [effect for arrival in arrivals for effect in self(arrival)]

    def vote(self, name, value, number=None, fingerprint=None, stream=0):
        number = self.state.round if number is None else number
        vote, signed = Vote(number, to_wire([[value]]), fingerprint), bool(self.state.who.key(name))
        return self(Received(ClientStream(name, stream), vote, signed))

    def late(self, extension=0):
        return self(Deadline(self.state.round, extension))

    def of(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def decisions(self):
        return [effect.decision for effect in self.of(Record)]

    @property
    def commits(self):
        return [float(from_wire(decision.scalars, 1)[0, 0]) for decision in self.decisions]

    def sent(self, name, kind):
        return [
            effect.message for effect in self.of(Send) if effect.stream.client == name and type(effect.message) is kind
        ]


def bench(*names, **changes):
    """A run that was founded with the keys of all clients, to which these come, or the whole roster."""
    agreed = settings(**changes)
    machine = Bench(resume(agreed, identity(agreed), memory=aggregation.begin(agreed.rule)))
    machine.come(*(names or agreed.roster))
    return machine


def founding(*names, **changes):
    """A run that is not founded yet, to which these clients come."""
    machine = Bench(begin(settings(**changes), FEDERATOR))
    machine.come(*names)
    return machine
