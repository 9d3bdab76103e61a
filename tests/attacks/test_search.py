"""The searches: known traces of `line`, and how near to the best of a dense grid each one comes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cyber0.aggregation import PREAGGREGATIONS, RULES, get_rule, is_isometric, to_numpy
from cyber0.attacks import AttackRun, get_attack
from cyber0.attacks.mixed_krum import mixed_krum
from cyber0.attacks.scene import observe
from cyber0.attacks.search import SEARCHES, both, grid, line, zoom
from cyber0.attacks.shortcuts import in_few_dimensions, krum_distances, trimmed_with_equal_lies
from cyber0.attacks.strength import distance_of, unit_of, worth_a_try
from cyber0.errors import InvalidAttack


def traced(function, search=line):
    """The candidates a search tries, in order, and its answer."""
    tried = []

    def distance(omegas):
        tried.extend(np.ravel(omegas).tolist())
        return function(omegas)

    return tried, search(distance, np.ones(()))


def line_by_the_letter(function):
    """The same search, one number at a time."""
    best, value, step, x = 0.0, function(0.0), 1.0, 0.0
    left = 15
    while left:
        left -= 1
        x = best + step
        found = function(x)
        if not found > value:
            step *= 0.8
            break
        best, value, step = x, found, 2 * step
    for _ in range(left):
        if x < best:
            x += step
        else:
            down = x - step
            while down < 0:
                down = (down + x) / 2
            x = down
        found = function(x)
        if found > value:
            best, value = x, found
        step *= 0.8
    return best


def cliff(top, edge):
    """Rises to an edge and falls to `top` there, as the distance under Krum does."""
    return lambda omegas: np.where(omegas <= edge, omegas, top)


def test_known_traces():
    tried, (omega, value) = traced(lambda omegas: -abs(omegas - 5))
    np.testing.assert_allclose(tried[:8], [0, 1, 3, 7, 3.8, 1.24, 3.288, 4.9264])
    assert len(tried) == 16
    assert value == -abs(omega - 5)
    tried, (omega, _) = traced(lambda omegas: -omegas)
    np.testing.assert_allclose(tried[:5], [0, 1, 0.2, 0.04, 0.008])
    assert omega == 0
    tried, (omega, _) = traced(lambda omegas: omegas)
    assert tried == [2.0**i - 1 for i in range(16)]
    assert omega == 2**15 - 1


@given(st.lists(st.tuples(st.floats(0.01, 50), st.floats(0.01, 50)), min_size=1, max_size=5), st.booleans())
def test_line_follows_the_letter_for_each_element_of_a_batch(places, smooth):
    tops, edges = np.array(places).T
    function = (lambda omegas: -((omegas - edges) ** 2)) if smooth else cliff(tops, edges)
    omegas, _ = line(function, np.ones(len(places)))
    for i, (top, edge) in enumerate(places):
        alone = (lambda x, edge=edge: -((x - edge) ** 2)) if smooth else cliff(top, edge)
        np.testing.assert_allclose(omegas[i], line_by_the_letter(alone), rtol=1e-9, atol=1e-12)


@given(st.floats(0.4, 2.2), st.floats(0, 0.8), st.floats(-3, 3))
def test_grid_and_zoom_find_a_cliff_that_lies_near_the_unit(edge, top, power):
    unit = np.full((), 10.0**power)
    for search, share in ((grid, 0.97), (zoom, 0.98), (both, 0.98)):
        assert search(cliff(top * edge * unit, edge * unit), unit)[1] >= share * edge * unit


@pytest.mark.parametrize("search", [grid, zoom])
def test_calls_of_the_rule(search):
    calls = []
    search(lambda omegas: calls.append(len(omegas)) or omegas, np.ones(()))
    assert calls == ([256] if search is grid else [1, 24, 12, 6])


@given(st.integers(0, 2**32))
def test_both_is_never_worse_than_either(seed):
    places = np.random.default_rng(seed).uniform(0, 10, (2, 6))
    function, unit = cliff(*places), np.ones(6)
    assert (both(function, unit)[1] >= np.maximum(line(function, unit)[1], zoom(function, unit)[1])).all()


def rounds(seed, clients=20, liars=5, size=16, batch=6):
    """Heterogeneous clients: each has a mean of its own, far from the common one."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0.3, 1.0, (clients, size)) * np.exp(rng.normal(size=size))
    return centres + 0.5 * rng.normal(size=(batch, clients, size)), range(clients - liars, clients)


