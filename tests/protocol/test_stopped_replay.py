"""A replay that is stopped at any instant goes on when it is started again, to the same bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from safetensors.numpy import save_file
from tests import processes
from tests.protocol.ledgers import fill, identity, parameters
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.protocol.export import exported_run
from cyber0.protocol.ledger import Memory
from cyber0.protocol.sqlite import File
from cyber0.replay import Checkpoint, Weights, rebuild

ROUNDS = 400
SLOWLY = """
import cyber0.cli, cyber0.progress
rebuild, checkpoint = sys.modules["cyber0.replay.rebuild"], sys.modules["cyber0.replay.checkpoint"]
rebuild.AT_ONCE = rebuild.LEAST = 1
checkpoint.EVERY = checkpoint.SHARE = cyber0.progress.QUIET = 0
"""  # a checkpoint and a line after each round
STEPS = sys.modules["cyber0.replay.rebuild"]


def filled(ledger, rounds=ROUNDS, seed=1):
    """A run whose steps are normalised, so that a replay has a moment to remember, too."""
    fill(ledger, identity(rounds=ROUNDS, family="gaussian", step_rule="normalised"), rounds, seed=seed)
    return ledger


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A folder with a ledger and its base, and the fingerprint of its model."""
    folder = tmp_path_factory.mktemp("stopped")
    save_file({entry.name: flat.reshape(entry.shape) for entry, flat in parameters()}, folder / "base.safetensors")
    with File(folder / "run.ledger") as ledger:
        return folder, rebuild(filled(ledger), parameters())


