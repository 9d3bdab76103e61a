import re
import sys

import pytest
from typer.testing import CliRunner

import cyber0
from cyber0.cli import app, main


def invoke(*arguments):
    return CliRunner().invoke(app, arguments)


def test_version():
    assert invoke("--version").output == f"cyber0 {cyber0.__version__}\n"


COMMANDS = [[], *([command.callback.__name__] for command in app.registered_commands)]
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
        ("seeds = 2\n[base]\nrounds = 3\n", "is the recipe of a study, not of a run, for it has seeds, base"),
        ('extends = "table1"\n', "is the recipe of a study, not of a run, for it has extends"),
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