@pytest.mark.parametrize("direction", ["alie", "foe"])
@pytest.mark.parametrize("rule", ["cwtm", "krum", "median", "nnm+cwtm", "nnm+krum"])
def test_the_default_comes_near_the_best_of_a_dense_grid(rule, direction):
    vectors, liars = rounds(0)
    scene = observe(vectors, liars)
    along = scene.deviation if direction == "alie" else -scene.mean
    distance, unit = distance_of(scene, along, get_rule(rule), 5), unit_of(scene, along)
    dense = np.concatenate([np.geomspace(1e-3, 1e5, 600), np.linspace(0, 20, 400)])[:, None] * np.ones(len(vectors))
    best = distance(dense).max(axis=0)
    also = worth_a_try(scene, along, get_rule(rule), 5)
    for search in ("zoom", "both"):
        share = SEARCHES[search](distance, unit, also)[1] / best
        assert share.min() >= 0.98
    on_torch = observe(torch.tensor(vectors), liars)
    along = on_torch.deviation if direction == "alie" else -on_torch.mean
    tried = worth_a_try(on_torch, along, get_rule(rule), 5)
    found = zoom(distance_of(on_torch, along, get_rule(rule), 5), unit_of(on_torch, along), tried)[1]
    np.testing.assert_allclose(found.numpy(), zoom(distance, unit, also)[1], rtol=1e-6)


@pytest.mark.parametrize("rule", ["mean", "krum", "multikrum", "krum(power=1)", "nnm+krum", "nnm+mean"])
def test_few_dimensions_show_the_same_distances(rule):
    vectors, liars = rounds(1, size=400)
    scene = observe(vectors, liars)
    along = scene.deviation
    few, few_along = in_few_dimensions(scene, along)
    assert few.vectors.shape == (6, 20, 16)
    np.testing.assert_allclose(unit_of(few, few_along), unit_of(scene, along), rtol=1e-9)
    omegas = np.linspace(0, 30, 64)[:, None] * np.ones(6)
    full = distance_of(scene, along, get_rule(rule), 5)(omegas)
    np.testing.assert_allclose(
        distance_of(few, few_along, get_rule(rule), 5)(omegas), full, rtol=1e-6, atol=1e-6
    )  # a root of 1e-16


