"""Packages import only public names of each other, and the documentation names only what exists."""

import ast
import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cyber0"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAME = re.compile(r"(?<![\w./-])cyber0(?:\.[A-Za-z_]\w*)+")
FILES = (".c", ".md", ".py", ".so", ".toml")


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def imported(tree):
    """Return what each name that a module imports from cyber0 stands for, with the line it is imported at."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cyber0":
            found += [(each.asname or each.name, f"{node.module}.{each.name}", node.lineno) for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each for each in node.names if each.name.partition(".")[0] == "cyber0"]
            found += [(each.asname or "cyber0", each.name if each.asname else "cyber0", node.lineno) for each in names]
            found += [("", each.name, node.lineno) for each in names]
    return found


def private_names(text, package):
    """Return the private names of other packages that a module uses: imported, or as attributes of what it imports."""
    tree = ast.parse(text)
    uses = imported(tree)
    homes = {name: full for name, full, _ in uses}
    used = [(full, line) for _, full, line in uses]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            base, _, rest = ast.unparse(node).partition(".")
            if base in homes:
                used.append((f"{homes[base]}.{rest}", node.lineno))
    return [
        f"line {line}: {full}"
        for full, line in used
        if full.split(".")[1:2] != [package] and any(map(is_private, full.split(".")))
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_package_uses_a_private_name_of_another(path):
    package = path.relative_to(SOURCE).with_suffix("").parts[0]
    assert private_names(path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize(
    "line",
    [
        "from cyber0.directions.kernels import _z",
        "from cyber0.directions._stream import words",
        "from cyber0 import directions\ndirections.api._rows()",
        "from cyber0.directions import api as d\nd._rows",
        "import cyber0.directions._stream",
        "import cyber0\ncyber0.directions.api._rows(1)._x",
        "from cyber0.directions.native import Cpu\nCpu._library",
    ],
)
def test_a_private_name_is_found_however_it_is_used(line):
    assert private_names(line, "layerwise")
    assert not private_names(line, "directions")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    missing = [name for name in sorted(set(NAME.findall(text))) if not name.endswith(FILES) and not exists(name)]
    assert missing == []


def exists(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            spec = find_spec(module)
        except ModuleNotFoundError:
            continue
        if spec is None:
            continue
        return length == len(parts) or has(import_module(module), parts[length:])
    return False


def has(found, names):
    for name in names:
        fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "model_fields", {})
        if not hasattr(found, name) and name not in fields:
            return False
        found = getattr(found, name, None)
    return True


def test_a_name_that_does_not_exist_is_missed():
    assert exists("cyber0.simulation.folder")
    assert exists("cyber0.config.RunConfig.clients")
    assert not exists("cyber0.simulation.minutes")
    assert not exists("cyber0.config.RunConfig.order")


def test_the_map_has_the_layers_that_are_enforced():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    drawn = page.partition("## The map")[2].partition("```text\n")[2].partition("```")[0].splitlines()
    assert [re.split(r"\s{2,}", line)[0] for line in drawn] == layers
