"""Trackers, each with the real library and without a network; one that is not installed is skipped, and says so."""

import json
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from tests import processes
from tests.network.parties import free_port
from typer.testing import CliRunner

import cyber0
from cyber0 import tracking
from cyber0.callbacks import Round
from cyber0.cli import app
from cyber0.cli.study import _Display
from cyber0.errors import MissingExtra, UnknownName
from cyber0.study.recipe import Recipe
from cyber0.study.work import jobs_of, play

OPTIONS = {"source": "embedded", "clients": 8, "byzantine": 2, "directions": 6, "batch": 16, "alpha": 1.0}
OPTIONS |= {"rounds": 6, "evaluate_every": 2, "rule": "nnm+cwtm", "attack": "foe"}
RUN = ["run", *(f"--{key.replace('_', '-')}={value}" for key, value in OPTIONS.items())]
ROUNDS = {"round/votes", "round/aggregate_norm", "round/omega"}


def tensorboard_of(folder):
    """Return the scalars and the texts that TensorBoard reads in a folder."""
    found = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = found.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    scalars = {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    texts = {tag: read.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in read.Tags()["tensors"]}
    return scalars, texts


def test_tensorboard_has_measures_configuration_and_fingerprint(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = tracking.TensorBoard(logs=tmp_path / "logs", name="mine", tags=("first", "try"))
    result = cyber0.run(cyber0.RunConfig(**OPTIONS), callbacks=[tracker], keep="votes")
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.startswith("mine ")
    scalars, texts = tensorboard_of(folder)
    for key in ("accuracy", "loss", "bytes_up_per_client"):
        expected = [(line["round"], line[key]) for line in result.history.evaluations]
        assert [step for step, _ in scalars[key]] == [step for step, _ in expected]
        assert np.allclose([value for _, value in scalars[key]], [value for _, value in expected])
    assert set(scalars) >= ROUNDS
    omega = [float(np.mean(each.reports["omega"])) for each in result.history.rounds]
    assert np.allclose([value for _, value in scalars["round/omega"]], omega)
    assert [step for step, _ in scalars["round/votes"]] == [1, 2, 3, 4, 5, 6]
    assert texts["model_fingerprint"] == result.fingerprint
    assert "| rule | nnm+cwtm |" in texts["config"]
    assert texts["tags"] == "first, try"


def test_a_resumed_run_goes_on_in_the_same_run_of_the_tracker(tmp_path):
    pytest.importorskip("tensorboard")
    logs = f"tensorboard(logs={str(tmp_path / 'logs')!r})"
    for arguments in ([*RUN, "--out", tmp_path / "run"], ["run", "--resume", tmp_path / "run", "--rounds", "10"]):
        done = CliRunner().invoke(app, [*map(str, arguments), "--track", logs], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "logs").iterdir()
    scalars, texts = tensorboard_of(folder)
    assert [step for step, _ in scalars["accuracy"]] == [0, 2, 4, 6, 8, 10]
    assert texts["model_fingerprint"] == cyber0.open_run(tmp_path / "run").fingerprint


def test_a_study_logs_each_of_its_runs(tmp_path):
    pytest.importorskip("tensorboard")
    keys = {key: value for key, value in OPTIONS.items() if key != "rule"}
    recipe = Recipe.of({"title": "Two", "seeds": 1, "base": keys, "axes": {"rule": ["mean", "cwtm"]}})
    jobs = jobs_of(recipe, {})
    display = _Display(Console(file=StringIO()), recipe, [f"tensorboard(logs={str(tmp_path / 'logs')!r})"])
    with display as watch:  # what `cyber0 study` shows, and tracks, as processes of its own return these outcomes
        watch.begin([[job] for job in jobs], 0)
        for number, job in enumerate(jobs):
            watch.end(number, play([job], lambda _: None))
    folders = sorted((tmp_path / "logs" / "Two").iterdir())
    assert [folder.name.partition(" ")[0] for folder in folders] == ["cwtm_seed0", "mean_seed0"]
    assert [step for step, _ in tensorboard_of(folders[0])[0]["accuracy"]] == [0, 2, 4, 6]
    (tmp_path / "file").write_text("")
    said = Console(file=StringIO(), width=300)
    with _Display(said, recipe, [f"tensorboard(logs={str(tmp_path / 'file')!r})"]) as watch:  # which stops no study
        watch.begin([[job] for job in jobs], 0)
        for number, job in enumerate(jobs):
            watch.end(number, play([job], lambda _: None))
    assert said.file.getvalue().count("tracker cyber0.tracking.TensorBoard raised") == 1
    command = ["study", "quick", "--out", str(tmp_path / "out"), "--track", "wandbb"]
    with pytest.raises(UnknownName, match="unknown tracker 'wandbb'"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_federator_is_tracked_by_its_clients_evaluations(tmp_path):
    pytest.importorskip("tensorboard")

    class Federation:
        class settings:  # noqa: N801
            agreement = cyber0.RunConfig(**OPTIONS).agreement

        class state:  # noqa: N801
            round = 0

    tracker = tracking.TensorBoard(logs=tmp_path / "logs")
    tracker.before_run(Federation)
    tracker.after_round(Federation, Round(0, ["ann"], ["ann"], np.ones((1, 4), np.float32)))
    tracker.after_evaluation(Federation, {"client": "ann", "round": 6, "accuracy": 0.5, "loss": np.inf, "samples": 9})
    seen, _ = tensorboard_of(next((tmp_path / "logs").iterdir()))  # while the run goes on
    assert seen["clients/ann/accuracy"] == [(6, 0.5)]
    tracker.after_round(Federation, Round(6, ["ann"], ["ann"]))
    tracker.close()
    scalars, _ = tensorboard_of(next((tmp_path / "logs").iterdir()))
    assert scalars["clients/ann/accuracy"] == [(6, 0.5)]
    assert "clients/ann/loss" not in scalars
    assert scalars["round/aggregate_norm"] == [(1, 2.0)]
    assert [step for step, _ in scalars["round/votes"]] == [1, 7]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tensorboard(log='x')", "unknown option 'log' of tensorboard: use one of .* .did you mean 'logs'"),
        ("tensorboard(logs=3)", "logs = 3: name a folder"),
        ("tensorboard(project=3)", "project = 3: give a text in quotes"),
        ("tensorboard(tags=('a', 3))", "tags = 3: give a text in quotes"),
    ],
)
def test_odd_options_are_refused_before_a_run(name, reason):
    pytest.importorskip("tensorboard")
    with pytest.raises(cyber0.Cyber0Error, match=reason):
        tracking.get_tracker(name)


def test_a_word_is_one_tag():
    pytest.importorskip("tensorboard")
    assert tracking.get_tracker("tensorboard(tags='first')").tags == ("first",)


def in_a_process(tmp_path, name, **environment):
    """Play a run and extend it, in processes of their own: these libraries keep threads and patch others."""
    for arguments in ([*RUN, "--out", tmp_path / "run"], ["run", "--resume", tmp_path / "run", "--rounds", "10"]):
        command = ["-m", "cyber0", *map(str, arguments), "--track", f"{name}(project='mine', tags=('try',))"]
        environment = {**os.environ, **environment}
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, cwd=tmp_path, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
    return cyber0.open_run(tmp_path / "run")


def wandb_of(folder):
    """Return the rounds of every measure, by run, of W&B's own files, which are logs in the form of LevelDB's."""
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        log, at, whole, name = file.read_bytes(), 7, b"", ""
        while at + 7 <= len(log):
            if (left := 32768 - at % 32768) < 7:
                at += left
                continue
            _, size, kind = struct.unpack("<IHB", log[at : at + 7])
            whole, at = whole + log[at + 7 : at + 7 + size], at + 7 + size
            if kind in (1, 4):
                record, whole = records.Record.FromString(whole), b""
                name = record.run.display_name or name
                row = {
                    each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in record.history.item
                }
                for key in row:
                    step = row.get(f"{key.rpartition('/')[0]}/round", row.get("_step"))
                    found.setdefault(name, {}).setdefault(key, []).append(step)
    return found


def mlflow_of(folder):
    client = pytest.importorskip("mlflow").MlflowClient(f"file://{folder / 'store'}")
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    return {
        run.info.run_name: {
            key: [each.step for each in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics
        }
        for run in runs
    }


def trackio_of(folder):
    found = {}
    (file,) = (folder / "trackio").glob("mine*.db")
    with sqlite3.connect(file) as database:
        for name, step, metrics in database.execute("select run_name, step, metrics from metrics"):
            for key in json.loads(metrics):
                found.setdefault(name[:-20], {}).setdefault(key, []).append(step)  # its name ends with a time
    return found


READERS = {"wandb": wandb_of, "mlflow": mlflow_of, "trackio": trackio_of}


def tracked(name, folder, *command):
    """Start a command with a tracker that is offline and keeps everything in a folder."""
    pytest.importorskip(name)
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_TRACKING_URI": f"file://{folder / 'store'}"}
    offline |= {"MLFLOW_ALLOW_FILE_STORE": "true", "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "cyber0", *map(str, command), "--track", f"{name}(project='mine')"]
    return subprocess.Popen(words, cwd=folder, env={**os.environ, **offline}, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("name", READERS)
def test_every_tracker_logs_a_study(name, tmp_path):
    keys = {key: value for key, value in OPTIONS.items() if key != "rule"}
    recipe = Recipe.of({"title": "Two", "seeds": 1, "base": keys, "axes": {"rule": ["mean", "cwtm"]}})
    (tmp_path / "two.toml").write_text(recipe.to_toml())
    study = tracked(name, tmp_path, "study", "two.toml", "--jobs", "1")
    said, _ = study.communicate()
    assert study.returncode == 0, said
    found = READERS[name](tmp_path)
    assert {run: measures["accuracy"] for run, measures in found.items()} == {
        "mean_seed0": [0, 2, 4, 6],
        "cwtm_seed0": [0, 2, 4, 6],
    }


@pytest.mark.parametrize("name", READERS)
def test_every_tracker_logs_a_federation_and_goes_on_with_it(name, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    serve = ["serve", "--ledger", "run.ledger", "--listen", address]
    agreed = ["--clients", 3, "--byzantine", 1, "--directions", 4, "--rounds", 60, "--evaluate-every", 5]
    federator = tracked(name, tmp_path, *serve, *agreed)
    next(line for line in federator.stdout if "listening at" in line)
    join = ["join", address, "--source", "embedded", "--deal", "iid", "--device", "cpu", "--evaluate"]
    quiet = {"cwd": tmp_path, "stdout": subprocess.DEVNULL}
    clients = [
        processes.Popen(["-m", "cyber0", *join, "--name", f"client-{number}", "--state", f"{number}"], **quiet)
        for number in range(3)
    ]
    next(line for line in federator.stdout if "client-2 is here" in line)
    federator.send_signal(signal.SIGTERM)
    federator.communicate()
    federator = tracked(name, tmp_path, *serve)
    said, _ = federator.communicate()
    assert federator.returncode == 0, said
    assert [client.wait() for client in clients] == [0, 0, 0]
    (measures,) = READERS[name](tmp_path).values()
    assert {*range(5, 65, 5)} <= {*measures["clients/client-1/accuracy"]} <= {*range(0, 65, 5)}
    assert {*measures["round/votes"]} == {*range(1, 61)}


def test_wandb_offline(tmp_path):
    pytest.importorskip("wandb")
    in_a_process(tmp_path, "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    kept = json.loads((tmp_path / "run" / "wandb.json").read_text())["id"]
    runs = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert [run.name.rpartition("-")[2] for run in runs] == [kept, kept]
    assert all(list(run.glob("*.wandb")) for run in runs)


def test_mlflow_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    store = f"file://{tmp_path / 'store'}"
    result = in_a_process(tmp_path, "mlflow", MLFLOW_TRACKING_URI=store)
    client = mlflow.MlflowClient(store)
    run = client.get_run(json.loads((tmp_path / "run" / "mlflow.json").read_text())["id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["attack"] == "foe"
    assert run.data.tags["model_fingerprint"] == result.fingerprint
    assert run.data.tags["try"] == "true"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "accuracy")]
    assert steps == [0, 2, 4, 6, 8, 10]


def test_trackio_offline(tmp_path):
    pytest.importorskip("trackio")
    result = in_a_process(tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    (file,) = (tmp_path / "trackio").glob("mine*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    kept = json.loads((tmp_path / "run" / "trackio.json").read_text())["id"]
    assert {name for name, _, _ in rows} == {kept}
    logged = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert sorted(step for step, metrics in logged if "accuracy" in metrics) == [0, 2, 4, 6, 8, 10]
    assert any(metrics.get("model_fingerprint") == result.fingerprint for _, metrics in logged)


def test_a_tracker_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"wandb is not installed: pip install 'cyber0\[track\]'"):
        tracking.get_tracker("wandb")
    with pytest.raises(UnknownName, match="unknown tracker 'wandbb': use one of mlflow, tensorboard, trackio, wandb"):
        CliRunner().invoke(app, [*RUN, "--track", "wandbb"], catch_exceptions=False)


def test_every_tracker_is_in_the_help():
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "300"}).output
    assert set(tracking.TRACKERS) <= set(re.findall(r"\w+", shown))
