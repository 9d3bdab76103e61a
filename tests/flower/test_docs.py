"""The commands of docs/flower.md and docs/keys.md know the options that they are given there."""

import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cyber0.cli import app

pytest.importorskip("flwr")

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr run", "flwr supernode register")
COMMANDS += ("cyber0 flower new", "cyber0 keys init", "cyber0 keys issue", "cyber0 serve", "cyber0 join")


def given():
    """Every command of the shell blocks, with its options."""
    for page in ("flower.md", "keys.md"):
        text = (DOCS / page).read_text().replace("\\\n", " ")
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                command = next((name for name in COMMANDS if line.strip().startswith(name)), None)
                if command is not None:
                    yield command, frozenset(re.findall(r"(?<!\S)--[a-z-]+", line.partition(" #")[0]))


@pytest.fixture
def understood(monkeypatch, capsys):
    """What a command says of its options."""
    env = {"COLUMNS": "400", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def of(command):
        program, *words = command.split()
        if program == "cyber0":
            return CliRunner().invoke(app, [*words, "--help"], env=env).stdout
        [start] = entry_points(group="console_scripts", name=program)
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        monkeypatch.setattr(sys, "argv", [program, *words, "--help"])
        with pytest.raises(SystemExit, match="0"):
            start.load()()
        return capsys.readouterr().out

    return of


@pytest.mark.filterwarnings("ignore:The 'is_flag' and 'flag_value' parameters:DeprecationWarning")  # of Flower's
@pytest.mark.parametrize(("command", "options"), sorted(set(given()), key=lambda each: (each[0], sorted(each[1]))))
def test_a_documented_command_knows_its_options(command, options, understood):
    text = understood(command)
    for option in options:
        assert re.search(rf"{option}\b", text), f"{command} has no {option}"
