"""The pages hang together: links and anchors lead somewhere, every page is in the menu, pictures are what is drawn."""

import os
import re
import runpy
import tomllib
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from tests.test_names import exists
from typer.testing import CliRunner

from cyber0.aggregation import PREAGGREGATIONS, RULES
from cyber0.attacks import ATTACKS
from cyber0.cli import app
from cyber0.cli.catalogue import ENGINES
from cyber0.config import RunConfig
from cyber0.directions.key import FAMILIES
from cyber0.errors import UnknownName
from cyber0.plan import SCHEMES
from cyber0.schedule import PARTS
from cyber0.step_rule import RULES as STEP_RULES
from cyber0.study.recipe import shipped
from cyber0.tasks import TASKS
from cyber0.tasks.partition import PARTITIONS
from cyber0.tracking import TRACKERS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))]
GENERATED = {
    DOCS / "reference" / name: text
    for name, text in runpy.run_path(str(ROOT / "scripts" / "generate_reference.py"))["pages"]().items()
}
GENERATED |= {
    DOCS / "notebooks" / name: text
    for name, text in runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))["pages"]().items()
}
PAGES += sorted({*DOCS.rglob("*.md"), *GENERATED})
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^( *)(```+).*?^\1\2`*$", re.MULTILINE | re.DOTALL)


def read(page):
    """Return the text of a page; one that is made of the code, as it would be made now."""
    return GENERATED[page] if page in GENERATED else page.read_text(encoding="utf-8")


def prose(text):
    """Return a page without its code, in which brackets are no links."""
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def anchors(text):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+?)(?: \{.*\})?$", FENCE.sub("", text), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings]
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}


def broken(page, text):
    """Return the links of a page that lead nowhere; those to other sites are not followed."""
    for found in LINK.finditer(prose(text)):
        link = found[1] or found[2]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / unquote(path))) if path else page
        if target in GENERATED and page not in GENERATED:
            yield f"{link}: the site has it, but not the repository; scripts/complete_site.py has what to link to"
        elif not target.exists() and target not in GENERATED:
            yield f"{link}: there is no {path}"
        elif anchor.startswith("cyber0."):
            if not exists(anchor):
                yield f"{link}: there is no {anchor}"
        elif target.suffix == ".md" and anchor and anchor not in anchors(read(target)):
            yield f"{link}: there is no heading {anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = read(page)
    assert list(broken(page, text)) == []
    assert [name for name in re.findall(r"^::: (\S+)", text, re.MULTILINE) if not exists(name)] == []


def test_the_site_has_what_its_pages_link_to(tmp_path):
    root, site = tmp_path / "root", tmp_path / "root" / "site"
    files = ["results/one/report.html", "docs/a.svg", "docs/notebooks/a.ipynb", "src/cyber0/config.py"]
    pages = ["site/reference/page.html", "site/reference/configuration.html", "site/notebooks/a.html"]
    for name in (*files, *pages):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("ours")
    page, notebook = site / "reference" / "page.html", site / "notebooks" / "a.html"
    made = {
        'href="../../results/one/report.html#table"': 'href="../results/one/report.html#table"',
        'href="../../src/cyber0/config.py"': 'href="configuration.html"',
        'href="../notebooks/a.ipynb"': 'href="../notebooks/a.html"',
    }
    links = ['src="../a.svg"', 'href="../nowhere.html"', 'href="b.html"', 'href="https://a.org/b.ipynb"']
    page.write_text(" ".join([*made, *links]))
    notebook.write_text('href="a.ipynb"')
    script = runpy.run_path(str(ROOT / "scripts" / "complete_site.py"))
    assert script["complete"](site, root) == [Path("results/one/report.html")]
    assert page.read_text().split() == [*made.values(), *links]
    assert notebook.read_text() == 'href="a.ipynb"'
    assert [name for name in script["MADE"] if not (ROOT / name).is_file()] == []
    assert {DOCS / Path(page).with_suffix(".md") for page in script["MADE"].values()} <= {*GENERATED}
    assert (site / "results/one/report.html").read_text() == "ours"


