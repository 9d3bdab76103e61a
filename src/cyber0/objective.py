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


@dataclass(frozen=True, slots=True)
class Objective:
    """Whether losses are calibrated, and to which shares of the classes; None: to equal ones.

    >>> Objective(calibrated=True, shares=(1, 3)).shares
    (0.25, 0.75)
    """

    calibrated: bool = False
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        shares: Any = self.shares
        if shares is None:
            return
        given = cast("tuple[Any, ...]", shares if isinstance(shares, tuple | list) else ())
        if len(given) < 2 or not all(type(each) in (int, float) and 0 < each < math.inf for each in given):
            raise InvalidConfig(
                f"shares = {shares!r}: give a number above 0 for each class, as shares=(0.7, 0.3): how frequent "
                "classes are where the model is to be used"
            )
        object.__setattr__(self, "shares", tuple(each / math.fsum(given) for each in given))


def parse(text: str) -> Objective:
    """Return the objective of a text.

    >>> parse("calibrated")
    Objective(calibrated=True, shares=None)
    >>> parse("calibrated(shares=(1, 3))").shares
    (0.25, 0.75)
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
