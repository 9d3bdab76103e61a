"""The pages hang together: links and anchors lead somewhere, every page is in the menu, pictures are what is drawn."""

import re
import runpy
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.test_names import exists

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))]
PAGES += sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^( *)(```+).*?^\1\2`*$", re.MULTILINE | re.DOTALL)


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
        target = page.parent / unquote(path) if path else page
        if not target.exists():
            yield f"{link}: there is no {path}"
        elif anchor.startswith("cyber0."):
            if not exists(anchor):
                yield f"{link}: there is no {anchor}"
        elif target.suffix == ".md" and anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield f"{link}: there is no heading {anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(broken(page, page.read_text(encoding="utf-8"))) == []


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
    assert set(menu) == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_of_a_round_is_what_the_script_draws(scheme):
    drawn = runpy.run_path(str(ROOT / "scripts" / "draw_round.py"))
    assert (DOCS / f"round-{scheme}.svg").read_text(encoding="utf-8") == drawn["picture"](drawn["SCHEMES"][scheme])
