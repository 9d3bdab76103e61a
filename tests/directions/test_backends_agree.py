"""Every backend gives the same bits, for any key, slice, chunk size and number of threads."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cyber0.directions import (
    Cpu,
    DirectionKey,
    combine,
    descend,
    fingerprint,
    matrix,
    perturb,
    perturb_pair,
    project,
    sample,
)
from cyber0.directions.elementwise import numpy_backend, torch_backend
from cyber0.directions.key import pack
from cyber0.directions.select import get_backend

keys = st.builds(
    DirectionKey,
    seed=st.integers(0, 2**64 - 1),
    round=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**32 - 1),
    index=st.integers(0, 2**16 - 1),
)
sizes = st.integers(1, 3000)
starts = st.one_of(
    st.integers(0, 5000),
    *(st.integers(edge - 3000, edge + 100) for edge in (2**32, 2**34, 2**39)),
    st.integers(0, 2**50 - 3000),
)
families = st.sampled_from(["gaussian", "rademacher"])
scales = st.floats(-100, 100, width=32)
chunks = st.integers(300, 2000)


def same(a, b):
    """Equal to the last bit, the sign of zeros included."""
    a, b = (
        x.view(torch.int16).numpy() if getattr(x, "dtype", None) == torch.bfloat16 else np.asarray(x) for x in (a, b)
    )
    return a.tobytes() == b.tobytes()


def test_the_compiled_backend_is_there():
    """Where the tests run there is a compiler, so that the fast backend is tested too."""
    assert Cpu().fingerprint(np.zeros(1, dtype=np.float32), 0) >= 0


def test_a_backend_that_was_found_can_be_named():
    key, device = DirectionKey(seed=1, round=0), torch.device("cpu")
    found = get_backend(None, device)
    assert get_backend(found, device) == found
    assert same(sample(key, 50, backend=found, device=device), sample(key, 50, backend="numpy"))


@given(key=keys, size=sizes, start=starts, family=families, chunk=chunks)
def test_sample(key, size, start, family, chunk):
    z = sample(key, size, start, family, backend="numpy")
    assert same(z, sample(key, size, start, family, backend=numpy_backend(chunk)))
    assert same(z, sample(key, size, start, family, backend="cpu"))
    assert same(z, sample(key, size, start, family, backend=torch_backend(chunk), device="cpu"))


@given(key=keys, start=st.integers(0, 4000), size=sizes, beyond=st.integers(0, 500), chunk=chunks)
def test_sphere(key, start, size, beyond, chunk):
    where = {"size": size, "start": start, "family": "sphere", "dimension": start + size + beyond}
    z = sample(key, **where, backend="numpy")
    whole = sample(key, where["dimension"], family="sphere", backend=Cpu(threads=1))
    assert same(z, whole[start : start + size])
    assert same(z, sample(key, **where, backend=torch_backend(chunk), device="cpu"))
    squared = np.square(sample(key, where["dimension"]).astype(np.float64)).sum()
    off = where["dimension"] * 2.0**-20 / squared  # the length is summed in units of 2**-20, rounded down
    assert 1 - 1e-5 < np.square(whole.astype(np.float64)).sum() <= 1 / max(1 - off, 1e-9) + 1e-5


@given(key=keys, cut=st.integers(1, 2999), start=starts, family=families)
def test_a_slice_needs_nothing_before_it(key, cut, start, family):
    whole = sample(key, 3000, start, family)
    assert same(whole[cut:], sample(key, 3000 - cut, start + cut, family))


@pytest.mark.parametrize("family", ["gaussian", "rademacher", "sphere"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_no_bit(family, threads):
    key, size = DirectionKey(seed=3, round=1), 2**18 + 77
    w = sample(key, size)
    again = [DirectionKey(seed=3, round=1, index=r) for r in range(3)]
    for start in (0, 5, 2**34 - 1000) if family != "sphere" else (0, 5):
        where = {"start": start, "family": family, "dimension": start + size if family == "sphere" else None}
        one, many = Cpu(threads=1), Cpu(threads=threads)
        assert same(sample(key, size, backend=one, **where), sample(key, size, backend=many, **where))
        assert same(perturb(w, key, 0.1, backend=one, **where), perturb(w, key, 0.1, backend=many, **where))
        c = [0.1, 0.2, 0.3]
        assert same(descend(w, again, c, backend=one, **where), descend(w, again, c, backend=many, **where))
        assert fingerprint(w, start=start, backend=one) == fingerprint(w, start=start, backend=many)


@given(key=keys, size=sizes, start=starts, family=families, scale=scales, chunk=chunks, bf16=st.booleans())
def test_perturb(key, size, start, family, scale, chunk, bf16):
    w = torch.from_numpy(sample(DirectionKey(seed=1, round=1), size))
    step = np.float32(scale) * sample(key, size, start, family, backend="numpy")
    expected = [(w + torch.from_numpy(sign * step)).to(torch.bfloat16 if bf16 else torch.float32) for sign in (1, -1)]
    for backend in ("numpy", numpy_backend(chunk), "cpu", torch_backend(chunk)):
        out = torch.empty_like(expected[0]), torch.empty_like(expected[0])
        where = {"start": start, "family": family, "backend": backend}
        plus, minus = perturb_pair(w, key, scale, out=out, **where)
        assert same(plus, expected[0])
        assert same(minus, expected[1])
        assert same(perturb(w, key, scale, out=torch.empty_like(plus), **where), plus)


@given(
    terms=st.lists(st.tuples(keys, scales), min_size=1, max_size=6),
    size=sizes,
    start=starts,
    family=families,
    chunk=chunks,
    bf16=st.booleans(),
)
def test_descend(terms, size, start, family, chunk, bf16):
    directions, coefficients = [key for key, _ in terms], [c for _, c in terms]
    u = np.zeros(size, dtype=np.float32)
    for key, coefficient in terms:
        u = u + np.float32(coefficient) * sample(key, size, start, family, backend="numpy")
    assert same(u, combine(directions, coefficients, size, start=start, family=family))

    w = sample(DirectionKey(seed=1, round=1), size)
    where = {"start": start, "family": family}
    out = None if not bf16 else np.empty(size, dtype=np.uint16)
    expected = descend(w, directions, coefficients, out=out, backend="numpy", **where).copy()
    if not bf16:
        assert same(expected, w - u)
    for backend in (numpy_backend(chunk), "cpu"):
        assert same(expected, descend(w, directions, coefficients, out=out, backend=backend, **where))
    tensor = None if not bf16 else torch.empty(size, dtype=torch.bfloat16)
    for backend in (torch_backend(chunk), "cpu"):
        result = descend(torch.from_numpy(w), directions, coefficients, out=tensor, backend=backend, **where)
        assert same(expected, result)


@given(data=st.binary(min_size=4, max_size=400), start=starts, chunk=chunks)
def test_fingerprint(data, start, chunk):
    bits = np.frombuffer(data[: len(data) // 4 * 4], dtype=np.uint32) & 0x7F7FFFFF | 0x00800000  # finite
    w = bits.view(np.float32)
    expected = fingerprint(w, start=start, backend="numpy")
    assert expected == fingerprint(w, start=start, backend="cpu")
    assert expected == fingerprint(torch.from_numpy(w), start=start, backend=torch_backend(chunk))


def test_perturb_in_place_and_in_any_shape():
    key = DirectionKey(seed=1, round=2)
    w = sample(key, 600).reshape(20, 30)
    expected = perturb(w, key, 0.5)
    assert expected.shape == (20, 30)
    assert perturb(w, key, 0.5, out=w) is w
    assert same(w, expected)


@pytest.mark.parametrize("family", ["gaussian", "sphere", "rademacher"])
def test_project_is_the_inner_product(family):
    directions = [DirectionKey(seed=1, round=2, index=r) for r in range(5)]
    v = sample(DirectionKey(seed=9, round=9), 10_000)
    where = {"start": 100, "family": family, "dimension": 20_000}
    expected = [np.dot(v.astype(np.float64), sample(key, v.size, **where)) for key in directions]
    np.testing.assert_allclose(project(v, directions, **where), expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(project(torch.from_numpy(v), directions, **where), expected, rtol=1e-4, atol=1e-3)


@given(
    chosen=st.lists(keys, min_size=1, max_size=7),
    size=sizes,
    family=st.sampled_from(["gaussian", "sphere", "rademacher"]),
)
def test_matrix(chosen, size, family):
    rows = matrix(chosen, size, family=family)
    assert same(rows, np.stack([sample(key, size, family=family, backend="numpy") for key in chosen]))
    assert same(rows, matrix(chosen, size, family=family, backend=Cpu(threads=1)))
    assert same(rows, matrix(chosen, size, family=family, device="cpu", backend="torch"))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_matrix_on_any_number_of_threads(threads):
    chosen = [DirectionKey(seed=3, round=1, index=r) for r in range(33)]
    rows = matrix(chosen, 5001, family="sphere", backend=Cpu(threads=threads))
    assert same(rows, np.stack([sample(key, 5001, family="sphere") for key in chosen]))


@pytest.mark.parametrize("family", ["gaussian", "rademacher"])
def test_descending_many_buffers_is_descending_each(family):
    keys = [DirectionKey(3, 1, 0, index) for index in range(2)]
    packed = pack(keys, family, [1.0, 1.0], [0.5, -0.25])
    whole = np.linspace(-1, 1, 50, dtype=np.float32)
    expected = descend(whole, keys, [0.5, -0.25], family=family, backend="numpy")
    for backend in (numpy_backend(), Cpu()):
        flats = whole.copy()
        backend.descend_all([(flats[:7], 0), (flats[7:], 7)], packed)
        assert same(expected, flats)
    for backend in (torch_backend(), get_backend(None, torch.device("cpu"))):
        tensor = torch.from_numpy(whole.copy())
        backend.descend_all([(tensor[:7], 0), (tensor[7:], 7)], packed)
        assert same(expected, tensor)
