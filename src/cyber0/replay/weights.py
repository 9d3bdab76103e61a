"""Read and write weights in safetensors files, without torch; tensors that are not trained are kept as they are.

The format: a length of 64 bits, little-endian; a header of that length in JSON, which gives each tensor's type, shape
and place; the tensors' bytes.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidParameters
from cyber0.files import write_atomically
from cyber0.parameters import Entry, Manifest, Parameters

__all__ = ["Weights"]

TYPES = {"F32": "float32", "BF16": "bfloat16"}
NUMPY = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2")}
LARGEST_HEADER = 100_000_000  # bytes, as in the safetensors library


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The content of a safetensors file.

    >>> weights = Weights.of({"w": np.ones((2, 3), dtype=np.float32)})
    >>> parameters = weights.parameters(weights.order)
    >>> parameters.size
    6
    """

    header: dict[str, Any]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]]) -> "Weights":
        """Return weights of named arrays, float32 or the bits of bf16, in this order."""
        header: dict[str, Any] = {}
        at = 0
        for name, array in arrays.items():
            kind = "BF16" if array.dtype == np.uint16 else "F32"
            header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
            at += array.nbytes
        parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values()]
        return cls(header, np.concatenate(parts))

    @classmethod
    def read(cls, path: Path) -> "Weights":
        """Read a file, the only safetensors file of a folder, or all parts of a model that a folder has in several.

        >>> Weights.read(Path("no/such/model.safetensors"))
        Traceback (most recent call last):
        cyber0.errors.InvalidParameters: cannot read the weights no/such/model.safetensors: No such file or directory
        """
        return _read(_files(path))

    @property
    def order(self) -> Manifest:
        """Return the layout of the tensors that can be trained, in the order of the file."""
        places = {name: place for name, place in self.header.items() if name != "__metadata__"}
        names = sorted(places, key=lambda name: places[name]["data_offsets"][0])
        entries: list[Entry] = []
        start = 0
        for name in names:
            if places[name]["dtype"] in TYPES:
                shape = tuple(places[name]["shape"])
                entries.append(Entry(name, shape, TYPES[places[name]["dtype"]], start))
                start += prod(shape)
        return Manifest(tuple(entries))

    def parameters(self, manifest: Manifest) -> Parameters:
        """Return the tensors of a manifest, in its order, as parameters that share this memory."""
        return Parameters({entry.name: self._array(entry) for entry in manifest.entries})

    def _array(self, entry: Entry) -> NDArray[Any]:
        place = self.header.get(entry.name)
        if place is None:
            raise InvalidParameters(f"the weights have no tensor {entry.name!r}, which the run trains")
        dtype, shape = str(TYPES.get(place["dtype"], place["dtype"])), tuple(place["shape"])
        if (dtype, shape) != (entry.dtype, entry.shape):
            raise InvalidParameters(
                f"tensor {entry.name!r} is {dtype} {list(shape)}, but the run trains {entry.dtype} {list(entry.shape)}"
            )
        begin, end = place["data_offsets"]
        if begin % NUMPY[dtype].itemsize:
            raise InvalidParameters(f"tensor {entry.name!r} is not aligned in its file: save it anew by safetensors")
        return self.data[begin:end].view(NUMPY[dtype]).reshape(shape)

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return len(self._beginning()) + self.data.nbytes

    def _beginning(self) -> bytes:
        text = json.dumps(self.header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def write(self, path: Path) -> None:
        """Write a file atomically."""
        try:
            write_atomically(path, self._beginning(), self.data.data)
        except OSError as error:
            raise InvalidParameters(f"cannot write {path}: {error.strerror}") from None


def _files(path: Path) -> list[Path]:
    """Return the files that a path means: itself, or those of a folder, by its index where there are several."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if len(indexes) != 1:
        raise InvalidParameters(f"{path} has {len(files) or 'no'} safetensors files: give the path of one")
    try:
        named = sorted(set(map(str, json.loads(indexes[0].read_text(encoding="utf-8"))["weight_map"].values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParameters(f"{indexes[0]} is no index of safetensors files: {error}") from None
    if not named or any(Path(name).name != name for name in named):
        raise InvalidParameters(f"{indexes[0]} names files outside its folder, or none")
    return [path / name for name in named]


def _read(paths: list[Path]) -> Weights:
    """Return the tensors of several files as if they were in one, each read to its place: nothing is held twice."""
    header: dict[str, Any] = {}
    begins: list[tuple[Path, int, int, int]] = []  # each file, where its tensors begin in it, their bytes, their place
    at = 0
    for path in paths:
        own, begin, size = _opened(path)
        for name, place in own.items():
            if name == "__metadata__":
                header.setdefault(name, place)
            else:
                header[name] = {**place, "data_offsets": [at + offset for offset in place["data_offsets"]]}
        begins.append((path, begin, size, at))
        at += size + (-size % 8 if path != paths[-1] else 0)  # so that what follows is aligned
    data = np.zeros(at, dtype=np.uint8)
    for path, begin, size, place in begins:
        with _reading(path), path.open("rb") as file:
            file.seek(begin)
            if file.readinto(data[place : place + size].data) != size:
                raise InvalidParameters(f"{path} became shorter while it was read")
    return Weights(header, data)


def _opened(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the header of a file, and where its tensors begin and how many bytes they have."""
    with _reading(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= LARGEST_HEADER else b""
        begin = file.tell()
        size = file.seek(0, 2) - begin
    return _header(path, text, size), begin, size


@contextmanager
def _reading(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidParameters(f"cannot read the weights {path}: {error.strerror}") from None


def _header(path: Path, text: bytes, size: int) -> dict[str, Any]:
    try:
        header = cast("dict[str, Any]", json.loads(text))
        for name, place in header.items():
            if name != "__metadata__":
                begin, end = place["data_offsets"]
                whole = TYPES.get(place["dtype"])
                if not 0 <= begin <= end <= size:
                    raise ValueError(f"tensor {name!r} lies outside the file")
                if whole and prod(place["shape"]) * NUMPY[whole].itemsize != end - begin:
                    raise ValueError(f"tensor {name!r} does not have as many bytes as its shape needs")
        return header
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParameters(f"{path} is not a safetensors file: {error}") from None
