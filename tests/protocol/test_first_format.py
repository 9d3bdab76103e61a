"""Ledgers and exports that were written before the agreement was a part of its own stay readable."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.protocol.export import read
from cyber0.protocol.sqlite import File

FOLDER = Path(__file__).with_name("first_format")
HEAD = "b34db515e1866eed3442556c1de020737c3df12f5ee264cd5d4b0d08665e4b25"
RUN = "1184008a35af18a33dc56981fe8a13e5a51b46e5da25b234a5558a88d615033b"
FINGERPRINT = "b54587886891d5c8"


@pytest.fixture
def files(tmp_path):
    return Path(shutil.copytree(FOLDER, tmp_path / "files"))


def invoke(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.exception
    return done.output


def test_a_ledger_is_verified_with_every_aggregate_and_its_signature(files):
    said = invoke("verify", files / "run.ledger", "--signer", files / "federator.pem", "--head", HEAD, "--base", "task")
    assert "12 of them aggregated again" in said
    assert "up to round 12" in said
    assert "sound" in said
    assert FINGERPRINT in said


@pytest.mark.parametrize("name", ["run.ledger", "run.cyber0"])
def test_a_run_is_shown_and_replayed(files, name):
    assert RUN in invoke("ledger", "show", files / name)
    out = files / "model.safetensors"
    assert FINGERPRINT in invoke("replay", files / name, "--base", "task", "--device", "cpu", "--out", out)


def test_its_identity_keeps_its_bytes(files):
    identity = read(files / "run.cyber0").identity
    assert identity.digest.hex() == RUN
    assert identity.agreement.rule == "nnm+cwtm"
    assert identity.meaning == {}
    with File(files / "run.ledger", read_only=True) as ledger:
        assert ledger.identity.to_bytes() == identity.to_bytes()


def test_a_ledger_is_exported_again_to_the_same_run(files):
    invoke("ledger", "export", files / "run.ledger", "--out", files / "again.cyber0")
    assert (files / "again.cyber0").read_bytes() == (files / "run.cyber0").read_bytes()
