"""Plays the notebooks of docs/notebooks/ and keeps what they print and draw; makes pages of the site of them.

`python scripts/notebooks.py` plays all of them and keeps their outputs; with `--pages` it writes a page for each, as
`make docs` does, which is not kept; with `--address` it writes the address of the repository into their first cells.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
PLACEHOLDER = "https://github.com/OWNER/cyber0"  # as long as pyproject.toml has no [project.urls] Repository
TIMEOUT = 300  # seconds for a cell
Notebook = dict[str, Any]


def play(paths: Iterable[Path], timeout: int = TIMEOUT, folder: Path | None = None) -> Iterator[tuple[Path, Notebook]]:
    """Play notebooks one after the other in one kernel, which forgets everything in between; yield them as they end.

    They write files, to a `folder` or to a temporary one.
    """
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(folder or mkdtemp()))
    channel = manager.client()
    channel.start_channels()
    try:
        channel.wait_for_ready(timeout=timeout)
        channel.execute("import warnings; warnings.filterwarnings('ignore', 'IProgress not found')", reply=True)
        for path in paths:
            channel.execute("%reset -f", reply=True, timeout=timeout)
            notebook = nbformat.read(path, as_version=4)  # pyright: ignore[reportUnknownMemberType]
            client = NotebookClient(notebook, km=manager, timeout=timeout, record_timing=False)
            client.kc = channel
            client.execute(cleanup_kc=False)
            yield path, notebook
    finally:
        channel.stop_channels()
        manager.shutdown_kernel(now=True)


def outputs(notebook: Notebook) -> list[str]:
    """Return all text that a notebook has printed; of a picture that there is one."""
    return [_shown(output) for cell in notebook["cells"] for output in cell.get("outputs", [])]


def repository() -> str:
    """Return the address of the repository: that of pyproject.toml, or one to be filled in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", PLACEHOLDER)


def addressed(text: str, address: str) -> str:
    """Return a notebook's file, in which the first cell installs from this address."""
    return re.sub(r'(REPOSITORY = \\")[^"\\]*', rf"\g<1>{address}", text)


def pages() -> dict[str, str]:
    """Return a page for each notebook, by the name of its file."""
    return {f"{path.stem}.md": _page(path) for path in sorted(FOLDER.glob("*.ipynb"))}


def _page(path: Path) -> str:
    first, *cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    note = f"\nThis page is a notebook: [{path.name}]({path.name}), for Jupyter or Colab.\n"
    parts = [_joined(first["source"]) + "\n", note]
    for cell in cells:
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(f"\n{source}\n")
            continue
        parts.append(f"\n```python\n{source}\n```\n")
        parts += [f"\n{_markdown(output)}\n" for output in cell["outputs"]]
    return re.sub(r"\(([\w-]+)\.ipynb\)(?!, for)", r"(\1.md)", "".join(parts))


def _markdown(output: Notebook) -> str:
    picture = output.get("data", {}).get("image/png")
    if picture is not None:
        return f"![What the code above draws](data:image/png;base64,{_joined(picture).replace(chr(10), '')})"
    return f"```text\n{_shown(output).rstrip()}\n```"


def _shown(output: Notebook) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return "a picture"
    return _joined(data.get("text/plain", output.get("text", "")))


def _joined(lines: Any) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def main() -> None:
    """Play the notebooks, or write their pages, or the address."""
    if "--address" in sys.argv:
        for path in FOLDER.glob("*.ipynb"):
            path.write_text(addressed(path.read_text(encoding="utf-8"), repository()), encoding="utf-8")
        return
    if "--pages" in sys.argv:
        for name, text in pages().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return
    import nbformat

    for path, notebook in play(sorted(FOLDER.glob("*.ipynb"))):
        nbformat.write(notebook, path)  # pyright: ignore[reportUnknownMemberType]
        print(path.name)


if __name__ == "__main__":
    main()
