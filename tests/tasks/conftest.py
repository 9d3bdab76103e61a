import gzip
import hashlib

import numpy as np
import pytest

from cyber0.tasks import mnist
from cyber0.tasks.files import DataFile
from cyber0.tasks.text import tiny


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch, tmp_path):
    """An empty cache, and no folder named by the environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CYBER0_DATA", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts with their prompt, and a tiny language model of each kind."""
    folder = tiny.data(tmp_path_factory.mktemp("text"))
    for kind in tiny.KINDS:
        tiny.model(folder / kind, kind)
    return folder


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def published(monkeypatch, tmp_path):
    """A folder with a small set of real idx.gz files that takes the place of MNIST."""
    folder = tmp_path / "published"
    folder.mkdir()
    generator = np.random.default_rng(0)
    shapes = [(30, 28, 28), (30,), (10, 28, 28), (10,)]
    files = []
    for known, shape in zip(mnist.FILES, shapes, strict=True):
        content = idx(generator.integers(0, 256 if len(shape) == 3 else 10, shape))
        packed = gzip.compress(content)
        (folder / known.name).write_bytes(packed)
        digests = (hashlib.sha256(part).hexdigest() for part in (packed, content))
        files.append(DataFile(known.name, len(packed), *digests))
    monkeypatch.setattr(mnist, "FILES", tuple(files))
    return folder
