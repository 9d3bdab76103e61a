"""Rules with memory, and rules of every shape that a user may give."""
# ruff: noqa: ARG001, ARG005 (they share one signature)

from functools import partial

import numpy as np
import pytest
import torch

from cyber0.aggregation import (
    CenteredClippingPrevious,
    RuleWithMemory,
    after,
    aggregate,
    begin,
    centered_clipping,
    compose,
    cwtm,
    get_rule,
    nnm,
    trimmed_mean,
    with_memory,
)
from cyber0.attacks import AttackRun
from cyber0.errors import InvalidAggregation, InvalidName, UnknownName
from cyber0.testing import check_rule

VOTES = np.random.default_rng(1).normal(1.0, 1.0, (2, 9, 4))  # [rows, n, k]


class Averaged:
    """The mean of the median and of the last commits."""

    def __init__(self, *, last=2):
        self.last = last

    def begin(self):
        return ()

    def after(self, memory, scalars, /):
        return (*memory, scalars)[-self.last :]

    def __call__(self, vectors, byzantine, /, *, memory):
        result = get_rule("median")(vectors, byzantine) / (1 + len(memory))
        for scalars in memory:
            own = (scalars / (1 + len(memory))).astype(np.asarray(vectors).dtype)
            result = result + (own if isinstance(vectors, np.ndarray) else torch.tensor(own))
        return result


def commits(rule, rounds):
    memory, made = begin(rule), []
    for t in range(rounds):
        made.append(aggregate(rule, VOTES + t, 2, memory).astype(np.float32))
        memory = after(rule, memory, made[-1])
    return made, memory


@pytest.mark.parametrize("rule", ["centered_clipping_previous(radius=1.0)", "nnm+centered-clipping-previous", Averaged])
def test_the_memory_is_a_function_of_the_commits(rule):
    made, memory = commits(get_rule(rule), 5)
    again, rebuilt = get_rule(rule), begin(rule)
    for t, scalars in enumerate(made):
        assert aggregate(again, VOTES + t, 2, rebuilt).astype(np.float32).tobytes() == scalars.tobytes()
        rebuilt = after(again, rebuilt, scalars)
    assert np.array_equal(rebuilt, memory)
    assert not np.array_equal(aggregate(again, VOTES, 2, rebuilt), aggregate(again, VOTES, 2))


@pytest.mark.parametrize("rule", ["cwtm", "nnm+krum", cwtm, lambda vectors, _: vectors.mean(-2)])
def test_a_plain_rule_has_no_memory(rule):
    assert begin(rule) is None
    assert after(rule, None, np.ones((2, 4), dtype=np.float32)) is None
    assert np.array_equal(aggregate(rule, VOTES, 2, None), get_rule(rule)(VOTES, 2))


def test_centered_clipping_starts_from_the_previous_commit():
    previous = VOTES.mean(axis=1).astype(np.float32) + 3
    rule = CenteredClippingPrevious(radius=0.5, iterations=2)
    point = previous.astype(np.float64)[:, None]
    for _ in range(2):
        offset = VOTES - point
        length = np.linalg.norm(offset, axis=-1, keepdims=True)
        point = point + (offset * np.minimum(1, 0.5 / length)).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(rule(VOTES, 2, memory=previous), point[:, 0], rtol=1e-12)
    from_zero = centered_clipping(VOTES, 2, radius=0.5, iterations=2, start="zero")
    assert np.array_equal(aggregate(rule, VOTES, 2), from_zero)


def test_votes_of_zero_and_of_any_size_are_clipped_about_a_commit():
    memory = np.full((2, 4), 2.0, dtype=np.float32)
    for votes in (np.zeros_like(VOTES), VOTES * 1e300, VOTES * 1e-300):
        assert np.isfinite(aggregate("centered_clipping_previous", votes, 2, memory)).all()


def test_names_and_options_of_rules_with_memory():
    rule = get_rule("nnm+centered_clipping_previous(radius=2.0)")
    assert rule.name == "nnm+centered_clipping_previous(radius=2.0)"
    assert isinstance(rule.rule, RuleWithMemory)
    assert rule.rule.radius == 2.0
    with pytest.raises(UnknownName, match="unknown option 'start' of centered_clipping_previous: use one of iter"):
        get_rule("centered_clipping_previous(start='zero')")
    assert compose(nnm, partial(Averaged, last=3)).name == f"nnm+{Averaged.__module__}:Averaged(last=3)"


