"""A data set in memory: converted and checked when it is made, so that everything after can rely on it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData

__all__ = ["Dataset", "as_array", "is_text", "refuse_not_finite", "to_numpy"]

Array = NDArray[Any]
Indices = NDArray[np.int64]
VALIDATION = 0x56414C49  # "VALI": other draws of the same seed are independent of these
ROWS = 4096  # samples that are looked through at a time


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dataset:
    """Inputs and labels to train on, others to test on, and a sentence that says where they come from.

    Torch tensors and lists become NumPy arrays. Inputs: float64 and float16 become float32, and so do bytes (uint8) and
    booleans, with the values they have: nothing is divided by 255. Integers stay integers: they are numbers of tokens.
    Labels of `classes` become int64 and must lie between 0 and classes - 1. Where `classes` is None, labels are what
    the loss compares outputs with, and floats become float32.

    Args:
        train_inputs: [samples, ...], one row for each sample.
        train_labels: [samples], or [samples, ...] where a sample has many.
        test_inputs: As `train_inputs`; rows may have another length.
        test_labels: As `train_labels`.
        classes: How many classes there are; None where labels are not classes.
        source: Where the data come from, in words.
        shares: The training samples that each client holds; None where a partition decides.
        lengths: A function of inputs that returns how much of each row counts; None where all of it does.
        owners: The number of whoever each training sample came from, such as a writer, which the partition `natural`
            deals by; None where that is not known.

    >>> x, y = np.zeros((3, 2)), [0, 1, 1]
    >>> data = Dataset(x, y, x[:1], y[:1], classes=2, source="three points of mine")
    >>> data
    Dataset(3 + 1 samples of 2 classes: three points of mine)
    >>> data.train_inputs.dtype, data.train_labels.dtype
    (dtype('float32'), dtype('int64'))
    >>> Dataset(x, [1, 2, 2], x[:1], [1], classes=2, source="labels from 1")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: train labels run from 1 to 2, and there are 2 classes: number them from 0 to 1, as by \
labels - 1

    """

    train_inputs: Array
    train_labels: Array
    test_inputs: Array
    test_labels: Array
    classes: int | None
    source: str
    shares: tuple[Indices, ...] | None = None
    lengths: Callable[[Any], Any] | None = None
    owners: Indices | None = None

    def __post_init__(self) -> None:
        classes: Any = self.classes  # what a user gives may be of any type
        if classes is not None and (not isinstance(classes, int | np.integer) or classes < 1):
            raise InvalidData(f"classes = {classes!r}: give the number of classes, or None where there are none")
        for part in ("train", "test"):
            inputs = _inputs(getattr(self, f"{part}_inputs"), f"{part} inputs")
            labels = _labels(getattr(self, f"{part}_labels"), f"{part} labels", self.classes)
            if len(inputs) != len(labels):
                raise InvalidData(
                    f"{len(inputs)} {part} inputs and {len(labels)} {part} labels: give one label for each input"
                )
            object.__setattr__(self, f"{part}_inputs", inputs)
            object.__setattr__(self, f"{part}_labels", labels)
        if self.shares is not None:
            shares = tuple(np.asarray(share, dtype=np.int64) for share in self.shares)
            _check_shares(shares, len(self.train_labels))
            object.__setattr__(self, "shares", shares)
        if self.owners is not None:
            owners = as_array(self.owners, "owners")
            if owners.shape != self.train_labels.shape[:1] or owners.dtype.kind not in "iu":
                raise InvalidData(
                    f"owners of type {owners.dtype} and shape {owners.shape}: give an integer for each of "
                    f"{len(self.train_labels)} training samples"
                )
            object.__setattr__(self, "owners", owners.astype(np.int64))

    def __repr__(self) -> str:
        train, test = len(self.train_labels), len(self.test_labels)
        classes = "" if self.classes is None else f" of {self.classes} classes"
        return f"Dataset({train} + {test} samples{classes}: {self.source})"

    @property
    def strata(self) -> Indices:
        """Return what a partition deals training samples by: their labels, or zeros where labels are not classes."""
        if self.classes is not None and self.train_labels.ndim == 1:
            return self.train_labels
        return np.zeros(len(self.train_labels), dtype=np.int64)

    def split_validation(self, fraction: Any, seed: int) -> "tuple[Dataset, tuple[Array, Array]]":
        """Hold out a share of the training samples, chosen by seed.

        Of clients or owners that hold samples of their own, each gives up that share of its own, and keeps at least
        one.

        Args:
            fraction: The share to hold out, greater than 0 and less than 1.
            seed: The same seed holds out the same samples.

        Returns:
            The data set without them, and their inputs and labels.

        >>> x, y = np.zeros((100, 2)), np.arange(100) % 2
        >>> rest, (inputs, labels) = Dataset(x, y, x, y, classes=2, source="mine").split_validation(0.1, seed=0)
        >>> len(rest.train_labels), len(labels)
        (90, 10)

        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
            raise InvalidData(
                f"validation = {fraction!r}: give the share of training samples to hold out, between 0 and 1, as 0.1"
            )
        samples = len(self.train_labels)
        groups = self.shares or self._held_by_owners()
        generator = np.random.default_rng((seed, VALIDATION))
        held = np.sort(np.concatenate([_drawn(group, fraction, generator) for group in groups]))
        if len(held) == 0:
            raise InvalidData(f"validation = {fraction}: that is none of {samples} samples; hold out more, or none")
        kept = np.setdiff1d(np.arange(samples), held)
        place = np.full(samples, -1)
        place[kept] = np.arange(len(kept))
        shares = None if self.shares is None else tuple(place[s][place[s] >= 0] for s in self.shares)
        owners = None if self.owners is None else self.owners[kept]
        inputs, labels = self.train_inputs[kept], self.train_labels[kept]
        rest = replace(self, train_inputs=inputs, train_labels=labels, shares=shares, owners=owners)
        return rest, (self.train_inputs[held], self.train_labels[held])

    def _held_by_owners(self) -> tuple[Indices, ...]:
        """Return the training samples of each owner; all of them together where owners are not known."""
        samples = np.arange(len(self.train_labels))
        if self.owners is None:
            return (samples,)
        return tuple(samples[self.owners == owner] for owner in np.unique(self.owners))


