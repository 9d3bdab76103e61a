"""Learning-rate schedules: `"constant"`, `"linear(end=0.1)"`, `"warmup(rounds=100)+cosine"`.

Every party of a run computes the learning rate of a round for itself, so all must get the same bits. This is the
definition. lr is the learning rate of the configuration, t the round (counted from 0), H the horizon, W the rounds of
warm-up (0 if there is none), e the end. Upper-case letters, t, k and m are integers; the others are IEEE 754 binary64.
`float(i)` is exact, since no integer here exceeds 2^32. Each line has at most one operation that rounds, to nearest,
ties to even. None is fused with another, reordered, or carried out in wider registers; subnormal numbers are kept.

    if t < W:                      warm-up
        q = float(t + 1) / float(W)
        rate = lr * q

    otherwise, constant:
        rate = lr

    otherwise, linear and cosine:
        S = H - W                  how many rounds the rate falls for
        k = min(t - W, S)          how many of them are over
        f = linear(k, S) or cosine(k, S)
        a = 1 - e
        b = a * f
        c = e + b
        rate = lr * c

    linear(k, S):
        f = float(S - k) / float(S)

    cosine(k, S):                  (1 + cos(pi k / S)) / 2
        m = min(k, S - k)
        x = float(m) / float(S)    from 0 to 1/2
        z = x * x
        p = C7
        for C in C6, C5, C4, C3, C2, C1, C0:
            p = p * z
            p = p + C
        h = p * z                  sin(pi x / 2)^2
        f = 1 - h if k <= S - k, else h

C0 to C7 are `COSINE`. They are the polynomial of degree 7 in z that is nearest to sin(pi x / 2)^2 / z for z from 0 to
1/4 in the largest relative error, which is 1.4e-17; each coefficient is then rounded to binary64. With the rounding of
every operation, f is less than 4e-16 from the true value; it is exactly 1, 1/2 and 0 at k = 0, S/2 and S.
"""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat, get_args

from cyber0.errors import InvalidConfig, InvalidName, KeyOutOfRange, UnknownName
from cyber0.registry import check, check_options

__all__ = ["COSINE", "Decay", "Schedule", "parse"]

Decay = Literal["constant", "linear", "cosine"]

COSINE: tuple[float, ...] = (
    float.fromhex("0x1.3bd3cc9be45dep+1"),
    float.fromhex("-0x1.03c1f081b5a9cp+1"),
    float.fromhex("0x1.55d3c7e3c8d6dp-1"),
    float.fromhex("-0x1.e1f50685fe4e8p-4"),
    float.fromhex("0x1.a6d1f11ed2421p-7"),
    float.fromhex("-0x1.f9d2bd7d95e37p-11"),
    float.fromhex("0x1.b6a62fd5b257fp-15"),
    float.fromhex("-0x1.178b7917ce55dp-19"),
)