def test_every_rule_that_says_so_is_isometric():
    rng = np.random.default_rng(3)
    vectors, (turn, _) = rng.normal(size=(9, 5)), np.linalg.qr(rng.normal(size=(5, 5)))
    steps = {**RULES, **{name: get_rule(f"{name}+mean") for name in PREAGGREGATIONS}}
    told = [name for name, rule in steps.items() if is_isometric(rule)]
    assert sorted(told) == ["krum", "mean", "minimum_diameter", "multikrum", "nnm"]
    for name in told:
        moved = steps[name](vectors @ turn + 3.0, 2)
        np.testing.assert_allclose(moved, steps[name](vectors, 2) @ turn + 3.0, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("rule", ["krum", "nnm+krum", "nnm+cwtm"])
def test_zoom_finds_narrow_peaks_that_a_grid_misses(rule, size):
    """A few clients with a few scalars each: a rule that picks or mixes neighbours has peaks a percent wide."""
    liars = 2
    vectors, lying = rounds(2, 8, liars, size, batch=24)
    scene, shares = observe(vectors, lying), {"zoom": [], "zoom-1": []}
    for along in (scene.deviation, -scene.mean):
        distance, unit = distance_of(scene, along, get_rule(rule), liars), unit_of(scene, along)
        best = distance(np.geomspace(0.02, 30, 800)[:, None] * unit).max(axis=0)
        also = worth_a_try(scene, along, get_rule(rule), liars)
        for name, found in shares.items():
            found.append(SEARCHES[name](distance, unit, also)[1] / best)
    assert np.min(shares["zoom"]) >= 0.97
    assert np.min(shares["zoom-1"]) < 0.97


@pytest.mark.parametrize("rule", ["cwtm", "median", "krum", "nnm+cwtm", "nnm+krum"])
def test_zoom_finds_that_the_strongest_lie_is_the_mean(rule):
    """With one scalar the aggregate may be on the far side of the mean, and any push brings it back."""
    skewed = np.array([-1.2, -1.1, -1.0, -0.9, -0.9, -0.9, 2.9, 3.1, 0.0, 0.0])[:, None]
    scene, along = observe(np.stack([skewed, -skewed]), [8, 9]), np.ones((2, 1))
    distance, unit = distance_of(scene, along, get_rule(rule), 2), unit_of(scene, along)
    zero = distance(np.zeros((1, 2)))[0]
    omega, moved = zoom(distance, unit, worth_a_try(scene, along, get_rule(rule), 2))
    assert (moved >= zero).all()
    assert moved[0] >= distance(np.linspace(0, 50, 2000)[:, None] * unit)[:, 0].max() * 0.97
    if rule == "cwtm":
        assert omega[0] == 0
        assert omega[1] > 0


@pytest.mark.parametrize(("clients", "size"), [(8, 1), (8, 16), (12, 4), (20, 1), (20, 16)])
def test_zoom_reaches_what_a_dense_search_of_mixed_krum_reaches(clients, size):
    liars = clients // 4
    vectors, lying = rounds(4, clients, liars, size, batch=4)
    scene = observe(vectors, lying)
    for along in (scene.deviation, -scene.mean):
        distance, unit = distance_of(scene, along, get_rule("nnm+krum"), liars), unit_of(scene, along)
        best = distance(np.geomspace(0.02, 30, 1000)[:, None] * unit).max(axis=0)
        found = zoom(distance, unit, worth_a_try(scene, along, get_rule("nnm+krum"), liars))[1]
        assert (found / best).min() >= 0.97


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_krum_after_mixing_picks_one_of_the_vectors_with_the_least_score(seed, byzantine, liars, size, on_torch):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(3, 2 * byzantine + 2 + liars, size))
    lying = range(2 * byzantine + 2, vectors.shape[1])
    scene = observe(torch.tensor(vectors) if on_torch else vectors, lying)
    omegas = scene.mean[..., 0] * 0 + (torch.asarray if on_torch else np.asarray)(rng.uniform(0, 4, (20, 1)))
    moved = to_numpy(distance_of(scene, scene.deviation, get_rule("nnm+krum"), byzantine)(omegas))
    distances, scores = map(to_numpy, mixed_krum(scene, scene.deviation, byzantine)(omegas))
    least = scores - scores.min(axis=-1, keepdims=True) <= 1e-9 * (1 + scores.max(axis=-1, keepdims=True))
    assert (least & (abs(distances - moved[..., None]) < 1e-6)).any(axis=-1).all()


