"""A federator handles what came at the same time together; what comes of it is the same as one by one."""

import asyncio
import random
from dataclasses import replace

import pytest
from tests.fuzz import CLIENTS, World, key_of
from tests.network.raw import Outlet

from cyber0.errors import Refused
from cyber0.network.connection import Connection
from cyber0.network.server import Federator
from cyber0.protocol.codec import encode
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Request
from cyber0.protocol.roster import Change, changes_to_bytes
from cyber0.protocol.signing import encoded, sign

ROUNDS = 8


class Run(World):
    """One in which client-1 takes another key, without which it is sent away two rounds later."""

    def says(self, name, data):
        if len(self.up) == 4 * CLIENTS:
            change = Change("rotate", "client-1", encoded(key_of("another").public_key()))
            statement = change.statement(self.federator.state.identity.digest)
            change = replace(change, signature=sign(key_of("client-1"), statement))
            super().says("client-1", encode(Request(changes_to_bytes([change]))))
        super().says(name, data)

    def hears(self, name):
        try:
            return super().hears(name)
        except Refused:
            return []

    def extras(self):
        pass


@pytest.fixture(scope="module")
def said():
    """All that clients say in a run."""

    async def played():
        return Run(rounds=ROUNDS)

    run = asyncio.run(played())
    return run.settings, [(name, data) for name, data, _ in run.up]


async def heard(settings, said, ends):
    """What a federator writes and sends that handles what came whenever `ends()`."""
    ledger, connections = Memory(), {}
    federator = Federator(settings, ledger, key=key_of("federator"))

    def come(name):
        connections[name] = Connection(len(outlets) + 1, Outlet(), client=name)
        outlets.append(connections[name].outlet)
        federator.streams.add(connections[name])

    outlets = []
    for name in settings.roster:
        come(name)
    for index, (name, data) in enumerate(said):
        if index == 2 * CLIENTS:  # the last one has left, and comes again
            federator.streams.remove(connections[settings.roster[-1]])
            come(settings.roster[-1])
        federator.streams.receive(connections[name], data)
        if ends():
            federator.streams.flush()
    federator.streams.flush()
    assert federator.failure is None
    return ledger.head, list(ledger.decisions()), [list(outlet.messages) for outlet in outlets]


def test_what_came_together_is_handled_as_if_one_by_one(said):
    head, decisions, sent = asyncio.run(heard(*said, lambda: True))
    assert head.rounds == ROUNDS
    assert any(change.kind == "rotate" for decision in decisions for change in decision.changes)
    for seed in range(40):
        rng = random.Random(seed)  # noqa: S311
        share = rng.choice([0.05, 0.2, 0.5, 0.9])
        assert asyncio.run(heard(*said, lambda: rng.random() < share)) == (head, decisions, sent)  # noqa: B023
    assert asyncio.run(heard(*said, lambda: False)) == (head, decisions, sent)


def test_what_came_from_a_stream_is_handled_though_the_stream_is_over(said):
    settings, messages = said

    async def run():
        ledger = Memory()
        federator = Federator(settings, ledger, key=key_of("federator"))
        connections = {name: Connection(i, Outlet(), client=name) for i, name in enumerate(settings.roster)}
        for connection in connections.values():
            federator.streams.add(connection)
        for name, data in messages[: 2 * CLIENTS]:  # Ask and Hello
            federator.streams.receive(connections[name], data)
        federator.streams.remove(connections[settings.roster[-1]])
        for name, data in messages[2 * CLIENTS : 3 * CLIENTS]:  # votes of those who are left, and an evaluation
            federator.streams.receive(connections[name], data)
        assert federator.state.round == 0
        federator.streams.remove(connections["client-0"])
        return [[ballot.client for ballot in decision.ballots] for decision in ledger.decisions()]

    assert asyncio.run(run()) == [list(settings.roster[:-1])]
