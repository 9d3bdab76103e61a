"""`cyber0 run`, as its user runs it: real processes, real folders, real signals."""

import json
import os
import signal
import subprocess
import time
import tomllib

import pytest
from safetensors.numpy import load_file
from tests import processes
from typer.testing import CliRunner

from cyber0.callbacks import Callback
from cyber0.cli import app, main
from cyber0.config import RunConfig
from cyber0.parameters import Parameters
from cyber0.simulation.run import run

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
    assert "best_accuracy_on_test" in result.output
    summary = summary_of(out)
    width = 8 if algorithm == "cyber0" else 7850
    assert summary["rounds"] == 10
    assert summary["scalars_up_per_client"] == 10 * width
    assert summary["bytes_down_per_client"] == 40 * width
    assert [line["round"] for line in lines_of(out)] == [0, 4, 8, 10]
    assert summary["best_accuracy_on_test"] == max(line["accuracy"] for line in lines_of(out))
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
    shown = tomllib.loads(invoke(recipe, "--rounds", 3, "--alpha", 2, "--print-config").output)
    assert shown["alpha"] == 2.0
    assert (shown["rounds"], shown["rule"], shown["lr"], shown["clients"]) == (3, "median", 0.5, 40)


@pytest.mark.parametrize("algorithm", ["cyber0", "fedavg"])
def test_a_killed_run_continues_to_the_same_model(tmp_path, algorithm):
    """SIGKILL at some instant; what is resumed ends where an uninterrupted run ends."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = [*SMALL, "--rounds", "150", "--algorithm", algorithm, "--local-epochs", "2", "--attack", "alie"]
    options += ["--participation", "0.9", "--dropout", "0.2"]
    command = ["-m", "cyber0", "run", *options, "--out", str(killed)]
    process = processes.Popen(command, stdout=subprocess.DEVNULL)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_run_and_says_how_to_go_on(tmp_path, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests were started with nohup: its processes ignore this signal, and so does a run")
    out = tmp_path / "run"
    command = ["-m", "cyber0", "run", *SMALL, "--rounds", "100000", "--out", str(out)]
    process = processes.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (out / "metrics.jsonl").exists() or len(lines_of(out)) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    name = "" if number == signal.SIGINT else f" by {number.name}"
    assert said.endswith(f"cyber0: stopped{name}; continue with: cyber0 run --resume {out}\n")


@pytest.mark.parametrize(
    ("largest", "name"), [(800, "metrics.jsonl"), (1000, "scalars.f32"), (9000, "model.safetensors")]
)
def test_a_full_disk_is_named_and_loses_nothing(tmp_path, largest, name):
    whole, out = tmp_path / "whole", tmp_path / "run"
    options = [*SMALL, "--rounds", 16, "--directions", 24 if name == "scalars.f32" else 8]
    done = processes.run(processes.command("run", *options, "--out", out, largest_file=largest), capture_output=True)
    assert done.returncode == 1
    assert f"{out / name}: " in done.stderr
    assert "File too large" in done.stderr
    assert done.stderr.endswith(f"; continue with: cyber0 run --resume {out}\n")
    assert not list(out.glob("*.tmp"))
    for arguments in (["--resume", out], [*options, "--out", whole]):
        assert invoke(*arguments).exit_code == 0
    assert summary_of(out)["model_fingerprint"] == summary_of(whole)["model_fingerprint"]


def test_a_pipe_that_nobody_reads_is_said_and_loses_nothing(tmp_path):
    command = ["-m", "cyber0", "run", *SMALL, "--rounds", "200", "--out", str(tmp_path / "run")]
    with processes.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1
    assert said == f"cyber0: standard output: Broken pipe; continue with: cyber0 run --resume {tmp_path / 'run'}\n"
    assert (tmp_path / "run" / "metrics.jsonl").exists()


class Heard(Callback):
    """What a callback hears of, in order."""

    def __init__(self):
        self.begun, self.rounds, self.evaluations = [], [], []

    def before_run(self, run):
        self.begun.append(run.rounds)

    def after_round(self, run, round):  # noqa: ARG002
        self.rounds.append(round.number)

    def after_evaluation(self, run, evaluation):  # noqa: ARG002
        self.evaluations.append(dict(evaluation))


def test_callbacks_hear_of_the_start_of_rounds_and_of_evaluations(tmp_path):
    config = RunConfig(source="embedded", clients=6, byzantine=1, directions=8, rounds=4, evaluate_every=2)
    heard = Heard()
    result = run(config, tmp_path / "run", callbacks=[heard])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert heard.begun == [0]
    assert heard.evaluations == lines == result.history.evaluations
    assert heard.rounds == [0, 1, 2, 3]
    again = Heard()
    run(config, tmp_path / "run", resume=True, callbacks=[again])
    assert (again.begun, again.rounds, again.evaluations) == ([4], [], [])


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
    assert said.count("--resume") == 1
    from cyber0.simulation.folder import RunFolder

    held = RunFolder.resume(out)
    said = fail("--resume", out, monkeypatch=monkeypatch, capsys=capsys)
    held.close()
    assert said.endswith("is in use by another run that has not ended\n")
    said = fail("--resume", tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert said.endswith(
        f"{tmp_path} holds no run: there is no config.toml in it; it has folders of runs in it, as {out}\n"
    )
    (tmp_path / "study.toml").write_text("")
    said = fail("--resume", tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert said.endswith(f"; it is the folder of a study, whose report is {tmp_path}/report.html\n")
    assert "would make it another one" in fail("--resume", out, "--lr", 1, monkeypatch=monkeypatch, capsys=capsys)
    (out / "scalars.f32").write_bytes(b"")
    assert "it was cut off" in fail("--resume", out, monkeypatch=monkeypatch, capsys=capsys)


def test_a_folder_that_is_none_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name, what in (("file", "it is not a folder"), ("link", "it is a link to nothing")):
        said = fail(*SMALL, "--out", tmp_path / name, monkeypatch=monkeypatch, capsys=capsys)
        assert said.endswith(f"cannot write to {tmp_path / name}: {what}\n")


def test_what_is_left_of_another_run_is_not_adopted(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 2, "--out", out)
    (out / "config.toml").unlink()
    before = (out / "metrics.jsonl").read_bytes()
    assert "holds another run" in fail(*SMALL, "--out", out, monkeypatch=monkeypatch, capsys=capsys)
    assert (out / "metrics.jsonl").read_bytes() == before
    (out / "config.toml").write_text("")
    assert "is not complete: it lacks algorithm" in fail("--resume", out, monkeypatch=monkeypatch, capsys=capsys)


def test_a_damaged_folder_is_a_sentence(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 4, "--out", out)
    text = (out / "metrics.jsonl").read_text()
    for damaged in ("garbage\n" + text, '{"step": 1}\n', "\0\0\n", "[]\n"):
        (out / "metrics.jsonl").write_text(damaged)
        assert "is damaged" in fail("--resume", out, monkeypatch=monkeypatch, capsys=capsys)


def test_a_run_continues_on_its_own_data_alone(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 8, "--out", out)
    lines = lines_of(out)
    lines[0]["data_sha256"] = "0" * 64
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "another data_sha256" in fail("--resume", out, monkeypatch=monkeypatch, capsys=capsys)


def test_what_a_resume_cuts_off_can_be_cut_off_again(tmp_path):
    """A run killed while it is being resumed is where it was: nothing is rewritten."""
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 12, "--out", out)
    fingerprint = summary_of(out)["model_fingerprint"]
    whole = (out / "scalars.f32").read_bytes()
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:9])
    from cyber0.simulation.folder import RunFolder

    folder = RunFolder.resume(out)  # as far as a process came that was then killed
    folder.aggregates(1, 8)
    folder.close()
    assert whole.startswith((out / "scalars.f32").read_bytes())
    assert invoke("--resume", out).exit_code == 0
    assert summary_of(out)["model_fingerprint"] == fingerprint


def test_a_model_that_diverges_leaves_numbers_that_json_knows(tmp_path):
    out = tmp_path / "run"
    invoke(*SMALL, "--rounds", 80, "--rule", "mean", "--attack", "foe(omega=1e7)", "--lr", 1e29, "--out", out)
    text = (out / "metrics.jsonl").read_text()
    strict = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert strict[-1]["loss"] is None
    assert json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)["final_loss"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--byzantine", 20], "byzantine = 20 of clients = 40: at most 19 may lie"),
        (["--clients", 8], "byzantine = 10 of clients = 8: at most 3 may lie; 10 is the default, give another"),
        (["--rule", "nnm+cwmt"], "did you mean 'cwtm'"),
        (["--attack", "fo"], "unknown attack 'fo'"),
        (["--scheme", "sideways"], "scheme = 'sideways'"),
        (["--mu", -1], "mu = -1.0: input should be greater than or equal to 0"),
        (["--participation", 0], "participation = 0.0"),
        (["--participation", 0.5], "participation = 0.5 invites 20 of clients = 40"),
        (["--mu", 1e-50], "mu = 1e-50 is too small for float32"),
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
        ("clients = '6'", "clients = '6'"),
        ("byzantine = true", "byzantine = True"),
    ):
        recipe.write_text(text)
        assert message in fail(recipe, monkeypatch=monkeypatch, capsys=capsys)


def test_every_key_is_an_option():
    from cyber0.config import RunConfig

    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    assert all(f"--{name.replace('_', '-')} " in shown for name in RunConfig.model_fields)
    assert "One of unbiased, biased, compressed. [default: unbiased]" in shown
    without_default = {"actors", "data", "horizon", "model", "quorum", "stream"}
    without_default |= {"clip", "delta", "epsilon", "least_noise", "noise"}
    assert tomllib.loads(invoke("--print-config").output).keys() == RunConfig.model_fields.keys() - without_default


def test_plain_lines_when_not_a_terminal():
    command = ["-m", "cyber0", "run", *SMALL, "--rounds", "2"]
    done = processes.run(command, capture_output=True, check=True, env={**os.environ, "TERM": "dumb"})
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert all(len(line) < 120 for line in done.stdout.splitlines())
