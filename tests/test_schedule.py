"""The learning rate of a round has the same bits everywhere; it rises, falls and stays as its schedule says."""

import json
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyber0.errors import InputError, InvalidConfig, InvalidName, KeyOutOfRange, UnknownName
from cyber0.schedule import COSINE, Schedule, parse

HERE = Path(__file__).parent
VECTORS = json.loads((HERE / "schedule_vectors.json").read_text())
PAGE = HERE.parent / "docs" / "schedules.md"
PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459")

LR = st.floats(1e-12, 1e12)
END = st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0, 1)
HORIZON = st.integers(1, 40) | st.integers(1, 2**32 - 2**20)
DECAY = st.sampled_from(["linear", "cosine"])


@st.composite
def falling(draw: st.DrawFn, warmup: bool = True) -> tuple[Schedule, int]:
    """A schedule that needs a horizon, and one."""
    before = draw(st.integers(0, 9) | st.integers(0, 2**20)) if warmup else 0
    return Schedule(draw(DECAY), draw(END), before), before + draw(HORIZON)


def peer(schedule: Schedule, lr: float, round: int, horizon: int) -> np.float64:
    """The definition of docs/schedules.md in NumPy scalars, one operation per line."""
    f64 = np.float64
    if round < schedule.warmup:
        q = f64(round + 1) / f64(schedule.warmup)
        return f64(lr) * q
    if schedule.decay == "constant":
        return f64(lr)
    span = horizon - schedule.warmup
    over = min(round - schedule.warmup, span)
    if schedule.decay == "linear":
        f = f64(span - over) / f64(span)
    else:
        x = f64(min(over, span - over)) / f64(span)
        z = np.multiply(x, x)
        p = f64(documented_coefficients()[7])
        for index in range(6, -1, -1):
            p = np.multiply(p, z)
            p = np.add(p, f64(documented_coefficients()[index]))
        h = np.multiply(p, z)
        f = np.subtract(f64(1), h) if over <= span - over else h
    a = np.subtract(f64(1), f64(schedule.end))
    b = np.multiply(a, f)
    c = np.add(f64(schedule.end), b)
    return np.multiply(f64(lr), c)


def documented_coefficients() -> list[float]:
    rows = re.findall(r"^\| C(\d) \| `(-?0x[0-9a-f.]+p[+-]\d+)` \|", PAGE.read_text(), re.MULTILINE)
    assert [int(index) for index, _ in rows] == list(range(8))
    return [float.fromhex(text) for _, text in rows]


def true_cosine(over: int, span: int) -> Fraction:
    """(1 + cos(pi over / span)) / 2 to 50 digits, by the series of the cosine of an angle of at most pi / 2."""
    with localcontext() as context:
        context.prec = 60
        if 2 * over > span:
            return 1 - true_cosine(span - over, span)
        angle = PI * over / span
        square = (Decimal(angle.numerator) / Decimal(angle.denominator)) ** 2
        term = total = Decimal(1)
        for k in range(1, 40):
            term = -term * square / (2 * k * (2 * k - 1))
            total += term
        return (1 + Fraction(total)) / 2


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{vector['schedule']} {vector['horizon']}" for vector in VECTORS])
def test_the_test_vectors(vector: dict[str, Any]) -> None:
    schedule, lr = parse(vector["schedule"]), float.fromhex(vector["lr"])
    rates = {t: schedule.rate(lr, int(t), vector["horizon"]).hex() for t in vector["rates"]}
    assert rates == vector["rates"]


def test_the_page_has_the_coefficients_of_the_code() -> None:
    assert tuple(documented_coefficients()) == COSINE


@given(LR, falling(), st.data())
def test_another_implementation_gives_the_same_bits(lr: float, pair: tuple[Schedule, int], data: st.DataObject) -> None:
    schedule, horizon = pair
    t = data.draw(st.integers(0, horizon + 3))
    assert schedule.rate(lr, t, horizon).hex() == float(peer(schedule, lr, t, horizon)).hex()


@given(falling(warmup=False), st.data())
def test_linear_and_cosine_are_near_the_truth(pair: tuple[Schedule, int], data: st.DataObject) -> None:
    schedule, horizon = pair
    t = data.draw(st.integers(0, horizon))
    true = true_cosine(t, horizon) if schedule.decay == "cosine" else Fraction(horizon - t, horizon)
    fraction = Fraction(Schedule(schedule.decay).rate(1.0, t, horizon))
    assert abs(fraction - true) <= min(Fraction(4e-16), true * Fraction(8e-16))
    end = Fraction(schedule.end)
    assert abs(Fraction(schedule.rate(1.0, t, horizon)) - (end + (1 - end) * true)) < Fraction(8e-16)


