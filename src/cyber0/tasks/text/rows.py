"""Rows of texts from files: JSON lines, tables or Parquet, packed or not."""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData
from cyber0.extras import require
from cyber0.tasks.files import cache_directory
from cyber0.tasks.text.prompts import Prompt

__all__ = ["Rows", "few", "gathered", "locate", "path_in", "read", "records", "split"]

Row = dict[Any, Any]
DOMAIN = 0x53484F54  # "SHOT": other draws of the same seed are independent of these
DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of texts, and the number of the class of each.

    >>> Rows([{"text": "fine"}, {"text": "awful"}], np.array([1, 0])).of(np.array([1])).texts
    [{'text': 'awful'}]
    """

    texts: list[Row]
    labels: NDArray[np.int64]

    def of(self, chosen: NDArray[np.int64]) -> "Rows":
        """Return some of the rows, by their numbers."""
        return Rows([self.texts[index] for index in chosen], self.labels[chosen])


def read(path: Path, prompt: Prompt, columns: Iterable[str]) -> Rows:
    r"""Return the rows of a file: .jsonl, .csv or .tsv, or one of these with .gz after it, or .parquet.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "reviews.csv"
    >>> _ = path.write_text("stars,review\n1,Fine.\n3,Awful.\n")
    >>> keys = {"words": {"bad": "no", "good": "yes"}, "labels": {"0": "bad", "1": "good"}, "data": {"label": "stars"}}
    >>> read(path, Prompt.of({**keys, "prompts": {"pooled": "{review}"}}), ["review"])
    Traceback (most recent call last):
    cyber0.errors.InvalidData: ...reviews.csv, line 3: the label '3' is not one of bad, good (also written 0, 1): ...
    """
    return gathered(records(path), prompt, columns, str(path))


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row of a file, with words before it that say where it is."""
    if path.suffix == ".parquet":
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(_parquet(path)))
    else:
        yield from ((f"{path}, line {number}", row) for number, row in _lines(path))


