"""Rules by name, and what is refused."""

import pickle
import re
from functools import partial

import numpy as np
import pytest

from cyber0.aggregation import (
    PREAGGREGATIONS,
    RULES,
    Composition,
    bucketing,
    bulyan,
    clip,
    compose,
    cwtm,
    get_rule,
    krum,
    minimum_diameter,
    multikrum,
    nnm,
)
from cyber0.errors import InputError, InvalidAggregation, InvalidName, UnknownName

VOTES = np.random.default_rng(0).standard_normal((7, 3))


@pytest.mark.parametrize("name", RULES)
def test_a_name_finds_its_rule(name: str) -> None:
    found = get_rule(name)
    assert (found.pre, found.name) == ((), name)
    rule = RULES[name]
    assert isinstance(found.rule, rule) if isinstance(rule, type) else found.rule is rule


def test_steps_compose_from_left_to_right() -> None:
    found = get_rule("clip + nnm+cwtm")
    assert found.pre == (clip, nnm)
    assert found.rule is cwtm
    assert found.name == "clip+nnm+cwtm"
    assert (found(VOTES, 2) == cwtm(nnm(clip(VOTES, 2), 2), 2)).all()
    assert (found(VOTES, 2) == compose(clip, nnm, cwtm)(VOTES, 2)).all()


@pytest.mark.parametrize(
    "name",
    [
        "krum(power=1, neighbours='n-b-2')",
        "bucketing(size=2)+median",
        "clip(radius=1e+3)+nnm+multikrum(chosen=3)",
        "cyber0.aggregation.rules.krum:krum(power=1)",
        "cyber0.aggregation:nnm+cyber0.aggregation:cwtm",
    ],
)
def test_the_name_of_what_was_found_finds_it_again(name: str) -> None:
    found = get_rule(name)
    again = get_rule(found.name)
    assert again.name == found.name
    assert (again(VOTES, 1) == found(VOTES, 1)).all()
    assert (pickle.loads(pickle.dumps(found))(VOTES, 1) == found(VOTES, 1)).all()  # noqa: S301


def test_options_reach_the_rule() -> None:
    found = get_rule("nnm+krum(power=1, neighbours='n-b-2')")
    assert found.rule.keywords == {"power": 1, "neighbours": "n-b-2"}
    assert (found(VOTES, 2) == krum(nnm(VOTES, 2), 2, power=1, neighbours=3)).all()
    assert (get_rule("nnm+krum")(VOTES, 2, power=1, neighbours=3) == found(VOTES, 2)).all()


def test_a_callable_of_the_users_is_a_rule_or_a_step() -> None:
    def half(vectors, _byzantine):
        return vectors / 2

    assert (compose(half, cwtm)(VOTES, 1) == cwtm(VOTES / 2, 1)).all()
    assert get_rule(half).rule is half
    assert get_rule(compose(nnm, krum)).name == "nnm+krum"
    assert isinstance(get_rule(partial(krum, power=1)), Composition)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("krun", r"unknown rule 'krun': use one of bulyan, .* \(did you mean 'krum'\?\)"),
        ("nmm+cwtm", r"unknown pre-aggregation 'nmm'.*did you mean 'nnm'"),
        ("cwtm+krum", "unknown pre-aggregation 'cwtm'"),
        ("krum(powr=1)", r"unknown option 'powr' of krum.*neighbours, power \(did you mean 'power'\?\)"),
        ("mean(x=1)", r"unknown option 'x' of mean: it has no options"),
        ("cyber0.aggregation:krun", "unknown callable 'krun' of cyber0.aggregation.*did you mean 'krum'"),
        ("krum(neighbours='n-b')", None),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name: str, message: str | None) -> None:
    with pytest.raises(UnknownName, match=message):
        get_rule(name)(VOTES, 1)


@pytest.mark.parametrize(("name", "right"), [("nnm", "nnm+cwtm"), ("cwtm+clip(radius=1)", "clip(radius=1)+cwtm")])
def test_a_pre_aggregation_alone_is_told_what_it_needs(name, right):
    with pytest.raises(InvalidAggregation, match=rf"a rule must follow it, as in {re.escape(right)}$"):
        get_rule(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nnm+",
        "+cwtm",
        "krum(",
        "krum(1)",
        "krum(power=__import__('os'))",
        "krum(**{})(power=1)",
        "krum(power=1)(power=2)",
        "krum power",
        "no_such_module:rule",
        "cyber0.no_such_module:rule",
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        get_rule(name)


def test_nothing_is_no_composition() -> None:
    with pytest.raises(InvalidAggregation, match="nothing to compose"):
        compose()


@pytest.mark.parametrize("rule", [*map(get_rule, RULES), *PREAGGREGATIONS.values()])
@pytest.mark.parametrize(
    ("vectors", "byzantine", "message"),
    [
        (np.zeros((6, 2)), 3, "byzantine = 3: it must be from 0 to 2, since fewer than half of the n = 6"),
        (np.zeros((6, 2)), -1, "byzantine = -1: it must be from 0 to 2"),
        (np.zeros((6, 2)), 1.5, "byzantine = 1.5 must be an integer"),
        (np.zeros(6), 1, r"vectors has shape \(6,\): it must be \[..., n, k\]"),
        (np.zeros((0, 6)), 0, r"vectors has shape \(0, 6\)"),
        (np.zeros((6, 2), dtype=np.int64), 1, "vectors is int64: give floating-point numbers"),
        ([[1.0], [2.0]], 0, "vectors is a list: give an array"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(rule, vectors, byzantine, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rule(vectors, byzantine)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bulyan(VOTES, 2), r"byzantine = 2 of n = 7 vectors: Bulyan needs n >= 4 b \+ 3"),
        (lambda: krum(VOTES, 2, neighbours=7), "neighbours = 7 of n = 7 vectors: it must be from 1 to 6"),
        (lambda: multikrum(VOTES, 2, chosen=8), "chosen = 8 of n = 7 vectors: it must be from 1 to 7"),
        (lambda: krum(VOTES, 2, power=0), "power = 0 must be positive"),
        (lambda: clip(VOTES, 2, radius=-1.0), r"radius = -1\.0 must be a length, finite and not negative"),
        (lambda: krum(VOTES * np.inf, 2), "vectors holds a value that is not finite"),
        (lambda: bucketing(VOTES, 2, size=8), "size = 8 of n = 7 vectors"),
        (lambda: minimum_diameter(VOTES, 3, most=10), "leaves 35 subsets to try: raise most = 10"),
        (lambda: get_rule("bucketing+cwtm")(VOTES, 2), "fewer than half of the n = 4 vectors"),
        (
            lambda: get_rule("centered_clipping(start='mean')")(VOTES, 2),
            "unknown start 'mean': use one of median, zero",
        ),
    ],
)
def test_too_few_vectors_or_a_bad_option_are_refused(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
