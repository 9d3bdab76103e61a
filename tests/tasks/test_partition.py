"""Laws of every partition, and the statistics of the Dirichlet ones."""

import hashlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cyber0.errors import InvalidData, UnknownName
from cyber0.tasks.partition import PARTITIONS, count, dirichlet, get_partition, shards, shuffled, split

NAMES = [*PARTITIONS, "dirichlet(alpha=1e-300)", "dirichlet(per='client')", "dirichlet(alpha=1e-9, per='client')"]
LABELS = np.repeat(np.arange(10), 600)


def dealt(name, labels, *rest):
    """Return the parts that a partition makes; one by owners has two samples of most owners."""
    owners = {"owners": np.arange(np.size(labels)).reshape(np.shape(labels)) // 2 * 2} if name == "natural" else {}
    return get_partition(name)(labels, *rest, **owners)


cases = st.lists(st.integers(-3, 12), min_size=2, max_size=80).flatmap(
    lambda labels: st.tuples(st.just(np.array(labels)), st.integers(1, len(labels) // 2), st.integers(0, 2**64 - 1))
)


@pytest.mark.parametrize("name", NAMES)
@given(case=cases)
def test_every_sample_has_one_owner_and_every_client_a_sample(name, case):
    labels, clients, seed = case
    parts = dealt(name, labels, clients, seed)
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("name", NAMES)
@given(case=cases)
def test_the_same_seed_gives_the_same_partition(name, case):
    first, second = dealt(name, *case), dealt(name, *case)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_partition(name):
    a, b = (np.concatenate(dealt(name, LABELS, 40, seed)) for seed in (0, 1))
    assert not np.array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("iid", "366fb1dc572f"),
        ("shuffled", "42fda196e7f9"),  # the bits that `iid` had before it dealt by label
        ("dirichlet", "36b4fcc51ae0"),
        ("dirichlet(per='client')", "66318e299463"),
        ("shards", "b0e7f50292aa"),
        ("natural", "bbddeb9af027"),
    ],
)
def test_known_answers_for_good(name, digest):
    """Should NumPy ever change how it draws, published runs would get other partitions: this is where it shows."""
    assert hashlib.sha256(np.concatenate(dealt(name, LABELS, 40, 7)).tobytes()).hexdigest()[:12] == digest


@pytest.mark.parametrize("name", ["iid", "shuffled", "dirichlet", "dirichlet(per='client')"])
def test_as_many_clients_as_samples(name):
    assert [len(part) for part in split(name, LABELS[::100], 60, 0)] == [1] * 60


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 12), st.integers(0, 2**64 - 1))
def test_iid_gives_every_client_the_same_fraction_of_each_label(samples, clients, seed):
    labels = np.repeat(np.arange(len(samples)), samples)
    assume(len(labels) >= clients)
    counts = count(labels, split("iid", labels, clients, seed), len(samples))
    assert (counts.sum(axis=0) == samples).all()
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_shuffled_parts_are_alike():
    counts = count(LABELS, shuffled(LABELS, 20, 0))
    assert (counts.sum(axis=1) == 300).all()
    # Hypergeometric: mean 30, standard deviation 5.1 over 200 cells; five deviations for the furthest.
    assert abs(counts - 30).max() < 26


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_shares_per_label_have_the_mean_and_variance_of_the_dirichlet_distribution(alpha):
    clients = 10
    shares = (
        np.concatenate([count(LABELS, dirichlet(LABELS, clients, seed, alpha=alpha)).T for seed in range(60)]) / 600
    )
    mean, variance = 1 / clients, (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    # 600 draws: the mean of a client is off by 5 standard errors at most, the pooled variance by a tenth.
    assert abs(shares.mean(axis=0) - mean).max() < 5 * np.sqrt(variance / len(shares))
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_a_single_share_follows_the_beta_distribution():
    """Two clients, alpha = 1: a share is uniform on [0, 1]; the Kolmogorov distance of level 1% is 1.63 / sqrt(n)."""
    shares = np.concatenate([count(LABELS, dirichlet(LABELS, 2, seed, alpha=1.0))[0] for seed in range(80)]) / 600
    ranks = np.arange(1, len(shares) + 1) / len(shares)
    assert abs(np.sort(shares) - ranks).max() < 1.63 / np.sqrt(len(shares)) + 1 / 600


def test_per_client_gives_equal_parts_of_few_labels():
    counts = count(LABELS, dirichlet(LABELS, 40, 0, alpha=0.1, per="client"))
    assert (counts.sum(axis=1) == 150).all()
    assert np.median(counts.max(axis=1)) > 75
    even = count(LABELS, dirichlet(LABELS, 40, 0, alpha=1000.0, per="client"))
    assert abs(even - 15).max() < 25  # multinomial: mean 15, deviation 3.8, and what is dealt out at the end


def test_per_client_favours_nobody():
    """The first and the last client get as much of what they want most: sequential dealing would starve the last."""
    top = np.mean([count(LABELS, dirichlet(LABELS, 20, s, per="client")).max(axis=1) for s in range(40)], axis=0) / 300
    assert abs(top[:5].mean() - top[-5:].mean()) < 0.1  # 200 values each, deviation 0.22: six standard errors


def test_shards_hold_few_labels():
    counts = count(LABELS, shards(LABELS, 30, 0, per_client=2))
    assert (counts.sum(axis=1) == 200).all()
    assert (counts > 0).sum(axis=1).max() <= 2


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize(
    ("labels", "clients", "seed", "message"),
    [
        ([1, 2, 3], 4, 0, "3 samples are too few for 4 clients"),
        ([1], 4, 0, "1 sample is too few for 4 clients"),
        ([1, 2, 3], 0, 0, "clients = 0"),
        ([[1, 2, 3]], 1, 0, "one label for each sample"),
        ([1, 2, 3], 1, -1, "seed = -1"),
    ],
)
def test_bad_input_is_refused(name, labels, clients, seed, message):
    with pytest.raises(InvalidData, match=message):
        dealt(name, labels, clients, seed)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_alpha_is_refused(alpha):
    with pytest.raises(InvalidData, match="greater than 0"):
        dirichlet(LABELS, 2, 0, alpha=alpha)


def test_bad_options_are_refused():
    with pytest.raises(UnknownName, match="use one of client, label"):
        dirichlet(LABELS, 2, 0, per="sample")
    with pytest.raises(InvalidData, match="need 12000 shards"):
        shards(LABELS, 6000, 0)
    with pytest.raises(InvalidData, match="per_client = 0"):
        shards(LABELS, 2, 0, per_client=0)
    with pytest.raises(UnknownName, match="'beta' of the partition: use one of alpha, per"):
        split("dirichlet", LABELS, 2, 0, beta=1)


def first_come(labels, clients, _seed, *, gap=0):
    return np.array_split(np.arange(gap, len(labels))[::-1], clients)


def test_a_partition_of_ones_own_is_checked():
    parts = split(first_come, LABELS, 3, 0)
    assert [part[0] for part in parts] == [4000, 2000, 0]  # sorted for it
    with pytest.raises(InvalidData, match="gives away 5999, 5999 of them different"):
        split(first_come, LABELS, 3, 0, gap=1)
    with pytest.raises(InvalidData, match="each of 3 clients a sample"):
        split(lambda labels, *_: [range(len(labels)), [], []], LABELS, 3, 0)
    with pytest.raises(InvalidData, match="gives away sample 3: the 3 samples are numbered from 0 on"):
        split(lambda *_: [[1, 2, 3]], [0, 0, 0], 1, 0)


def test_a_partition_of_ones_own_by_name():
    named, direct = split("cyber0.tasks.partition:shards", LABELS, 3, 0), shards(LABELS, 3, 0)
    assert all(np.array_equal(a, b) for a, b in zip(named, direct, strict=True))
