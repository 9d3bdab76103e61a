"""Copies of ledgers that are in use, and files with several names."""

import os
import shutil
import subprocess

import pytest
from tests import processes
from tests.protocol.ledgers import append, decisions, fill, identity
from tests.protocol.test_ledger import start

from cyber0.errors import InvalidLedger
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify


def test_a_backup_of_a_ledger_in_use_is_whole(tmp_path):
    path = tmp_path / "run.ledger"
    with start(path) as process:
        for _ in range(40):
            told = int(process.stdout.readline())
        backups = [tmp_path / f"copy {number}" for number in range(3)]
        for copy in backups:
            done = processes.run(processes.command("ledger", "backup", path, copy), capture_output=True)
            assert (done.returncode, done.stderr) == (0, "")
            assert f"{copy}: " in done.stdout
        process.kill()
    for copy in backups:
        assert not copy.with_name(copy.name + "-wal").exists()
        with File(copy, read_only=True) as ledger:
            assert ledger.head.rounds > told
            assert list(ledger.decisions()) == list(decisions(identity(), ledger.head.rounds))
            assert verify(ledger).sound
    done = processes.run(processes.command("ledger", "backup", path, backups[0]), capture_output=True)
    assert done.returncode == 1
    assert "exists: name a new file" in done.stderr


def test_a_backup_where_there_is_no_room(tmp_path):
    path, copy = tmp_path / "run.ledger", tmp_path / "copy"
    with File(path) as ledger:
        fill(ledger, identity(), 200)
    command = processes.command("ledger", "backup", path, copy, largest_file=2**15)
    done = processes.run(command, capture_output=True)
    assert done.returncode == 1
    assert f"{copy} cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not copy.exists()
    assert list(tmp_path.glob("*.tmp*")) == []


def test_a_plain_copy_of_a_ledger_in_use_says_what_is_wrong(tmp_path):
    path, copy = tmp_path / "run.ledger", tmp_path / "copy"
    with start(path) as process:
        process.stdout.readline()
        shutil.copy(path, copy)
        process.kill()
    for read_only in (True, False):
        with pytest.raises(InvalidLedger, match=r"is not whole.* cyber0 ledger backup"):
            File(copy, read_only=read_only)
    shutil.copy(tmp_path / "run.ledger-wal", tmp_path / "copy-wal")  # as the sentence says
    with File(copy) as ledger:
        assert verify(ledger).sound


def test_another_name_of_a_ledger_in_use_is_refused(tmp_path):
    path, other = tmp_path / "run.ledger", tmp_path / "other"
    with start(path) as process:
        process.stdout.readline()
        os.link(path, other)
        with pytest.raises(InvalidLedger, match="other is in use by another federator"):
            File(other)
        process.kill()
    with pytest.raises(InvalidLedger, match="is not whole"):  # its log is beside the first name
        File(other)
    with File(path) as ledger:
        assert verify(ledger).sound
        with pytest.raises(InvalidLedger, match="in use by another federator"):
            File(other)
        fill_more(ledger)
    with File(other) as ledger:
        assert verify(ledger).sound


def fill_more(ledger):
    """One more round: SQLite still holds its locks, though another name was tried meanwhile."""
    append(ledger, list(decisions(identity(), ledger.head.rounds + 1))[-1])


def test_a_file_in_the_place_of_a_ledger_in_use_is_refused(tmp_path):
    path, copy = tmp_path / "run.ledger", tmp_path / "copy"
    with start(path) as process:
        process.stdout.readline()
        with File(path, read_only=True) as ledger:
            ledger.backup(copy)
        copy.replace(path)
        with pytest.raises(InvalidLedger, match="in use by another federator"):
            File(path)
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_bind_mount_of_a_ledger_in_use_is_refused(tmp_path):
    path, other = tmp_path / "run.ledger", tmp_path / "other"
    other.touch()
    with start(path) as process:
        process.stdout.readline()
        if subprocess.run(["mount", "--bind", path, other], capture_output=True, check=False).returncode:
            process.kill()
            pytest.skip("mounting is not allowed here")
        try:
            with pytest.raises(InvalidLedger, match="in use by another federator"):
                File(other)
        finally:
            subprocess.run(["umount", other], check=True)
        process.kill()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_federator_that_is_killed_while_it_closes_a_ledger_leaves_it_whole(tmp_path, read_only):
    """All is in the file by then, and the log removed; only the file still says that it has a log."""
    path, copy = tmp_path / "run.ledger", tmp_path / "copy"
    with File(path) as ledger:
        fill(ledger, identity(), 20)
    with path.open("r+b") as file:
        file.seek(18)
        file.write(b"\2\2")
    shutil.copy(path, copy)
    with pytest.raises(InvalidLedger, match="is not whole"):  # for what is known of a copy
        File(copy, read_only=read_only)
    with File(path, read_only=read_only) as ledger:
        assert ledger.head.rounds == 20
        assert verify(ledger).sound
