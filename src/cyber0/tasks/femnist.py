"""Handwritten characters by writer: the federated version of EMNIST (Caldas et al., LEAF, 2018), 62 classes, 28 x 28.

Two published forms are read: the JSON files that LEAF's `preprocess.sh` writes, and the HDF5 files of TensorFlow
Federated, which can be downloaded. Pixels are 1 where there is no ink.
"""

import hashlib
import json
import tarfile
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData, UnknownName
from cyber0.extras import require
from cyber0.files import draft_of
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.download import download
from cyber0.tasks.files import DataFile, cache_directory, find

__all__ = ["ARCHIVE", "CLASSES", "MIRRORS", "load"]

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
MEAN, DEVIATION = 0.9637, 0.1591  # of all pixels
PIXELS = 28 * 28

Source = Literal["auto", "femnist"]
SOURCES: tuple[Source, ...] = get_args(Source)

MIRRORS = ("https://storage.googleapis.com/tff-datasets-public",)
ARCHIVE = DataFile("fed_emnist.tar.bz2", None, "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0")
HDF5 = {"train": "fed_emnist_train.h5", "test": "fed_emnist_test.h5"}
FOLDERS = ("", "femnist", "femnist/data", "data")


class Written(NamedTuple):
    """What one writer wrote: pixels [samples, 784] as they are published, and the numbers of the characters."""

    writer: str
    pixels: NDArray[np.float32]
    labels: NDArray[np.int64]


