"""Processes are killed at random while clients audit and others lie: no honest party is ever accused.

CYBER0_STORM_SEEDS=50 plays that many stories instead of one.
"""

import os
import random

import pytest
from tests.network.parties import Parties, recipe
from tests.network.test_faults import commits, reach

from cyber0.protocol import evidence
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild

SEEDS = int(os.environ.get("CYBER0_STORM_SEEDS", "1"))
CLIENTS, LIARS = 7, 2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_honest_party_is_accused_in_a_storm(tmp_path, seed):
    rng = random.Random(f"storm {seed}")  # noqa: S311
    rule = rng.choice(["median", "nnm+cwtm", "centered_clipping_previous"])
    rounds = rng.choice([24, 40, 60]) if seed else 16
    config = recipe(rounds=rounds, clients=CLIENTS, byzantine=LIARS, directions=1, rule=rule, seed=seed)
    with Parties(tmp_path, config, linger=600.0, deadline=1.0, fingerprint_every=rng.choice([1, 5])) as parties:
        lies = dict(zip(rng.sample(parties.roster, LIARS), rng.sample(["equivocate", "random", "nan"], 2), strict=True))
        honest = [name for name in parties.roster if name not in lies]
        parties.federator()
        for name in parties.roster:
            audit = {"audit": rng.choice([1.0, 0.2]), "snapshot_every": rng.choice([1, 7, 1000])}
            parties.client(name, attack=lies.get(name), **audit)
        storm(parties, rng, rounds)
        parties.wait(*honest)
        parties.stop()
        marks = {parties.outcome(name)["fingerprint"] for name in honest}
    for file in tmp_path.rglob("evidence-*"):
        party = evidence.judge(file.read_bytes()).party
        assert "equivocation" in allowed(lies.get(party)), f"{file.parent.name} accuses {party}"
    with File(parties.ledger, read_only=True) as ledger:
        report = verify(ledger)
        assert report.sound, report.findings
        assert (report.head.rounds, report.aggregates) == (rounds, rounds)
        assert marks == {rebuild(ledger, base(ledger.identity, None)[1])}
        for decision in ledger.decisions():
            for ballot in decision.ballots:
                assert ballot.verdict in allowed(lies.get(ballot.client)), f"{ballot.client} in {decision.round}"


def storm(parties, rng, rounds):
    """Kill the federator and clients again and again, and start them again; what is committed stays."""
    seen = b""
    for at in sorted(rng.randrange(rounds) for _ in range(rng.randint(4, 4 + rounds // 10))):
        reach(parties, at)
        parties.pause(rng.choice([0.0, 0.02, 0.3]) * rng.random())
        victims = rng.sample(["federator", *parties.roster], rng.choice([1, 1, 2, 3]))
        for victim in victims:
            parties.kill(victim)
        now = commits(parties.ledger)
        assert now.startswith(seen)
        seen = now
        parties.pause(rng.choice([0.0, 0.2]) * rng.random())
        for victim in victims:
            parties.again(victim)


def allowed(lie):
    """The verdicts that a client may get: an honest one is never found to lie.

    A liar that draws its votes at random draws others for the same round when it is started again.
    """
    lies = {"equivocation", "rejected"}
    return {"counted", "late"} | {"equivocate": lies, "random": lies, "nan": {"rejected"}}.get(lie, set())
