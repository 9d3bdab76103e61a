"""Each attack is what its paper says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyber0.aggregation import get_rule
from cyber0.attacks import get_attack, lf

rules = st.sampled_from([get_rule(name) for name in ("cwtm", "krum", "nnm+cwtm", "nnm+krum")])


@st.composite
def worlds(draw):
    """All vectors [n, k], the liars' rows, the honest vectors."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    clients, size = draw(st.integers(4, 12)), draw(st.integers(1, 8))
    vectors = rng.normal(rng.normal(size=size), np.exp(rng.normal(size=size)), (clients, size))
    liars = sorted(rng.choice(clients, (clients - 1) // 3, replace=False).tolist())
    return vectors, liars, np.delete(vectors, liars, axis=0)


def lies_of(attack, vectors, liars, rule=None, byzantine=None):
    byzantine = len(liars) if byzantine is None else byzantine
    return get_attack(attack)(vectors, liars, rule or get_rule("cwtm"), byzantine, np.random.default_rng(0))


@given(world=worlds(), omega=st.floats(-5, 5))
def test_alie_foe_sf(world, omega):
    vectors, liars, honest = world
    mean, deviation = honest.mean(axis=0), honest.std(axis=0, ddof=1)
    for attack, lie in {
        f"alie(omega={omega!r})": mean + omega * deviation,
        f"foe(omega={omega!r})": (1 - omega) * mean,
        "sf": -mean,
    }.items():
        np.testing.assert_allclose(lies_of(attack, vectors, liars), [lie] * len(liars), rtol=1e-9, atol=1e-9)


@given(world=worlds(), rule=rules)
def test_aiming_at_a_composition(world, rule):
    """`-nnm` aims at all of a composition, plain attacks at its rule; without pre-aggregation that is the same."""
    vectors, liars, _ = world
    for attack in ("alie", "foe"):
        whole = lies_of(f"{attack}-nnm", vectors, liars, rule)
        assert np.array_equal(whole, lies_of(f"{attack}(target='composition')", vectors, liars, rule))
        alone = lies_of(attack, vectors, liars, rule)
        assert np.array_equal(alone, lies_of(attack, vectors, liars, rule.rule))
        assert rule.pre or np.array_equal(whole, alone)


@given(world=worlds(), byzantine=st.integers(0, 5))
def test_tma(world, byzantine):
    vectors, liars, honest = world
    rank = min(max(byzantine, 1), len(honest))
    lie = [
        sorted(column)[rank - 1] if mean > 0 else sorted(column, reverse=True)[rank - 1]
        for column, mean in zip(honest.T, vectors.mean(axis=0), strict=True)
    ]
    assert np.array_equal(lies_of("tma", vectors, liars, byzantine=byzantine), [lie] * len(liars))


def most_distant(lie, honest):
    pairs = np.linalg.norm(honest[:, None] - honest[None], axis=-1)
    return np.linalg.norm(lie - honest, axis=-1).max(), pairs.max()


def greatest_sum(lie, honest):
    pairs = ((honest[:, None] - honest[None]) ** 2).sum(axis=-1)
    return ((lie - honest) ** 2).sum(), pairs.sum(axis=-1).max()


@pytest.mark.parametrize("deviation", ["std", "unit", "sign"])
@pytest.mark.parametrize(("attack", "constraint"), [("min-max", most_distant), ("min-sum", greatest_sum)])
@given(world=worlds())
def test_min_max_and_min_sum_go_as_far_as_they_may(attack, constraint, deviation, world):
    vectors, liars, honest = world
    mean = honest.mean(axis=0)
    lie = lies_of(f"{attack}(deviation='{deviation}')", vectors, liars)[0]
    reached, allowed = constraint(lie, honest)
    assert reached <= allowed * (1 + 1e-9)
    reached, allowed = constraint(mean + 1.001 * (lie - mean), honest)
    assert reached > allowed
    along = {"std": honest.std(axis=0, ddof=1), "unit": mean, "sign": np.sign(mean)}[deviation]
    np.testing.assert_allclose((mean - lie) / np.linalg.norm(mean - lie), along / np.linalg.norm(along), atol=1e-6)


@given(world=worlds())
def test_mimic_copies_the_client_farthest_along_the_principal_direction(world):
    vectors, liars, honest = world
    centred = honest - honest.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    lie = lies_of("mimic", vectors, liars)[0]
    assert (lie == honest).all(axis=1).any()
    if len(values) == 1 or values[-2] < 0.95 * values[-1]:  # else there is no one direction
        along = np.abs(centred @ directions[:, -1])
        copied = (lie == honest).all(axis=1)
        assert along[copied].max() >= along.max() * (1 - 1e-9)
    assert np.array_equal(lies_of("mimic(client=1)", vectors, liars)[0], honest[1])


def test_noise_has_the_moments_it_says():
    rng = np.random.default_rng(0)
    vectors = rng.normal([3.0, -1.0], [1.0, 4.0], (2000, 2))
    honest = vectors[:1001]
    lies = lies_of("noise(scale=5)", vectors, range(1001, 2000), get_rule("mean"))
    deviation = 5 * honest.std(axis=0, ddof=1)
    assert (abs(lies.mean(axis=0) - honest.mean(axis=0)) < 0.15 * deviation).all()
    np.testing.assert_allclose(lies.std(axis=0), deviation, rtol=0.1)


def test_label_flipping_changes_data_not_votes():
    votes = np.arange(6.0).reshape(3, 2)
    assert np.array_equal(lies_of("lf", votes, [1]), votes[1:2])
    assert lf.corrupt_labels(np.arange(10), 10).tolist() == list(range(9, -1, -1))
    assert [name for name in ("lf", "sf", "foe", "tma") if hasattr(get_attack(name), "corrupt_labels")] == ["lf"]
