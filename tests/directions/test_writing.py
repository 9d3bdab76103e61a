"""Both signs are written into the caches or past them, whichever was faster lately on the machine as it is now."""

from itertools import count

import pytest

from cyber0.directions import native


@pytest.fixture
def writing(monkeypatch):
    """How a tensor is written on a machine whose clock the test sets: `spend(seconds of each way)` writes it once."""
    seconds, written = [0.0], native._Writing()
    monkeypatch.setattr(native.time, "perf_counter", lambda: seconds[0])

    def spend(into, past):
        with written.timed() as past_caches:
            seconds[0] += past if past_caches else into
        return past_caches

    return spend


def shares(writing, into, past):
    """Write two thousand times; return how often it was past the caches, in each half."""
    done = [writing(into, past) for _ in range(2000)]
    return [sum(half) / 1000 for half in (done[:1000], done[1000:])]


NEAR, FAR = (0.31, 0.38), (1.1, 0.38)  # ns a coordinate in bf16, where two cores share a cache and where they do not


def test_the_faster_way_is_taken_and_the_other_tried_now_and_then(writing):
    assert shares(writing, *NEAR)[1] == pytest.approx(1 / native.RETRIED, abs=2e-3)
    assert shares(writing, *FAR)[1] == pytest.approx(1 - 1 / native.RETRIED, abs=2e-3)


def test_a_machine_that_changes_is_followed_within_a_few_tries(writing):
    for cores in (FAR, NEAR, FAR, NEAR):
        first, second = shares(writing, *cores)
        assert abs(first - second) < 0.3
        assert (second > 0.5) is (cores is FAR)


def test_a_gain_that_a_slower_product_would_eat_is_left(writing):
    assert shares(writing, 0.31, 0.31 / native.WORTH_MEMORY * 1.01)[1] < 0.1


def test_a_call_that_was_held_up_decides_nothing(writing):
    for each in count():
        assert writing(100.0 if each % 50 == 7 else 0.31, 0.38) is (each % native.RETRIED == 0)
        if each == 1000:
            break
