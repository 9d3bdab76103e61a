"""Directions on the threads of torch's OpenMP: the bits of one thread, and never in a forked process.

Tests themselves run in forked processes, so each of these starts a new one.
"""

import subprocess
import sys

import pytest

from cyber0.directions import native

pytestmark = [
    pytest.mark.skipif(not native.available(), reason="the extension is not compiled"),
    pytest.mark.skipif(sys.platform != "linux", reason="the team is that of torch's libgomp"),
]
BITS = """
import math
import torch
from cyber0.directions import DirectionKey, native
from cyber0.directions.native import Cpu
from cyber0.layerwise.source import perturbation_of
from cyber0.parameters import Parameters

torch.set_num_threads(2)
assert native.openmp() is not None
called, one, library = [], Cpu(threads=1), native.library()
native.WORTH_A_PART = 128


class Counted:
    def __getattr__(self, name):
        called.append(name)
        return getattr(library, name)


native.library = Counted
for size in (300, 4097, 100_003):
    for family in ("gaussian", "sphere", "rademacher"):
        for dtype in (torch.float32, torch.bfloat16):
            drawn = torch.Generator().manual_seed(size)
            flat = torch.randn(size, generator=drawn).to(dtype)
            model = Parameters({"a": torch.zeros(size)})
            keys = [DirectionKey(5, 1), DirectionKey(5, 2)]
            packed = perturbation_of(model, keys[0], 0.25, family, (keys, [0.5, -0.125])).rows
            for start in (0, 2**32 - 77):
                def moved(backend):
                    plus, minus, alone, descended = (torch.empty(size, dtype=dtype) for _ in range(4))
                    backend.move(flat, packed[:1], start, plus, minus)
                    backend.move(flat, packed[:1], start, alone, None)
                    backend.descend(flat, packed, start, descended)
                    place = flat.clone()
                    backend.descend(place, packed[1:], start, place)
                    return plus, minus, alone, descended, place

                called.clear()
                theirs = moved(one)
                assert "cyber0_share" not in called
                for threads, native.WORTH_MEMORY in ((2, 0.0), (2, math.inf), (3, 0.0), (8, 0.0), (8, math.inf)):
                    torch.set_num_threads(threads)
                    called.clear()
                    moved(Cpu())  # past the caches the first time, then past them or not by what they are worth
                    called.clear()
                    ours = moved(Cpu())
                    assert called == ["cyber0_share"] * 4
                    called.clear()
                    moved(Cpu(threads=threads - 1))  # told to use fewer than torch does
                    assert "cyber0_share" not in called
                    for a, b in zip(ours, theirs, strict=True):
                        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
called.clear()
torch.set_num_threads(1)  # as in the workers of a study
moved(Cpu())
torch.set_num_threads(2)
array = torch.zeros(size).numpy()  # a process that computes on NumPy arrays alone can be forked
Cpu().move(array, packed[:1], 0, array.copy(), None)
assert "cyber0_share" not in called
print("the same bits")
"""
FORKED = """
import os
import torch
from cyber0.directions import native
from cyber0.layerwise.source import perturbation_of
from cyber0.directions import DirectionKey
from cyber0.parameters import Parameters

torch.set_num_threads(2)
flat, plus = torch.zeros(10**6), torch.empty(10**6)
packed = perturbation_of(Parameters({"a": flat}), DirectionKey(5, 1), 0.25).rows
native.Cpu().move(flat, packed, 0, plus, None)
assert native.openmp() is not None
child = os.fork()
if child == 0:
    again = torch.empty(10**6)
    native.Cpu().move(flat, packed, 0, again, None)
    os._exit(0 if native.openmp() is None and bytes(again.numpy()) == bytes(plus.numpy()) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("the same bits")
"""
ODD_NAMES = """
import mmap, os, tempfile
import torch
from cyber0.directions import native

strange = os.fsencode(tempfile.mkdtemp()) + b"/caf\\xe9 x"
with open(strange, "wb+") as file:
    file.write(b"0" * 4096)
    file.flush()
    held = mmap.mmap(file.fileno(), 4096)  # its name is no UTF-8
torch.set_num_threads(2)
assert native.openmp() is not None
os.unlink(strange)
print("the same bits")
"""


@pytest.mark.parametrize("code", [BITS, FORKED, ODD_NAMES], ids=["bits", "forked", "a mapped file with an odd name"])
def test_it_gives_the_bits_of_one_thread(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "the same bits\n", done.stderr
