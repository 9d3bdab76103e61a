"""Where rows of texts lie: in files of JSON lines, tables or Parquet, or in folders of the library `datasets`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData
from cyber0.tasks.text import hub, rows

__all__ = ["ENDINGS", "Located", "Row", "divide", "folder_of", "locate", "records"]

Row = tuple[str, Any]
"""Words that say where a row is, and the row."""
Located = tuple[Path, Path | None]
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def folder_of(directory: Path | str | None) -> Path:
    """Return the folder of the data, which may be named by one of its files.

    >>> folder_of(None)
    PosixPath('.')
    """
    path = Path("." if directory is None else directory)
    return path.parent if path.is_file() else path


def locate(directory: Path | str | None, train: str | None = None, test: str | None = None) -> Located:
    """Return where the rows to train on are, and those to test on, if they have a place of their own.

    Each is a file, or a folder of the library `datasets`. The directory may itself be one of these: a client of a
    federation names a file of its own by it, whatever the run calls the file. Otherwise `train` and `test` are looked
    for in the directory, and without `train` a file of that name with any known ending.

    >>> locate("no-such-folder")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: there is no no-such-folder: name a file, or the folder of the data, by --data
    """
    path, folder = Path("." if directory is None else directory), folder_of(directory)
    if not path.exists():
        raise InvalidData(f"there is no {path}: name a file, or the folder of the data, by --data")
    known = None if test is None else _named(folder, test)
    if path.is_file() or _is_saved(path):
        return path, known
    if train is not None:
        return _named(folder, train), known
    found = _of_name(folder, "train")
    if found is None:
        raise InvalidData(
            f"there is no file train{', train'.join(ENDINGS)} in {folder}: name the file by --data, or by train='...' "
            "in the task's name"
        )
    return found, known or _of_name(folder, "test")


def _named(folder: Path, name: str) -> Path:
    found = rows.path_in(folder, "", name)
    if found is None and (folder / name).is_dir():
        return folder / name
    if found is None:
        raise InvalidData(f"there is no file {folder / name}: name its folder, or a file, by --data")
    return found


def _of_name(folder: Path, name: str) -> Path | None:
    return next(filter(None, (rows.path_in(folder, "", f"{name}{ending}") for ending in ENDINGS)), None)


def _is_saved(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in hub.SAVED)


def records(located: Located) -> tuple[list[Row], list[Row] | None]:
    r"""Return the rows to train and to test on; None for the latter where they have no place of their own.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "train.csv"
    >>> _ = path.write_text("prompt,completion\nsay a,a\n")
    >>> records(locate(path))
    ([('...train.csv, line 2', {'prompt': 'say a', 'completion': 'a'})], None)
    """
    train, test = located
    if not train.is_dir():
        return _read(train), None if test is None else _read(test)
    parts = hub.parts(str(train))
    if "train" not in parts:
        raise InvalidData(f"{train} has the parts {', '.join(parts)}: one named train is needed")
    held = next((part for part in hub.TESTS if part in parts), None)
    own = _numbered(parts["train"], f"{train}, train")
    if test is not None:
        return own, _read(test)
    return own, None if held is None else _numbered(parts[held], f"{train}, {held}")


def _read(path: Path) -> list[Row]:
    if path.is_dir():
        parts = hub.parts(str(path))
        return _numbered(next(iter(parts.values())), str(path))
    found = list(rows.records(path))
    if not found:
        raise InvalidData(f"{path} has no rows")
    return found


def _numbered(part: Iterable[Any], where: str) -> list[Row]:
    found = [(f"{where}, row {number}", row) for number, row in enumerate(part)]
    if not found:
        raise InvalidData(f"{where} has no rows")
    return found


def divide(
    train: list[Row], test: list[Row] | None, *, share: float, seed: int, tests: int | None
) -> tuple[list[Row], list[Row]]:
    """Return rows to train and to test on: without test rows, a share of the others, chosen by seed.

    >>> train, test = divide([("", i) for i in range(10)], None, share=0.2, seed=0, tests=None)
    >>> len(train), len(test)
    (8, 2)
    """
    generator = np.random.default_rng((seed, rows.DOMAIN, 3))
    if test is None:
        order = generator.permutation(len(train))
        held = max(1, round(share * len(train)))
        if held >= len(train):
            raise InvalidData(
                f"{_place(train[0][0])} has {len(train)} rows: some to train and some to test on are needed"
            )
        test, train = _chosen(train, order[:held]), _chosen(train, order[held:])
    if tests is not None:
        test = _chosen(test, generator.permutation(len(test))[:tests])
    return train, test


def _place(where: str) -> str:
    return where.rpartition(", ")[0] or where


def _chosen(part: list[Row], places: NDArray[np.int64]) -> list[Row]:
    return [part[place] for place in sorted(map(int, places))]
