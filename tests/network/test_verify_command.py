"""What `cyber0 verify`, `cyber0 ledger show` and `cyber0 serve` say of a run whose parties have keys."""

import asyncio
import hashlib
from dataclasses import replace
from functools import partial

import pytest
from tests.network.parties import recipe
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import InvalidConfig, InvalidEvidence
from cyber0.network import keys
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.stub_model import StubModel
from cyber0.protocol import export
from cyber0.protocol.catching_up import Position
from cyber0.protocol.chain import vote_statement
from cyber0.protocol.evidence import equivocation, with_certificates
from cyber0.protocol.records import Ballot
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, key_beside, private_key, sign
from cyber0.protocol.sqlite import File

ROUNDS = 5


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "400"})


def played(folder, names):
    """A federation with TLS of these clients: its ledger, an export of it, and all keys are in the folder."""
    settings = Settings.of(recipe(rounds=ROUNDS), deadline=0.5)

    async def run(ledger):
        certificate = keys.certificate_of_federator(folder / "keys")
        federator = Federator(
            settings, ledger, peer_name=keys.peer_name, certified=True,
            key=private_key(keys.federator_key(folder / "keys")), certificate=certificate,
        )  # fmt: skip
        port = await federator.start("127.0.0.1:0", keys.server_credentials(folder / "keys"))

        def come(name):
            own = keys.issue(name, folder / "keys", folder / name)
            make = partial(Member, name=name, model=StubModel(4), key=private_key(own / "key.pem"))
            return attend(f"127.0.0.1:{port}", make, credentials=keys.channel_credentials(own))

        await asyncio.gather(*map(come, names))
        await federator.over.wait()
        await federator.close()

    with File(folder / "run.ledger") as ledger:
        asyncio.run(run(ledger))
        export.write(folder / "run.cyber0", export.exported_run(ledger))
        return ledger.identity


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    keys.init(folder / "keys")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return played(folder, [f"client-{number}" for number in range(4)])


def test_an_authority_makes_authors_known(folder, run):
    done = invoke("verify", folder / "run.ledger", "--authority", folder / "keys" / "ca.pem")
    assert done.exit_code == 0, done.output
    assert (
        "sound: every number was said by its client, whose key is known by the authority's certificates" in done.output
    )
    assert f"signed votes     {4 * ROUNDS}\n" in done.output
    assert f"final commits    {ROUNDS} of {ROUNDS}\n" in done.output
    *_, proven, unproven = done.output.splitlines()
    assert proven.startswith(
        f"proven           {ROUNDS} commits follow one another; {ROUNDS} are what cwtm makes of the votes"
    )
    assert "who gave the keys out can have invented clients" in unproven
    assert "that clients told the truth about their data" in unproven
    assert run.digest.hex() in done.output


def test_so_does_the_digest_of_the_run(folder, run):
    done = invoke("verify", folder / "run.ledger", "--expect", run.digest.hex())
    assert done.exit_code == 0, done.output
    assert "whose key is known by the run's digest" in done.output


def test_without_either_authors_are_unproven(folder, run):  # noqa: ARG001
    done = invoke("verify", folder / "run.ledger")
    assert done.exit_code == 0
    assert "internally consistent, authors unproven" in done.output
    assert "whose keys these are: give --authority or --expect" in done.output


def test_another_authority_and_another_digest_are_findings(folder, run):  # noqa: ARG001
    keys.init(folder / "others")
    done = invoke("verify", folder / "run.ledger", "--authority", folder / "others" / "ca.pem")
    assert done.exit_code == 1
    assert "no certificate of this authority is here for the federator's key" in done.output
    assert "not proven       anything" in done.output
    done = invoke("verify", folder / "run.ledger", "--expect", "12" * 32)
    assert done.exit_code == 1
    assert "not the expected 1212" in done.output
    assert isinstance(invoke("verify", folder / "run.ledger", "--expect", "12").exception, InvalidConfig)


def test_an_export_is_accepted_without_its_votes_and_an_imported_ledger_is_not(folder, run):  # noqa: ARG001
    done = invoke("verify", folder / "run.cyber0", "--authority", folder / "keys" / "ca.pem")
    assert done.exit_code == 0, done.output
    assert f"commits proven, votes missing of {ROUNDS} rounds" in done.output
    assert f"that {ROUNDS} commits are what the rule makes of the votes" in done.output
    invoke("ledger", "import", folder / "run.cyber0", "--ledger", folder / "imported.ledger")
    assert invoke("verify", folder / "imported.ledger").exit_code == 1