def _parquet(path: Path) -> Iterator[Any]:
    module = require("pyarrow.parquet", extra="data")
    try:
        with module.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise InvalidData(f"{path} is no Parquet file, or damaged ({str(error).splitlines()[0]})") from error


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".jsonl", ".json", *DELIMITERS):
        raise InvalidData(
            f"{path}: rows are read from .jsonl, .csv or .tsv, or one of these with .gz after it, or from .parquet"
        )
    try:
        with _opened(path) as file:
            if kind in DELIMITERS:
                yield from _table(file, DELIMITERS[kind])
            else:
                yield from ((number, json.loads(line)) for number, line in enumerate(file, 1) if line.strip())
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidData(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidData(f"{path} is not in UTF-8 ({error.reason}): save it in UTF-8") from error
    except json.JSONDecodeError as error:
        raise InvalidData(f"{path} is damaged, or no JSON lines ({error}): write one object in each line") from error
    except (ValueError, csv.Error) as error:
        if isinstance(error, InvalidData):
            raise
        raise InvalidData(f"{path} is damaged: {error}") from error


def _opened(path: Path) -> Any:
    encoding = "utf-8-sig"  # spreadsheets write a byte order mark first
    if path.suffix == ".gz":
        return TextIOWrapper(gzip.open(path), encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _table(file: Any, delimiter: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a table, separated by semicolons if its header is, as many spreadsheets write it."""
    head = next(file, "")
    found = ";" if delimiter == "," and ";" in head and "," not in head else delimiter
    table = csv.DictReader(chain([head], file), delimiter=found, skipinitialspace=True)
    yield from ((table.line_num, row) for row in table)


def gathered(rows: Iterable[tuple[str, Any]], prompt: Prompt, columns: Iterable[str], where: str) -> Rows:
    """Return checked rows from any source; each comes with words that say where it is.

    >>> keys = {"words": {"bad": "no", "good": "yes"}, "prompts": {"pooled": "{text}"}}
    >>> gathered([("row 1", {"label": "good", "text": "Fine."})], Prompt.of(keys), ["text"], "my desk").labels
    array([1])
    """
    wanted = (prompt.data.label, *columns)
    texts: list[Row] = []
    labels: list[int] = []
    for place, row in rows:
        known = _checked(row, wanted, place)
        labels.append(_label(known[wanted[0]], prompt, place))
        texts.append({column: known[column] for column in wanted[1:]})
    if not texts:
        raise InvalidData(f"{where} holds no rows: there is nothing to train or to test on")
    return Rows(texts, np.array(labels))


def _checked(row: Any, columns: tuple[str, ...], where: str) -> Row:
    if type(row) is not dict:
        raise InvalidData(f"{where}: a row is an object with the columns {', '.join(columns)}")
    known = cast("Row", row)
    if None in known:  # the key under which the csv module keeps fields without a column
        raise InvalidData(f"{where} has more fields than the head of the table: put texts with a comma in quotes")
    for column in columns:
        if column not in known:
            raise InvalidData(f"{where}: there is no column {column!r} among {', '.join(map(str, known))}")
        if known[column] is None:
            raise InvalidData(f"{where}: the column {column!r} is empty: fill it, or take the row out")
    return known


def _label(label: Any, prompt: Prompt, where: str) -> int:
    found = prompt.class_of(label)
    if found is None:
        also = f" (also written {', '.join(prompt.labels)})" if prompt.labels else ""
        raise InvalidData(
            f"{where}: the label {label!r} is not one of {', '.join(prompt.classes)}{also}: "
            "add it to [labels] of the prompt, or take the line out"
        )
    return found


def locate(name: str, prompt: Prompt, directory: Path | None) -> tuple[Path, Path]:
    """Return the two files of a data set: in the folder given, else in CYBER0_DATA, else in the user's cache.

    They may be in a subfolder with the data set's name, and may be packed.

    >>> from cyber0.tasks.text.prompts import load
    >>> locate("sst2", load("sst2"), Path("no-such-folder"))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: there is no folder no-such-folder
    """
    named = os.environ.get("CYBER0_DATA")
    folders = [directory] if directory else [*([Path(named)] if named else []), cache_directory(name)]
    if directory and not directory.is_dir():
        raise InvalidData(f"there is no folder {directory}")
    for folder in folders:
        found = [path_in(folder, name, file or "") for file in (prompt.data.train, prompt.data.test)]
        if found[0] and found[1]:
            return found[0], found[1]
    raise InvalidData(
        f"{prompt.title} is not in {' or '.join(map(str, folders))}: put {prompt.data.train} and {prompt.data.test} "
        f"(or the same with .gz) in a folder {name}, and name the folder above it by --data or CYBER0_DATA"
    )


def path_in(folder: Path, name: str, file: str) -> Path | None:
    """Return a file in a folder, or in its subfolder with the data set's name, packed or not; None if there is none."""
    tried = (folder / part / f"{file}{packed}" for part in (name, "") for packed in ("", ".gz"))
    return next((path for path in tried if path.is_file()), None)


def few(labels: NDArray[np.int64], shots: int, seed: int) -> NDArray[np.int64]:
    """Return which samples to keep: `shots` of each class by seed, or all of a smaller class, in their old order.

    >>> few(np.array([0, 0, 0, 0, 1]), shots=2, seed=0)
    array([0, 1, 4])
    """
    if shots < 1:
        raise InvalidData(f"shots = {shots}: at least one sample of each class is needed")
    generator = np.random.default_rng((seed, DOMAIN))
    kept = [generator.permutation(np.flatnonzero(labels == label))[:shots] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))


def split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows by seed into some to train on and a share to test on.

    >>> train, test = split(Rows([{"text": str(i)} for i in range(10)], np.zeros(10, dtype=np.int64)), 0.2, seed=0)
    >>> len(train.texts), len(test.texts)
    (8, 2)
    """
    held = round(share * len(rows.texts))
    if not 0 < held < len(rows.texts):
        raise InvalidData(f"holdout = {share}: it leaves nothing of {len(rows.texts)} rows to train on, or to test on")
    order = np.random.default_rng((seed, DOMAIN, 1)).permutation(len(rows.texts))
    return rows.of(np.sort(order[held:])), rows.of(np.sort(order[:held]))
