"""A stub model without weights, to measure or test everything around a model."""

import hashlib

import numpy as np

from cyber0.protocol.records import to_wire
from cyber0.replay.weights import Weights

__all__ = ["StubModel"]


class StubModel:
    """It votes the same numbers in each round; its weights are a digest of the commits it has taken.

    >>> model = StubModel(scalars=2)
    >>> len(model.vote(0))
    8
    """

    def __init__(self, scalars: int, value: float = 1.0) -> None:
        self.layout = b'[["w",[3],"float32"]]'
        self.manifest = hashlib.sha256(self.layout).digest()
        self.base = bytes(32)
        self.meaning = b"{}"
        self._vote = to_wire(np.full(scalars, value))
        self._weights = self.base

    def vote(self, round: int) -> bytes:  # noqa: A002, ARG002
        """As in `Model`."""
        return self._vote

    def advance(self, first: int, scalars: bytes) -> None:
        """As in `Model`."""
        width = len(self._vote)
        for at in range(0, len(scalars), width):
            number = (first + at // width).to_bytes(8, "little")
            self._weights = hashlib.sha256(self._weights + number + scalars[at : at + width]).digest()

    def reset(self) -> None:
        """As in `Model`."""
        self._weights = self.base

    def fingerprint(self) -> int:
        """As in `Model`."""
        return int.from_bytes(self._weights[:8], "little")

    def evaluate(self) -> tuple[float | None, float, int]:
        """As in `Model`."""
        return 0.0, 0.0, 1

    def weights(self) -> Weights | None:
        """As in `Model`."""
        return None

    def load(self, weights: Weights) -> int:  # noqa: ARG002
        """As in `Model`."""
        return self.fingerprint()
