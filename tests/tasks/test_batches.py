"""A batch is a function of (seed, client, round, epoch) and of what the client holds: nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyber0.errors import InvalidData, KeyOutOfRange
from cyber0.tasks.batches import batch_indices, batches, positions

words = st.integers(0, 2**32 - 1)
seeds = st.integers(0, 2**64 - 1)


@given(seeds, st.lists(st.tuples(words, st.integers(1, 90)), min_size=1, max_size=6), words, words, st.integers(1, 70))
def test_all_at_once_and_one_by_one_are_identical(seed, federation, t, epoch, size):
    clients = [client for client, _ in federation]
    held = [np.arange(client % 1000, client % 1000 + 3 * count, 3) for client, count in federation]
    together = batches(seed, clients, t, epoch, held, size)
    alone = [
        batch_indices(seed, client, t, epoch, samples, size) for client, samples in zip(clients, held, strict=True)
    ]
    assert np.array_equal(together, np.stack(alone))
    assert together.dtype == np.int64


@given(seeds, st.integers(1, 90), st.integers(1, 70))
def test_without_replacement_where_there_is_enough(seed, held, size):
    batch = batch_indices(seed, 3, 5, 0, np.arange(held), size)
    assert len(batch) == size
    assert 0 <= batch.min() <= batch.max() < held
    if held >= size:
        assert len(set(batch.tolist())) == size


def test_the_definition_literally():
    """Philox4x32-10 and Floyd's algorithm in plain Python integers."""

    def philox(counter, key):
        (c0, c1, c2, c3), (k0, k1) = counter, key
        for _ in range(10):
            p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
            c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        return c0, c1, c2, c3

    def literal(seed, client, t, epoch, m, size):
        key = seed & 0xFFFFFFFF, (seed >> 32) ^ 0x42544348
        w = [philox((i // 4, client, epoch, t), key)[i % 4] for i in range(size)]
        if m < size:
            return [word * m >> 32 for word in w]
        batch = []
        for i, word in enumerate(w):
            j = m - size + i
            sample = word * (j + 1) >> 32
            batch.append(j if sample in batch else sample)
        return batch

    for case in [(7, 3, 0, 0, 100, 64), (2**64 - 1, 2**32 - 1, 9, 4, 64, 64), (2**40 + 5, 0, 2**32 - 1, 1, 10, 21)]:
        assert positions(*case).tolist() == literal(*case)


def test_known_answers_for_good():
    assert positions(2024, [0, 39], [[0], [399]], 0, [1500, 5], 6).tolist() == [
        [[455, 586, 1054, 1021, 858, 259], [3, 2, 3, 0, 4, 0]],
        [[1412, 1107, 598, 489, 385, 220], [3, 0, 0, 1, 1, 4]],
    ]


@pytest.mark.parametrize("change", ["seed", "client", "round", "epoch"])
def test_each_part_of_the_key_matters(change):
    key = {"seed": 1, "client": 1, "round": 1, "epoch": 1}
    other = {**key, change: 2}
    held = np.arange(10_000)
    assert not np.array_equal(batch_indices(**key, held=held, size=64), batch_indices(**other, held=held, size=64))


def test_every_sample_is_as_likely():
    """20,000 batches of 3 out of 8: each sample is in 7,500, s.d. 68; each pair in 2,143, s.d. 44. Five deviations."""
    chosen = positions(0, 0, np.arange(20_000), 0, 8, 3)
    member = np.zeros((20_000, 8))
    np.put_along_axis(member, chosen, 1, axis=1)
    pairs = member.T @ member
    assert abs(np.diag(pairs) - 7500).max() < 5 * 68.5
    assert abs(pairs[~np.eye(8, dtype=bool)] - 15_000 / 7).max() < 5 * 43.8


def test_shapes_broadcast():
    many = positions(1, np.arange(4), np.arange(3)[:, None], 0, [9, 2, 70, 5], 7)
    assert many.shape == (3, 4, 7)
    assert np.array_equal(many[2, 1], positions(1, 1, 2, 0, 2, 7))


@pytest.mark.parametrize("key", [(-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, 2**32, 0), (0, 0, 0, 0.5), (2**64, 0, 0, 0)])
def test_a_key_out_of_range_is_refused(key):
    with pytest.raises(KeyOutOfRange, match="out of range"):
        batch_indices(*key, held=[1, 2], size=1)


def test_bad_input_is_refused():
    with pytest.raises(InvalidData, match="at least one sample"):
        batch_indices(0, 0, 0, 0, [1], 0)
    with pytest.raises(InvalidData, match="a client holds no samples"):
        batch_indices(0, 0, 0, 0, [], 4)
    with pytest.raises(InvalidData, match="one for each client"):
        batches(0, [1, 2], 0, 0, [[1]], 4)