@pytest.mark.parametrize(
    ("verb", "number"),
    [("replay", signal.SIGKILL), ("replay", signal.SIGINT), ("verify", signal.SIGKILL), ("verify", signal.SIGTERM)],
)
def test_a_command_that_is_stopped_goes_on(played, tmp_path, monkeypatch, verb, number):
    folder, fingerprint = played
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    out = tmp_path / "model.safetensors"
    asked = [verb, folder / "run.ledger", "--base", folder / "base.safetensors", "--out", out, "--device", "cpu"]
    slowly = processes.command(*asked, before=SLOWLY)
    with processes.Popen(slowly, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert any("replaying: 20 of 400 rounds" in line for line in process.stdout)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert number == signal.SIGKILL or "the same command goes on from there" in " ".join(errors.split())
    assert not out.exists()
    (stored,) = tmp_path.rglob("*.replay")
    done = json.loads(stored.read_bytes().partition(b"\n")[0])["rounds"]
    assert 19 <= done < ROUNDS
    again = CliRunner().invoke(app, list(map(str, asked)))
    assert f"going on after round {done} of {ROUNDS}, which is stored in" in " ".join(again.output.split())
    assert f"{fingerprint:016x}" in again.output
    assert again.exit_code == 0
    assert Weights.read(out).parameters(parameters().manifest).fingerprint() == fingerprint
    assert not list(tmp_path.rglob("*.replay"))


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A ledger, and a checkpoint after 30 of its 50 rounds."""
    monkeypatch.setattr(STEPS, "AT_ONCE", 1)
    monkeypatch.setattr(STEPS, "LEAST", 10)
    monkeypatch.setattr(sys.modules["cyber0.replay.checkpoint"], "SHARE", 0)
    ledger, said = filled(Memory(), 50), []
    checkpoint = Checkpoint(tmp_path / "model.replay", said.append, every=0)

    class Stop(Exception):
        pass

    def watch(done):
        if done == 40:
            raise Stop

    with pytest.raises(Stop):
        rebuild(ledger, parameters(), watch=watch, checkpoint=checkpoint)
    return ledger, checkpoint, said


def test_what_is_stored_is_not_done_again(stopped):
    ledger, checkpoint, said = stopped
    seen = []
    assert rebuild(ledger, parameters(), watch=seen.append, checkpoint=checkpoint) == rebuild(ledger, parameters())
    assert seen == [40, 50]
    assert said == [f"going on after round 30 of 50, which is stored in {checkpoint.path}"]
    assert checkpoint.path.stat().st_mode & 0o777 == 0o600


def flipped(data, at):
    data = bytearray(data)
    data[at] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: flipped(data, -1),  # the last weight
        lambda data: flipped(data, data.index(b"\n") + 1),  # the first weight
        lambda data: data[:-4],
        lambda data: data + bytes(4),
        lambda data: data[:20],
        lambda data: data[:0],
        lambda data: b"[1]\n" + data,
        lambda _: b"[" * 4000,
        lambda _: b'{"digest":"x","rounds":1e999,"moment":"0x0p0"}\n',
        lambda _: b'{"digest":"x","rounds":1,"moment":"0x1p999999"}\n',
        lambda data: data.replace(b'"rounds":30', b'"rounds":20'),
        lambda data: data.replace(b'"moment":"0x1', b'"moment":"0x0'),
    ],
)
def test_a_changed_checkpoint_is_not_used(stopped, damage):
    ledger, checkpoint, said = stopped
    checkpoint.path.write_bytes(damage(checkpoint.path.read_bytes()))
    assert rebuild(ledger, parameters(), checkpoint=checkpoint) == rebuild(ledger, parameters())
    assert "damaged: the replay begins anew" in said[0]


def test_a_checkpoint_of_another_history_is_not_used(stopped):
    _, checkpoint, said = stopped
    other = filled(Memory(), 50, seed=2)  # the same run by its identity, with other commits
    assert rebuild(other, parameters(), checkpoint=checkpoint) == rebuild(other, parameters())
    assert "it is of another run: the replay begins anew" in said[0]


def test_a_checkpoint_of_more_rounds_than_are_asked_for_is_not_used(stopped):
    ledger, checkpoint, said = stopped
    assert rebuild(ledger, parameters(), 25, checkpoint=checkpoint) == rebuild(ledger, parameters(), 25)
    assert "it has 30 rounds, and 25 are asked for" in said[0]


def test_a_checkpoint_that_others_can_write_is_not_used(stopped):
    ledger, checkpoint, said = stopped
    checkpoint.path.chmod(0o622)
    assert rebuild(ledger, parameters(), checkpoint=checkpoint) == rebuild(ledger, parameters())
    assert "others can write it: the replay begins anew" in said[0]


def test_a_replay_goes_on_where_no_checkpoint_can_be_written(stopped, tmp_path):
    ledger, _, said = stopped
    (tmp_path / "file").write_text("no folder")
    checkpoint = Checkpoint(tmp_path / "file" / "model.replay", said.append, every=0)
    assert rebuild(ledger, parameters(), checkpoint=checkpoint) == rebuild(ledger, parameters())
    assert any("cannot be written" in text for text in said)
    assert len(said) < 3


def test_what_is_no_file_is_not_waited_for(stopped):
    """Whoever reads a pipe waits for a writer."""
    ledger, checkpoint, said = stopped
    checkpoint.path.unlink()
    os.mkfifo(checkpoint.path)
    assert rebuild(ledger, parameters(), checkpoint=checkpoint) == rebuild(ledger, parameters())
    assert "it is no file: the replay begins anew" in said[0]


@pytest.mark.parametrize("verb", ["replay", "verify"])
def test_a_checkpoint_that_cannot_be_deleted_costs_no_result(played, tmp_path, monkeypatch, verb):
    """A folder is in its place, or a file in that of the folder where it would be."""
    folder, fingerprint = played
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    out = tmp_path / "new" / "model.safetensors"
    (tmp_path / "new" / "model.safetensors.replay").mkdir(parents=True)
    asked = [verb, folder / "run.ledger", "--base", folder / "base.safetensors", "--out", out, "--device", "cpu"]
    done = CliRunner().invoke(app, list(map(str, asked)))
    assert done.exit_code == 0, done.output
    assert f"{fingerprint:016x}" in done.output
    assert ("cannot be deleted" in done.output) == (verb == "replay")
    assert Weights.read(out).parameters(parameters().manifest).fingerprint() == fingerprint


@pytest.fixture
def disk(tmp_path):
    """A small disk."""
    path = tmp_path / "disk"
    path.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path]).returncode
    ):
        pytest.skip("needs the right to mount a file system")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize(("verb", "stored"), [("replay", 300), ("replay", 400), ("verify", 400)])
def test_a_model_is_written_in_the_room_of_its_checkpoint(played, disk, monkeypatch, verb, stored):
    """Of one that is of more rounds than are asked for, too."""
    folder, _ = played
    monkeypatch.setenv("XDG_STATE_HOME", str(disk))
    weights, more, out = parameters(), parameters(), disk / "model.safetensors"
    with File(folder / "run.ledger") as ledger:
        rebuild(ledger, weights, 300 if verb == "replay" else None)
        rebuild(ledger, more, stored)
        name = {"replay": "model.safetensors", "verify": f"cyber0/verify/{ledger.identity.digest.hex()}"}[verb]
        Checkpoint(disk / f"{name}.replay").save(exported_run(ledger, stored), stored, 0.0, more)
    with (disk / "full").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    asked = [verb, folder / "run.ledger", "--base", folder / "base.safetensors", "--out", out, "--device", "cpu"]
    done = CliRunner().invoke(app, list(map(str, [*asked, *(["--round", "300"] if verb == "replay" else [])])))
    assert done.exit_code == 0, (done.output, done.exception)
    assert ("going on after round" in " ".join(done.output.split())) == (verb == "verify" or stored == 300)
    assert Weights.read(out).parameters(weights.manifest).fingerprint() == weights.fingerprint()
    assert not list(disk.rglob("*.replay"))


def test_where_nothing_can_be_written_is_said_before_the_work(played, tmp_path):
    folder, _ = played
    (tmp_path / "file").write_text("no folder")
    for out in (tmp_path / "file" / "model.safetensors", tmp_path):
        for verb in ("replay", "verify"):
            asked = [verb, folder / "run.ledger", "--base", folder / "base.safetensors", "--out", out]
            done = CliRunner().invoke(app, list(map(str, asked)))
            assert done.exit_code == 1
            assert f"cannot write {out}: " in str(done.exception)
            assert "ing: " not in done.output  # neither replaying nor verifying


def test_a_checkpoint_is_bound_to_its_commits(stopped):
    """Whoever makes one of other weights needs another digest; nothing else in it can be changed alone."""
    ledger, checkpoint, _ = stopped
    facts = json.loads(checkpoint.path.read_bytes().partition(b"\n")[0])
    assert facts["run"] == ledger.identity.digest.hex()
    assert facts["commit"] == ledger.head_at(30).commit.hex()
