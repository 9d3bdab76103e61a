"""Going back on purpose: a new run that begins with the first rounds of another one, and names it."""

from dataclasses import replace

import pytest
from tests.protocol.ledgers import KEYS, PUBLIC, append, decisions, fill, identity, parameters

from cyber0.errors import InvalidIdentity, InvalidLedger
from cyber0.protocol import export
from cyber0.protocol.catching_up import Position, catch_up, follow
from cyber0.protocol.fork import forked
from cyber0.protocol.identity import Identity, Parent
from cyber0.protocol.ledger import Memory
from cyber0.protocol.roster import Change
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import new_key
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import rebuild

KEY = KEYS["federator"]


def played(rounds=12, changes=None, **options):
    ledger = Memory()
    fill(ledger, identity(**options), rounds, changes=changes)
    return ledger


def adopted(run):
    ledger = Memory()
    ledger.adopt(run)
    return ledger


@pytest.mark.parametrize("rounds", [0, 1, 7, 12])
def test_a_fork_is_a_run_of_its_own_that_goes_on_from_the_same_weights(tmp_path, rounds):
    parent = played()
    run = forked(parent, rounds, KEY)
    assert run.identity.digest != parent.identity.digest
    assert run.identity.digest != forked(parent, rounds, KEY).identity.digest  # no two are one run
    assert run.identity.parent.run == parent.identity.digest
    assert run.identity.parent.link == parent.head_at(rounds).link
    with File(tmp_path / "new.ledger") as ledger:
        ledger.adopt(run)
        for decision in list(decisions(ledger.identity, 15))[ledger.head.rounds :] if rounds == 0 else ():
            append(ledger, decision)
        report = verify(ledger, signer=KEY.public_key())
        assert report.findings == []
        assert any(f"the first {rounds} rounds of run {parent.identity.digest.hex()}" in note for note in report.notes)
        assert ledger.commits(0, rounds) == parent.commits(0, rounds)
        assert rebuild(ledger, parameters(), rounds) == rebuild(parent, parameters(), rounds)
        again = export.from_bytes(export.to_bytes(export.exported_run(ledger)))
        assert again.identity.parent == run.identity.parent
        position = Position.start(Identity.from_bytes(ledger.identity.to_bytes(), ledger.identity.roster.to_bytes()))
        for message in catch_up(ledger, 0, ledger.head.rounds):
            position, _ = follow(position, message)
        assert position.head == ledger.head


def test_the_roster_of_a_fork_is_the_one_that_was_in_force():
    changes = {3: (Change("admit", "fay", PUBLIC["fay"]),), 5: (Change("extend", number=120),)}
    ledger = adopted(forked(played(changes=changes), 9, KEY))
    assert "fay" in ledger.roster.places
    assert (ledger.identity.agreement.clients, ledger.roster.last) == (6, 120)
    assert ledger.roster.quorum == Settings.of_ledger(ledger).quorum
    assert "fay" not in forked(played(changes=changes), 2, KEY).identity.roster.places
    assert adopted(forked(played(), 9, KEY, last=40)).roster.last == 40


def test_what_cannot_be_forked():
    parent = played()
    with pytest.raises(InvalidLedger, match="round 13: the ledger has 12 rounds"):
        forked(parent, 13, KEY)
    with pytest.raises(InvalidLedger, match="give the key it began with"):
        forked(parent, 3, new_key())
    with pytest.raises(InvalidLedger, match="cannot begin with 9"):
        forked(parent, 9, KEY, last=5)
    with pytest.raises(InvalidLedger, match="was simulated"):
        forked(played(signs=False), 3, KEY)


def test_an_invitation_names_the_parent_and_an_older_one_is_as_it_was():
    ledger = adopted(forked(played(), 9, KEY))
    settings = Settings.of_ledger(ledger)
    assert Settings.from_invitation(settings.invitation()).parent == ledger.identity.parent
    assert b"parent" not in Settings.of_ledger(played()).invitation().settings


def test_a_parent_is_part_of_the_digest_and_must_be_sound():
    run = forked(played(), 9, KEY).identity
    assert b"parent" not in replace(run, parent=None).to_bytes()
    for damaged in (
        replace(run.parent, run=bytes(31)),
        replace(run.parent, rounds=-1),
        replace(run.parent, link=b"short"),
        replace(run.parent, salt=b""),
    ):
        with pytest.raises(InvalidIdentity, match="parent = "):
            Identity.from_bytes(replace(run, parent=damaged).to_bytes(), run.roster.to_bytes())
    assert Parent.of(run.parent.fields()) == run.parent
