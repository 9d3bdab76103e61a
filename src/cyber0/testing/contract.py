"""The laws a rule keeps."""

import math
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.testing.robustness import measured_kappa

__all__ = ["check_rule", "inputs"]

Rule = Callable[..., Any]
Floats = NDArray[np.floating[Any]]


def check_rule(
    rule: Rule,
    n: int = 11,
    byzantine: int = 2,
    *,
    choice: bool = False,
    robust: bool = True,
    kappa: float | None = None,
) -> float | None:
    """Raise AssertionError, saying which law fails on which input, unless the rule keeps its contract; give its kappa.

    - total: finite for finite input, without a warning, in the shape and type of the input, which is not modified;
    - the same bits every time, and in any order of the vectors the same answer: to rounding, or to the bit for a
      `choice`, which moreover is one of the vectors;
    - of a batch, what it gives of each; of a torch tensor, what it gives of the NumPy array, to rounding;
    - `robust`: a finite `measured_kappa`, which is returned, at most `kappa` if that is given.

    >>> from cyber0.aggregation import krum, mean
    >>> round(check_rule(krum, choice=True), 1)
    1.4
    >>> check_rule(mean)
    Traceback (most recent call last):
    AssertionError: mean is not robust: its kappa is not finite
    """
    name = getattr(rule, "name", getattr(rule, "__name__", repr(rule)))
    for dtype in (np.float64, np.float32):
        cases = inputs(n, 3, byzantine, dtype)
        for case, vectors in cases.items():
            for law in (_total, _unmodified, _repeatable, _chosen if choice else _unordered, _libraries):
                with _explained(f"{name}, {law.__name__[1:]}, on {case} ({np.dtype(dtype)})"):
                    law(rule, vectors.copy(), byzantine)
        with _explained(f"{name}, batch ({np.dtype(dtype)})"):
            _batch(rule, np.stack(list(cases.values())), byzantine)
    if not robust:
        return None
    measured = measured_kappa(rule, n, byzantine)
    if not math.isfinite(measured):
        raise AssertionError(f"{name} is not robust: its kappa is not finite")
    if kappa is not None and measured > kappa:
        raise AssertionError(f"{name} is not {kappa}-robust: a kappa of {measured:.3g} was measured")
    return measured


def inputs(n: int, k: int, byzantine: int, dtype: Any = np.float64) -> dict[str, Floats]:
    """Vectors `[n, k]` that are hard on a rule, by name.

    >>> list(inputs(5, 2, 1))[:4]
    ['normal', 'far from zero', 'ties', 'all equal']
    """
    random = np.random.default_rng(n)
    normal = random.standard_normal((n, k))
    clones = normal.copy()
    clones[:byzantine] = 1e6
    limits: Any = np.finfo(dtype)
    decades = np.log10(float(limits.max)) / 2
    cases = {
        "normal": normal,
        "far from zero": 5 + 1e-3 * normal,
        "ties": random.integers(-1, 2, (n, k)),
        "all equal": np.full((n, k), 0.1),
        "zeros of both signs": np.where(normal > 0, 0.0, -0.0),
        "clones far away": clones,
        "all scales": normal * 10 ** random.uniform(-decades, decades, (n, k)),
        "largest of both signs": np.sign(normal) * float(limits.max),
        "all largest": np.full((n, k), float(limits.max)),
        "one largest": np.where(np.arange(n)[:, None] == 0, float(limits.max), normal),
        "smallest": np.sign(normal) * float(limits.smallest_subnormal),
    }
    return {name: np.asarray(case, dtype=dtype) for name, case in cases.items()}


def _total(rule: Rule, vectors: Floats, byzantine: int) -> None:
    result = rule(vectors, byzantine)
    _require(result.shape == vectors.shape[1:], f"shape {result.shape}, not {vectors.shape[1:]}")
    _require(result.dtype == vectors.dtype, f"type {result.dtype}")
    _require(bool(np.isfinite(result).all()), f"{result} is not finite")


def _unmodified(rule: Rule, vectors: Floats, byzantine: int) -> None:
    before = vectors.tobytes()
    rule(vectors, byzantine)
    _require(vectors.tobytes() == before, "the input was modified")


def _repeatable(rule: Rule, vectors: Floats, byzantine: int) -> None:
    first, second = rule(vectors, byzantine), rule(vectors.copy(), byzantine)
    _require(first.tobytes() == second.tobytes(), "two calls differ")


def _unordered(rule: Rule, vectors: Floats, byzantine: int) -> None:
    for order in _orders(len(vectors)):
        _same(rule(vectors, byzantine), rule(vectors[order], byzantine), vectors, "another order of the vectors")


def _chosen(rule: Rule, vectors: Floats, byzantine: int) -> None:
    choice = rule(vectors, byzantine)
    _require(bool((vectors == choice).all(axis=-1).any()), f"{choice} is none of the vectors")
    for order in _orders(len(vectors)):
        _require(choice.tobytes() == rule(vectors[order], byzantine).tobytes(), "another order, another choice")


def _libraries(rule: Rule, vectors: Floats, byzantine: int) -> None:
    if find_spec("torch") is not None:
        import torch

        result = rule(torch.tensor(vectors), byzantine)
        _require(isinstance(result, torch.Tensor), f"a {type(result).__name__} came of a tensor")
        _same(rule(vectors, byzantine), result.numpy(), vectors, "torch")


def _batch(rule: Rule, vectors: Floats, byzantine: int) -> None:
    for together in (rule(vectors, byzantine), rule(vectors[:, None], byzantine)[:, 0]):
        for one, result in zip(vectors, together, strict=True):
            _same(rule(one, byzantine), result, one, "in a batch")


def _orders(n: int) -> list[NDArray[np.int64]]:
    return [np.arange(n)[::-1], *(np.random.default_rng(seed).permutation(n) for seed in range(3))]


def _same(one: Floats, other: Floats, vectors: Floats, what: str) -> None:
    """Equal up to the rounding of sums of such vectors; halves, since differences of the largest floats overflow."""
    allowed = 1e3 * float(np.finfo(vectors.dtype).eps) * np.abs(vectors / 2).max(axis=0)
    _require(bool((np.abs(one / 2 - other / 2) <= allowed).all()), f"{what}: {other}, not {one}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


@contextmanager
def _explained(what: str) -> Generator[None]:
    """Warnings are errors, and every error says what was being tested."""
    try:
        with warnings.catch_warnings(action="error"):
            yield
    except Exception as error:
        raise AssertionError(f"{what}: {error}") from error
