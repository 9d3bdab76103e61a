"""Real processes: a federator that is restored from an older copy of its ledger gets back what it lost from clients.

CYBER0_STORM_SEEDS=50 plays that many stories of kills and restores instead of one.
"""

import os
import random
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.network.parties import PATIENCE, Parties, free_port, participate, recipe
from tests.network.test_commands import RUN, command, join, until
from tests.network.test_faults import commits, reach
from tests.network.test_fork import cyber0

from cyber0.network.control import ask
from cyber0.network.member import Member
from cyber0.protocol.messages import Recalled
from cyber0.protocol.signing import encoded, new_key
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild

ROUNDS, KEPT = 60, 10
SEEDS = int(os.environ.get("CYBER0_STORM_SEEDS", "1"))


def back_up(parties, copy):
    with File(parties.ledger, read_only=True) as ledger:
        ledger.backup(copy)
    with File(copy, read_only=True) as copied:
        return copied.head.rounds


def restore(parties, copy):
    """Put the copy in the place of a ledger whose federator was killed."""
    for suffix in ("-wal", "-shm"):
        parties.ledger.with_name(parties.ledger.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, parties.ledger)


def ends_well(parties, lost, names=None):
    """All clients hold what the ledger says; of the lost rounds the commits are proven, and no votes are here."""
    names = names or parties.roster
    parties.wait(*names)
    parties.stop()
    marks = {parties.outcome(name)["fingerprint"] for name in names}
    assert not list(parties.folder.rglob("evidence-*"))
    with File(parties.ledger, read_only=True) as ledger:
        report = verify(ledger)
        assert report.findings == []
        assert report.head.rounds == ledger.roster.last
        ((first, last),) = report.lost
        assert first == lost[0]
        assert last >= lost[1]
        assert report.missing == last - first + 1 == report.head.rounds - report.aggregates
        assert report.verdict == f"commits proven, votes missing of {report.missing} rounds"
        assert marks == {rebuild(ledger, base(ledger.identity, None)[1])}


@pytest.mark.parametrize("everybody", [False, True], ids=["clients stay", "all are killed"])
def test_a_restored_federator_goes_on_with_what_its_clients_hold(tmp_path, everybody):
    with Parties(tmp_path, recipe(rounds=ROUNDS), linger=600.0) as parties:
        parties.federator()
        for place, name in enumerate(parties.roster):
            parties.client(name, snapshot_every=(7, 1000)[place % 2], audit=(0.2, 0.0)[place % 2])
        reach(parties, KEPT)
        kept = back_up(parties, tmp_path / "copy")
        reach(parties, kept + 20)
        names = ["federator", *(parties.roster if everybody else ())]
        for name in names:
            parties.kill(name)
        restore(parties, tmp_path / "copy")
        for name in names:
            parties.again(name)
        ends_well(parties, (kept, kept + 18))  # the very last one may have reached nobody


def test_clients_that_have_an_outline_of_the_roster_give_back_rounds_though_it_has_changed(tmp_path):
    with Parties(tmp_path, recipe(rounds=ROUNDS), linger=600.0) as parties:
        parties.federator()
        for name in parties.roster:
            parties.client(name, snapshot_every=1000, audit=0.0)
        reach(parties, KEPT)
        kept = back_up(parties, tmp_path / "copy")
        ask(
            parties.ledger, {"kind": "admit", "name": "eve", "key": encoded(new_key().public_key()).hex()}, timeout=60.0
        )
        reach(parties, kept + 20)
        names = ["federator", *parties.roster]
        for name in names:
            parties.kill(name)
        restore(parties, tmp_path / "copy")
        for name in names:
            parties.again(name)
        ends_well(parties, (kept, kept + 18))


def test_one_client_alone_has_the_last_rounds(tmp_path):
    """Another stopped long before, and two have lost their logs: what they have signed leads through the rest."""
    with Parties(tmp_path, recipe(rounds=ROUNDS), linger=600.0) as parties:
        parties.federator()
        for name in parties.roster:
            parties.client(name, snapshot_every=1000)
        reach(parties, KEPT)
        kept = back_up(parties, tmp_path / "copy")
        parties.kill(parties.roster[0])
        reach(parties, kept + 20)
        for name in ("federator", *parties.roster[1:]):
            parties.kill(name)
        logs = [next((tmp_path / "state").glob(f"*-{name}")) / "commits" for name in parties.roster[1:]]
        for log in sorted(logs, key=lambda log: log.stat().st_size)[:-1]:  # what one was not sent nobody could show
            log.unlink()
        restore(parties, tmp_path / "copy")
        for name in ("federator", *parties.roster):
            parties.again(name)
        ends_well(parties, (kept, kept + 18))


def lie(how, *arguments):
    """Take part with a client that was honest so far."""
    if how == "boasts":
        hello = Member.hello
        Member.hello = lambda self: replace(hello(self), commits=10**9)
    elif how == "is silent":
        Member._on_recall = lambda *_: []
    else:
        Member._on_recall = lambda _, first: [Recalled(first, bytes(16), bytes(32), bytes(64))]
    participate(*arguments)


