"""A run that was cut off goes on from its last evaluation, and ends as if nothing had happened."""

import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import processes

from cyber0.config import RunConfig
from cyber0.protocol.export import to_bytes
from cyber0.simulation.folder import RunFolder
from cyber0.study.folder import StudyFolder
from cyber0.study.recipe import Recipe
from cyber0.study.study import study
from cyber0.study.work import Job, Outcome, jobs_of, play

SMALL = {"clients": 6, "byzantine": 2, "attack": "alie", "directions": 4, "batch": 4, "rounds": 12, "evaluate_every": 3}
SMALL |= {"source": "embedded", "device": "cpu", "participation": 0.9, "dropout": 0.1, "local_epochs": 2}
JOB = Job({"rule": "cwtm"}, RunConfig(**SMALL))
TEXT = {"clients": 4, "byzantine": 1, "attack": "sf", "partition": "iid", "family": "gaussian", "directions": 2}
TEXT |= {"task": "text-classification(prompt='prompt.toml')", "rounds": 6, "evaluate_every": 2, "batch": 8, "lr": 0.01}


class Cut(BaseException):
    """The end of a process, as far as one process can show it."""


def cut_at(round_):
    def watch(number):
        if number == round_:
            raise Cut

    return watch


def cut_off(job, unfinished, round_):
    with pytest.raises(Cut):
        play([job], cut_at(round_), unfinished)
    return unfinished / job.name


def gone_on(job, unfinished):
    """What became of a run, and the first round that was played of it now."""
    rounds = []
    [outcome] = play([job], rounds.append, unfinished)
    return outcome, rounds[0] if rounds else None


def essence(outcome):
    """All of an outcome but the time it took."""
    lines = [{**line, "seconds": 0} for line in outcome.lines]
    return lines, outcome.error, None if outcome.exported is None else to_bytes(outcome.exported)


def lines_of(folder):
    whole = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in whole if line.endswith("\n")]


@pytest.fixture(scope="module")
def whole():
    [outcome] = play([JOB], lambda _: None)
    assert 0 < outcome.lines[-1]["skipped_rounds"] < 12
    return essence(outcome)


