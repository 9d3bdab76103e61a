"""Processes die at any instant: no committed round is lost, and all honest clients end with the same bits.

CYBER0_FAULT_SEEDS=50 plays that many stories instead of three.
"""

import os
import random

import pytest
from tests.network.parties import Parties, recipe

from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild

SEEDS = int(os.environ.get("CYBER0_FAULT_SEEDS", "3"))


def commits(path):
    """What is committed, as any reader sees it; nothing before the founding."""
    if not path.exists():
        return b""
    with File(path, read_only=True) as ledger:
        return ledger.commits() if ledger.founded else b""


def reach(parties, rounds):
    """Let the others go on until so many rounds are decided."""
    width = 4 * parties.settings.plan.scalars
    for _ in range(10_000):
        if len(commits(parties.ledger)) >= rounds * width:
            return
        parties.pause(0.01)
    raise AssertionError(f"round {rounds} is not reached")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_killing_any_process_at_any_instant_loses_nothing(tmp_path, seed):
    rng = random.Random(seed)  # noqa: S311
    config = recipe(rounds=rng.choice([40, 80, 120]), directions=rng.choice([1, 4]), seed=seed)
    kills = sorted(rng.choice([0, rng.randrange(config.rounds + 1)]) for _ in range(rng.randint(2, 7)))
    with Parties(tmp_path, config, linger=600.0, deadline=1.0, fingerprint_every=rng.choice([1, 5])) as parties:
        parties.federator()
        for name in parties.roster:
            parties.client(name, snapshot_every=rng.choice([1, 7, 1000]))
        seen = b""
        for at in kills:
            reach(parties, at)
            parties.pause(rng.choice([0.0, 0.02, 0.5]) * rng.random())
            victim = rng.choice([*parties.roster, "federator", "federator"])
            parties.kill(victim)
            now = commits(parties.ledger)
            assert now.startswith(seen)
            seen = now
            parties.pause(rng.choice([0.0, 0.3]) * rng.random())
            parties.again(victim)
        parties.wait(*parties.roster)
        parties.stop()
        marks = {parties.outcome(name)["fingerprint"] for name in parties.roster}
    with File(parties.ledger, read_only=True) as ledger:
        assert ledger.commits().startswith(seen)
        assert ledger.head.rounds == config.rounds
        assert marks == {rebuild(ledger, base(ledger.identity, None)[1])}
        assert verify(ledger).findings == []
        verdicts = {ballot.verdict for decision in ledger.decisions() for ballot in decision.ballots}
        assert verdicts <= {"counted", "late"}
        assert ledger.seals[-1].rounds == config.rounds


def test_a_federator_whose_rule_remembers_is_killed_and_resumed(tmp_path):
    config = recipe(rounds=40, rule="nnm+centered_clipping_previous(radius=1.0)")
    with Parties(tmp_path, config, linger=600.0, deadline=1.0) as parties:
        parties.federator()
        for name in parties.roster:
            parties.client(name)
        for at in (7, 21):
            reach(parties, at)
            parties.kill("federator")
            parties.again("federator")
        parties.wait(*parties.roster)
        parties.stop()
        marks = {parties.outcome(name)["fingerprint"] for name in parties.roster}
    with File(parties.ledger, read_only=True) as ledger:
        report = verify(ledger)
        assert (report.findings, report.aggregates) == ([], 40)
        assert marks == {rebuild(ledger, base(ledger.identity, None)[1])}
