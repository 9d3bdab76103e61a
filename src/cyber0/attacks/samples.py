"""Attacks on the samples that liars train on: a backdoor, and noise on the features.

Gu, Dolan-Gavitt, Garg. BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain. 2017.
Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How To Backdoor Federated Learning. AISTATS 2020 (`boost`).
"""

from math import isqrt
from typing import Any, cast

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from cyber0.attacks.scene import Liars, Rule, check_factor, namespace
from cyber0.attacks.simple import none
from cyber0.errors import InvalidAttack

__all__ = ["backdoor", "feature_noise", "stamp"]

Array = NDArray[Any]


def backdoor(
    vectors: Any,
    liars: Liars,
    rule: Rule,
    byzantine: int,
    rng: Generator,
    *,
    target: int = 0,  # noqa: ARG001 (the data alone have classes)
    fraction: float = 0.5,
    size: int = 3,
    value: float = 3.0,
    boost: float = 1.0,
) -> Any:
    """A backdoor: the liars train on samples with a trigger, labelled `target`, and send `boost` times their measure.

    A `fraction` of their samples gets the trigger: a square of `size` pixels at the lower right corner, set to `value`;
    of inputs that are no images, the last `size` features. The attack succeeds on a test sample of another class if the
    model takes it, with the trigger, for `target`: evaluations have the share of these as `attack_success`.

    >>> backdoor(np.array([[1.0], [2.0]]), [1], None, 0, np.random.default_rng(0), boost=3)
    array([[6.]])
    """
    _check_trigger(size, value)
    _check_fraction(fraction)
    check_factor("boost", boost)
    sent = none(vectors, liars, rule, byzantine, rng)
    if boost == 1:
        return sent
    xp = namespace(sent)
    most = float(xp.finfo(sent.dtype).max)
    with np.errstate(over="ignore"):
        return xp.astype(xp.clip(xp.astype(sent, xp.float64) * float(boost), -most, most), sent.dtype)


def feature_noise(
    vectors: Any, liars: Liars, rule: Rule, byzantine: int, rng: Generator, *, deviation: float = 3.0
) -> Any:
    """Feature poisoning: the liars send what they measure on inputs with Gaussian noise of this standard `deviation`.

    >>> feature_noise(np.array([[1.0], [2.0]]), [1], None, 0, np.random.default_rng(0))
    array([[2.]])
    """
    check_factor("deviation", deviation)
    return none(vectors, liars, rule, byzantine, rng)


def stamp(inputs: Array, size: int, value: float) -> Array:
    """Return a copy of inputs with the trigger; flat ones [samples, side x side] are images, too.

    >>> stamp(np.zeros((1, 3, 3)), size=2, value=9.0)
    array([[[0., 0., 0.],
            [0., 9., 9.],
            [0., 9., 9.]]])
    >>> stamp(np.zeros((1, 5)), size=2, value=9.0)
    array([[0., 0., 0., 9., 9.]])
    """
    _check_trigger(size, value)
    if inputs.dtype.kind != "f":
        raise InvalidAttack(f"inputs of type {inputs.dtype} are numbers of tokens, say: this attack changes features")
    side = isqrt(inputs.shape[-1])
    square = inputs.ndim == 2 and side > 1 and side * side == inputs.shape[1]
    stamped = inputs.reshape(len(inputs), side, side).copy() if square else inputs.copy()
    if size > min(stamped.shape[-2:] if stamped.ndim > 2 else stamped.shape[-1:]):
        raise InvalidAttack(f"size = {size}: the trigger does not fit into inputs of shape {inputs.shape[1:]}")
    corner = (..., slice(-size, None), slice(-size, None)) if stamped.ndim > 2 else (..., slice(-size, None))
    stamped[corner] = value
    return stamped.reshape(inputs.shape)


def _implant(
    inputs: Array,
    labels: Array,
    classes: int | None,
    rng: Generator,
    *,
    target: int,
    fraction: float,
    size: int,
    value: float,
    **_: Any,
) -> tuple[Array, Array]:
    """Return samples of which a fraction has the trigger and the label that is the target."""
    _check_target(target, classes)
    _check_fraction(fraction)
    chosen = rng.permutation(len(inputs))[: round(fraction * len(inputs))]
    inputs[chosen] = stamp(inputs[chosen], size, value)
    labels[chosen] = target
    return inputs, labels


def _triggered(
    inputs: Array, labels: Array, classes: int | None, *, target: int, size: int, value: float, **_: Any
) -> tuple[Array, Array]:
    """Return the samples of other classes with the trigger, and what the liars want the model to say of them."""
    _check_target(target, classes)
    others = labels != target
    if not others.any():
        raise InvalidAttack(f"target = {target}: all test samples are of this class, so no success can be measured")
    return stamp(inputs[others], size, value), np.full(int(others.sum()), target)


def _blur(
    inputs: Array, labels: Array, classes: int | None, rng: Generator, *, deviation: float, **_: Any
) -> tuple[Array, Array]:
    """Return samples with noise on their features."""
    del classes
    if inputs.dtype.kind != "f":
        raise InvalidAttack(f"inputs of type {inputs.dtype} are numbers of tokens, say: this attack changes features")
    check_factor("deviation", deviation)
    return inputs + np.float32(deviation) * rng.standard_normal(inputs.shape, dtype=np.float32), labels


def _check_trigger(size: Any, value: Any) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidAttack(f"size = {size!r}: the trigger has a side of 1 pixel or more, as size=3")
    check_factor("value", value)


def _check_fraction(fraction: Any) -> None:
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise InvalidAttack(f"fraction = {fraction!r}: give the share of samples that get the trigger, as fraction=0.5")


def _check_target(target: Any, classes: int | None) -> None:
    if classes is None:
        raise InvalidAttack("labels of this task are not classes: a backdoor needs classes")
    if isinstance(target, bool) or not isinstance(target, int) or not 0 <= target < classes:
        raise InvalidAttack(f"target = {target!r}: the classes of this task are from 0 to {classes - 1}")


cast("Any", backdoor).corrupt_samples = _implant
cast("Any", backdoor).goal = _triggered
cast("Any", feature_noise).corrupt_samples = _blur
