"""Whole paths in a run's configuration: they are of one machine, yet part of the run's identity, so they stay."""

import re
from pathlib import Path, PureWindowsPath

from cyber0.config import RunConfig

__all__ = ["by_name", "whole_paths"]

WHOLE = r"(?:/|~|[A-Za-z]:[\\/])"
PATH = re.compile(rf"{WHOLE}.+", re.DOTALL)
QUOTED = re.compile(rf"(?P<quote>['\"])(?P<path>{WHOLE}(?:(?!(?P=quote)).)+)(?P=quote)", re.DOTALL)


def whole_paths(config: RunConfig) -> list[str]:
    """The whole paths that a configuration names, also in the options of a name.

    >>> whole_paths(RunConfig(task="sst2(prompt='/home/ann/my.toml', shots=16)", model="roberta-large"))
    ['/home/ann/my.toml']
    """
    found: list[str] = []
    for text in config.model_dump().values():
        if isinstance(text, str):
            found += [text] if PATH.fullmatch(text) else [match["path"] for match in QUOTED.finditer(text)]
    return found


def by_name(text: str, folder: Path) -> str:
    """A task with its options, in which a file that is not at its whole path, but in a folder, goes by its name.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> (folder / "my.toml").touch()
    >>> by_name("sst2(prompt='/home/ann/my.toml', adapter='/home/ann/other')", folder)
    "sst2(prompt='my.toml', adapter='/home/ann/other')"
    """

    def renamed(match: re.Match[str]) -> str:
        name = PureWindowsPath(match["path"]).name  # of both kinds of paths
        moved = (folder / name).exists() and not Path(match["path"]).exists()
        return f"{match['quote']}{name}{match['quote']}" if moved else match[0]

    return QUOTED.sub(renamed, text)