def as_array(values: Any, what: str) -> Array:
    """Return a torch tensor, an array or nested lists as a NumPy array; objects and texts are refused.

    >>> as_array(["cat", "dog"], "train labels")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: train labels are texts: give numbers from 0 to the number of classes - 1, as by \
np.unique(labels, return_inverse=True)[1]
    """
    if np.ma.is_masked(values):
        raise InvalidData(
            f"{what} are a masked array: remove the samples that are masked, or fill them by .filled(value)"
        )
    try:
        array = np.asarray(to_numpy(values))
    except ValueError as error:
        raise InvalidData(f"{what} cannot be made an array: {error}") from error
    if not array.flags.writeable and not isinstance(values, np.memmap):
        array = array.copy()  # of a table of pandas, for instance: torch shares arrays that can be written to alone
    if is_text(array):
        labels = what.endswith(("labels", "targets"))
        numbers = "from 0 to the number of classes - 1, as by np.unique(labels, return_inverse=True)[1]"
        raise InvalidData(f"{what} are texts: give numbers" + (f" {numbers}" if labels else ", as a NumPy array"))
    if array.dtype.kind not in "biuf":
        raise InvalidData(f"{what} are of type {array.dtype}: give numbers, as a tensor or a NumPy array")
    if array.ndim == 0 or array.size == 0:
        raise InvalidData(f"{what} have shape {array.shape}: there are no samples in them")
    return array


def is_text(array: Array) -> bool:
    """Return whether the values of an array are all texts, as its type says or, as pandas has them, one by one.

    >>> is_text(np.array(["cat"])), is_text(np.array(["cat", "dog"], dtype=object)), is_text(np.array([1]))
    (True, True, False)
    """
    kind = array.dtype.kind
    return kind in "UST" or (kind == "O" and array.size > 0 and all(isinstance(each, str) for each in array.flat))


def to_numpy(values: Any) -> Any:
    """Return a torch tensor as a NumPy array, and anything else as it is. Torch itself is not imported here.

    >>> to_numpy([1, 2])
    [1, 2]
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu().to_dense()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def refuse_not_finite(values: Array, what: str) -> None:
    """Refuse an array with values that are NaN or infinite, and say where the first is.

    >>> refuse_not_finite(np.array([[1.0, 2.0], [np.nan, np.inf]]), "train inputs")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: train inputs hold 2 values that are not finite, the first at sample 1: remove these \
samples, or mend them
    """
    if values.dtype.kind != "f":
        return
    count, first = 0, None
    for start in range(0, len(values), ROWS):
        bad = ~np.isfinite(values[start : start + ROWS].reshape(len(values[start : start + ROWS]), -1))
        if bad.any():
            count += int(bad.sum())
            first = start + int(bad.any(axis=1).argmax()) if first is None else first
    if count:
        values_are = "a value that is" if count == 1 else f"{count} values that are"
        raise InvalidData(
            f"{what} hold {values_are} not finite, the first at sample {first}: remove these samples, or mend them"
        )


def _inputs(values: Any, what: str) -> Array:
    array = as_array(values, what)
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        return array if array.dtype.name in ("int32", "int64") else array.astype(np.int64)
    return _as_float32(array)


def _as_float32(array: Array) -> Array:
    with np.errstate(over="ignore"):  # too large for float32 is infinite, and refused as such
        return array.astype(np.float32, copy=False)


def _labels(values: Any, what: str, classes: int | None) -> Array:
    array = as_array(values, what)
    if classes is None:
        return _as_float32(array) if array.dtype.kind == "f" else array.astype(np.int64, copy=False)
    if array.dtype.kind == "f":
        raise InvalidData(
            f"{what} are of type {array.dtype}: classes are numbered by integers, as after labels.astype('int64'); "
            "for a regression give a loss of your own and no classes"
        )
    labels = array.astype(np.int64, copy=False)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest >= 0 and highest < classes:
        return labels
    shift = f", as by labels - {lowest}" if lowest > 0 and highest - lowest < classes else ""
    more = f", or give classes = {highest + 1}" if lowest == 0 else ""
    raise InvalidData(
        f"{what} run from {lowest} to {highest}, and there are {classes} classes: number them from 0 to "
        f"{classes - 1}{shift}{more}"
    )


def _check_shares(shares: Sequence[Indices], samples: int) -> None:
    given = np.concatenate(shares) if shares else np.empty(0, dtype=np.int64)
    if any(len(share) == 0 for share in shares) or not np.array_equal(np.sort(given), np.arange(samples)):
        raise InvalidData(
            f"shares of {[len(share) for share in shares]} samples: each of the {samples} training samples must be "
            "one client's, and each client must have one"
        )


def _drawn(group: Indices, fraction: float, generator: np.random.Generator) -> Indices:
    """Draw a share of a group of samples, but never all of them."""
    count = min(round(fraction * len(group)), len(group) - 1)
    return generator.permutation(group)[:count]
