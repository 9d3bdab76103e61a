"""The notebooks play, in a real kernel, and print what they are kept with; their pictures are kept."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
script = runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))
WANTED = {"first-run": 1, "language-model": 1, "new-defence": 1, "own-model-and-data": 1, "votes-and-liars": 3}


def words(text):
    """Return a text without its numbers and fingerprints, and with single spaces."""
    return " ".join(re.sub(r"\b[0-9a-f]{16}\b|-?\d[\d,.]*", "#", text).split())


def numbers(text):
    """Return the numbers in a text: another processor gives other last digits, and so other rounds."""
    plain = re.sub(r"\b[0-9a-f]{16}\b", "", text)
    return [float(found.replace(",", "").rstrip(".")) for found in re.findall(r"-?\d[\d,.]*", plain)]


def test_they_print_what_they_are_kept_with(tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    played = 0
    for path, notebook in script["play"](NOTEBOOKS, folder=tmp_path):
        kept = json.loads(path.read_text(encoding="utf-8"))
        ours, theirs = ("\n".join(script["outputs"](each)) for each in (notebook, kept))
        assert words(ours) == words(theirs), path.name
        assert numbers(ours) == pytest.approx(numbers(theirs), rel=0.05, abs=3), path.name
        played += 1
    assert played == len(WANTED)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_kept_and_the_first_cell_installs(path):
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert script["outputs"](kept).count("a picture") == WANTED[path.stem]
    title, install, *_ = kept["cells"]
    assert title["cell_type"] == "markdown"
    assert "%pip install" in "".join(install["source"])
    assert f'REPOSITORY = "{script["repository"]()}"\n' in install["source"]  # python scripts/notebooks.py --address
    assert not any(output["output_type"] == "error" for cell in kept["cells"] for output in cell.get("outputs", []))


def test_a_page_has_code_outputs_and_pictures():
    page = script["pages"]()["first-run.md"]
    assert page.startswith("# A first run")
    assert "```python\n" in page
    assert "```text\n" in page
    assert "](data:image/png;base64," in page
    assert "(new-defence.md)" in page
    assert "[first-run.ipynb](first-run.ipynb)" in page


def test_the_address_of_the_repository_is_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.search(r"^repository-code: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert (cited and cited[1]) == project.get("urls", {}).get("Repository")
    for path in NOTEBOOKS:
        moved = script["addressed"](path.read_text(encoding="utf-8"), "https://example.org/ours")
        cell = "".join(json.loads(moved)["cells"][1]["source"])
        assert 'REPOSITORY = "https://example.org/ours"\n' in cell
        assert "OWNER" not in moved
