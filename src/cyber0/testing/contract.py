"""The laws that every rule keeps, as a test."""

import math
import pickle
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.aggregation import Composition, Rule, RuleWithMemory, after, aggregate, begin, compose
from cyber0.errors import InvalidAggregation
from cyber0.testing.robustness import measured_kappa

__all__ = ["check_rule", "inputs"]

Floats = NDArray[np.floating[Any]]

COMMITS = [0.5, -2.0, 0.0], [1e3, 1e-3, -1.0]  # that a rule with memory is tested after


def check_rule(
    rule: Rule,
    n: int = 11,
    byzantine: int = 2,
    *,
    choice: bool = False,
    robust: bool = True,
    kappa: float | None = None,
) -> float | None:
    """Test a rule, and return its measured kappa; raise AssertionError that names the law and the input that fail.

    The laws:

    - total: finite input gives a finite result, of the shape and type of the input, without a warning;
    - finite: a value that is not finite is refused with an InvalidAggregation, never aggregated;
    - unmodified: the input stays as it is;
    - repeatable: the same input gives the same bits;
    - unordered: the order of the vectors does not matter beyond rounding; for a rule that chooses one of the vectors
      (`choice`), it does not matter at all;
    - libraries: a torch tensor gives what the NumPy array gives, to rounding;
    - batch: a batch gives what each of its elements gives, to rounding;
    - memory: of a rule with memory, `begin` and `after` give the same every time and modify nothing, and the laws
      above hold before and after commits;
    - robust: `measured_kappa` is finite, and at most `kappa` if that is given. `robust=False` leaves this out; so do
      rules with memory, whose result depends on earlier rounds too.

    >>> from cyber0.aggregation import krum, mean
    >>> round(check_rule(krum, choice=True), 1)
    1.4
    >>> check_rule(mean)
    Traceback (most recent call last):
    AssertionError: mean is not robust: its kappa is not finite
    """
    name = rule.name if isinstance(rule, Composition) else getattr(rule, "__name__", type(rule).__name__)
    laws = (_total, _unmodified, _repeatable, _chosen if choice else _unordered, _libraries)
    remembers = isinstance(compose(rule).rule, RuleWithMemory)
    subjects = _subjects(name, rule, byzantine) if remembers else {"": _Subject(rule, byzantine)}
    for when, subject in subjects.items():
        for dtype in (np.float64, np.float32):
            cases = inputs(n, 3, byzantine, dtype)
            for case, vectors in cases.items():
                for law in laws:
                    with _explained(f"{name}, {law.__name__[1:]}, on {case}{when} ({np.dtype(dtype)})"):
                        law(subject, vectors.copy())
            with _explained(f"{name}, finite{when} ({np.dtype(dtype)})"):
                _finite(subject if remembers else _Subject(compose(rule), byzantine), cases["normal"])
            with _explained(f"{name}, batch{when} ({np.dtype(dtype)})"):
                _batch(subject, np.stack(list(cases.values())))
    if not robust or remembers:
        return None
    measured = measured_kappa(rule, n, byzantine)
    if not math.isfinite(measured):
        raise AssertionError(f"{name} is not robust: its kappa is not finite")
    if kappa is not None and measured > kappa:
        raise AssertionError(f"{name} is not {kappa}-robust: a kappa of {measured:.3g} was measured")
    return measured


