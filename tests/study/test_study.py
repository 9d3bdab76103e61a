"""A study is played whole whatever happens to it: real processes, real kills, real Ray."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tests import processes
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import InvalidConfig, UnknownName
from cyber0.study import engines
from cyber0.study.recipe import Recipe
from cyber0.study.study import Watch, study
from cyber0.threads import cores

SMALL = {"clients": 5, "byzantine": 1, "directions": 4, "batch": 4, "rounds": 4, "source": "embedded", "device": "cpu"}
KEYS = {"seeds": 2, "base": SMALL, "axes": {"rule": ["cwtm", "krum"], "attack": ["sf"]}}


def played(out, keys=KEYS, **options):
    ended = []
    watch = Watch(end=lambda _, outcomes: ended.extend(outcomes))
    results = study(Recipe.of(keys), out, jobs=1, watch=watch, **options)
    return results, ended


def measured(results):
    frame = results.frame.drop(columns="seconds")
    return frame.sort_values(["rule", "seed", "round"], ignore_index=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that was played to its end: its folder, to be copied before it is changed, and what `played` returned."""
    folder = tmp_path_factory.mktemp("study") / "whole"
    return folder, *played(folder)


def test_a_study_is_played_once_and_grows_with_its_seeds(tmp_path, whole):
    folder, results, ended = whole
    assert len(ended) == 4
    assert len(results.frame) == 4 * 2
    assert (folder / "report.html").exists()
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert played(tmp_path)[1] == []
    results, ended = played(tmp_path, {**KEYS, "seeds": 3})
    assert sorted(outcome.job.config.seed for outcome in ended) == [2, 2]
    assert len(results.frame) == 6 * 2


def test_some_of_a_study_now_and_the_rest_later_are_all_of_it(tmp_path, whole):
    results, ended = played(tmp_path / "parts", only={"rule": ["krum"]})
    assert [outcome.job.name for outcome in ended] == ["krum_sf_seed0", "krum_sf_seed1"]
    assert set(results.frame["rule"]) == {"krum"}
    results, ended = played(tmp_path / "parts")
    assert [outcome.job.name for outcome in ended] == ["cwtm_sf_seed0", "cwtm_sf_seed1"]
    assert measured(results).equals(measured(whole[1]))
    with pytest.raises(UnknownName, match=r"label 'krumm' of axis 'rule'.*did you mean 'krum'"):
        played(tmp_path / "none", only={"rule": "krumm"})
    with pytest.raises(UnknownName, match="axis 'task'"):
        played(tmp_path / "none", only={"task": "mnist"})
    assert not (tmp_path / "none").exists()


def test_a_run_that_was_lost_is_played_again_to_the_same_numbers(tmp_path, whole):
    before = measured(whole[1])
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "runs" / "krum_sf_seed1.json").unlink()
    results, ended = played(tmp_path)
    assert [outcome.job.name for outcome in ended] == ["krum_sf_seed1"]
    assert measured(results).equals(before)


