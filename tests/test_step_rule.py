"""The step of a round follows from the commits alone, with the same bits for everybody, and is bounded."""

import json
from fractions import Fraction
from math import isqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InputError, InvalidConfig, InvalidParameters, UnknownName
from cyber0.network.local_model import LocalModel
from cyber0.parameters import Parameters
from cyber0.plan import CommitSequence
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import to_wire
from cyber0.replay import base, rebuild
from cyber0.simulation import Simulation
from cyber0.simulation.export import Record
from cyber0.simulation.run import run
from cyber0.step_rule import StepRule, parse
from cyber0.tasks.task import get_task

VECTORS = json.loads((Path(__file__).parent / "step_rule_vectors.json").read_text())
SMALL = {"clients": 5, "byzantine": 1, "directions": 3, "batch": 8, "rounds": 6, "source": "embedded", "lr": 0.05}
NORMALISED = {"step_rule": "normalised(beta=0.9)"}
TASK = get_task("mnist")(None, "embedded")
SCALAR = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROUNDS = st.lists(st.lists(SCALAR, min_size=2, max_size=2), min_size=1, max_size=6)


def rounded(value: Fraction) -> Fraction:
    return Fraction(float(value))  # to nearest, ties to even


def root(value: Fraction) -> float:
    """The square root of a float64, rounded once: by integers, to 80 bits, then the rest decides."""
    numerator, denominator = value.numerator, value.denominator  # a power of two
    shift = 400 + denominator.bit_length() % 2
    if (denominator.bit_length() - 1 + shift) % 2:
        shift += 1
    whole = isqrt(numerator << shift)
    exact = whole * whole == numerator << shift
    half = (denominator.bit_length() - 1 + shift) // 2
    return float(Fraction(2 * whole + (not exact), 2 << half))


def peer(beta: float, rate: float, rounds) -> list[tuple[float, float]]:
    """The definition of docs/schedules.md in exact fractions: v and the step after each round."""
    v, found = Fraction(0), []
    for scalars in rounds:
        s = Fraction(0)
        for c in scalars:
            q = Fraction(float(np.float32(c))) ** 2
            s = rounded(s + q)
        step = rate
        if s:
            a, g = rounded(Fraction(beta) * v), rounded(1 - Fraction(beta))
            v = rounded(a + rounded(g * s)) if v else s
            step = float(Fraction(rate) / Fraction(root(v)))
        elif v:
            step = float(Fraction(rate) / Fraction(root(v)))
        found.append((float(v), step))
    return found


def played(rule: StepRule, rate: float, rounds) -> list[tuple[float, float]]:
    moment, found = 0.0, []
    for scalars in rounds:
        moment = rule.after(moment, [scalars])
        found.append((moment, rule.rate(rate, moment)))
    return found


@given(st.floats(0, 1, exclude_max=True), st.floats(1e-12, 1e12), ROUNDS)
def test_the_step_is_what_is_defined_to_the_bit(beta, rate, rounds):
    assert played(StepRule(beta), rate, rounds) == peer(beta, rate, rounds)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["step_rule"])
def test_vectors(vector):
    rounds = [[float.fromhex(c) for c in scalars] for scalars in vector["scalars"]]
    found = played(parse(vector["step_rule"]), float.fromhex(vector["rate"]), rounds)
    assert [[moment.hex(), step.hex()] for moment, step in found] == vector["moments and steps"]


@given(st.floats(0, 0.9999), ROUNDS)
def test_no_round_moves_further_than_its_bound(beta, rounds):
    for (_, step), scalars in zip(played(StepRule(beta), 1.0, rounds), rounds, strict=True):
        length = np.sqrt(np.square(np.array(scalars, dtype=np.float64)).sum())
        assert step * length <= (1 + 1e-12) / np.sqrt(1 - beta)


@given(st.lists(SCALAR, min_size=2, max_size=2))
def test_the_first_round_that_moves_has_the_length_of_the_rate(scalars):
    [(_, first), (moment, second)] = played(StepRule(0.5), 0.25, [[0.0, -0.0], scalars])
    assert first == 0.25
    length = np.sqrt(np.square(np.array(scalars, dtype=np.float64)).sum())
    assert moment == 0 if length == 0 else second * length == pytest.approx(0.25)


@given(st.floats(0, 1, exclude_max=True))
def test_a_rule_is_read_as_it_is_written(beta):
    assert parse(str(StepRule(beta))) == StepRule(beta)
    assert parse("plain") == StepRule() == parse(str(StepRule()))


