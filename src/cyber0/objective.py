"""What clients measure: `"plain"`, the loss as it is, or `"calibrated"`, less what a client's own shares teach.

`cyber0.tasks.calibration` says what the calibrated objective is, and computes it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from cyber0.errors import InvalidConfig, UnknownName
from cyber0.registry import check, check_options

__all__ = ["OBJECTIVES", "Objective", "parse"]


LEAST = 1e-9  # share of a class: what is as good as never seen cannot be told apart from nothing


@dataclass(frozen=True, slots=True)
class Objective:
    """Whether losses are calibrated, and to which shares of the classes, up to a factor; None: to equal ones.

    >>> objective = Objective(calibrated=True, shares=(1, 3))
    >>> str(objective), objective.frequencies
    ('calibrated(shares=(1, 3))', (0.25, 0.75))
    """

    calibrated: bool = False
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        shares: Any = self.shares
        if shares is None:
            return
        given = cast("tuple[Any, ...]", shares if isinstance(shares, tuple | list) else ())
        numbers = all(type(each) in (int, float) and 0 < each < 1e100 for each in given)
        if len(given) < 2 or not numbers or min(given) < LEAST * math.fsum(given):
            raise InvalidConfig(
                f"shares = {shares!r}: give a number above 0 for each class, as shares=(0.7, 0.3): how frequent "
                "classes are where the model is to be used"
            )
        object.__setattr__(self, "shares", tuple(given))

    def __str__(self) -> str:
        """The text that `parse` reads as this objective."""
        if not self.calibrated:
            return "plain"
        return "calibrated" if self.shares is None else f"calibrated(shares={self.shares!r})"

    @property
    def frequencies(self) -> tuple[float, ...] | None:
        """The shares, of which all together are 1."""
        return None if self.shares is None else tuple(each / math.fsum(self.shares) for each in self.shares)


def parse(text: str) -> Objective:
    """Return the objective of a text.

    >>> parse("calibrated")
    Objective(calibrated=True, shares=None)
    >>> parse("calibrated(shares=(1, 3))").shares
    (1, 3)
    >>> parse("balanced")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown objective 'balanced': use one of calibrated, plain
    """
    name, options = check("objective", text, OBJECTIVES)
    if name not in OBJECTIVES:  # a loss of somebody's own belongs to a task
        raise UnknownName("objective", name, OBJECTIVES)
    check_options(options, OBJECTIVES[name], name)
    return OBJECTIVES[name](**options)


def _plain() -> Objective:
    """Return the loss as it is."""
    return Objective()


def _calibrated(*, shares: Any = None) -> Objective:
    """Return the loss less what a client's own shares of the classes teach; `shares` are those to learn, or equal."""
    return Objective(calibrated=True, shares=shares)


OBJECTIVES: dict[str, Callable[..., Objective]] = {"calibrated": _calibrated, "plain": _plain}
