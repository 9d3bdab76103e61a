"""Lets links that lead somewhere in the repository lead somewhere in the site, too. `make docs` runs it.

What pages link to outside docs/, such as reports of results, is copied: a site that is served has nothing above its own
folder. Where the site has a page made of a file, a list of names or a notebook, the link to the file leads to the page.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'((?:href|src)=")((?:\.\./)+[^"#?:]+|[^"#?:]+\.ipynb)')
MADE = {  # pages of the site that scripts/generate_reference.py makes, by the file that has what they list
    "src/cyber0/aggregation/registry.py": "reference/rules.html",
    "src/cyber0/attacks/registry.py": "reference/attacks.html",
    "src/cyber0/tasks/__init__.py": "reference/tasks.html",
    "src/cyber0/tasks/partition.py": "reference/partitions.html",
    "src/cyber0/config.py": "reference/configuration.html",
    "src/cyber0/cli/commands.py": "reference/commands.html",
}


def complete(site: Path, root: Path = ROOT) -> list[Path]:
    """Let links of a site's pages to files of the repository lead to copies in the site; return what was copied."""
    copied: set[Path] = set()
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")

        def inside(link: re.Match[str], place: Path = page.parent) -> str:
            target = Path(os.path.normpath(root / "docs" / place.relative_to(site) / unquote(link[2])))
            made = MADE.get(Path(os.path.relpath(target, root)).as_posix())
            if target.suffix == ".ipynb" and place.relative_to(site) != target.parent.relative_to(root / "docs"):
                made = target.relative_to(root / "docs").with_suffix(".html").as_posix()
            if made is not None and (site / made).is_file():
                return link[1] + Path(os.path.relpath(site / made, place)).as_posix()
            if target.is_relative_to(root / "docs") or not target.is_file():
                return link[0]
            copied.add(target.relative_to(root))
            return link[1] + Path(os.path.relpath(site / target.relative_to(root), place)).as_posix()

        changed = LINK.sub(inside, text)
        if changed != text:
            page.write_text(changed, encoding="utf-8")
    for name in copied:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, site / name)
    return sorted(copied)


if __name__ == "__main__":
    print(
        f"{len(complete(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / 'site').resolve()))} files copied to the site"
    )
