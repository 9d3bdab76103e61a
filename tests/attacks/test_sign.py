"""The sign of ALIE: which side of the mean the liars are on, and that the worse one is taken."""

import numpy as np
import pytest

import cyber0
from cyber0.aggregation import get_rule
from cyber0.attacks import AttackRun, get_attack, mount
from cyber0.errors import InvalidAttack

LIARS = range(9, 12)


def votes(seed, skew=1.0, size=5):
    """Honest votes, skewed to one side, of three scenes."""
    drawn = np.random.default_rng(seed).exponential(1.0, (3, 12, size))
    return skew * drawn


def moved(sent, honest, rule):
    return np.linalg.norm(rule(sent, 3) - honest[..., :9, :].mean(axis=-2), axis=-1)


def test_the_sign_mirrors_the_attack():
    """What '-' is to votes, '+' is to their negatives: gradients and changes of the model."""
    honest, rule, rng = votes(0), get_rule("cwtm"), np.random.default_rng(0)
    for options in ("omega=1.5", "search='zoom'"):
        minus = mount(f"alie({options}, sign='-')", honest, LIARS, rule, 3, rng)
        plus = mount(f"alie({options})", -honest, LIARS, rule, 3, rng)
        np.testing.assert_allclose(minus, -plus, rtol=1e-12)


@pytest.mark.parametrize("attack", ["alie", "alie-nnm"])
@pytest.mark.parametrize("rule", ["cwtm", "krum", "nnm+cwtm", "nnm+krum"])
@pytest.mark.parametrize("skew", [1.0, -1.0])
def test_the_worse_sign_moves_the_rule_as_far_as_the_better_of_both(attack, rule, skew):
    honest, found = votes(1, skew), get_rule(rule)
    aimed = get_rule(rule.removeprefix("nnm+")) if attack == "alie" else found
    ends = {}
    for sign in ("+", "-", "worse"):
        run = AttackRun(f"{attack}(sign='{sign}')", seed=0)
        ends[sign] = moved(run.mount(honest, LIARS, found, 3, round=0), honest, aimed)
        assert ("sign" in run.reports) == (sign == "worse")
    np.testing.assert_array_equal(ends["worse"], np.maximum(ends["+"], ends["-"]))
    np.testing.assert_array_equal(run.reports["sign"], np.where(ends["+"] >= ends["-"], 1.0, -1.0))


def test_a_fixed_strength_has_a_worse_sign_too():
    honest, rule = votes(2), get_rule("cwtm")
    run = AttackRun("alie(omega=1.2, sign='worse')", seed=0)
    sent = run.mount(honest, LIARS, rule, 3, round=0)
    sides = [mount(f"alie(omega=1.2, sign='{sign}')", honest, LIARS, rule, 3, None) for sign in "+-"]
    farther = np.max([moved(side, honest, rule) for side in sides], axis=0)
    np.testing.assert_allclose(moved(sent, honest, rule), farther, rtol=1e-12)
    assert (run.reports["omega"] == 1.2).all()


def test_another_sign_is_refused():
    with pytest.raises(InvalidAttack, match=r"sign = 'both': use one of '[+]', '-', 'worse'"):
        get_attack("alie(sign='both')")(np.ones((4, 2)), [3], get_rule("cwtm"), 1, np.random.default_rng(0))


@pytest.mark.parametrize("algorithm", ["cyber0", "fedavg"])
def test_a_run_says_which_sign_it_was(algorithm):
    small = {"source": "embedded", "clients": 8, "byzantine": 2, "directions": 4, "rounds": 4, "evaluate_every": 2}
    config = cyber0.RunConfig(**small, algorithm=algorithm, attack="alie(sign='worse')", device="cpu")
    history = cyber0.run(config, keep="votes").history
    signs = [float(np.mean(each.reports["sign"])) for each in history.rounds]
    assert set(signs) <= {1.0, -1.0}
    told = [line.get("sign") for line in history.evaluations]
    assert told == [None, np.mean(signs[:2]), np.mean(signs[2:])]
