"""Step rules: by how much a round's scalars move the model. `"plain"`, or `"normalised(beta=0.99)"`.

A plain step is the learning rate times the scalars. A normalised one is divided by what the scalars usually are, so
that the learning rate says how far a round moves, whatever the scale of the loss; a round whose scalars are unusually
large, as under an attack, is cut. MEAZO and FZOO make such steps.

Every party derives the step from the commits alone, so all must get the same bits. This is the definition. v is the
second moment, one float64, which is 0 before the first round; c are the committed scalars of a round, float32 each,
row by row and in a row from the first direction to the last; rate is that of the schedule. Each line has at most one
operation that rounds, to nearest, ties to even, in IEEE 754 binary64. None is fused with another or reordered.

    s = 0
    for c in the scalars of the round:
        q = float(c) * float(c)    exact: 48 bits
        s = s + q
    if s = 0:                      nothing moves, as where a simulated round had too few votes
        v stays as it is
    otherwise, if v = 0:           the first round that moves the model
        v = s
    otherwise:
        a = beta * v
        g = 1 - beta
        b = g * s
        v = a + b
    if v = 0:
        step = rate
    otherwise:
        r = sqrt(v)
        step = rate / r

The scalars of the round are multiplied with `step` in the place of the rate. Their length is then at most
rate / sqrt(1 - beta), whatever they are, and usually about the rate. v is 0 or at least 2^-351, never subnormal.

A client's local step (`--local-epochs` above 1) is made in the same way, of v before the round and of that step's own
scalars; v itself changes by commits only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cyber0.errors import InvalidConfig, UnknownName
from cyber0.registry import check, check_options

__all__ = ["StepRule", "parse"]


@dataclass(frozen=True, slots=True)
class StepRule:
    """How far a round moves the model: by its scalars as they are (`beta` is None), or by normalised ones.

    >>> rule = StepRule(beta=0.75)
    >>> moment = rule.after(0.0, [[3.0, 4.0]])
    >>> moment, rule.rate(0.1, moment)
    (25.0, 0.02)
    >>> rule.after(moment, [[0.0, 1.0]])
    19.0
    >>> str(rule)
    'normalised(beta=0.75)'
    """

    beta: float | None = None

    def __post_init__(self) -> None:
        if (beta := self.beta) is None:
            return
        if isinstance(beta, bool | str) or not 0 <= beta < 1:
            raise InvalidConfig(f"beta = {beta!r} must be a number from 0 to below 1: how much of the past v keeps")
        object.__setattr__(self, "beta", float(beta) + 0.0)  # so that -0.0 and 0.0 are written alike

    def __str__(self) -> str:
        """The text that `parse` reads as this rule."""
        return "plain" if self.beta is None else f"normalised(beta={self.beta!r})"

    @property
    def normalises(self) -> bool:
        """Whether the step depends on earlier rounds."""
        return self.beta is not None

    def after(self, moment: float, scalars: Any) -> float:
        """Return the second moment after a round with these scalars [rows, directions]; a plain rule has none, 0."""
        if self.beta is None:
            return 0.0
        squares = np.square(np.asarray(scalars, dtype=np.float32).ravel().astype(np.float64))
        total = float(np.add.accumulate(squares)[-1])  # one after the other, unlike np.sum
        if total == 0 or moment == 0:
            return total or moment
        return self.beta * moment + (1.0 - self.beta) * total

    def rate(self, rate: float, moment: float) -> float:
        """Return what the scalars of a round are multiplied with, of the second moment after that round."""
        return rate if moment == 0 else rate / math.sqrt(moment)


def parse(text: str) -> StepRule:
    """Return the step rule of a text.

    >>> parse("normalised")
    StepRule(beta=0.99)
    >>> parse("adam")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown step rule 'adam': use one of normalised, plain
    """
    name, options = check("step rule", text, RULES)
    if name not in RULES:  # a function of somebody's own has no bits that all agree on
        raise UnknownName("step rule", name, RULES)
    check_options(options, RULES[name], name)
    return RULES[name](**options)


def _plain() -> StepRule:
    return StepRule()


def _normalised(*, beta: float = 0.99) -> StepRule:
    if beta is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise InvalidConfig("beta = None must be a number from 0 to below 1: how much of the past v keeps")
    return StepRule(beta)


RULES: dict[str, Callable[..., StepRule]] = {"normalised": _normalised, "plain": _plain}
