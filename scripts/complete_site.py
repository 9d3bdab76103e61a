"""Copies what pages of the site link to outside docs/, such as reports of results, into the site. `make docs` runs it.

In the repository the links lead there as they are; a site that is served has nothing above its own folder.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'((?:href|src)=")((?:\.\./)+[^"#?]+)')


def complete(site: Path, root: Path = ROOT) -> list[Path]:
    """Let links of a site's pages to files of the repository lead to copies in the site; return what was copied."""
    copied: set[Path] = set()
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")

        def inside(link: re.Match[str], place: Path = page.parent) -> str:
            target = Path(os.path.normpath(root / "docs" / place.relative_to(site) / unquote(link[2])))
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