@given(LR, st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_constant_is_the_learning_rate_to_the_bit(lr: float, t: int, warmup: int) -> None:
    assert Schedule().rate(lr, t) == lr
    assert Schedule(warmup=warmup).rate(lr, warmup + t % 2**31) == lr


@given(LR, falling(), st.data())
def test_the_rate_falls_from_the_learning_rate_to_its_end(
    lr: float, pair: tuple[Schedule, int], data: st.DataObject
) -> None:
    schedule, horizon = pair
    assert schedule.rate(lr, schedule.warmup, horizon) == lr
    for late in (horizon, horizon + 1, 2**32 - 1):
        assert schedule.rate(lr, late, horizon) == schedule.end * lr
    t = data.draw(st.integers(schedule.warmup, horizon))
    here, after = (schedule.rate(lr, each, horizon) for each in (t, t + 1))
    assert schedule.end * lr <= after <= here <= lr


@pytest.mark.parametrize("decay", ["linear", "cosine"])
@pytest.mark.parametrize("horizon", [1, 2, 3, 1000, 4096])
def test_without_an_end_no_two_rounds_before_the_horizon_are_equal(decay: Any, horizon: int) -> None:
    rates = [Schedule(decay).rate(1.0, t, horizon) for t in range(horizon + 1)]
    assert all(after < before for before, after in pairwise(rates))
    assert (rates[0], rates[-1]) == (1.0, 0.0)
    assert horizon % 2 or rates[horizon // 2] == 0.5


@pytest.mark.parametrize("horizon", [2**32 - 2, 2**32])
@pytest.mark.parametrize("fraction", [0, 1 / 4, 1 / 2, 3 / 4, 1])
def test_cosine_falls_in_every_round_of_the_longest_runs(horizon: int, fraction: float) -> None:
    middle = int(fraction * horizon)
    rounds = range(max(0, middle - 500), min(2**32 - 1, middle + 500))
    rates = [Schedule("cosine").rate(1.0, t, horizon) for t in rounds]
    assert all(after <= before for before, after in pairwise(rates))


@given(LR, falling())
def test_warm_up_rises_to_the_learning_rate_whatever_follows(lr: float, pair: tuple[Schedule, int]) -> None:
    schedule, horizon = pair
    rounds = range(min(schedule.warmup, 20))
    rising = [schedule.rate(lr, t, horizon) for t in rounds]
    assert rising == sorted(rising)
    assert rising == [Schedule(warmup=schedule.warmup).rate(lr, t) for t in rounds]
    assert rising == [lr * float(Fraction(t + 1, schedule.warmup)) for t in rounds]
    if schedule.warmup:
        assert schedule.rate(lr, schedule.warmup - 1, horizon) == lr


@given(LR, falling(), st.data())
def test_after_a_warm_up_the_decay_runs_over_the_rounds_that_are_left(
    lr: float, pair: tuple[Schedule, int], data: st.DataObject
) -> None:
    schedule, horizon = pair
    t = data.draw(st.integers(0, horizon))
    alone = Schedule(schedule.decay, schedule.end)
    assert schedule.rate(lr, schedule.warmup + t, horizon) == alone.rate(lr, t, horizon - schedule.warmup)


def test_the_horizon_is_part_of_what_must_be_agreed() -> None:
    assert parse("linear").rate(1.0, 5, 10) != parse("linear").rate(1.0, 5, 20)
    for text in ("constant", "warmup(rounds=9)", "warmup(rounds=9)+constant"):
        schedule = parse(text)
        assert not schedule.needs_horizon
        assert schedule.rate(1.0, 5, 10) == schedule.rate(1.0, 5, 20) == schedule.rate(1.0, 5)
    for text in ("linear", "cosine(end=1)", "warmup(rounds=9)+linear"):
        assert parse(text).needs_horizon
        with pytest.raises(InvalidConfig, match="needs a horizon"):
            parse(text).rate(1.0, 0)


@given(st.builds(Schedule, DECAY, END, st.integers(0, 99)) | st.builds(Schedule, warmup=st.integers(0, 99)))
@example(Schedule("cosine", -0.0))
@example(Schedule("cosine", 1e-300, 7))
def test_a_schedule_is_read_as_it_is_written(schedule: Schedule) -> None:
    assert parse(str(schedule)) == schedule
    assert str(parse(str(schedule))) == str(schedule)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("constant", Schedule()),
        ("linear", Schedule("linear", 0.0)),
        ("linear(end=0.1)", Schedule("linear", 0.1)),
        (" cosine ( end = 1 ) ", Schedule("cosine", 1.0)),
        ("linear(end=+0.1)", Schedule("linear", 0.1)),
        ("warmup(rounds=100)", Schedule(warmup=100)),
        ("warmup(rounds=100)+constant", Schedule(warmup=100)),
        ("warmup(rounds=100) + cosine(end=1e-2)", Schedule("cosine", 0.01, 100)),
    ],
)
def test_what_a_text_means(text: str, schedule: Schedule) -> None:
    assert parse(text) == schedule


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("cosin", UnknownName, "did you mean 'cosine'"),
        ("math:cos", UnknownName, "use one of constant, cosine, linear, warmup"),
        ("linear(ends=0.1)", UnknownName, "did you mean 'end'"),
        ("constant(end=0.1)", UnknownName, "it has no options"),
        ("linear(0.1)", InvalidName, "options are written name=value"),
        ("", InvalidName, "write name"),
        ("warmup(rounds=5)+", InvalidName, "write name"),
        ("cosine+warmup(rounds=5)", InvalidName, "only a warm-up is followed"),
        ("linear+cosine", InvalidName, "only a warm-up is followed"),
        ("warmup(rounds=5)+warmup(rounds=5)", InvalidName, "only a warm-up is followed"),
        ("warmup(rounds=5)+linear+cosine", InvalidName, "only a warm-up is followed"),
        ("linear(end=1.5)", InvalidConfig, "end = 1.5 must be from 0 to 1"),
        ("linear(end=-0.1)", InvalidConfig, "end = -0.1 must be from 0 to 1"),
        ("linear(end=1e999)", InvalidConfig, "end = inf must be a finite number"),
        ("linear(end='0.1')", InvalidConfig, "end = '0.1' must be a finite number"),
        ("linear(end=True)", InvalidConfig, "end = True must be a finite number"),
        ("linear(end=[])", InvalidConfig, "must be a finite number"),
        ("warmup", InvalidConfig, "warmup has no rounds"),
        ("warmup(rounds=0)", InvalidConfig, "rounds = 0"),
        ("warmup(rounds=2.0)", InvalidConfig, "rounds = 2.0"),
        ("warmup(rounds=True)", InvalidConfig, "rounds = True"),
        (f"warmup(rounds={2**32})", InvalidConfig, "2\\*\\*32 - 1"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused(text: str, error: type[InputError], says: str) -> None:
    with pytest.raises(error, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"lr": 0.0}, InvalidConfig, "lr = 0.0"),
        ({"lr": float("nan")}, InvalidConfig, "lr = nan"),
        ({"round": -1}, KeyOutOfRange, "round = -1"),
        ({"round": 2**32}, KeyOutOfRange, "round = 4294967296"),
        ({"round": 1.0}, KeyOutOfRange, "round = 1.0"),
        ({"horizon": 0}, InvalidConfig, "horizon = 0 must be an integer from 6"),
        ({"horizon": 5}, InvalidConfig, "from 6 to 2\\*\\*32: the rate falls after 5 rounds of warm-up"),
        ({"horizon": 10.0}, InvalidConfig, "horizon = 10.0"),
        ({"horizon": 2**32 + 1}, InvalidConfig, "horizon = 4294967297"),
    ],
)
def test_a_rate_of_nothing_is_refused(options: dict[str, Any], error: type[InputError], says: str) -> None:
    with pytest.raises(error, match=says):
        Schedule("cosine", warmup=5).rate(**{"lr": 0.1, "round": 3, "horizon": 10, **options})


@pytest.mark.parametrize(
    ("options", "error"),
    [({"decay": "step"}, UnknownName), ({"end": 0.5}, InvalidConfig), ({"warmup": -1}, InvalidConfig)],
)
def test_fields_that_make_no_schedule_are_refused(options: dict[str, Any], error: type[InputError]) -> None:
    with pytest.raises(error):
        Schedule(**options)


def test_numbers_of_numpy_give_python_floats_of_the_same_bits() -> None:
    schedule = Schedule("cosine", np.float64(0.1), np.int64(2))  # type: ignore[arg-type]
    rate = schedule.rate(np.float64(0.3), np.int32(5), np.int64(9))  # type: ignore[arg-type]
    assert type(rate) is float
    assert rate == Schedule("cosine", 0.1, 2).rate(0.3, 5, 9)
    assert str(schedule) == "warmup(rounds=2)+cosine(end=0.1)"