def inputs(n: int, k: int, byzantine: int, dtype: Any = np.float64) -> dict[str, Floats]:
    """Return vectors `[n, k]` that are difficult for a rule, by name.

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


@dataclass(frozen=True, slots=True)
class _Subject:
    """A rule under test, with a fixed memory if it has one; `size` is how large the values that it remembers are."""

    rule: Rule
    byzantine: int
    size: float = 0.0

    def __call__(self, vectors: Any) -> Any:
        return self.rule(vectors, self.byzantine)


def _subjects(name: str, rule: Rule, byzantine: int) -> dict[str, _Subject]:
    """Return the rule before and after each of some commits; check its memory on the way."""
    memory = begin(rule)
    subjects = {" before the first commit": _Subject(_remembering(rule, memory), byzantine)}
    with _explained(f"{name}, memory"):
        _require(_bits(memory) == _bits(begin(rule)), "begin() gives different memories")
        for number, commit in enumerate(COMMITS):
            before, scalars = _bits(memory), np.array([commit], dtype=np.float32)
            following = after(rule, memory, scalars)
            _require(_bits(following) == _bits(after(rule, memory, scalars)), "after() gives different memories")
            _require(_bits(memory) == before, "after() modified the memory")
            memory = following
            subjects[f" after commit {number}"] = _Subject(_remembering(rule, memory), byzantine, max(map(abs, commit)))
    return subjects


def _remembering(rule: Rule, memory: Any) -> Rule:
    """Return a function of vectors `[..., n, k]`, each of them the only row of its round."""

    def plain(vectors: Any, byzantine: int) -> Any:
        before = _bits(memory)
        result = aggregate(rule, vectors[..., None, :, :], byzantine, memory)[..., 0, :]
        _require(_bits(memory) == before, "the memory was modified")
        return result

    return plain


def _bits(memory: Any) -> bytes:
    return pickle.dumps(memory)


def _total(rule: _Subject, vectors: Floats) -> None:
    result = rule(vectors)
    _require(result.shape == vectors.shape[1:], f"shape {result.shape}, not {vectors.shape[1:]}")
    _require(result.dtype == vectors.dtype, f"type {result.dtype}")
    _require(bool(np.isfinite(result).all()), f"{result} is not finite")


def _finite(rule: _Subject, vectors: Floats) -> None:
    for value in (math.nan, math.inf, -math.inf):
        for count in (1, len(vectors)):
            changed = vectors.copy()
            changed[:count, 0] = value
            try:
                result = rule(changed)
            except InvalidAggregation:
                continue
            raise AssertionError(f"{count} votes with {value} gave {result}: they must be refused")


def _unmodified(rule: _Subject, vectors: Floats) -> None:
    before = vectors.tobytes()
    rule(vectors)
    _require(vectors.tobytes() == before, "the input was modified")


def _repeatable(rule: _Subject, vectors: Floats) -> None:
    first, second = rule(vectors), rule(vectors.copy())
    _require(first.tobytes() == second.tobytes(), "two calls differ")


def _unordered(rule: _Subject, vectors: Floats) -> None:
    for order in _orders(len(vectors)):
        _same(rule(vectors), rule(vectors[order]), vectors, rule.size, "another order of the vectors")


def _chosen(rule: _Subject, vectors: Floats) -> None:
    choice = rule(vectors)
    _require(bool((vectors == choice).all(axis=-1).any()), f"{choice} is none of the vectors")
    for order in _orders(len(vectors)):
        _require(choice.tobytes() == rule(vectors[order]).tobytes(), "another order, another choice")


def _libraries(rule: _Subject, vectors: Floats) -> None:
    if find_spec("torch") is not None:
        import torch

        result = rule(torch.tensor(vectors))
        _require(isinstance(result, torch.Tensor), f"a tensor gave a {type(result).__name__}")
        _same(rule(vectors), result.numpy(), vectors, rule.size, "torch")


def _batch(rule: _Subject, vectors: Floats) -> None:
    for together in (rule(vectors), rule(vectors[:, None])[:, 0]):
        for one, result in zip(vectors, together, strict=True):
            _same(rule(one), result, one, rule.size, "in a batch")


def _orders(n: int) -> list[NDArray[np.int64]]:
    return [np.arange(n)[::-1], *(np.random.default_rng(seed).permutation(n) for seed in range(3))]


def _same(one: Floats, other: Floats, vectors: Floats, size: float, what: str) -> None:
    """Require equality up to the rounding of sums of such vectors; halves, since large differences overflow."""
    allowed = 1e3 * float(np.finfo(vectors.dtype).eps) * np.maximum(np.abs(vectors / 2).max(axis=0), size)
    _require(bool((np.abs(one / 2 - other / 2) <= allowed).all()), f"{what}: {other}, not {one}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


@contextmanager
def _explained(what: str) -> Generator[None]:
    """Turn warnings into errors, and every error into an AssertionError that says what was tested."""
    try:
        with warnings.catch_warnings(action="error"):
            yield
    except Exception as error:
        raise AssertionError(f"{what}: {error}") from error