@settings(max_examples=12)
@given(cuts=st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True).map(sorted))
def test_wherever_a_run_is_cut_off_it_ends_the_same(cuts, whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unfinished")
    for cut in cuts:
        cut_off(JOB, folder, cut)
    outcome, first = gone_on(JOB, folder)
    assert essence(outcome) == whole
    assert first == (None if cuts[-1] == 11 else (cuts[-1] + 1) // 3 * 3)
    seconds = [line["seconds"] for line in outcome.lines[:-1]]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("options", [{"algorithm": "fedavg"}, {"scheme": "compressed"}, {"engine": "sequential"}])
def test_every_algorithm_goes_on(options, tmp_path):
    job = Job({}, RunConfig(**SMALL | options))
    [alone] = play([job], lambda _: None)
    cut_off(job, tmp_path, 7)
    outcome, first = gone_on(job, tmp_path)
    assert first == 6
    assert essence(outcome) == essence(alone)


DAMAGES = {
    "config.toml": [b"", b"rounds = ", b"ruonds = 3", RunConfig(**SMALL | {"lr": 0.5}).to_toml().encode()],
    "metrics.jsonl": [b"", b"\0\0\n", b"[]\n", b'{"round": 6}\n'],
    "scalars.f32": [b"", b"\0" * 192, np.full(48, 3e38, "<f4").tobytes(), np.full(48, np.nan, "<f4").tobytes()],
}


@pytest.mark.parametrize(("name", "content"), [(name, c) for name, contents in DAMAGES.items() for c in contents])
def test_a_damaged_folder_begins_anew(name, content, whole, tmp_path):
    folder = cut_off(JOB, tmp_path, 7)
    assert (folder / "scalars.f32").stat().st_size == 6 * 2 * 4 * 4 == 192
    (folder / name).write_bytes(content)
    outcome, first = gone_on(JOB, tmp_path)
    assert first == 0
    assert essence(outcome) == whole


def test_a_changed_bit_is_found(whole, tmp_path):
    scalars = cut_off(JOB, tmp_path, 7) / "scalars.f32"
    changed = bytearray(scalars.read_bytes())
    changed[-4] ^= 1
    scalars.write_bytes(changed)
    outcome, first = gone_on(JOB, tmp_path)
    assert first == 0
    assert essence(outcome) == whole


def test_a_folder_in_use_is_left_alone(tmp_path):
    folder = cut_off(JOB, tmp_path, 7)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    held = RunFolder.resume(folder)
    outcome, first = gone_on(JOB, tmp_path)
    held.close()
    assert first is None
    assert "in use by another run" in outcome.error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_goes_on_with_its_data_and_model_wherever_they_are(tmp_path):
    pytest.importorskip("transformers")
    from cyber0.tasks.text import tiny

    here, there, other = tmp_path / "here", tmp_path / "there", tmp_path / "other"
    tiny.model(tiny.data(here) / "tiny")
    shutil.copytree(here, there)
    tiny.model(tiny.data(other) / "tiny", seed=1)
    jobs = [
        Job({}, RunConfig(**TEXT, data=str(folder), model=str(folder / "tiny"), device="cpu"))
        for folder in (here, there, other)
    ]
    [alone] = play([jobs[1]], lambda _: None)
    folder = cut_off(jobs[0], tmp_path, 4)
    refused, _ = gone_on(jobs[2], tmp_path)
    assert "was begun with another model" in refused.error
    assert len(lines_of(folder)) == 3
    outcome, first = gone_on(jobs[1], tmp_path)
    assert first == 4
    assert essence(outcome) == essence(alone)
    assert str(here) not in str(outcome.lines)


def test_what_failed_goes_on_unless_its_code_may_be_mended(tmp_path):
    recipe = Recipe.of({"seeds": 1, "base": SMALL, "axes": {"rule": ["cwtm", "my_rules:mine"]}})
    with StudyFolder(tmp_path / "study", recipe) as folder:
        for job in jobs_of(recipe, {}):
            RunFolder.begun(folder.unfinished / job.name, job.config).close()
            folder.keep(Outcome(job, [], "out of memory"))
    assert [path.name for path in folder.unfinished.iterdir()] == ["cwtm_seed0"]


def test_nothing_is_left_of_a_run_that_has_ended(tmp_path):
    recipe = Recipe.of({"seeds": 1, "base": SMALL, "axes": {"rule": ["cwtm"]}})
    study(recipe, tmp_path / "study", jobs=1)
    [job] = jobs_of(recipe, {})
    cut_off(job, tmp_path / "study" / "unfinished", 7)  # as if killed between the two
    study(recipe, tmp_path / "study", jobs=1)
    assert not (tmp_path / "study" / "unfinished").exists()


def test_a_process_that_dies_leaves_its_run_to_the_next(tmp_path, monkeypatch):
    """The rule dies in a round, whose votes have 4 directions: when it is checked before they have another number."""
    (tmp_path / "deadly_once.py").write_text(
        "import os, pathlib, signal\nlog = pathlib.Path(__file__).with_suffix('.log')\n\n"
        "def deadly(votes, byzantine):\n    if votes.shape[-1] == 4:\n        log.open('a').write('.')\n"
        "        if log.stat().st_size == 6:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return votes[..., 0, :]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    base = {**SMALL, "attack": "none", "dropout": 0.0, "evaluate_every": 2}
    recipe = Recipe.of({"seeds": 1, "base": base, "axes": {"rule": ["deadly_once:deadly"]}})
    results = study(recipe, tmp_path / "study", jobs=1)
    assert results.failures == []
    assert (tmp_path / "deadly_once.log").stat().st_size == 6 + 12 - 4  # it died in its sixth round, after two
    assert results.frame["round"].tolist() == [0, 2, 4, 6, 8, 10, 12]  # evaluations


LONG = {**SMALL, "rounds": 400, "evaluate_every": 5}
KEYS = {"seeds": 1, "keep": True, "base": LONG, "axes": {"algorithm": ["cyber0", "fedavg"]}}


def stopped(command, folder, more, by):
    """Stop a study by a signal to its first process, once one of its runs has some `more` evaluations."""
    process = processes.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    names = ("cyber0_seed0", "fedavg_seed0")
    before = {name: found(folder / name) for name in names}
    while all(len(found(folder / name)) < len(before[name]) + more for name in names):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    process.send_signal(by)
    said, _ = process.communicate(timeout=120)  # ends when no process of the study is left to write to the pipe
    return process.returncode, said, {name: found(folder / name) for name in names}


def found(folder):
    return lines_of(folder) if (folder / "metrics.jsonl").exists() else []


def test_a_study_killed_and_stopped_ends_like_one_that_was_not(tmp_path):
    (tmp_path / "recipe.toml").write_text(Recipe.of(KEYS).to_toml())
    command = ["-m", "cyber0", "study", str(tmp_path / "recipe.toml"), "--jobs", "1", "--out"]
    out, alone = tmp_path / "out", tmp_path / "alone"
    code, _, killed = stopped([*command, str(out)], out / "unfinished", 3, signal.SIGKILL)
    assert code == -signal.SIGKILL
    code, said, interrupted = stopped([*command, str(out)], out / "unfinished", 3, signal.SIGINT)
    assert code == 130
    assert "runs under way up to their last evaluation. Give the same command to go on" in said
    assert not list(out.glob("runs/*.json"))
    processes.run([*command, str(out)], capture_output=True, check=True)
    study(Recipe.of(KEYS), alone, jobs=1)
    for name, lines in interrupted.items():
        ours, theirs = (json.loads((folder / "runs" / f"{name}.json").read_text()) for folder in (out, alone))
        assert [line["seconds"] for line in ours["lines"][: len(lines)]] == [line["seconds"] for line in lines]
        assert lines[: len(killed[name])] == killed[name]  # nothing that was evaluated was played again
        assert ours["summary"]["model_fingerprint"] == theirs["summary"]["model_fingerprint"]
    ours, theirs = (pd.read_csv(folder / "results.csv").drop(columns="seconds") for folder in (out, alone))
    assert ours.equals(theirs)
    exports = [{path.name: path.read_bytes() for path in (folder / "exports").iterdir()} for folder in (out, alone)]
    assert exports[0] == exports[1]
    assert list(exports[0]) == ["cyber0_seed0.cyber0"]
    assert not (out / "unfinished").exists()
