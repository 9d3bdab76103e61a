import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import processes
from typer.testing import CliRunner

import cyber0
from cyber0.cli import app, main
from cyber0.cli.demo import CASES, _config
from cyber0.cli.errors import keeping, report
from cyber0.simulation import Simulation

ROOT = Path(__file__).parents[1]


def invoke(*arguments):
    return CliRunner().invoke(app, arguments)


def test_version():
    assert invoke("--version").output == f"cyber0 {cyber0.__version__}\n"


COMMANDS = [[], *([command.name or command.callback.__name__] for command in app.registered_commands)]
GROUPS = [(group.name, group.typer_instance) for group in app.registered_groups]
BELOW = [
    [name, command.name or command.callback.__name__] for name, group in GROUPS for command in group.registered_commands
]


@pytest.mark.parametrize("command", [*COMMANDS, *([name] for name, _ in GROUPS), *BELOW])
def test_help(command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_doctor_finds_the_right_bits():
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    assert result.output.count("right") == 3


def test_the_demo_rebuilds_its_model_from_the_commits():
    result = invoke("demo", "--rounds", "5", "--clients", "8")
    assert result.exit_code == 0, result.output
    trained, rebuilt = re.findall(r"\b[0-9a-f]{16}\b", result.output)
    assert trained == rebuilt


DEMO = {  # what README.md and docs/index.md say of `cyber0 demo`, and the losses after six of its 120 rounds
    "nobody lies": ("no | `mean` | 87.1%", 1.7618315),
    "liars, mean": ("the rule | `mean` | 10.0%", 2.1629454e10),
    "liars, nnm+cwtm": ("the same | `nnm+cwtm` | 76.5%", 2.0339985),
}


@pytest.mark.parametrize("case", CASES)
def test_the_demo_is_the_one_that_the_readme_tells_of(case):
    """If the losses have changed, so have the figures: play `cyber0 demo`, and write down what it shows."""
    told, loss = DEMO[case]
    for page in ("README.md", "docs/index.md"):
        assert f"{told} | 30.7 kB |" in (ROOT / page).read_text(encoding="utf-8")
    simulation = Simulation(_config(6, 40, *CASES[case]))
    for _ in simulation.play():
        pass
    assert simulation.evaluate().loss == pytest.approx(loss, rel=1e-5)


def test_a_wrong_option_is_a_sentence():
    result = invoke("demo", "--rounds", "0")
    assert result.exit_code == 2
    assert "0 is not in the range x>=1" in result.output


def test_an_error_is_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cyber0", "demo"])
    monkeypatch.setitem(sys.modules, "mlxtend", None)  # as if it were not installed
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err == "cyber0: mlxtend is not installed: pip install 'cyber0[study]'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = 2\n[base]\nrounds = 3\n", "is the recipe of a study, not of a run, since it has seeds, base"),
        ('extends = "table1"\n', "is the recipe of a study, not of a run, since it has extends"),
    ],
)
def test_a_study_is_not_a_run(text, message, tmp_path):
    (tmp_path / "study.toml").write_text(text)
    for command in (["run"], ["serve", "--ledger", str(tmp_path / "run.ledger")]):
        assert message in str(invoke(*command, str(tmp_path / "study.toml")).exception)


def test_a_folder_is_no_recipe(tmp_path):
    assert str(invoke("run", str(tmp_path)).exception) == f"{tmp_path} is a folder, not a recipe in TOML"
    (tmp_path / "config.toml").write_text("rounds = 3\n")
    assert f"--resume {tmp_path} continues its run" in str(invoke("run", str(tmp_path)).exception)


RAISING = "def raising(votes, byzantine):\n    if votes.any():\n        raise {}\n    return votes[..., 0, :]\n"
SMALL = ["--source", "embedded", "--clients", "6", "--byzantine", "1", "--directions", "8", "--device", "cpu"]


def command(*arguments, cwd, **environment):
    words = ["-m", "cyber0", *map(str, arguments)]
    done = processes.run(words, cwd=cwd, env={**os.environ, **environment}, capture_output=True)
    return done.returncode, done.stderr


def test_an_error_in_code_of_the_users_says_how_to_see_where(tmp_path):
    (tmp_path / "own_rule.py").write_text(RAISING.format("LookupError('no such vote')"))
    run = ["run", *SMALL, "--rounds", 2, "--rule", "own_rule:raising"]
    code, said = command(*run, cwd=tmp_path)
    assert (code, said.count("\n"), "no such vote" in said) == (1, 1, True)
    assert said.startswith("cyber0: ")
    assert "(--traceback shows where)" in said
    for arguments, environment in (([*run, "--traceback"], {}), (run, {"CYBER0_TRACEBACK": "1"})):
        code, said = command(*arguments, cwd=tmp_path, **environment)
        assert code == 1
        assert 'own_rule.py", line 3, in raising' in said
        assert "--traceback shows where" not in said


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "runs/a"), "cyber0: runs/a: No space left on device"),
        (MemoryError(), "cyber0: out of memory"),
        (
            ZeroDivisionError("division by zero"),
            "cyber0: unexpected ZeroDivisionError: division by zero; this",
        ),
        (KeyboardInterrupt(), "cyber0: stopped"),
    ],
)
def test_what_nobody_expects_is_a_sentence_too(error, message, capsys):
    with pytest.raises(type(error)), keeping(lambda: "continue with: cyber0 run --resume runs/a"):
        raise error
    error.__traceback__ = None  # this test is code of the user's
    assert report(error) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert said.endswith("; continue with: cyber0 run --resume runs/a\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", 1, "cyber0: standard output: No space left on device\n"),
        ("sys.stdout = None", 0, ""),
    ],
    ids=["full", "closed"],
)
def test_output_that_cannot_be_written_is_named(before, code, said):
    done = processes.run(processes.command("run", "--print-config", before=before), capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_control_c_is_a_sentence():
    words = ["-m", "cyber0", "run", *SMALL, "--rounds", "1000000"]
    process = processes.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline().startswith("cyber0 on mnist: ")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("cyber0: stopped\n")
