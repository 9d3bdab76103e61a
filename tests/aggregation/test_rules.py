"""Each rule is its definition, written out slowly; the same bits with and without the compiled part; large inputs."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cyber0.aggregation import (
    PREAGGREGATIONS,
    RULES,
    decorators,
    distances,
    geometric_median,
    get_rule,
    krum,
    native,
    nnm,
)
from cyber0.aggregation.blocks import COLUMNS
from cyber0.aggregation.choice import ranks
from cyber0.testing import inputs

torch = pytest.importorskip("torch")

NAMES = [*RULES, *(f"{pre}+cwtm" for pre in PREAGGREGATIONS)]


REALS = st.floats(-100, 100)


@st.composite
def problems(draw, values=REALS):
    n = draw(st.integers(1, 9))
    k = draw(st.integers(1, 4))
    return draw(arrays(np.float64, (n, k), elements=values)), draw(st.integers(0, (n - 1) // 2))


def square(x):
    return float((x * x).sum())


def slow_cwtm(v, b):
    return np.array([np.mean(sorted(column)[b : len(v) - b]) for column in v.T])


def slow_meamed(v, b):
    means = []
    for column in v.T:
        middle = np.median(column)
        means.append(np.mean(sorted(column, key=lambda x: (abs(x - middle), x))[: len(v) - b]))
    return np.array(means)


def slow_scores(v, b):
    return [sum(sorted(square(x - y) for y in v)[1 : len(v) - b]) for x in v]


def slow_krum(v, b):
    return np.array(min(zip(slow_scores(v, b), v.tolist(), strict=True))[1])


def slow_multikrum(v, b):
    best = sorted(zip(slow_scores(v, b), v.tolist(), strict=True))[: len(v) - b]
    return np.mean([row for _, row in best], axis=0)


def slow_nnm(v, b):
    return np.array(
        [np.mean(sorted(v.tolist(), key=lambda y: (square(x - np.array(y)), y))[: len(v) - b], axis=0) for x in v]
    )


def slow_minimum_diameter(v, b):
    def badness(rows):
        distances = [square(np.subtract(x, y)) for x, y in combinations(rows, 2)] or [0.0]
        return max(distances), sum(distances)

    return np.mean(min(combinations(sorted(v.tolist()), len(v) - b), key=badness), axis=0)


SLOW = {
    "mean": lambda v, _b: v.mean(axis=0),
    "median": lambda v, _b: np.median(v, axis=0),
    "cwtm": slow_cwtm,
    "meamed": slow_meamed,
    "krum": slow_krum,
    "multikrum": slow_multikrum,
    "minimum_diameter": slow_minimum_diameter,
}


@pytest.mark.parametrize("name", SLOW)
@given(problem=problems(st.integers(-3, 3)))
def test_a_rule_is_its_definition_with_many_ties(name: str, problem) -> None:
    vectors, byzantine = problem
    assert np.allclose(RULES[name](vectors, byzantine), SLOW[name](vectors, byzantine))


@given(problems(st.integers(-3, 3)))
def test_nnm_is_its_definition_with_many_ties(problem) -> None:
    vectors, byzantine = problem
    assert np.allclose(nnm(vectors, byzantine), slow_nnm(vectors, byzantine))


@given(problems(st.integers(-2, 2)), st.randoms())
def test_krum_picks_the_same_vector_in_any_order(problem, random) -> None:
    vectors, byzantine = problem
    order = random.sample(range(len(vectors)), len(vectors))
    for power in (1, 2):
        assert krum(vectors, byzantine, power=power).tobytes() == krum(vectors[order], byzantine, power=power).tobytes()


@pytest.mark.parametrize("name", ["median", "cwtm", "meamed", "multikrum", "nnm+cwtm", "nnm+krum", "nnm+meamed"])
@given(problem=problems(), random=st.randoms())
@settings(max_examples=20)
def test_the_order_of_the_vectors_changes_no_bit_of_these(name: str, problem, random) -> None:
    vectors, byzantine = problem
    order = random.sample(range(len(vectors)), len(vectors))
    assert get_rule(name)(vectors, byzantine).tobytes() == get_rule(name)(vectors[order], byzantine).tobytes()


@given(problems(st.sampled_from([-1.0, -0.0, 0.0, 1.0])))
def test_ranks_are_lexicographic(problem) -> None:
    vectors, _ = problem
    rows = [tuple(row) for row in vectors.tolist()]
    assert ranks(vectors).tolist() == [sum(other < row for other in rows) for row in rows]


@given(problems())
def test_no_point_nearby_has_a_smaller_sum_of_distances_than_the_geometric_median(problem) -> None:
    vectors, byzantine = problem
    point = geometric_median(vectors, byzantine)
    scale = len(vectors) * np.median(np.linalg.norm(vectors - np.median(vectors, axis=0), axis=1))
    steps = np.random.default_rng(0).standard_normal((20, len(point))) * 10.0 ** -np.arange(20)[:, None]
    for other in (*vectors, *(point + scale * step for step in steps)):
        far = np.linalg.norm(vectors - point, axis=1), np.linalg.norm(vectors - other, axis=1)
        rounding = 1e-13 * max(far[0].sum(), far[1].sum())
        assert (far[0] - far[1]).sum() <= 1e-8 * scale + rounding


def test_the_geometric_median_of_a_triangle_sees_all_sides_under_equal_angles() -> None:
    for far in (1.0, 1e3, 9e9):  # however far the third one is
        point = geometric_median(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, far]]), 0)
        assert point == pytest.approx([1.0, 1 / np.sqrt(3)], abs=1e-7)


@pytest.mark.parametrize("excess", [-1e-3, -1e-9, 0.0, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("copies", [1, 3])
def test_the_geometric_median_near_vectors_that_are_there_several_times(excess: float, copies: int) -> None:
    """Others pull at the origin with a force of `copies` + excess: it is the median as long as that is not positive."""
    angle = np.arccos((copies + excess) / (2 * copies + 2))
    sides = np.array([[np.cos(angle), np.sin(angle)], [np.cos(angle), -np.sin(angle)]] * (copies + 1))
    vectors = np.concatenate([np.zeros((copies, 2)), sides])

    def summed(x: float) -> float:
        return float(np.linalg.norm(vectors - [x, 0.0], axis=1).sum())

    point = geometric_median(vectors, 0)
    least = min(summed(x) for x in (0.0, *np.geomspace(1e-9, 0.5, 2000)))
    assert np.linalg.norm(vectors - point, axis=1).sum() <= least * (1 + 1e-8)
    if excess < 0:
        assert point == pytest.approx([0.0, 0.0], abs=1e-9)


def test_version_1_of_the_geometric_median_is_what_it_was() -> None:
    vectors = np.random.default_rng(7).standard_normal((9, 4))
    old, new = (get_rule("geometric_median", version)(vectors, 2) for version in (1, 2))
    assert old.tobytes().hex() == "0b7b415dbf17dfbfd04c3bfef198d9bf73a69e7ca941e2bfa6aef9915f5abbbf"
    assert 0 < np.abs(new - old).max() < 1e-4
    assert get_rule("geometric_median", 1).name == "geometric_median"


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(-900, 900), st.integers(0, 2**32))
@settings(max_examples=20)
def test_rules_commute_with_powers_of_two_to_the_ends_of_the_range(name: str, exponent: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((11, 3)).astype(np.float32).astype(np.float64)
    rule = get_rule(name)
    assert np.allclose(rule(vectors * 2.0**exponent, 2) * 2.0**-exponent, rule(vectors, 2), rtol=1e-6, atol=1e-9)


def test_distances_do_not_cancel() -> None:
    """Krum picks the same vector near 5 as near 0, however small the differences."""
    steps = np.random.default_rng(0).integers(-1000, 1000, (50, 13, 8))
    near_zero, far = krum(steps * 2.0**-40, 3), krum(5 + steps * 2.0**-40, 3)
    assert (far - 5 == near_zero).all()


@pytest.mark.parametrize("k", [1, 3, 33, COLUMNS + 40])
@pytest.mark.parametrize("name", ["cwtm", "krum", "median", "multikrum", "nnm+cwtm"])
def test_the_bits_are_the_same_without_a_compiler(name: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(k).standard_normal((2, 17, k))
    rule = get_rule(name)
    compiled, squared = rule(vectors, 4), distances.squared_distances(vectors)
    monkeypatch.setattr(native, "library", lambda: None)
    assert rule(vectors, 4).tobytes() == compiled.tobytes()
    assert distances.squared_distances(vectors).tobytes() == squared.tobytes()


@pytest.mark.parametrize("name", ["cwtm", "median", "nnm+cwtm", "nnm+krum"])
def test_wide_vectors_are_aggregated_in_blocks_to_the_same_bits_in_any_layout(name: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((9, 3 * COLUMNS + 5))
    rule = get_rule(name)
    result = rule(vectors, 2)
    assert np.allclose(result, np.asarray(rule(torch.tensor(vectors, dtype=torch.float32), 2)), atol=1e-5)
    assert rule(np.asfortranarray(vectors), 2).tobytes() == result.tobytes()
    assert rule(vectors[::-1][::-1], 2).tobytes() == result.tobytes()
    if "nnm" not in name:
        assert rule(vectors[:, :7], 2).tobytes() == result[:7].tobytes()


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device as its library sees it; the CPU plays one too."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(decorators, "_is_host_tensor", lambda _vectors: False)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_a_device_agrees_with_numpy_to_rounding(name: str, dtype, device: str) -> None:
    rule = get_rule(name)
    kind = np.float64 if dtype is torch.float64 else np.float32
    for case, vectors in inputs(11, 3, 2, kind).items():
        batch = np.stack([vectors, vectors[::-1]])
        result = rule(torch.tensor(batch, device=device), 2)
        assert result.dtype == dtype
        assert result.device.type == device
        allowed = 1e3 * np.finfo(kind).eps * np.abs(vectors / 2).max(axis=0)
        difference = np.abs(result.cpu().numpy() / 2 - rule(batch, 2) / 2)
        assert (difference <= allowed).all(), case


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_double(name: str, dtype: str) -> None:
    vectors = torch.randn(11, 5, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    result = get_rule(name)(vectors, 2)
    assert result.dtype == vectors.dtype
    assert torch.equal(result, get_rule(name)(vectors.double(), 2).to(vectors.dtype))


def test_a_tensor_that_requires_grad_is_aggregated_without() -> None:
    vectors = torch.ones(3, 2, requires_grad=True)
    assert not get_rule("nnm+cwtm")(vectors, 1).requires_grad


def test_cwtm_trims_the_integer() -> None:
    """floor((b/n) n) is not b for 63 pairs up to n = 100, e.g. 29 of 100."""
    vectors = np.zeros((100, 1))
    vectors[:29] = 1e9
    assert get_rule("cwtm")(vectors, 29) == 0.0