@pytest.mark.parametrize(
    "line", ["[a](nowhere.md)", "[a](index.md#nowhere)", "![a](nowhere.png)", '<img src="no.svg">', "[a](#no)"]
)
def test_a_broken_link_is_found(line):
    assert len(list(broken(DOCS / "index.md", line))) == 1
    assert not list(broken(DOCS / "index.md", f"`{line}`\n```\n{line}\n```"))


def test_the_menu_has_every_page():
    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)]

    menu = pages(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])
    assert len(menu) == len(set(menu))
    assert set(menu) == {str(page.relative_to(DOCS)) for page in (*DOCS.rglob("*.md"), *GENERATED)}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("rules", [*RULES, *PREAGGREGATIONS]),
        ("attacks", ATTACKS),
        ("tasks", TASKS),
        ("partitions", PARTITIONS),
        ("configuration", RunConfig.model_fields),
        ("configuration", [*PARTS, *STEP_RULES, *FAMILIES, *SCHEMES, *ENGINES, *TRACKERS]),
    ],
)
def test_the_reference_lists_every_name(name, known):
    rows = re.findall(r"^\| `([\w-]+)`", GENERATED[DOCS / "reference" / f"{name}.md"], re.MULTILINE)
    assert set(known) <= set(rows)
    listed = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"}).output
    assert known is RunConfig.model_fields or set(known) <= set(re.findall(r"[\w-]+", listed))
    assert set(shipped()) <= set(re.findall(r"[\w-]+", listed))


@pytest.mark.parametrize(("key", "values"), [
    ("clients", "an integer, from 1, below 2**32"),
    ("quorum", "an integer, from 1"),
    ("lr", "a number, above 0, below 1e+30"),
    ("participation", "a number, above 0, to 1"),
    ("family", "`gaussian`, `sphere`, `rademacher`"),
])  # fmt: skip
def test_the_reference_says_what_a_key_may_be(key, values):
    page = GENERATED[DOCS / "reference" / "configuration.md"]
    assert re.search(rf"^\| `{key}` \| .* \| {re.escape(values)} \|", page, re.MULTILINE)


def test_the_reference_has_every_command_and_its_options():
    page = GENERATED[DOCS / "reference" / "commands.md"]
    for command in app.registered_commands:
        section = page.partition(f"\n## cyber0 {command.name or command.callback.__name__}\n")[2].partition("\n## ")[0]
        options = CliRunner().invoke(app, [command.name or command.callback.__name__, "--help"]).output
        assert set(re.findall(r"--[a-z][a-z-]+", options)) - {"--help"} <= set(re.findall(r"--[a-z][a-z-]+", section))


@pytest.mark.parametrize(("key", "known"), [
    ("rule", [*RULES, *PREAGGREGATIONS]),
    ("attack", ATTACKS),
    ("task", TASKS),
    ("partition", PARTITIONS),
    ("schedule", PARTS),
    ("step-rule", STEP_RULES),
    ("family", FAMILIES),
    ("scheme", SCHEMES),
    ("engine", ENGINES),
    ("track", TRACKERS),
])  # fmt: skip
def test_help_lists_every_name(key, known):
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "400"}).output
    line = next(line for line in shown.splitlines() if f"--{key} " in line)
    assert set(known) <= set(re.findall(r"[\w-]+", line))


def test_an_unknown_kind_of_names_is_refused():
    with pytest.raises(UnknownName, match=r"unknown kind of names 'rule': use one of .*did you mean 'rules'"):
        CliRunner().invoke(app, ["list", "rule"], catch_exceptions=False)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_of_a_round_is_what_the_script_draws(scheme):
    drawn = runpy.run_path(str(ROOT / "scripts" / "draw_round.py"))
    assert (DOCS / f"round-{scheme}.svg").read_text(encoding="utf-8") == drawn["picture"](drawn["SCHEMES"][scheme])


def test_the_figure_for_dark_pages_is_that_for_light_ones():
    dark = runpy.run_path(str(ROOT / "scripts" / "darken.py"))["darkened"](Image.open(DOCS / "liars.png"))
    kept = Image.open(DOCS / "liars-dark.png")
    assert np.abs(np.asarray(dark, dtype=int) - np.asarray(kept, dtype=int)).max() <= 1
    assert dark.getpixel((0, 0))[3] == 0