PLUS = re.compile(r"\+(?![^(]*\))")  # one that joins two parts, not one inside parentheses


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the learning rate changes from round to round.

    It first rises for `warmup` rounds (0: it starts at the full rate). Then, up to the horizon, it falls as `decay`
    says to `end`, a fraction of the learning rate; `constant` does not fall and has no end.

    >>> schedule = Schedule("linear", end=0.5, warmup=2)
    >>> [schedule.rate(0.1, round, horizon=6) for round in range(8)]
    [0.05, 0.1, 0.1, 0.08750000000000001, 0.07500000000000001, 0.0625, 0.05, 0.05]
    >>> str(schedule)
    'warmup(rounds=2)+linear(end=0.5)'
    """

    decay: Decay = "constant"
    end: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.decay not in get_args(Decay):
            raise UnknownName("decay", str(self.decay), get_args(Decay))
        end = _number("end", self.end)
        if not 0 <= end <= 1:
            raise InvalidConfig(f"end = {self.end!r} must be from 0 to 1: it is a fraction of the learning rate")
        if end and self.decay == "constant":
            raise InvalidConfig(f"end = {self.end!r}: a constant schedule has none; use linear or cosine")
        warmup = _integer(self.warmup)
        if warmup is None or not 0 <= warmup < 2**32:
            raise InvalidConfig(f"warmup = {self.warmup!r} must be an integer from 0 to 2**32 - 1")
        object.__setattr__(self, "end", end + 0.0)  # so that -0.0 and 0.0 are written alike
        object.__setattr__(self, "warmup", warmup)

    def __str__(self) -> str:
        """The text that `parse` reads as this schedule."""
        decay = self.decay if self.decay == "constant" else f"{self.decay}(end={self.end!r})"
        return f"warmup(rounds={self.warmup})+{decay}" if self.warmup else decay

    @property
    def needs_horizon(self) -> bool:
        """Whether the rate depends on the horizon.

        >>> parse("warmup(rounds=10)").needs_horizon, parse("cosine").needs_horizon
        (False, True)
        """
        return self.decay != "constant"

    def check_horizon(self, horizon: int | None) -> None:
        """Refuse a horizon that this schedule cannot use; one that it does not need may be anything.

        >>> parse("cosine").check_horizon(0)
        Traceback (most recent call last):
        cyber0.errors.InvalidConfig: horizon = 0 must be an integer from 1 to 2**32
        """
        if not self.needs_horizon:
            return
        if horizon is None:
            raise InvalidConfig(f"schedule '{self}' needs a horizon: the round at which the rate has fallen to its end")
        number = _integer(horizon)
        if number is None or not self.warmup < number <= 2**32:
            reason = f": the rate falls after {self.warmup} rounds of warm-up" if self.warmup else ""
            raise InvalidConfig(f"horizon = {horizon!r} must be an integer from {self.warmup + 1} to 2**32{reason}")

    def rate(self, lr: float, round: int, horizon: int | None = None) -> float:  # noqa: A002
        """Return the learning rate of a round in float64, the same bits on every machine.

        `lr` is the learning rate of the configuration. Rounds are counted from 0. The horizon is the round at which
        the rate has fallen to its end, counted from the start of the run, warm-up included; later it stays there.

        >>> parse("cosine(end=0.1)").rate(0.01, round=50, horizon=100)
        0.0055000000000000005
        """
        lr = _number("lr", lr)
        if lr <= 0:
            raise InvalidConfig(f"lr = {lr!r} must be above 0")
        number = _integer(round)
        if number is None or not 0 <= number < 2**32:
            raise KeyOutOfRange(f"round = {round!r} is out of range: it must be an integer from 0 to 2**32 - 1")
        self.check_horizon(horizon)
        if number < self.warmup:
            return lr * ((number + 1) / self.warmup)
        if horizon is None or self.decay == "constant":
            return lr
        span = int(horizon) - self.warmup
        over = min(number - self.warmup, span)
        fraction = (_linear if self.decay == "linear" else _cosine)(over, span)
        return lr * (self.end + (1.0 - self.end) * fraction)


def parse(text: str) -> Schedule:
    """Return the schedule of a text: `constant`, `linear`, `cosine`, or `warmup(rounds=...)` alone or `+` one of these.

    >>> parse("warmup(rounds=100)+cosine(end=0.1)")
    Schedule(decay='cosine', end=0.1, warmup=100)
    >>> parse("step")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown schedule 'step': use one of constant, cosine, linear, warmup
    """
    first, *rest = (_part(part) for part in PLUS.split(text))
    if not rest:
        return first
    if len(rest) > 1 or not first.warmup or rest[0].warmup:
        raise InvalidName(
            f"schedule {text!r}: only a warm-up is followed by another part, by one of constant, linear and cosine;"
            " write e.g. warmup(rounds=100)+cosine(end=0.1)"
        )
    return Schedule(rest[0].decay, rest[0].end, first.warmup)


def _part(text: str) -> Schedule:
    name, options = check("schedule", text, PARTS)
    if name not in PARTS:  # a function of somebody's own has no bits that all agree on
        raise UnknownName("schedule", name, PARTS)
    check_options(options, PARTS[name], name)
    return PARTS[name](**options)


def _constant_part() -> Schedule:
    return Schedule()


def _linear_part(*, end: float = 0.0) -> Schedule:
    return Schedule("linear", end)


def _cosine_part(*, end: float = 0.0) -> Schedule:
    return Schedule("cosine", end)


def _warmup_part(*, rounds: int | None = None) -> Schedule:
    number = _integer(rounds)
    if number is None or not 1 <= number < 2**32:
        given = "has no rounds" if rounds is None else f"has rounds = {rounds!r}"
        raise InvalidConfig(f"warmup {given}: give an integer from 1 to 2**32 - 1, e.g. warmup(rounds=100)")
    return Schedule(warmup=number)


PARTS: dict[str, Callable[..., Schedule]] = {
    "constant": _constant_part,
    "cosine": _cosine_part,
    "linear": _linear_part,
    "warmup": _warmup_part,
}


def _linear(over: int, span: int) -> float:
    return (span - over) / span


def _cosine(over: int, span: int) -> float:
    """Return (1 + cos(pi over / span)) / 2: each half from its own end, so that small values are accurate, too."""
    x = min(over, span - over) / span
    z = x * x
    p = COSINE[-1]
    for coefficient in COSINE[-2::-1]:
        p = p * z + coefficient  # two roundings: Python fuses nothing
    h = p * z
    return 1.0 - h if over <= span - over else h


def _integer(value: Any) -> int | None:
    """The integer that a value is (of Python or NumPy), or None."""
    try:
        return None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        return None


def _number(name: str, value: SupportsFloat) -> float:
    """A finite number as a Python float."""
    if not isinstance(value, bool | str):
        try:
            if math.isfinite(number := float(value)):
                return number
        except (TypeError, ValueError, OverflowError):
            pass
    raise InvalidConfig(f"{name} = {value!r} must be a finite number")
