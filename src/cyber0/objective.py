"""What clients measure: `"plain"`, the loss as it is, or `"calibrated"`, less what a client's own shares teach.

Either may have a `radius`, and is then the loss at the worst place so near to a text's word embeddings.
`cyber0.tasks.calibration` says what the calibrated objective is, and computes it; `cyber0.layerwise.nearby` has the
radius.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from cyber0.errors import InvalidConfig, UnknownName
from cyber0.registry import check, check_options

__all__ = ["OBJECTIVES", "Objective", "parse"]


TINIEST, MOST = 2.0**-126, 1_000_000  # of a radius: what float32 can hold, and longer than any embeddings
LEAST = 1e-9  # share of a class: what is as good as never seen cannot be told apart from nothing


@dataclass(frozen=True, slots=True)
class Objective:
    """Whether losses are calibrated, and to which shares of the classes, up to a factor; None: to equal ones.

    `radius` is how far a text's word embeddings are moved to where its loss is larger; None: not at all.

    >>> objective = Objective(calibrated=True, shares=(1, 3))
    >>> str(objective), objective.frequencies
    ('calibrated(shares=(1, 3))', (0.25, 0.75))
    >>> str(Objective(radius=0.05))
    'plain(radius=0.05)'
    """

    calibrated: bool = False
    shares: tuple[float, ...] | None = None
    radius: float | None = None

    def __post_init__(self) -> None:
        radius: Any = self.radius
        if radius is not None:
            if type(radius) not in (int, float) or not TINIEST <= radius < MOST:
                raise InvalidConfig(
                    f"radius = {radius!r}: give a number above 0 and below {MOST:,}, as radius=0.05: how far all word "
                    "embeddings of a text together are moved to where its loss is larger"
                )
            object.__setattr__(self, "radius", float(radius))  # so that 1 and 1.0 are written alike
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
        given = {"shares": self.shares, "radius": self.radius}
        options = ", ".join(f"{key}={value!r}" for key, value in given.items() if value is not None)
        name = "calibrated" if self.calibrated else "plain"
        return f"{name}({options})" if options else name

    @property
    def frequencies(self) -> tuple[float, ...] | None:
        """The shares, of which all together are 1."""
        return None if self.shares is None else tuple(each / math.fsum(self.shares) for each in self.shares)


def parse(text: str) -> Objective:
    """Return the objective of a text.

    >>> parse("calibrated")
    Objective(calibrated=True, shares=None, radius=None)
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


def _plain(*, radius: Any = None) -> Objective:
    """Return the loss as it is, or at the worst place within a `radius` of a text's word embeddings."""
    return Objective(radius=radius)


def _calibrated(*, shares: Any = None, radius: Any = None) -> Objective:
    """Return the loss less what a client's own shares of the classes teach; `shares` are those to learn, or equal.

    With a `radius`, at the worst place so near to a text's word embeddings.
    """
    return Objective(calibrated=True, shares=shares, radius=radius)


OBJECTIVES: dict[str, Callable[..., Objective]] = {"calibrated": _calibrated, "plain": _plain}
