"""A budget is spent once: whatever crashes, restarts or runs beside it."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from cyber0.errors import InvalidConfig
from cyber0.files import lock_file, lock_folder
from cyber0.privacy.accounting import Step, epsilon_of
from cyber0.privacy.budget import Budget, data_digest

STEP = Step(1.0, 0.05)


def opened(folder, name="scans", epsilon=3.0, digest="ab", **options):
    return Budget(folder, name, epsilon=epsilon, delta=1e-5, samples=1000, digest=digest, **options)


def test_what_was_charged_is_still_spent_after_a_restart(tmp_path):
    with opened(tmp_path) as budget:
        noise = budget.noise_for("run", 0.05, 50)
        budget.charge("run", 0, STEP, 1)
        budget.charge("run", 1, STEP, 2)
        spent = budget.spent()
        left = budget.left(STEP, 50)
    assert spent == epsilon_of([(STEP, 3)], 1e-5)
    with opened(tmp_path) as budget:
        assert budget.spent() == spent
        assert budget.left(STEP, 50) == left
        assert budget.noise_for("run", 0.05, 50) == noise  # a run has one, whatever is left by now
        assert budget.noise_for("another", 0.05, 50) > noise


def test_steps_are_counted_down_to_the_last_that_fits(tmp_path):
    with opened(tmp_path, epsilon=1.5) as budget:
        steps = budget.left(STEP, 10_000)
        for number in range(steps):
            budget.charge("run", number, STEP, 1)
        assert budget.left(STEP, 1) == 0
        assert budget.spent() <= 1.5 < epsilon_of([(STEP, steps + 1)], 1e-5)


def test_a_line_that_a_crash_cut_short_is_dropped_and_damage_is_refused(tmp_path):
    with opened(tmp_path) as budget:
        budget.charge("run", 0, STEP, 1)
    path = tmp_path / "scans.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"noise": 1.0, "ra')
    with opened(tmp_path) as budget:
        assert budget.spent() == epsilon_of([(STEP, 1)], 1e-5)
        budget.charge("run", 1, STEP, 1)
    with opened(tmp_path) as budget:
        assert budget.spent() == epsilon_of([(STEP, 2)], 1e-5)
    path.write_bytes(whole.replace(b'"noise": 1.0', b'"noise": -1'))
    with pytest.raises(InvalidConfig, match=r"is damaged in line 2: -1 must be a number above 0; nothing is sent"):
        opened(tmp_path)


def test_one_process_holds_a_budget_at_a_time(tmp_path):
    with opened(tmp_path), pytest.raises(InvalidConfig, match="in use by another client"):
        opened(tmp_path)
    with opened(tmp_path), opened(tmp_path, "others", digest="cd"):
        pass


def test_the_same_data_have_one_budget_under_whatever_name(tmp_path):
    with opened(tmp_path) as budget:
        budget.charge("run", 0, STEP, 1)
    with opened(tmp_path, digest="cd", accept_changed=True), opened(tmp_path, "others", digest="ef"):
        pass
    for digest in ("ab", "cd"):  # what they are now, and what they were
        for name, accept in (("again", False), ("others", True)):
            with pytest.raises(InvalidConfig, match=r"those of 'scans', .*: say --dataset scans; nothing is sent"):
                opened(tmp_path, name, digest=digest, accept_changed=accept)
    with opened(tmp_path, digest="cd"), opened(tmp_path, "others", digest="ef"):
        pass


def test_a_second_name_waits_until_the_first_is_written(tmp_path):
    with opened(tmp_path / "elsewhere"):
        written = (tmp_path / "elsewhere" / "scans.jsonl").read_bytes()
    outcome = []

    def open_again():
        with pytest.raises(InvalidConfig, match="these data are those of 'scans'"):
            opened(tmp_path, "again")
        outcome.append("refused")

    with lock_file(tmp_path / ".lock", AssertionError):  # somebody else opens the same data
        second = threading.Thread(target=open_again)
        second.start()
        second.join(timeout=0.3)
        assert second.is_alive()
        (tmp_path / "scans.jsonl").write_bytes(written)
    second.join()
    assert outcome == ["refused"]


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(InvalidConfig, match=f"{tmp_path} cannot be locked, .* XDG_STATE_HOME .*; nothing is sent"):
        opened(tmp_path)
    lock_folder(tmp_path, "run").close()  # where less is at stake there is none


def test_data_that_changed_are_refused_unless_that_is_accepted(tmp_path):
    with opened(tmp_path) as budget:
        budget.charge("run", 0, STEP, 1)
    with pytest.raises(InvalidConfig, match="the data 'scans' have changed since their budget was opened"):
        opened(tmp_path, digest="cd")
    with opened(tmp_path, digest="cd", accept_changed=True) as budget:
        assert budget.spent() > 0
    with opened(tmp_path, digest="cd"):
        pass


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 101])
def test_a_name_that_cannot_be_a_file_is_refused(tmp_path, name):
    with pytest.raises(InvalidConfig, match="dataset = "):
        opened(tmp_path, name)


def test_a_digest_tells_that_data_have_changed():
    inputs, labels = np.arange(6.0).reshape(2, 3), np.array([0, 1])
    assert data_digest([inputs, labels]) == data_digest([inputs.copy(), labels])
    assert data_digest([inputs, labels]) != data_digest([inputs.reshape(3, 2), labels])
    assert data_digest([inputs, labels]) != data_digest([inputs + 1e-9, labels])


SPENDER = """
import sys
from pathlib import Path
from cyber0.privacy.accounting import Step
from cyber0.privacy.budget import Budget
with Budget(Path(sys.argv[1]), "scans", epsilon=1e6, delta=1e-5, samples=1000, digest="ab") as budget:
    for number in range(10**6):
        budget.charge("run", number, Step(1.0, 0.05), 1)
        print(number, flush=True)  # a vote leaves
"""


def test_nothing_leaves_that_is_not_on_disk(tmp_path):
    """A client that is killed at any instant has written down every vote that has left."""
    process = subprocess.Popen([sys.executable, "-c", SPENDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    last = next(line for line in process.stdout if int(line) >= 20)
    os.kill(process.pid, signal.SIGKILL)
    rest = process.communicate()[0].split()
    left = int(rest[-1] if rest else last) + 1
    lines = (tmp_path / "scans.jsonl").read_text().splitlines()
    assert sum("run" in json.loads(line) for line in lines) >= left