@pytest.mark.parametrize(
    "text",
    ["normalised(beta=1)", "normalised(beta=-0.1)", "normalised(beta='a')", "normalised(beta=None)", "plain(a=1)"],
)
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(InputError, match=r"beta|unknown option"):
        parse(text)
    with pytest.raises(InvalidConfig):
        Agreement(step_rule=text)


def test_a_function_of_ones_own_is_no_rule_and_fedavg_has_none():
    with pytest.raises(UnknownName, match="unknown step rule"):
        parse("math:hypot")
    with pytest.raises(InvalidConfig, match="step_rule = 'normalised' is for algorithm = 'cyber0'"):
        RunConfig(algorithm="fedavg", step_rule="normalised")


def test_the_identity_of_a_run_with_plain_steps_is_what_it_was():
    zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})

    def identity(**options):
        agreement = Agreement(clients=3, byzantine=1, schedule="cosine", rounds=9, **options)
        return Identity.of(agreement, ["a", "b", "c"], zeros)

    pinned = "59132b0e29fa70906d39c2352f95db9896023c002efbea5a2c7919f1136a9920"  # of the version before step rules
    assert identity().digest.hex() == identity(step_rule="plain").digest.hex() == pinned
    assert identity(step_rule="normalised").digest.hex() != pinned
    again = Identity.from_bytes(identity(**NORMALISED).to_bytes(), identity(**NORMALISED).roster.to_bytes())
    assert again.plan.step_rule == StepRule(0.9)
    assert "step_rule" not in RunConfig().to_toml()
    assert "normalised" in RunConfig(**NORMALISED).to_toml()


# In runs


@pytest.mark.parametrize(
    "changes", [{}, {"dropout": 0.4, "byzantine": 2, "rounds": 25}], ids=["all vote", "skipped rounds"]
)
def test_a_run_is_replayed_and_resumed_to_the_same_bits(tmp_path, changes):
    config = RunConfig(**SMALL | NORMALISED | {"evaluate_every": 2} | changes)
    simulation = Simulation(config, TASK)
    record, rounds = Record(simulation), []
    for round_played in simulation.play():
        record.add(round_played)
        rounds.append(round_played.aggregate)
    assert any(aggregate is None for aggregate in rounds) == bool(changes)
    mark, ledger = simulation.parameters.fingerprint(), Memory()
    ledger.adopt(record.exported())
    _, parameters = base(ledger.identity, None)
    assert rebuild(ledger, parameters) == mark
    run(config.updated(rounds=4), tmp_path / "run", task=TASK)
    resumed = run(config, tmp_path / "run", task=TASK, resume=True)
    assert resumed.fingerprint == f"{mark:016x}"


@pytest.mark.parametrize("scheme", ["unbiased", "biased", "compressed"])
def test_engines_agree_on_local_steps(scheme):
    def votes(engine):
        options = {"engine": engine, "scheme": scheme, "local_epochs": 3, "mu": 0.02, "lr": 0.1, "family": "gaussian"}
        simulation = Simulation(RunConfig(**SMALL | NORMALISED | options), TASK)
        simulation.play_round(0)
        return simulation.votes(1, np.arange(5))

    batched, sequential = votes("batched"), votes("sequential")
    np.testing.assert_allclose(batched, sequential, rtol=0.01, atol=0.01 * np.abs(sequential).max())


def test_clients_that_start_again_from_stored_weights_hold_the_same_bits():
    agreement = Agreement(**{k: v for k, v in SMALL.items() if k != "source"}, **NORMALISED, local_epochs=2)
    one, other = (LocalModel(agreement, 0, TASK, "cpu") for _ in range(2))
    rows = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    one.advance(0, to_wire(rows[:4]))
    other.load(one.weights())
    for model in (one, other):
        model.advance(4, to_wire(rows[4:]))
    assert one.fingerprint() == other.fingerprint()
    assert one.vote(6) == other.vote(6)
    one.reset()
    one.advance(0, to_wire(rows))
    assert one.fingerprint() == other.fingerprint()
    plain = CommitSequence(agreement.updated(step_rule="plain").plan)
    assert [commit.lr for commit in plain.commits(0, rows)] == [0.05] * 6
    stored = one.weights()
    stored.header["__metadata__"] = {"second_moment": "nan"}
    with pytest.raises(InvalidParameters, match="second_moment = 'nan'"):
        other.load(stored)
