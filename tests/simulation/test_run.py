"""`cyber0 run`, as its user runs it: real processes, real folders, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from cyber0.cli import app, main
from cyber0.parameters import Parameters

SMALL = ["--source", "embedded", "--clients", "6", "--byzantine", "1", "--directions", "8", "--evaluate-every", "4"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["run", *map(str, arguments)], catch_exceptions=False)


def fail(*arguments, monkeypatch, capsys):
    """What the command says, and that it fails."""
    monkeypatch.setattr("sys.argv", ["cyber0", "run", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    return capsys.readouterr().err


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("algorithm", ["cyber0", "fedavg"])
def test_a_run_leaves_everything_in_its_folder(tmp_path, algorithm):
    out = tmp_path / "run"
    result = invoke(*SMALL, "--rounds", 10, "--attack", "sf", "--algorithm", algorithm, "--out", out)
    assert result.exit_code == 0
    assert "max_accuracy" in result.output
    summary = summary_of(out)
    width = 8 if algorithm == "cyber0" else 7850
    assert summary["rounds"] == 10
    assert summary["scalars_up_per_client"] == 10 * width
    assert summary["bytes_down_per_client"] == 40 * width
    assert [line["round"] for line in lines_of(out)] == [0, 4, 8, 10]
    assert summary["max_accuracy"] == max(line["accuracy"] for line in lines_of(out))
    tensors = load_file(out / "model.safetensors")
    weights = Parameters({name: tensors[name] for name in ("weight", "bias")})  # in the order of the module
    assert f"{weights.fingerprint():016x}" == summary["model_fingerprint"]


def test_the_configuration_kept_runs_again_to_the_same_model(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    invoke(*SMALL, "--rounds", 6, "--rule", "nnm+cwtm", "--attack", "foe", "--seed", 3, "--out", one)
    assert invoke(one / "config.toml", "--out", two).exit_code == 0
    assert summary_of(one)["model_fingerprint"] == summary_of(two)["model_fingerprint"]
    assert (one / "config.toml").read_text() == (two / "config.toml").read_text()


def test_options_go_over_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('rounds = 7\nrule = "median"\nlr = 0.5\n')
    shown = tomllib.loads(invoke(recipe, "--rounds", 3, "--print-config").output)
    assert (shown["rounds"], shown["rule"], shown["lr"], shown["clients"]) == (3, "median", 0.5, 40)


@pytest.mark.parametrize("algorithm", ["cyber0", "fedavg"])
def test_a_killed_run_continues_to_the_same_model(tmp_path, algorithm):
    """SIGKILL at some instant; what is resumed ends where an uninterrupted run ends."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = [*SMALL, "--rounds", "150", "--algorithm", algorithm, "--local-epochs", "2", "--attack", "alie"]
    options += ["--participation", "0.9", "--dropout", "0.2"]
    command = [sys.executable, "-m", "cyber0", "run", *options, "--out", str(killed)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not (killed / "metrics.jsonl").exists() or len(lines_of(killed)) < 4:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "summary.json").exists()
    assert invoke("--resume", killed).exit_code == 0
    invoke(*options, "--out", whole)
    assert summary_of(killed)["model_fingerprint"] == summary_of(whole)["model_fingerprint"]
    for ours, theirs in zip(lines_of(killed), lines_of(whole), strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert (killed / "scalars.f32").read_bytes() == (whole / "scalars.f32").read_bytes()


def test_control_c_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "cyber0", "run", *SMALL, "--rounds", "100000", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() or len(lines_of(out)) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130
    assert f"cyber0 run --resume {out}" in said


def test_half_a_line_is_cut_off(tmp_path):
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 8, "--out", out)
    fingerprint = summary_of(out)["model_fingerprint"]
    text = (out / "metrics.jsonl").read_text()
    (out / "metrics.jsonl").write_text(text[: text.rindex("\n", 0, -1) + 20])  # the disk was full in the last line
    assert invoke("--resume", out).exit_code == 0
    assert summary_of(out)["model_fingerprint"] == fingerprint
    assert [line["round"] for line in lines_of(out)] == [0, 4, 8]


def test_a_finished_run_resumes_to_itself(tmp_path):
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 4, "--out", out)
    before = summary_of(out)
    invoke("--resume", out)
    assert summary_of(out) == before


def test_folders_in_use_are_refused(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 1, "--out", out)
    said = fail(*SMALL, "--out", out, monkeypatch=monkeypatch, capsys=capsys)
    assert "holds another run" in said
    from cyber0.simulation.folder import Folder

    held = Folder.resume(out)
    said = fail("--resume", out, monkeypatch=monkeypatch, capsys=capsys)
    held.close()
    assert "in use by another run" in said
    assert "holds no run" in fail("--resume", tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert "give no other" in fail("--resume", out, "--lr", 1, monkeypatch=monkeypatch, capsys=capsys)
    (out / "scalars.f32").write_bytes(b"")
    assert "it was cut off" in fail("--resume", out, monkeypatch=monkeypatch, capsys=capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--byzantine", 20], "byzantine = 20 of clients = 40: at most 19 may lie"),
        (["--rule", "nnm+cwmt"], "did you mean 'cwtm'"),
        (["--attack", "fo"], "unknown attack 'fo'"),
        (["--scheme", "sideways"], "scheme = 'sideways'"),
        (["--mu", -1], "mu = -1.0: input should be greater than or equal to 0"),
        (["--participation", 0], "participation = 0.0"),
        (["--rule", "no_such_package.rules:mine"], "no module 'no_such_package'"),
        (["--data", "/no/such/folder"], "/no/such/folder"),
        (["no_recipe.toml"], "cannot read the recipe no_recipe.toml"),
    ],
)
def test_bad_input_is_a_sentence(options, message, monkeypatch, capsys):
    said = fail(*options, monkeypatch=monkeypatch, capsys=capsys)
    assert message in said
    assert "Traceback" not in said


def test_bad_recipes(tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "recipe.toml"
    for text, message in (
        ("ruel = 'mean'", "unknown key 'ruel'"),
        ("rule = ", "is not TOML"),
        ("lr = 'x'", "lr = 'x'"),
    ):
        recipe.write_text(text)
        assert message in fail(recipe, monkeypatch=monkeypatch, capsys=capsys)


def test_every_key_is_an_option():
    from cyber0.config import RunConfig

    shown = invoke("--help").output
    assert all(f"--{name.replace('_', '-')}" in shown for name in RunConfig.model_fields if len(name) < 14)
    assert tomllib.loads(invoke("--print-config").output).keys() == RunConfig.model_fields.keys() - {"data"}


def test_quiet_when_not_a_terminal():
    command = [sys.executable, "-m", "cyber0", "run", *SMALL, "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TERM": "dumb"})
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert np.all([len(line) < 80 for line in done.stdout.splitlines()])
