"""What an install needs and what it does not, in processes of their own."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FEDERATOR = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "safetensors", "pandas", "matplotlib"}:
            raise ImportError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Block())
import numpy as np
import cyber0, cyber0.cli
from cyber0.commit import Commit
from cyber0.directions import DirectionKey, perturb, sample
from cyber0.parameters import Parameters
from cyber0.errors import MissingExtra

w = np.zeros(10, dtype=np.float32)
Parameters({"w": w}).apply(Commit(seed=7, round=0, lr=1.0, scalars=[[1.0]]))
assert (w == -sample(DirectionKey(seed=7, round=0), 10)).all()
for use in (
    lambda: sample(DirectionKey(seed=7, round=0), 10, device="cpu"),
    lambda: perturb([1.0], DirectionKey(seed=7, round=0), 0.1),
):
    try:
        use()
    except MissingExtra as error:
        assert "pip install 'cyber0[train]'" in str(error), error
    else:
        raise AssertionError("torch was to be missing")
assert not {"torch", "transformers"} & set(sys.modules)
"""


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_federator_needs_no_torch():
    done = run("-c", FEDERATOR)
    assert done.returncode == 0, done.stderr


def pip(command, folder, source, **environment):
    """Let pip make something of a source tree, with what is installed here, and put it into a folder."""
    where = {"install": "--target", "wheel": "--wheel-dir"}[command]
    return run("-m", "pip", command, "-q", "--no-deps", "--no-build-isolation", where, folder, source, **environment)


@pytest.fixture
def source(tmp_path):
    """The source tree, without anything that was built in it."""
    folder = tmp_path / "source"
    ignore = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_a_wheel_is_built_of_the_source_distribution_and_gives_the_known_answer(source, tmp_path):
    build = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=True)
    done = pip("wheel", tmp_path, source / "dist" / done.stdout.split()[-1])
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    done = pip("install", tmp_path / "target", wheel)
    assert done.returncode == 0, done.stderr
    compiled = {path.name.partition(".")[0] for path in (tmp_path / "target").rglob("_*.so")}
    assert compiled == {"_attention", "_rows", "_stream"}
    done = run("-P", ROOT / "scripts" / "known_answer.py", PYTHONPATH=str(tmp_path / "target"))
    assert done.returncode == 0, done.stderr


def test_an_install_without_a_compiler_works(source, tmp_path):
    """With a C compiler that always fails: the install succeeds, and the directions are the same, slower."""
    target = tmp_path / "target"
    done = pip("install", target, source, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    assert not list(target.rglob("*_stream*.so"))
    program = """
import cyber0.directions as d
print(d.__file__, d.sample(d.DirectionKey(0x0123456789ABCDEF, 3, 2, 1), 1).view("uint32"))
try:
    d.sample(d.DirectionKey(1, 0), 1, backend="cpu")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = run("-c", program, PYTHONPATH=str(target))
    assert done.returncode == 0, done.stderr
    assert str(target) in done.stdout
    assert "3204912627" in done.stdout
    assert "BackendError backend 'cpu' was not compiled: install a C compiler" in done.stdout


MODULES = {"google": "protobuf"}  # whose package has another name
OPTIONAL = {"triton"}  # comes with torch, where there is a GPU


def test_what_is_imported_is_declared():
    """A package that only another one brings along may be gone with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in lines}
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0] for name in names}
    others = found - sys.stdlib_module_names - OPTIONAL
    assert {MODULES.get(name, name) for name in others} - declared == set()
