"""Photographs of ten kinds of things (Krizhevsky, 2009): 50,000 to train on and 10,000 to test on, 32 x 32 in colour.

The binary version is read, never the Python version: its files are pickles, which may run code when they are read.
"""

import hashlib
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData, UnknownName
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.download import download
from cyber0.tasks.files import DataFile, cache_directory, find

__all__ = ["ARCHIVE", "CLASSES", "MIRRORS", "load", "parse_batch"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training pixels of each channel
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes: a label, then red, green and blue, row by row
RECORDS = 10_000  # images in each file

Source = Literal["auto", "cifar10"]
SOURCES: tuple[Source, ...] = get_args(Source)

MIRRORS = ("https://www.cs.toronto.edu/~kriz",)
ARCHIVE = DataFile(
    "cifar-10-binary.tar.gz", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
)
INSIDE = "cifar-10-batches-bin"  # the folder in the archive
TRAIN, TEST = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"
FOLDERS = ("", "cifar10", INSIDE, f"cifar10/{INSIDE}")


def load(directory: Path | str | None = None, *, source: str = "auto") -> Dataset:
    """Return the photographs, [N, 3, 32, 32], normalised by mean and deviation of each channel of the training pixels.

    The archive, whose checksum is verified, or the files unpacked from it are looked for in `directory`, then in the
    folder named by CYBER0_DATA, then in the user's cache. If they are in none of these, the source `cifar10` downloads
    the archive into the cache; `auto` never uses the network.

    >>> load(Path("no-such-folder"))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: there is no folder no-such-folder
    """
    if source not in SOURCES:
        raise UnknownName("source", source, SOURCES)
    missing = f"CIFAR-10: put {ARCHIVE.name}, the binary version, or the files in it there"
    found = find(directory, _look, _cached, missing) or (_downloaded() if source == "cifar10" else None)
    if found is None:
        raise InvalidData(
            "CIFAR-10 is not on this machine: source = 'cifar10' downloads it (162 MiB); or put "
            f"{ARCHIVE.name} in a folder, and name that by --data or CYBER0_DATA"
        )
    return _from_archive(found) if found.is_file() else _from_folder(found)


def _look(directory: Path) -> Path | None:
    """Return the archive, or the folder of the files unpacked from it."""
    for folder in FOLDERS:
        here = directory / folder
        if (here / ARCHIVE.name).is_file():
            return here / ARCHIVE.name
        present = [name for name in (*TRAIN, TEST) if (here / name).exists()]
        if present and len(present) < len(TRAIN) + 1:
            lacking = [name for name in (*TRAIN, TEST) if name not in present]
            raise InvalidData(f"{here} is not complete: it lacks {', '.join(lacking)}")
        if present:
            return here
    if any((directory / each / "cifar-10-batches-py").exists() for each in ("", "cifar10")):
        raise InvalidData(
            f"{directory} holds the Python version of CIFAR-10, whose files may run code when they are read: put the "
            f"binary version there, {ARCHIVE.name}"
        )
    return None


def _cached() -> Path | None:
    path = cache_directory("cifar10") / ARCHIVE.name
    return path if path.exists() else None


def _downloaded() -> Path:
    cache = cache_directory("cifar10")
    try:
        download([ARCHIVE], MIRRORS, cache)
    except InvalidData as error:
        raise InvalidData(
            f"CIFAR-10 is not on this machine: {error}. Put {ARCHIVE.name} in a folder and name it by --data or "
            "CYBER0_DATA"
        ) from error
    return cache / ARCHIVE.name


def _from_archive(path: Path) -> Dataset:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != ARCHIVE.sha256:
            raise InvalidData(
                f"{path} ({path.stat().st_size} bytes) is truncated or altered: its SHA-256 is {found}, it must be "
                f"{ARCHIVE.sha256}; delete it and fetch it again"
            )
        with tarfile.open(path, "r:gz") as archive:
            return _gathered(lambda name: _member(archive, name, path), str(path))
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise InvalidData(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _member(archive: tarfile.TarFile, name: str, path: Path) -> bytes:
    try:
        file = archive.extractfile(f"{INSIDE}/{name}")
    except KeyError:
        file = None
    if file is None:
        raise InvalidData(f"{path} lacks {INSIDE}/{name}: fetch the binary version of CIFAR-10")
    return file.read(RECORD * RECORDS + 1)


def _from_folder(path: Path) -> Dataset:
    def content(name: str) -> bytes:
        try:
            return (path / name).read_bytes()
        except OSError as error:
            raise InvalidData(f"{path / name} cannot be read: {error.strerror}") from error

    return _gathered(content, str(path))


def _gathered(content: Callable[[str], bytes], where: str) -> Dataset:
    train = [parse_batch(content(name), f"{name} of {where}") for name in TRAIN]
    test_images, test_labels = parse_batch(content(TEST), f"{TEST} of {where}")
    labels = np.concatenate([labels for _, labels in train])
    return Dataset(
        np.concatenate([_normalised(images) for images, _ in train]),
        labels,
        _normalised(test_images),
        test_labels,
        len(CLASSES),
        f"CIFAR-10, {len(labels):,} + {len(test_labels):,} images from {where}",
    )


def parse_batch(content: bytes, name: object = "the file") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images [10000, 3, 32, 32] and the labels in a file of the binary version.

    >>> parse_batch(bytes(3073))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: the file has 3,073 bytes, and 10,000 images of 3,073 bytes have 30,730,000: it is \
truncated or altered; fetch it again
    """
    if len(content) != RECORD * RECORDS:
        raise InvalidData(
            f"{name} has {len(content):,} bytes, and {RECORDS:,} images of {RECORD:,} bytes have "
            f"{RECORD * RECORDS:,}: it is truncated or altered; fetch it again"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(RECORDS, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        raise InvalidData(f"{name} has a label {labels.max()}: those of CIFAR-10 are from 0 to {len(CLASSES) - 1}")
    return records[:, 1:].reshape(-1, *SHAPE), labels


def _normalised(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixels less their channel's mean, over its deviation, by a table of the 256 levels of each channel."""
    levels = (np.arange(256)[:, None] / 255 - np.array(MEAN)) / np.array(DEVIATION)
    channels = [levels[:, channel].astype(np.float32)[images[:, channel]] for channel in range(SHAPE[0])]
    return np.stack(channels, axis=1)