def test_the_digest_of_a_run_does_not_cover_keys_that_came_later(tmp_path):
    keys.init(tmp_path / "keys")
    settings = Settings.of(recipe(rounds=300), deadline=0.3)

    async def play(ledger):
        federator = Federator(settings, ledger)
        address = f"127.0.0.1:{await federator.start('127.0.0.1:0')}"
        begun = asyncio.Event()

        def watch(member):
            if member.commits > 0:  # the run is founded
                begun.set()

        def come(name):
            return attend(address, partial(Member, name=name, model=StubModel(4)), watch=watch)

        first = [asyncio.ensure_future(come(name)) for name in settings.roster[:3]]
        await begun.wait()
        await asyncio.gather(*first, come("client-3"))
        await federator.over.wait()
        await federator.close()

    with File(tmp_path / "run.ledger") as ledger:
        asyncio.run(play(ledger))
        digest = ledger.identity.digest.hex()
        assert ledger.roster.key("client-3")
    done = invoke("verify", tmp_path / "run.ledger", "--expect", digest)
    assert done.exit_code == 0, done.output
    assert "the run's digest does not cover the keys of client-3: they were written later" in done.output
    assert "internally consistent, authors unproven" in done.output


def test_evidence_is_judged(folder, run):
    position, votes = Position.start(run), []
    signer = private_key(folder / "client-1" / "key.pem")
    for scalars in (bytes(16), b"another vote 16b"):
        statement = vote_statement(run.digest, 0, position.head.link, hashlib.sha256(scalars).digest())
        votes.append(
            (position.head.link, replace(Ballot.of("client-1", "counted", scalars), signature=sign(signer, statement)))
        )
    file = folder / "evidence.json"
    file.write_bytes(equivocation(position, 0, "client-1", votes))
    done = invoke("verify", file)
    assert done.exit_code == 0, done.output
    assert "who              client-1\n" in done.output
    assert run.roster.key("client-1").hex() in done.output
    assert "not proven       who holds that key: compare it" in done.output
    authority = folder / "keys" / "ca.pem"
    done = invoke("verify", file, "--authority", authority)
    assert "not proven       who holds that key: no certificate of this authority for it is in the file" in done.output
    with File(folder / "run.ledger", read_only=True) as ledger:
        file.write_bytes(with_certificates(file.read_bytes(), [b"what?", *ledger.certificates]))
    done = invoke("verify", file, "--authority", authority, "--expect", run.digest.hex())
    assert done.exit_code == 0, done.output
    assert "whose            client-1, by a certificate of this authority\n" in done.output
    assert isinstance(invoke("verify", file, "--expect", "00" * 32).exception, InvalidEvidence)
    file.write_bytes(equivocation(position, 0, "client-1", [votes[0], votes[0]]))
    assert isinstance(invoke("verify", file).exception, InvalidEvidence)


def test_show_tells_who_takes_part_by_which_keys(folder, run):
    shown = invoke("ledger", "show", folder / "run.ledger").output
    assert f"federator        key {run.federator.hex()}\n" in shown
    assert "links            signed, and the votes on them\n" in shown
    for name, key in zip(run.roster.names, run.roster.keys, strict=True):
        assert f"client           {name}, key {key.hex()[:16]}\n" in shown
    assert "reports          of 4 clients at the end, signed: " in shown


def test_serve_imports_no_code_that_a_ledger_names(tmp_path, monkeypatch):
    (tmp_path / "loud_rule.py").write_text(
        "from pathlib import Path\nPath('loud').touch()\ndef rule(votes, byzantine): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    agreement = recipe(rule="loud_rule:rule", quorum=3).agreement
    federator = encoded(key_beside(tmp_path / "run.ledger-key.pem").public_key())
    found = Settings.of(recipe()).identity(bytes(32), bytes(32), federator=federator)
    with File(tmp_path / "run.ledger") as ledger:
        ledger.found(replace(found, agreement=agreement, written=None))
    done = invoke("serve", "--ledger", tmp_path / "run.ledger", "--listen", "127.0.0.1:0")
    assert isinstance(done.exception, InvalidConfig)
    assert "rule = 'loud_rule:rule' in " in str(done.exception)
    assert "is code that would be imported here: say --own-rule if it is yours" in str(done.exception)
    assert not (tmp_path / "loud").exists()
    invoke("serve", "--ledger", tmp_path / "run.ledger", "--listen", "nowhere.invalid:0", "--insecure", "--own-rule")
    assert (tmp_path / "loud").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "a commit is final once 7 of 10 invited clients have voted after it: the quorum is 7"),
        ({"quorum": 5}, "voted after it, but the quorum is 5: rounds may be decided that make none final"),
        ({"byzantine": 4}, "after it: the quorum is 9; the 4 that may lie can stop the run by staying away"),
    ],
    ids=["final", "smaller quorum", "many liars"],
)
def test_finality_is_stated_for_the_quorum_in_use(changes, sentence):
    settings = Settings.of(recipe(**{"clients": 10, "byzantine": 2, **changes}))
    assert sentence in settings.finality(settings.first)