def test_an_attack_is_shown_the_rule_with_its_memory():
    memory = np.full((2, 4), 50.0, dtype=np.float32)
    rule = with_memory("nnm+centered_clipping_previous(radius=1.0)", memory)
    assert np.array_equal(rule(VOTES, 2), aggregate("nnm+centered_clipping_previous(radius=1.0)", VOTES, 2, memory))
    assert np.array_equal(rule.rule(VOTES, 2), aggregate("centered_clipping_previous(radius=1.0)", VOTES, 2, memory))
    for attack in ("foe", "foe-nnm"):
        run = AttackRun(attack, seed=0)
        sent = run.mount(VOTES, [7, 8], rule, 2, round=0)
        assert np.isfinite(sent).all()
        assert run.reports["omega"].shape == (2,)


def test_a_rule_with_memory_is_put_to_the_test():
    assert check_rule(Averaged()) is None
    rule = Averaged()
    rule.after = lambda memory, scalars: (*memory, np.random.default_rng().random(3, dtype=np.float32))
    with pytest.raises(AssertionError, match=r"Averaged, memory: after\(\) gives different memories"):
        check_rule(rule)
    rule = CenteredClippingPrevious()
    forgotten = []
    rule.begin = lambda: forgotten
    rule.after = lambda memory, scalars: memory.append(scalars) or list(memory)
    with pytest.raises(AssertionError, match=r"memory: after\(\) (modified the memory|gives different memories)"):
        check_rule(rule)


def along_clients(vectors, byzantine):
    return vectors.mean(axis=-2)


@pytest.mark.parametrize(
    "rule",
    [
        lambda vectors, byzantine: vectors.mean(-2),
        partial(along_clients),
        type("Mean", (), {"__call__": lambda self, vectors, byzantine: vectors.mean(-2)}),
        type("Mean", (), {"__call__": lambda self, vectors, byzantine: vectors.mean(-2), "__hash__": None})(),
        lambda vectors, byzantine: vectors.mean(-2).tolist(),
        lambda vectors, byzantine: torch.as_tensor(np.asarray(vectors)).mean(-2).requires_grad_(),
        lambda vectors, byzantine: np.asarray(vectors).mean(-2),
    ],
)
@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
@pytest.mark.parametrize("pre", [(), (nnm,)])
def test_any_callable_is_a_rule(rule, library, pre):
    votes = library(VOTES)
    result = compose(*pre, rule)(votes, 2)
    assert type(result) is type(votes)
    wanted = (nnm(VOTES, 2) if pre else VOTES).mean(-2)
    np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((lambda vectors, byzantine: 1 / 0,), "<lambda>' cannot be used: ZeroDivisionError"),
        ((lambda vectors: vectors,), "<lambda>' cannot be used: TypeError"),
        ((lambda vectors, byzantine: None,), "<lambda>' cannot be used: TypeError: it returned object values"),
        ((lambda vectors, byzantine: vectors.mean(0),), r"made \(2, 9, 4\) votes into \(9, 4\): it must give \(2, 4\)"),
        ((lambda vectors, byzantine: vectors[..., 0, :], cwtm), r"made \(2, 9, 4\) votes into \(2, 4\)"),
        ((type("Numb", (), {}),), "Numb': its instances must be callable"),
    ],
)
def test_what_a_users_rule_does_wrong_is_named(steps, words):
    with pytest.raises(InvalidAggregation, match=words) as caught:
        compose(*steps)(VOTES, 2)
    assert "cannot be used" not in words or caught.value.__cause__ is not None


def test_what_is_no_rule_is_refused():
    with pytest.raises(InvalidName, match="rule = 3 is a int: give a name or a callable"):
        get_rule(3)


def test_names_may_be_spelled_out():
    assert get_rule("trimmed_mean").rule is trimmed_mean is cwtm
    assert get_rule("nnm+trimmed-mean").name == "nnm+cwtm"
    assert get_rule("geometric-median").name == "geometric_median"
