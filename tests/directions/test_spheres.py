"""Sphere directions of a small model are generated once, and scaled when their length is known: the same bits."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyber0.directions import DirectionKey, api, matrix, native, sample

LARGEST = native.WHOLE

pytestmark = pytest.mark.skipif(not native.available(), reason="the extension is not compiled")


@settings(max_examples=30)
@given(st.sampled_from([1, 2, 3, 127, 4097, 7850, LARGEST, LARGEST + 1]), st.integers(1, 5), st.integers(0, 2**64 - 1))
def test_rows_of_a_matrix_are_the_directions(dimension, count, seed):
    keys = [DirectionKey(seed, 3, 1, index) for index in range(count)]
    api._UNITS.clear()
    for threads in (1, 3):
        found = matrix(keys, dimension, family="sphere", backend=native.Cpu(threads=threads))
        remembered = [sample(key, dimension, family="sphere", backend="numpy") for key in keys]
        np.testing.assert_array_equal(found, remembered)
        api._UNITS.clear()
        np.testing.assert_array_equal(found[0], sample(keys[0], dimension, family="sphere", backend="numpy"))


ON_A_TEAM = """
import torch
from cyber0.directions import DirectionKey, matrix, native
from cyber0.parameters import Parameters
from cyber0.commit import Commit

torch.set_num_threads(2)
assert native.openmp() is not None
keys = [DirectionKey(7, 3, 0, index) for index in range(64)]
alone = torch.from_numpy(matrix(keys, 7850, family="sphere", backend=native.Cpu(threads=1)))
commit = Commit(7, 3, 0.1, [[0.5 - index for index in range(64)]], "sphere")
applied = {}
for threads in (1, 2, 3, 8):
    torch.set_num_threads(threads)
    assert torch.equal(matrix(keys, 7850, family="sphere", device="cpu"), alone)
    weights = torch.ones(7850)
    Parameters({"w": weights}).apply(commit)
    applied[threads] = weights
assert all(torch.equal(applied[threads], applied[1]) for threads in applied)
print("the same bits")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the team is that of torch's libgomp")
def test_threads_of_torch_give_the_bits_of_one():
    done = subprocess.run([sys.executable, "-c", ON_A_TEAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "the same bits\n", done.stderr
