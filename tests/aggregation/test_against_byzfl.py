"""The same answers as ByzFL wherever the definitions agree."""

import numpy as np
import pytest
from benchmarks.aggregation import byzfl, pairs

from cyber0.aggregation import RULES, get_rule

peer = byzfl()
if peer is None:
    pytest.skip("ByzFL is not installed: pip install --no-deps byzfl==0.0.11", allow_module_level=True)

NAMES = [name for name in pairs(peer, 1) if not name.startswith("bucketing")]  # ByzFL's is random


@pytest.mark.parametrize(("n", "k", "b"), [(5, 1, 1), (11, 4, 3), (40, 64, 10)])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_answer(name: str, n: int, k: int, b: int) -> None:
    for seed in range(5):
        vectors = np.random.default_rng(seed).standard_normal((n, k)) + 1
        expected = pairs(peer, b)[name](vectors.copy())  # a copy: some of its rules write to their input
        assert np.allclose(get_rule(name)(vectors, b), expected)


def test_the_same_minimum_diameter_where_it_is_unique() -> None:
    for seed in range(5):
        vectors = np.random.default_rng(seed).standard_normal((8, 3))
        vectors[seed] += 100
        assert np.allclose(RULES["minimum_diameter"](vectors, 1), peer.MDA(1)(vectors))
