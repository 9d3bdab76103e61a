"""What holds for every attack: one battery over all of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cyber0.aggregation import get_rule
from cyber0.attacks import ATTACKS, get_attack, mount
from cyber0.errors import InvalidAttack, UnknownName
from cyber0.registry import name_of

SEARCHING = ("alie", "alie-nnm", "foe", "foe-nnm")
ON_DATA = ("backdoor", "feature-noise", "lf")  # liars send what they measure
FIXED = [*sorted(set(ATTACKS) - set(SEARCHING)), *(f"{name}(omega=1.5)" for name in SEARCHING)]
ALL = [*ATTACKS, *(f"foe(search='{search}')" for search in ("line", "grid", "both"))]
RULES = [get_rule(name) for name in ("cwtm", "krum", "nnm+cwtm", "nnm+krum", "mean")]

MAKE = {
    "normal": lambda rng, shape: rng.normal(1.0, 1.0, shape),
    "ties": lambda rng, shape: rng.integers(-2, 3, shape).astype(float),
    "equal": lambda _, shape: np.full(shape, 0.1),
    "zero": lambda _, shape: np.zeros(shape),
    "largest": lambda rng, shape: rng.choice([-1.0, 1.0], shape) * 1.797e308,
    "smallest": lambda rng, shape: rng.choice([-5e-324, 0.0, 5e-324], shape),
    "mixed": lambda rng, shape: rng.choice([1e300, -1e-300, 1.0, 0.0], shape),
}


@st.composite
def scenes(draw, kinds=tuple(MAKE), dtypes=(np.float64, np.float32)):
    """Vectors [..., n, k], who lies, the rule, b and a seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    clients, size = draw(st.integers(3, 9)), draw(st.integers(1, 6))
    byzantine = draw(st.integers(1, (clients - 1) // 2))
    liars = sorted(rng.choice(clients, draw(st.integers(0, byzantine)), replace=False).tolist())
    batch = draw(st.sampled_from([(), (2,), (2, 1, 2)]))
    vectors = MAKE[draw(st.sampled_from(kinds))](rng, (*batch, clients, size))
    dtype = draw(st.sampled_from(dtypes))
    most = float(np.finfo(dtype).max)
    return vectors.clip(-most, most).astype(dtype), liars, draw(st.sampled_from(RULES)), byzantine


def lies_of(attack, vectors, liars, rule, byzantine, seed=7):
    return get_attack(attack)(vectors, liars, rule, byzantine, np.random.default_rng(seed))


def achieved(attack, lies, vectors, liars, rule, byzantine):
    """How far from the honest mean the lies carry what they aim at."""
    votes = np.array(vectors, dtype=np.float64)
    votes[..., liars, :] = np.asarray(lies)
    aim = rule if "nnm" in attack else rule.rule
    mean = np.delete(np.asarray(vectors, dtype=np.float64), liars, axis=-2).mean(axis=-2)
    return np.linalg.norm(aim(votes, byzantine) - mean, axis=-1)


@pytest.mark.parametrize("attack", ALL)
@pytest.mark.parametrize("library", ["numpy", "torch"])
@settings(max_examples=25)
@given(scene=scenes())
def test_lies_are_votes_like_any_other(attack, library, scene):
    vectors, liars, rule, byzantine = scene
    given_vectors = vectors if library == "numpy" else torch.tensor(vectors)
    lies = lies_of(attack, given_vectors, liars, rule, byzantine)
    assert type(lies) is type(given_vectors)
    assert lies.dtype == given_vectors.dtype
    assert tuple(lies.shape) == (*vectors.shape[:-2], len(liars), vectors.shape[-1])
    assert np.array_equal(np.asarray(given_vectors), vectors), "the input was modified"
    again = lies_of(attack, given_vectors, liars, rule, byzantine)
    assert np.array_equal(np.asarray(lies), np.asarray(again), equal_nan=True)
    finite = np.isfinite(np.asarray(lies))
    assert not finite.any() if attack == "nonfinite" else finite.all()


@pytest.mark.parametrize("attack", FIXED)
@settings(max_examples=15)
@given(scene=scenes(kinds=("normal",)))
def test_each_element_of_a_batch_is_attacked_alone(attack, scene):
    vectors, liars, rule, byzantine = scene
    lies = lies_of(attack, vectors, liars, rule, byzantine)
    rng = np.random.default_rng(7)
    for at in np.ndindex(vectors.shape[:-2]):
        alone = get_attack(attack)(vectors[at], liars, rule, byzantine, rng)
        np.testing.assert_allclose(lies[at], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attack", [*SEARCHING, "foe(search='line')", "alie(search='grid')"])
@settings(max_examples=15)
@given(scene=scenes(kinds=("normal",), dtypes=(np.float64,)))
def test_each_element_of_a_batch_has_its_own_strength(attack, scene):
    vectors, liars, rule, byzantine = scene
    reached = achieved(attack, lies_of(attack, vectors, liars, rule, byzantine), *scene)
    for at in np.ndindex(vectors.shape[:-2]):
        alone = (vectors[at], *scene[1:])
        expected = achieved(attack, lies_of(attack, *alone), *alone)
        assert math.isclose(reached[at], expected, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("attack", FIXED)
@settings(max_examples=15)
@given(scene=scenes(kinds=("normal",)))
def test_numpy_and_torch_agree(attack, scene):
    vectors, *rest = scene
    ours, theirs = lies_of(attack, vectors, *rest), lies_of(attack, torch.tensor(vectors), *rest)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attack", [*SEARCHING, "foe(search='both')"])
@settings(max_examples=15)
@given(scene=scenes(kinds=("normal",), dtypes=(np.float64,)))
def test_numpy_and_torch_find_equally_strong_lies(attack, scene):
    vectors, *rest = scene
    ours, theirs = (lies_of(attack, array, *rest) for array in (vectors, torch.tensor(vectors)))
    np.testing.assert_allclose(achieved(attack, ours, *scene), achieved(attack, theirs, *scene), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attack", sorted(set(ALL) - {"none", "tma", *ON_DATA}))
@settings(max_examples=10)
@given(scene=scenes(kinds=("normal", "ties")))
def test_lies_depend_on_the_honest_alone(attack, scene):
    vectors, liars, *rest = scene
    other = vectors.copy()
    other[..., liars, :] += 5
    ours, others = lies_of(attack, vectors, liars, *rest), lies_of(attack, other, liars, *rest)
    assert np.array_equal(ours, others, equal_nan=True)


@pytest.mark.parametrize("attack", ALL)
@settings(max_examples=15)
@given(scene=scenes(kinds=("normal",), dtypes=(np.float64,)), power=st.sampled_from([-900, -500, -3, 5, 500, 900]))
def test_lies_scale_with_the_votes(attack, scene, power):
    """Nothing overflows, underflows or depends on the unit the votes are measured in."""
    vectors, *rest = scene
    lies, scaled = lies_of(attack, vectors, *rest), lies_of(attack, vectors * 2.0**power, *rest)
    np.testing.assert_allclose(scaled * 2.0**-power, lies, rtol=1e-12)


@pytest.mark.parametrize("attack", ALL)
def test_one_honest_client_and_one_scalar(attack):
    votes = np.array([[2.0], [7.0], [9.0]])
    lies = lies_of(attack, votes, [1, 2], get_rule("cwtm"), 1)
    assert lies.shape == (2, 1)


@pytest.mark.parametrize("attack", ALL)
@given(scene=scenes(kinds=("normal",)))
@settings(max_examples=5)
def test_mounting_replaces_the_rows_of_the_liars_in_a_copy(attack, scene):
    vectors, liars, rule, byzantine = scene
    before = vectors.copy()
    sent = mount(attack, vectors, liars, rule, byzantine, np.random.default_rng(7))
    assert np.array_equal(np.delete(sent, liars, axis=-2), np.delete(before, liars, axis=-2))
    assert np.array_equal(sent[..., liars, :], lies_of(attack, *scene), equal_nan=True)
    assert np.array_equal(vectors, before)


@pytest.mark.parametrize("attack", ATTACKS)
def test_found_by_name(attack):
    assert get_attack(attack) is ATTACKS[attack]
    assert name_of(get_attack(attack), ATTACKS) == attack


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="did you mean 'foe'"):
        get_attack("fo")
    with pytest.raises(UnknownName, match="unknown option 'omega' of tma"):
        get_attack("tma(omega=2)")


def test_an_attack_of_your_own_needs_no_registration():
    def shout(vectors, liars, *_, volume=1e6):
        return np.full((len(liars), vectors.shape[-1]), volume)

    votes, rng = np.ones((3, 2)), np.random.default_rng(0)
    assert mount(shout, votes, [2], None, 1, rng)[2].tolist() == [1e6, 1e6]
    with pytest.raises(InvalidAttack, match=r"gave an array of shape \(2, 2\): 1 liars send \(1, 2\)"):
        mount(lambda *_: np.ones((2, 2)), votes, [2], None, 1, rng)


@pytest.mark.parametrize(
    ("attack", "liars", "words"),
    [
        ("foe(omega='2')", [0], "omega = '2' must be a number"),
        ("foe(omega=1, search='line')", [0], "give one of them"),
        ("alie(search='lines')", [0], "use one of both, both-1, both-2, grid, line, zoom, zoom-1, zoom-2"),
        ("alie(target='nnm')", [0], "attack the 'rule' alone, or the whole 'composition'"),
        ("min-max(deviation='variance')", [0], "use one of sign, std, unit"),
        ("mimic(client=2)", [0], "client = 2 of 2 honest ones: it must be from 0 to 1"),
        ("noise(scale=True)", [0], "scale = True must be a number"),
        ("sf", [3], "they must be different rows from 0 to 2"),
        ("sf", [1, 1], "they must be different rows"),
        ("sf", [0.5], "give the row numbers"),
        ("sf", [0, 1, 2], "needs at least one honest vector"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(attack, liars, words):
    with pytest.raises(InvalidAttack, match=words):
        lies_of(attack, np.ones((3, 2)), liars, get_rule("cwtm"), 1)


@pytest.mark.parametrize("vectors", [[1.0, 2.0], np.ones(3), np.ones((2, 0)), np.ones((3, 2), dtype=np.int64)])
def test_vectors_must_be_rows_of_numbers(vectors):
    with pytest.raises(InvalidAttack, match="vectors"):
        lies_of("none", vectors, [0], None, 1)