@pytest.mark.parametrize("rule", ["cwtm", "krum", "nnm+cwtm", "nnm+krum"])
def test_searches_kept_for_published_runs_try_what_they_tried(rule):
    vectors, lying = rounds(5)
    scene = observe(vectors, lying)
    tried = {name: worth_a_try(scene, scene.deviation, get_rule(rule), 5, name) for name in SEARCHES}
    assert all(tried[name] is None for name in ("line", "grid", "zoom-1", "both-1"))
    if rule == "cwtm":
        assert tried["zoom"] is None
        assert tried["zoom-2"] is None
        return
    for new, old in (("zoom", "zoom-2"), ("both", "both-2")):
        assert np.array_equal(tried[new], tried[old]) == (rule != "nnm+krum")


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_krum_under_equal_lies_needs_no_distances_between_votes(seed, byzantine, liars, size):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(2 * byzantine + 2 + liars, size))
    scene = observe(vectors, range(2 * byzantine + 2, len(vectors)))
    omegas = rng.uniform(0, 4, 20)
    lies = scene.mean + omegas[:, None] * scene.deviation
    stacked = np.stack([np.concatenate([scene.honest, np.tile(lie, (liars, 1))]) for lie in lies])
    moved = np.linalg.norm(get_rule("krum")(stacked, byzantine) - scene.mean, axis=-1)
    np.testing.assert_allclose(krum_distances(scene, scene.deviation, byzantine)(omegas), moved, rtol=1e-7)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 4))
def test_the_trimmed_mean_under_equal_lies_is_a_mean_of_clipped_ones(seed, byzantine, liars):
    rng = np.random.default_rng(seed)
    honest = rng.integers(-5, 6, (2 * byzantine + 1, 3)).astype(float)
    lies = rng.uniform(-9, 9, (4, 3))
    vectors = np.concatenate([honest, np.zeros((liars, 3))])
    scene = observe(vectors, range(len(honest), len(vectors)))
    short = trimmed_with_equal_lies(scene, byzantine)
    assert (short is None) == (liars > byzantine)
    if short is not None:
        stacked = np.stack([np.concatenate([honest, np.tile(lie, (liars, 1))]) for lie in lies])
        np.testing.assert_allclose(short(lies), get_rule("cwtm")(stacked, byzantine), rtol=1e-12, atol=1e-12)


def test_large_vectors_are_handed_to_the_rule_in_blocks():
    sizes = []

    def rule(votes, _):
        sizes.append(votes.size)
        return votes.mean(axis=-2)

    scene = observe(np.random.default_rng(0).normal(size=(40, 10_000)), range(30, 40))
    distance_of(scene, scene.deviation, rule, 10)(np.linspace(0, 1, 16))
    assert len(sizes) > 1
    assert max(sizes) <= 2**20


@pytest.mark.parametrize("search", sorted(SEARCHES))
@pytest.mark.parametrize("rule", ["cwtm", "krum", "nnm+cwtm", "nnm+krum"])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("width", [8, 200])  # 200: more than four for each client, searched in fewer dimensions
def test_a_search_with_a_range_tries_no_omega_above_it(search, rule, library, width):
    votes = library(np.random.default_rng(0).normal(1.0, 1.0, (3, 12, width)))
    found = {}
    for limit in (0.5, 2.0, 1e9):
        run = AttackRun(f"foe(search='{search}', range={limit})", seed=0)
        run.mount(votes, range(9, 12), get_rule(rule), 3, round=0)
        found[limit] = to_numpy(run.reports["omega"])
        assert (found[limit] <= limit).all()
    free = AttackRun(f"foe(search='{search}')", seed=0)
    free.mount(votes, range(9, 12), get_rule(rule), 3, round=0)
    assert (found[1e9] == to_numpy(free.reports["omega"])).all()  # a range that is wide enough changes nothing
    assert found[0.5] == pytest.approx(0.5)  # a small lie moves every rule the farther, the larger it is


def test_a_range_is_positive_and_stands_in_for_no_omega():
    votes, rule, rng = np.ones((4, 2)), get_rule("cwtm"), np.random.default_rng(0)
    with pytest.raises(InvalidAttack, match=r"range = 0: the largest omega to try must be above 0"):
        get_attack("foe(range=0)")(votes, [3], rule, 1, rng)
    with pytest.raises(InvalidAttack, match=r"omega = 2 and range = 3: give one of them"):
        get_attack("alie(omega=2, range=3)")(votes, [3], rule, 1, rng)
