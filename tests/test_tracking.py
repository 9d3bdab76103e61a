"""Trackers, each with the real library and without a network; one that is not installed is skipped, and says so."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
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
    tracker.after_round(Federation, Round(6, ["ann"], ["ann"]))
    tracker.close()
    scalars, _ = tensorboard_of(next((tmp_path / "logs").iterdir()))
    assert scalars["clients/ann/accuracy"] == [(6, 0.5)]
    assert "clients/ann/loss" not in scalars
    assert scalars["round/aggregate_norm"] == [(1, 2.0)]
    assert [step for step, _ in scalars["round/votes"]] == [1, 7]


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
