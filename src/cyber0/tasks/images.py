"""Small convolutional networks on images that are more than digits."""

from functools import partial
from pathlib import Path

from cyber0.tasks import cifar10 as photographs
from cyber0.tasks import femnist as characters
from cyber0.tasks import models
from cyber0.tasks.meaning import digest
from cyber0.tasks.task import Task

__all__ = ["cifar10", "femnist"]

PHOTOGRAPHS = {
    "labels": digest(list(photographs.CLASSES)),
    "preprocessing": digest(
        {"scale": 1 / 255, "mean": photographs.MEAN, "deviation": photographs.DEVIATION, "shape": photographs.SHAPE}
    ),
}
CHARACTERS = {
    "labels": digest(list(characters.CLASSES)),
    "preprocessing": digest(
        {"ink": "positive", "mean": characters.MEAN, "deviation": characters.DEVIATION, "shape": [characters.PIXELS]}
    ),
}


def cifar10(directory: Path | str | None = None, source: str = "auto") -> Task:
    """Return a small convolutional network on the photographs of CIFAR-10: d = 19466."""
    dataset = photographs.load(directory, source=source)
    return Task("cifar10", dataset, models.colour_cnn, meaning=PHOTOGRAPHS)


def femnist(directory: Path | str | None = None, source: str = "auto", *, writers: int | None = None) -> Task:
    """Return a small convolutional network on FEMNIST, characters by writer: d = 52094; reads so many `writers`."""
    dataset = characters.load(directory, source=source, writers=writers)
    return Task("femnist", dataset, partial(models.cnn, classes=len(characters.CLASSES)), meaning=CHARACTERS)
