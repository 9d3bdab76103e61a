"""Ledgers and exports of version 1 stay readable: the first ones, and those in which the agreement is a part."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.protocol.ledgers import KEYS
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import InvalidConfig, InvalidLedger
from cyber0.protocol.export import read
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import Decision
from cyber0.protocol.settings import Settings
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify


@dataclass
class Kept:
    """A run that was kept, and what was known of it then."""

    folder: str
    run: str
    head: str
    fingerprint: str
    parts: tuple[str, ...]


RUNS = {
    "first_format": Kept(
        "first_format",
        "1184008a35af18a33dc56981fe8a13e5a51b46e5da25b234a5558a88d615033b",
        "b34db515e1866eed3442556c1de020737c3df12f5ee264cd5d4b0d08665e4b25",
        "b54587886891d5c8",
        (),
    ),
    "version_1": Kept(
        "version_1",
        "5ae4af8d0509897136fff8b46527d3897004708682ac1d92d92acccd4443f1b9",
        "1e86d5555703b6ab9b1d6ce6681180041dfd85c4fa99f9dae76c1faa77f57b1a",
        "e3c799f3344ab068",
        ("labels", "preprocessing"),
    ),
}
FILES = ["run.ledger", "run.cyber0"]


@pytest.fixture(params=list(RUNS))
def kept(request):
    return RUNS[request.param]


@pytest.fixture
def files(kept, tmp_path):
    return Path(shutil.copytree(Path(__file__).with_name(kept.folder), tmp_path / "files"))


def invoke(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.exception
    return done.output


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_ledger_is_verified_with_every_aggregate_and_its_signature(files, kept):
    options = ["--signer", files / "federator.pem", "--head", kept.head, "--base", "task"]
    said = invoke("verify", files / "run.ledger", *options)
    assert "12 of them aggregated again" in said
    assert "up to round 12" in said
    assert "its votes are not signed: who cast them is not proven" in " ".join(said.split())
    assert kept.fingerprint in said


def test_its_votes_have_no_proven_authors(files, kept):
    with File(files / "run.ledger", read_only=True) as ledger:
        for options in ({}, {"expect": bytes.fromhex(kept.run)}):
            report = verify(ledger, **options)
            assert report.sound
            assert (report.votes, report.final, report.verdict) == (0, 0, "internally consistent, authors unproven")
        assert verify(ledger, expect=bytes(32)).findings


def test_a_signer_who_did_not_sign_it_is_found(files):
    with File(files / "run.ledger", read_only=True) as ledger:
        (finding,) = verify(ledger, signer=KEYS["federator"].public_key()).findings
    assert finding == "round 11: the seal after it is not signed by this signer"


@pytest.mark.parametrize("name", FILES)
def test_a_run_is_shown_and_replayed_and_left_as_it_is(files, kept, name):
    before = digests(files)
    assert kept.run in invoke("ledger", "show", files / name)
    assert digests(files) == before
    out = files / "model.safetensors"
    assert kept.fingerprint in invoke("replay", files / name, "--base", "task", "--device", "cpu", "--out", out)


def test_its_identity_keeps_its_bytes(files, kept):
    identity = read(files / "run.cyber0").identity
    assert identity.digest.hex() == kept.run
    assert (identity.protocol, identity.federator, identity.signs) == (1, b"", False)
    assert identity.agreement.rule == "nnm+cwtm"
    assert tuple(identity.meaning) == kept.parts
    assert identity.roster.names == ("client-0", "client-1", "client-2", "client-3")
    with File(files / "run.ledger", read_only=True) as ledger:
        assert ledger.identity.to_bytes() == identity.to_bytes()
        assert ledger.roster == identity.roster


def test_a_ledger_is_exported_again_to_the_same_run(files):
    invoke("ledger", "export", files / "run.ledger", "--out", files / "again.cyber0")
    assert (files / "again.cyber0").read_bytes() == (files / "run.cyber0").read_bytes()


def test_a_changed_vote_is_found(files):
    import sqlite3

    connection = sqlite3.connect(files / "run.ledger")
    with connection:
        connection.execute("UPDATE ballots SET vote = zeroblob(16) WHERE round = 5 AND place = 1")
    connection.close()
    with File(files / "run.ledger", read_only=True) as ledger:
        assert verify(ledger).findings == ["round 5: its votes do not match the chain"]


@pytest.mark.parametrize("name", FILES)
def test_it_cannot_be_continued(files, name):
    if name == "run.ledger":
        ledger = File(files / name)
    else:
        ledger = Memory()
        ledger.adopt(read(files / name))
        with File(files / "other.ledger") as other, pytest.raises(InvalidLedger, match="this run is of version 1"):
            other.adopt(read(files / name))
    with ledger:
        with pytest.raises(InvalidConfig, match="holds a run of version 1: it can be verified and replayed"):
            Settings.of_ledger(ledger)
        with pytest.raises(InvalidLedger, match=r"this run is of version 1: .* but not continued"):
            ledger.append(Decision(12, bytes(16), ()))
        assert ledger.head.rounds == 12


def test_it_cannot_be_served_and_that_leaves_it_whole(files, kept):
    done = CliRunner().invoke(app, ["serve", "--ledger", str(files / "run.ledger"), "--listen", "127.0.0.1:0"])
    assert isinstance(done.exception, InvalidConfig)
    assert "the ledger holds a run of version 1" in str(done.exception)
    with File(files / "run.ledger", read_only=True) as ledger:
        report = verify(ledger, head=bytes.fromhex(kept.head))
    assert (report.sound, report.head.rounds) == (True, 12)
