"""A data set in memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dataset"]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Inputs and labels to train on, others to test on, and a sentence that says where they come from.

    >>> x, y = np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 1])
    >>> Dataset(x, y, x[:1], y[:1], classes=2, source="three points of mine")
    Dataset(3 + 1 samples of 2 classes: three points of mine)
    """

    train_inputs: NDArray[Any]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_labels: NDArray[np.int64]
    classes: int
    source: str

    def __repr__(self) -> str:
        train, test = len(self.train_labels), len(self.test_labels)
        return f"Dataset({train} + {test} samples of {self.classes} classes: {self.source})"
