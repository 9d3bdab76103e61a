"""Real processes: a federator that is restored from an older copy of its ledger gets back what it lost from clients."""

import shutil
from dataclasses import replace

import pytest
from tests.network.parties import PATIENCE, Parties, participate, recipe
from tests.network.test_faults import reach

from cyber0.network.member import Member
from cyber0.protocol.messages import Recalled
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild

ROUNDS, KEPT = 60, 10


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
        for name in parties.roster[2:]:
            (folder,) = (tmp_path / "state").glob(f"*-{name}")
            (folder / "commits").unlink()
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
        for name in ("federator", *parties.roster):
            parties.kill(name)
        restore(parties, tmp_path / "copy")
        parties.again("federator")
        options = parties.options[liar]
        parties._start(liar, lie, how, parties.port, liar, tmp_path / f"{liar}.json", options)
        parties.listening()
        for name in honest:
            parties.again(name)
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
