"""The examples are run by the very commands that stand in their first lines."""

import re
import shlex
from pathlib import Path

import pytest
from tests import processes

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("my_*.py"))


def run(*arguments):
    return processes.run(arguments, capture_output=True, cwd=ROOT)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_command_in_its_first_line(example):
    command = re.match(r'""".*?: cyber0 (run .*)\."""', example.read_text())
    assert command, f"{example.name} does not open with its command"
    done = run("-m", "cyber0", *shlex.split(command[1]), "--source", "embedded")
    assert done.returncode == 0, done.stderr
    accuracy = float(re.search(r"best_accuracy_on_test +([\d.]+)%", done.stdout)[1])
    assert accuracy > 50


def test_a_rule_of_your_own_is_put_to_the_test():
    done = run("examples/my_rule.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_language_model_is_fine_tuned_shared_and_rebuilt(tmp_path):
    pytest.importorskip("transformers")
    shared = tmp_path / "run.cyber0"
    done = run("examples/finetune_lm.py", "--rounds", "8", "--out", str(shared))
    assert done.returncode == 0, done.stderr
    assert "each client has sent 32 bytes" in done.stdout
    assert f"the whole run is {shared.stat().st_size:,} bytes" in done.stdout
    assert "rebuilt from it: the same weights" in done.stdout


def test_recipes_run():
    for recipe in sorted((ROOT / "recipes").glob("*.toml")):
        done = run("-m", "cyber0", "run", str(recipe), "--print-config")
        assert done.returncode == 0, done.stderr
