"""Real processes: a federator that is restored from an older copy of its ledger gets back what it lost from clients."""

import shutil

import pytest
from tests.network.parties import Parties, recipe
from tests.network.test_faults import reach

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


def ends_well(parties, lost):
    """All clients hold what the ledger says; of the lost rounds the commits are proven, and no votes are here."""
    parties.wait(*parties.roster)
    parties.stop()
    marks = {parties.outcome(name)["fingerprint"] for name in parties.roster}
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