def test_a_failed_cell_is_reported_and_stops_no_other(tmp_path, monkeypatch):
    (tmp_path / "sick_rule.py").write_text(
        "def sick(votes, byzantine):\n    if votes.any():\n"
        "        raise RuntimeError('no more')\n    return votes[..., 0, :]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    keys = {**KEYS, "axes": {"rule": ["sick_rule:sick", "cwtm"]}}
    results, _ = played(tmp_path / "out", keys)
    assert [(failure.labels["rule"], failure.seed) for failure in results.failures] == [
        ("sick_rule:sick", 0),
        ("sick_rule:sick", 1),
    ]
    assert "no more" in results.failures[0].message
    assert len(results.frame) == 2 * 2
    (tmp_path / "sick_rule.py").write_text("def sick(votes, byzantine):\n    return votes[..., 0, :]\n")
    results, ended = played(tmp_path / "out", keys)
    assert results.failures == []
    assert len(ended) == 2


def test_a_study_ends_though_no_process_can_be_started(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "_prepare", os._exit)
    monkeypatch.setattr(engines, "share_of_cores", lambda _: 1)
    results, ended = played(tmp_path / "study")
    assert len(ended) == len(results.failures) == 4
    assert {outcome.error for outcome in ended} == {
        "its process died twice, perhaps because memory ran out: try --jobs 1"
    }


def test_a_process_that_dies_takes_no_other_run_with_it(tmp_path, monkeypatch):
    """The rule dies in a round, whose votes have 4 directions: when it is checked before they have another number."""
    (tmp_path / "deadly_rule.py").write_text(
        "import os, signal\n\ndef deadly(votes, byzantine):\n    if votes.shape[-1] == 4:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return votes[..., 0, :]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    keys = {**KEYS, "seeds": 1, "axes": {"rule": ["deadly_rule:deadly", "cwtm"]}}
    results, _ = played(tmp_path / "out", keys)
    assert [failure.labels["rule"] for failure in results.failures] == ["deadly_rule:deadly"]
    assert "its process died" in results.failures[0].message
    assert set(results.frame["rule"]) == {"cwtm"}


@pytest.mark.skipif(os.environ.get("OMP_NUM_THREADS") != "1", reason="processes are forked from one with more threads")
@pytest.mark.parametrize("told", [True, False])
def test_a_run_computes_on_the_cores_unless_threads_were_told(told, tmp_path, monkeypatch):
    (tmp_path / "thready_rule.py").write_text(
        "import pathlib, torch\n\ndef thready(votes, byzantine):\n"
        "    pathlib.Path(__file__).with_suffix('.log').write_text(str(torch.get_num_threads()))\n"
        "    return votes[..., 0, :]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    if not told:
        monkeypatch.delenv("OMP_NUM_THREADS")
    played(tmp_path / "out", {**KEYS, "seeds": 1, "axes": {"rule": ["thready_rule:thready"]}})
    assert int((tmp_path / "thready_rule.log").read_text()) == (1 if told else cores())


def test_a_killed_study_goes_on_where_it_was(tmp_path):
    (tmp_path / "recipe.toml").write_text(Recipe.of({**KEYS, "seeds": 6}).to_toml())
    command = ["-m", "cyber0", "study", str(tmp_path / "recipe.toml"), "--jobs", "1"]
    command += ["--out", str(tmp_path / "out")]
    process = processes.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    while not list((tmp_path / "out").glob("runs/*.json")):
        assert process.poll() is None
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    done = {path.name for path in (tmp_path / "out").glob("runs/*.json")}
    assert 0 < len(done) < 12
    again = processes.run(command, capture_output=True, check=True)
    assert f"{len(done)} of 12 runs are done already" in again.stdout
    alone, _ = played(tmp_path / "alone", {**KEYS, "seeds": 6})
    kept = [json.loads((tmp_path / "out" / "runs" / name).read_text()) for name in sorted(done)]
    for run in kept:
        rows = alone.frame[
            (alone.frame["rule"] == run["labels"]["rule"]) & (alone.frame["seed"] == run["config"]["seed"])
        ]
        assert rows["accuracy"].tolist() == [line["accuracy"] for line in run["lines"]]


def test_ray_gives_the_same_numbers(tmp_path, whole):
    pytest.importorskip("ray")
    assert measured(played(tmp_path, engine="ray")[0]).equals(measured(whole[1]))


def test_the_folder_of_another_study_is_left_alone(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for keys, message in (
        ({"base": {**SMALL, "rounds": 5, "lr": 0.5}}, r"cwtm_sf_seed0.json .* rounds = 4, now 5, lr = 0.01, now 0.5"),
        ({"axes": {"rule": ["krum"], "attack": ["sf"]}}, "this recipe has no cell 'cwtm, sf'"),
    ):
        with pytest.raises(InvalidConfig, match=rf"holds another study .*{message}"):
            played(tmp_path, {**KEYS, **keys})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("chapter 1")
    with pytest.raises(InvalidConfig, match=r"holds something else \(thesis.tex\)"):
        played(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_an_unknown_engine_is_named(tmp_path):
    with pytest.raises(UnknownName, match="unknown engine 'rey'"):
        played(tmp_path / "none", engine="rey")
    assert not (tmp_path / "none").exists()


def test_a_reason_that_runs_share_is_said_once(tmp_path):
    (tmp_path / "empty").mkdir()
    options = ["--data", str(tmp_path / "empty"), "--jobs", "1", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["study", "minilm", *options])
    assert done.exit_code == 1
    assert done.output.count("SST-2 is not in") == done.output.count("TREC is not in") == 1
    assert "SST-2, ALIE, seed 0 and 4 more: SST-2 is not in" in done.output
    assert done.output.endswith("15 runs failed: give the same command to try again\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel1"], "unknown study 'tabel1'"),
        (["missing.toml"], "cannot read the recipe missing.toml"),
        (["FOLDER"], "is a folder, not a recipe in TOML"),
        (["quick", "--set", "rounds"], "write key=value"),
        (["quick", "--set", "rounds="], "write key=value"),
        (["quick", "--set", "ruonds=3"], "unknown key 'ruonds'"),
        (["quick", "--set", "rounds=0"], "rounds = 0"),
        (["quick", "--set", "seed=3"], "say which seeds by --seeds and --first-seed"),
        (["quick", "--set", "base.rounds=3"], "write rounds=3"),
        (["quick", "--set", "title=mine"], "write a recipe that extends it"),
        (["quick", "--set", "partition=iit"], "unknown partition 'iit'"),
        (["quick", "--only", "attack"], "write axis=label"),
        (["quick", "--only", "attack=ALIEE"], "did you mean 'ALIE'"),
        (["minilm", "--set", "attack=none"], "would change nothing: the axis 'attack' sets attack in every run"),
        (["minilm", "--data", "gone"], "--data gone: there is no such folder"),
    ],
)
def test_what_is_wrong_with_a_command_is_said(arguments, message, tmp_path):
    arguments = [str(tmp_path) if argument == "FOLDER" else argument for argument in arguments]
    done = CliRunner().invoke(app, ["study", *arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert message in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_wrong_label_is_not_told_to_go_on_with_the_same_command(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.json").write_text("{}")
    done = CliRunner().invoke(app, ["study", "quick", "--only", "attack=ALIEE", "--out", str(tmp_path)])
    assert "did you mean 'ALIE'" in str(done.exception)
    assert not getattr(done.exception, "__notes__", [])


def test_every_problem_of_every_cell_is_named_before_the_first_run(tmp_path):
    axes = {"rule": ["cwtm", "krumm", "bulyan", "no_such_module:rule"], "attack": {"S": "sf", "A": "alie(omegas=2)"}}
    base = {**SMALL, "partition": "iit", "task": "mnits", "device": "quantum"}
    with pytest.raises(InvalidConfig) as caught:
        played(tmp_path / "none", {**KEYS, "axes": axes, "base": base})
    for problem in (
        "krumm, S and 1 more: unknown rule 'krumm'",
        "bulyan, S and 1 more: rule = 'bulyan': byzantine = 1 of n = 5",
        "no_such_module:rule, S and 1 more: rule 'no_such_module:rule': there is no module 'no_such_module'",
        "cwtm, A and 3 more: attack = 'alie(omegas=2)': unknown option 'omegas' of alie",
        "cwtm, S and 7 more: unknown task 'mnits'",
        "cwtm, S and 7 more: unknown partition 'iit'",
        "cwtm, S and 7 more: device = 'quantum' cannot be used",
    ):
        assert problem in str(caught.value)
    with pytest.raises(UnknownName, match="unknown set of claims 'tabel1'"):
        played(tmp_path / "none", {**KEYS, "claims": "tabel1"})
    assert not (tmp_path / "none").exists()


def test_a_module_that_cannot_be_imported_is_a_problem_too(tmp_path, monkeypatch):
    (tmp_path / "torn_rule.py").write_text("def torn(votes, byzantine:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidConfig, match="rule = 'torn_rule:torn' cannot be imported: SyntaxError") as caught:
        played(tmp_path / "none", {**KEYS, "axes": {"rule": ["torn_rule:torn"]}})
    assert isinstance(caught.value.__cause__, SyntaxError)


def test_code_of_runs_that_have_ended_is_not_needed_again(tmp_path, monkeypatch):
    module = tmp_path / "gone_rule.py"
    module.write_text("def gone(votes, byzantine):\n    return votes[..., 0, :]\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    keys = {**KEYS, "seeds": 1, "axes": {"rule": ["gone_rule:gone"]}}
    played(tmp_path / "out", keys)
    module.unlink()
    monkeypatch.delitem(sys.modules, "gone_rule")
    results, ended = played(tmp_path / "out", keys)
    assert (len(results.frame), ended) == (2, [])


def test_a_recipe_may_be_mended_until_it_contradicts_runs_that_have_ended(tmp_path, monkeypatch):
    (tmp_path / "sick_again.py").write_text(
        "def sick(votes, byzantine):\n    if votes.any():\n        raise RuntimeError('no more')\n"
        "    return votes[..., 0, :]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out"
    sick = {**KEYS, "seeds": 1, "axes": {"rule": ["sick_again:sick"]}}
    assert len(played(out, sick)[0].failures) == 1
    mended = {**sick, "base": {**SMALL, "rounds": 6}, "axes": {"rule": ["krum"]}}
    results, ended = played(out, mended)
    assert [outcome.job.name for outcome in ended] == ["krum_seed0"]
    assert results.failures == []
    assert [path.name for path in (out / "runs").iterdir()] == ["krum_seed0.json"]
    more = {**mended, "title": "More rules", "axes": {"rule": ["krum", "cwtm"]}}
    assert [outcome.job.name for outcome in played(out, more)[1]] == ["cwtm_seed0"]
    assert 'title = "More rules"' in (out / "study.toml").read_text()


def test_what_a_folder_holds_is_compared_as_it_was_asked(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    runs = sorted((tmp_path / "runs").iterdir())
    for path in runs:
        run = json.loads(path.read_text())
        del run["config"]["scale"]  # as if written before there was this key
        path.write_text(json.dumps(run))
    assert played(tmp_path)[1] == []
    runs[0].write_text("{")
    with pytest.raises(InvalidConfig, match=r"cwtm_sf_seed0.json is damaged .*: remove it"):
        played(tmp_path)
    for path in runs:
        path.unlink()
    before = (tmp_path / "results.csv").read_bytes()
    with pytest.raises(InvalidConfig, match="holds the results of 'A study'"):
        played(tmp_path, {**KEYS, "title": "Another"})
    assert (tmp_path / "results.csv").read_bytes() == before