def load(directory: Path | str | None = None, *, source: str = "auto", writers: int | None = None) -> Dataset:
    """Return the characters, pixels [N, 784], each with the number of its writer in `owners`.

    LEAF's folders `train` and `test`, the HDF5 files, or their archive are looked for in `directory`, then in the
    folder named by CYBER0_DATA, then in the user's cache. If they are in none of these, the source `femnist` downloads
    the archive into the cache and verifies it; `auto` never uses the network.

    Args:
        directory: Where the files are.
        source: `auto` or `femnist`.
        writers: How many writers to read, the first ones by their order in the files; all of them if not given.

    >>> load(writers=0)
    Traceback (most recent call last):
    cyber0.errors.InvalidData: writers = 0: read 1 writer or more, as writers=100; leave it out to read all

    """
    if source not in SOURCES:
        raise UnknownName("source", source, SOURCES)
    if writers is not None and (isinstance(writers, bool) or not isinstance(writers, int) or writers < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidData(f"writers = {writers!r}: read 1 writer or more, as writers=100; leave it out to read all")
    missing = f"FEMNIST: put LEAF's folders train and test there, {' and '.join(HDF5.values())}, or {ARCHIVE.name}"
    found = find(directory, _look, lambda: _look(cache_directory("femnist")), missing)
    found = found or (_downloaded() if source == "femnist" else None)
    if found is None:
        raise InvalidData(
            "FEMNIST is not on this machine: source = 'femnist' downloads it; or name a folder with LEAF's folders "
            f"train and test, or with {ARCHIVE.name}, by --data or CYBER0_DATA"
        )
    return _gathered(_unpacked(found) if found.is_file() else found, writers)


def _look(directory: Path) -> Path | None:
    """Return the folder of the JSON or the HDF5 files, or their archive."""
    for folder in FOLDERS:
        here = directory / folder
        if _leaf(here) or all((here / name).is_file() for name in HDF5.values()):
            return here
        if (here / ARCHIVE.name).is_file():
            return here / ARCHIVE.name
    return None


def _leaf(folder: Path) -> bool:
    return all(any((folder / part).glob("*.json")) for part in ("train", "test"))


def _downloaded() -> Path:
    cache = cache_directory("femnist")
    try:
        download([ARCHIVE], MIRRORS, cache)
    except InvalidData as error:
        raise InvalidData(
            f"FEMNIST is not on this machine: {error}. Put {ARCHIVE.name}, or LEAF's folders train and test, in a "
            "folder and name it by --data or CYBER0_DATA"
        ) from error
    return cache / ARCHIVE.name


def _unpacked(archive: Path) -> Path:
    """Unpack the HDF5 files of the archive into the cache, and return their folder."""
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != ARCHIVE.sha256:
        raise InvalidData(
            f"{archive} ({archive.stat().st_size} bytes) is truncated or altered: its SHA-256 is {found}, it must be "
            f"{ARCHIVE.sha256}; delete it and fetch it again"
        )
    cache = cache_directory("femnist")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:bz2") as packed:
            for name in HDF5.values():
                _unpack(packed, name, cache / name)
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise InvalidData(f"{archive} cannot be unpacked into {cache}: {error}") from error
    return cache


def _unpack(packed: tarfile.TarFile, name: str, path: Path) -> None:
    content = packed.extractfile(name)
    if content is None:
        raise KeyError(f"{name} is no file")
    with draft_of(path) as draft, draft.open("wb") as out:
        while chunk := content.read(2**20):
            out.write(chunk)


def _gathered(folder: Path, writers: int | None) -> Dataset:
    read = _read_json if _leaf(folder) else _read_hdf5
    train = list(islice(read(folder, "train", None), writers))
    names = [each.writer for each in train]
    # LEAF can also keep whole writers for the test: these did not write anything to train on
    test = list(read(folder, "test", set(names))) or list(islice(read(folder, "test", None), writers))
    if not train or not test:
        raise InvalidData(f"{folder} holds no writers to train and to test on: fetch it again")
    samples = sum(len(each.labels) for each in train), sum(len(each.labels) for each in test)
    return Dataset(
        _normalised(train),
        np.concatenate([each.labels for each in train]),
        _normalised(test),
        np.concatenate([each.labels for each in test]),
        len(CLASSES),
        f"FEMNIST, {samples[0]:,} + {samples[1]:,} images of {len(names):,} writers from {folder}",
        owners=np.repeat(np.arange(len(train)), [len(each.labels) for each in train]),
    )


def _normalised(written: list[Written]) -> NDArray[np.float32]:
    """Return all pixels, ink positive, over their deviation."""
    return (np.float32(MEAN) - np.concatenate([each.pixels for each in written])) / np.float32(DEVIATION)


def _read_json(folder: Path, part: str, wanted: Collection[str] | None) -> Iterator[Written]:
    """Yield what each writer wrote, by LEAF's files: {"users": [...], "user_data": {writer: {"x": ..., "y": ...}}}."""
    for path in sorted((folder / part).glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
            users = [user for user in content["users"] if wanted is None or user in wanted]
            found = [(user, content["user_data"][user]["x"], content["user_data"][user]["y"]) for user in users]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidData(
                f"{path} is none of LEAF's files, or is damaged: {type(error).__name__}: {error}"
            ) from None
        del content
        yield from (_checked(user, pixels, labels, path) for user, pixels, labels in found)


def _read_hdf5(folder: Path, part: str, wanted: Collection[str] | None) -> Iterator[Written]:
    """Yield what each writer wrote, by the files of TensorFlow Federated: examples/WRITER/pixels and label."""
    h5py = require("h5py", extra="data")
    path = folder / HDF5[part]
    try:
        with h5py.File(path, "r") as file:
            for user in file["examples"]:
                if wanted is None or user in wanted:
                    group = file["examples"][user]
                    yield _checked(user, group["pixels"][()], group["label"][()], path)
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise InvalidData(f"{path} is none of TensorFlow Federated's files, or is damaged: {error}") from None


def _checked(writer: str, pixels: Any, labels: Any, path: Path) -> Written:
    """Refuse what is not 784 pixels from 0 to 1 and a class for each character."""
    try:
        images = np.asarray(pixels, dtype=np.float32).reshape(len(pixels), -1)
        known = np.asarray(labels).reshape(-1)
        whole = known.astype(np.int64)
    except (ValueError, TypeError) as error:
        raise InvalidData(f"{path}, writer {writer}: no pixels and classes, but {error}") from None
    if images.shape != (len(known), PIXELS) or not len(known):
        raise InvalidData(
            f"{path}, writer {writer}: pixels of shape {images.shape} and {len(known)} classes; a character has "
            f"{PIXELS} pixels and one class"
        )
    if not (images >= 0).all() or not (images <= 1).all():
        raise InvalidData(f"{path}, writer {writer}: pixels must be from 0 (ink) to 1 (none)")
    if (known != whole).any() or whole.min() < 0 or whole.max() >= len(CLASSES):
        raise InvalidData(f"{path}, writer {writer}: classes must be integers from 0 to {len(CLASSES) - 1}")
    return Written(writer, images, whole)
