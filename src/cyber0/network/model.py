"""What a client needs of its model and data."""

from typing import Protocol

from cyber0.replay.weights import Weights

__all__ = ["Model"]


class Model(Protocol):
    """What a member needs of its model and data: `cyber0.network.local_model.LocalModel` is one."""

    @property
    def manifest(self) -> bytes:
        """The digest of its layout."""
        ...

    @property
    def base(self) -> bytes:
        """The digest of its initial weights."""
        ...

    @property
    def layout(self) -> bytes:
        """Its layout, as the JSON that has that digest."""
        ...

    @property
    def meaning(self) -> bytes:
        """What the labels of its task mean: JSON with a digest for each part."""
        ...

    def vote(self, round: int) -> bytes | None:  # noqa: A002
        """Return the bytes of its vote in a round; None where it does not vote, since its privacy budget is spent."""
        ...

    def advance(self, first: int, scalars: bytes) -> None:
        """Apply the commits of consecutive rounds, from round `first` on."""
        ...

    def reset(self) -> None:
        """Go back to the initial weights."""
        ...

    def fingerprint(self) -> int:
        """Return the fingerprint of the weights."""
        ...

    def evaluate(self) -> tuple[float | None, float, int]:
        """Return accuracy (None in a task without classes), mean loss, and on how many samples."""
        ...

    def weights(self) -> Weights | None:
        """Return a copy of the weights, to be stored; None if there are none to store."""
        ...

    def load(self, weights: Weights) -> int:
        """Set the weights to stored ones, and return their fingerprint."""
        ...