@pytest.mark.parametrize("how", ["boasts", "is silent", "forges"])
def test_a_liar_costs_only_itself(tmp_path, how):
    with Parties(tmp_path, recipe(rounds=ROUNDS), linger=600.0, deadline=2.0) as parties:
        parties.federator()
        for name in parties.roster:
            parties.client(name)
        reach(parties, KEPT)
        kept = back_up(parties, tmp_path / "copy")
        reach(parties, kept + 20)
        liar, *honest = parties.roster
        parties.stop()  # so that the honest ones get the last link, too, which the liar does not give back
        parties.kill(liar)
        restore(parties, tmp_path / "copy")
        parties.again("federator")
        options = parties.options[liar]
        parties._start(liar, lie, how, parties.port, liar, tmp_path / f"{liar}.json", options)
        ends_well(parties, (kept, kept + 18), honest)


def test_who_audits_every_round_stops_where_votes_are_lost_until_its_user_accepts_it(tmp_path):
    with Parties(tmp_path, recipe(rounds=ROUNDS), linger=600.0) as parties:
        parties.federator()
        *others, auditor = parties.roster
        for name in others:
            parties.client(name, audit=0.0)
        parties.client(auditor, audit=1.0)
        reach(parties, KEPT)
        kept = back_up(parties, tmp_path / "copy")
        parties.kill(auditor)  # before it has seen what will be lost
        reach(parties, kept + 20)
        parties.kill("federator")
        restore(parties, tmp_path / "copy")
        parties.again("federator")
        parties.client(auditor, audit=1.0)
        assert parties.processes[auditor].wait(PATIENCE) == 1
        parties.client(auditor, audit=1.0, accept_lost=True)
        ends_well(parties, (kept, kept + 18))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_storm_of_kills_and_restores(tmp_path, seed):
    """Whatever copy is put back, and whoever is killed meanwhile, all end with one model and nobody is accused."""
    rng = random.Random(f"restores {seed}")  # noqa: S311
    config = recipe(rounds=ROUNDS, clients=5, directions=1, rule=rng.choice(["median", "centered_clipping_previous"]))
    with Parties(tmp_path, config, linger=600.0, deadline=8.0, fingerprint_every=5) as parties:
        parties.federator()
        for name in parties.roster:
            parties.client(name, audit=rng.choice([0.0, 0.3]), snapshot_every=rng.choice([1, 7, 1000]))
        copies = []
        for at in sorted(rng.randrange(2, ROUNDS) for _ in range(rng.randint(3, 6))):
            reach(parties, at)
            copies.append(tmp_path / f"copy-{len(copies)}")
            back_up(parties, copies[-1])
            victims = ["federator", *rng.sample(parties.roster, rng.choice([0, 1, 5]))]
            for victim in rng.sample(victims, len(victims)):
                parties.kill(victim)
            if rng.random() < 0.7:
                restore(parties, rng.choice(copies))
            ended = [name for name in parties.roster if parties.processes[name].poll() is not None]  # with the run
            for name in rng.sample(parties.roster, len(parties.roster)):
                if name in {*victims, *ended}:
                    parties.again(name)
            parties.again("federator")
        parties.wait(*parties.roster)
        parties.stop()
        marks = {parties.outcome(name)["fingerprint"] for name in parties.roster}
    assert not list(tmp_path.rglob("evidence-*"))
    with File(parties.ledger, read_only=True) as ledger:
        report = verify(ledger)
        assert (report.findings, report.head.rounds) == ([], ROUNDS)
        assert report.missing == ROUNDS - report.aggregates
        assert marks == {rebuild(ledger, base(ledger.identity, None)[1])}


def test_the_commands_of_a_restore(tmp_path):
    """As people do it: back up, go on, lose the ledger, put the copy in its place, start again."""
    ledger, copy, address = tmp_path / "run.ledger", tmp_path / "copy.ledger", f"127.0.0.1:{free_port()}"
    serve = ["serve", "--ledger", ledger, "--listen", address]
    federator = command(*serve, *RUN, "--rounds", "200", "--deadline", "9", fresh=False)
    clients = [join(address, f"client-{number}", tmp_path, fresh=False) for number in range(3)]
    decided(ledger, federator, 10)
    cyber0("ledger", "backup", ledger, copy)
    with File(copy, read_only=True) as copied:
        kept = copied.head.rounds
    decided(ledger, federator, kept + 10)
    federator.kill()
    federator.communicate()
    for path in tmp_path.glob("run.ledger*"):
        if not path.name.endswith("-key.pem"):
            path.unlink()
    copy.rename(ledger)
    federator = command(*serve, fresh=False)
    until(federator, "as before: deadline 9")
    until(federator, f"and the ledger {kept}: it was restored from an older copy")
    until(federator, "clients have given back what was lost")
    outs = [client.communicate()[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0, 0], outs
    out, _ = federator.communicate()
    assert federator.returncode == 0, out
    assert len({re.search("fingerprint +([0-9a-f]{16})", text)[1] for text in (*outs, out)}) == 1
    code, said = cyber0("verify", ledger)
    assert code == 1  # votes are missing that the run keeps
    lost = int(re.search(r"verdict +commits proven, votes missing of (\d+) rounds", said)[1])
    assert f"rounds {kept} to {kept + lost - 1}" in said
    assert f"proven           200 commits follow one another; {200 - lost} are what" in said
    assert f"that {lost} commits are what the rule makes of the votes" in said
    assert f"of the first {kept + lost} rounds some are lost" in cyber0("ledger", "show", ledger)[1]


def decided(ledger, federator, rounds):
    """Let all go on until so many rounds are decided."""
    for _ in range(10_000):
        if ledger.exists() and len(commits(ledger)) >= rounds * 16:  # of four numbers each
            return
        with suppress(subprocess.TimeoutExpired):
            federator.wait(0.01)
    raise AssertionError(f"round {rounds} is not reached")
