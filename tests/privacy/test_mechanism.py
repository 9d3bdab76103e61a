"""No sample can change what is released by more than the clip, whatever its slopes are."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cyber0.errors import InvalidConfig, InvalidEstimate
from cyber0.privacy.client_steps import PrivateSteps, system_noise
from cyber0.privacy.mechanism import LEVELS, Mechanism, grid_steps
from cyber0.privacy.sampling import poisson_batch

ANY = st.floats(allow_nan=True, allow_infinity=True)
VECTORS = st.lists(ANY, min_size=1, max_size=6)


def without_noise(_round, _epoch, directions):
    return np.zeros(directions, dtype=np.int64)


@given(VECTORS, st.floats(1e-6, 1e6), st.floats(1e-3, 1e3))
def test_every_vector_is_within_the_clip_in_integers(vector, clip, unit):
    steps = grid_steps(torch.tensor([vector], dtype=torch.float64), clip, unit)
    assert steps.dtype == torch.int64
    assert sum(int(step) ** 2 for step in steps[0]) <= LEVELS**2


@given(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3))
def test_adding_a_sample_moves_the_sum_by_at_most_the_clip(vector):
    others = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mechanism = Mechanism(clip=1.0, noise=1.0, batch=5.0)
    longer = torch.cat([others, torch.tensor([vector], dtype=torch.float64)])
    moved = mechanism.total(longer, 1.0) - mechanism.total(others, 1.0)
    assert sum(int(step) ** 2 for step in moved) <= LEVELS**2


def test_a_short_vector_is_left_as_it_is_and_a_long_one_keeps_its_direction():
    slopes = torch.tensor([[0.3, -0.4], [30.0, -40.0]], dtype=torch.float64)
    steps = grid_steps(slopes, clip=1.0, unit=1.0).numpy() / LEVELS
    assert np.allclose(steps, [[0.3, -0.4], [0.6, -0.8]], atol=2 / LEVELS)


@given(st.integers(1, 70), st.integers(1, 70))
def test_a_vector_is_clipped_the_same_beside_any_others(samples, directions):
    slopes = torch.randn(samples, directions, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone = torch.cat([grid_steps(row[None], 1e-3, 1.0) for row in slopes])
    assert torch.equal(grid_steps(slopes, 1e-3, 1.0), alone)


def test_a_slope_that_is_not_finite_counts_as_0():
    slopes = torch.tensor([[torch.nan, 1.0], [torch.inf, -1.0]])
    assert (grid_steps(slopes, 2.0, 1.0) / LEVELS).tolist() == [[0.0, 0.5], [0.0, -0.5]]


@pytest.mark.parametrize("samples", [0, 1, 700])
def test_an_empty_batch_sends_noise_and_a_large_one_is_not_truncated(samples):
    def slopes(part):
        return part[0]

    mechanism = Mechanism(clip=100.0, noise=1.0, batch=64.0)
    batch = torch.ones(samples, 3), torch.zeros(samples)
    steps = PrivateSteps(mechanism, without_noise)
    vote = steps.vote(slopes, batch, 3, 1.0, 0, 0)
    assert np.allclose(vote, samples / 64, rtol=1e-3)
    noisy = [PrivateSteps(mechanism, system_noise(mechanism)).vote(slopes, batch, 3, 1.0, 0, 0) for _ in range(2)]
    assert (noisy[0] != noisy[1]).all()


def test_losses_that_are_not_one_for_each_sample_are_refused():
    mechanism = Mechanism(clip=1.0, noise=1.0, batch=4.0)
    steps = PrivateSteps(mechanism, without_noise)
    batch = torch.ones(4, 3), torch.zeros(4)
    for several in (torch.ones(8, 3), torch.ones(1, 3)):  # a loss of each half, and one of all
        with pytest.raises(InvalidEstimate, match=f"gave {len(several)} losses for 4 samples"):
            steps.vote(lambda _, several=several: several, batch, 3, 1.0, 0, 0)


def test_noise_is_at_least_what_was_promised():
    for noise in (0.1, 0.3, 1.0, 7.77):
        assert Mechanism(1.0, noise, 1.0).scale >= noise * LEVELS


@pytest.mark.parametrize(
    ("values", "text"),
    [((0.0, 1.0, 1.0), "clip = 0"), ((1.0, -1.0, 1.0), "noise = -1"), ((1.0, 1.0, 0.0), "batch = 0")],
)
def test_a_mechanism_that_makes_no_sense_is_refused(values, text):
    with pytest.raises(InvalidConfig, match=text):
        Mechanism(*values)


def test_poisson_batches_are_secret_coins_of_each_sample():
    drawn = [poisson_batch(2000, 0.05) for _ in range(200)]
    sizes = np.array([len(batch) for batch in drawn])
    assert abs(sizes.mean() - 100) < 4
    assert 5 < sizes.std() < 15  # sqrt(95)
    counts = np.bincount(np.concatenate(drawn), minlength=2000)
    assert 0 < counts.mean() < 20
    assert counts.max() < 40
    assert len({tuple(batch) for batch in drawn}) == 200
    assert poisson_batch(7, 1.0).tolist() == list(range(7))
    assert poisson_batch(7, 0.0).tolist() == []
