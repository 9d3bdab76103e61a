"""Finality: honest clients that check every round differ by the last commit at most, whoever lies."""

import os
import random
from functools import lru_cache
from itertools import combinations

import pytest
from tests.network.two_faces import TwoFaces

from cyber0.protocol import audit, catching_up
from cyber0.protocol.signing import is_by

SEEDS = int(os.environ.get("CYBER0_SEEDS", "100"))


@pytest.fixture(autouse=True)
def _every_signature_is_checked_once(monkeypatch):
    """All clients are in one process here: what one has found true is true for the others."""
    once = lru_cache(maxsize=2**14)(is_by)
    monkeypatch.setattr(audit, "is_by", once)
    monkeypatch.setattr(catching_up, "is_by", once)


def play(seed, honest, liars, quorum=None, actions=60):
    """A federator that does anything at random: it decides on any votes it has, shows anything to anybody."""
    rng = random.Random(seed)  # noqa: S311
    world = TwoFaces(honest, liars, quorum=quorum, rng=rng)
    nodes = [world.root]
    for _ in range(actions):
        node = rng.choice(nodes[-4:])
        name = rng.choice(list(world.members))
        match rng.choice(["decide", "decide", "show", "show", "show", "show", "spread", "spread", "replay"]):
            case "decide":
                nodes += _decided(world, node, rng)
            case "show" if name not in world.stopped and world.at[name].children:
                world.show(name, rng.choice(world.at[name].children))
            case "spread":  # the two halves of the clients are shown different rounds, if there are any
                for place, one in enumerate(world.members):
                    children = world.at[one].children
                    if one not in world.stopped and children:
                        world.show(one, children[-1] if place % 2 else children[0])
            case "replay" if name not in world.stopped and rng.random() < 0.1:
                world.replay(name, rng.choice(nodes))
    return world


def _decided(world, node, rng):
    cast, quorum = list(node.votes), world.identity.roster.quorum
    if len(cast) + len(world.liars) < quorum or node.position.head.rounds >= 12:
        return []
    chosen = set(rng.sample(cast, rng.randint(max(0, quorum - len(world.liars)), len(cast)))) | set(world.liars)
    return [world.decide(node, chosen, {name: rng.choice([-9.0, 0.5, 9.0]) for name in world.liars})]


def chains(world):
    return {name: world.at[name].path[: member.commits] for name, member in world.members.items()}


def differ(world):
    """How many commits that another does not hold an honest client holds, of those that can go on least; and whether
    two final commits contradict each other.

    One of two clients may be left behind with a last commit that the other does not hold, and cannot be led further.
    """
    most, contradicted = 0, False
    held = chains(world)
    for one, other in combinations(held, 2):
        pairs = zip(held[one], held[other], strict=False)
        common = next((place for place, (a, b) in enumerate(pairs) if a is not b), None)
        if common is None:
            continue
        most = max(most, min(len(held[one]), len(held[other])) - common)
        final = min(world.members[name].audits.final for name in (one, other))
        contradicted = contradicted or final > common
    return most, contradicted


@pytest.mark.parametrize(("honest", "liars"), [(3, 1), (5, 1), (5, 2)], ids=["4 clients", "6 clients", "7 clients"])
def test_two_honest_clients_differ_by_the_last_commit_at_most(honest, liars):
    rounds, forked = 0, 0
    for seed in range(SEEDS):
        world = play(seed, honest, liars)
        quorum = world.identity.roster.quorum
        assert 2 * quorum > honest + liars + liars
        most, contradicted = differ(world)
        assert most <= 1, f"seed {seed}: two honest clients differ by {most} commits"
        assert not contradicted, f"seed {seed}: a final commit is contradicted"
        rounds += max(len(chain) for chain in chains(world).values())
        forked += most
    assert rounds > 2 * SEEDS  # the lying federator gets somewhere
    assert forked > SEEDS // 20  # and does split the clients, by one commit


@pytest.mark.parametrize(("honest", "liars"), [(5, 1), (6, 0)], ids=["one liar", "no liar"])
def test_with_a_quorum_smaller_by_one_it_breaks(honest, liars):
    quorum = (honest + 2 * liars) // 2  # not more than (m + b) / 2
    assert any(_breaks(seed, honest, liars, quorum) for seed in range(10 * SEEDS))


def _breaks(seed, honest, liars, quorum):
    world = play(seed, honest, liars, quorum=quorum, actions=80)
    most, contradicted = differ(world)
    return most > 1 or contradicted
