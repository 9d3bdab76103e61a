"""Convert a pretrained file to the weights a run starts from: to its precision, with zeros for missing tensors."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidParameters
from cyber0.parameters import Entry, Manifest
from cyber0.replay.weights import NUMPY, TYPES, Weights

__all__ = ["convert", "missing_tensors"]

READ = {"F32": "<f4", "BF16": "<u2", "F16": "<f2"}
NAMES = {dtype: name for name, dtype in TYPES.items()}
CHUNK = 2**20  # values that are converted at a time


def missing_tensors(weights: Weights, manifest: Manifest) -> list[str]:
    """Return the names of the tensors of a manifest that the weights do not have.

    >>> weights = Weights.of({"w": np.zeros(3, dtype=np.float32)})
    >>> missing_tensors(weights, Manifest((*weights.order.entries, Entry("head", (2, 3), "float32", 3))))
    ['head']
    """
    return [entry.name for entry in manifest.entries if entry.name not in weights.header]


def convert(weights: Weights, manifest: Manifest) -> Weights:
    """Return weights with the tensors of a manifest, in its types; other tensors are kept as they are.

    float16 and bf16 become float32 exactly; to bf16 a value is rounded to the nearest, ties to even. A missing tensor
    becomes zeros.

    >>> weights = Weights.of({"w": np.full((1, 2), 1 / 3, dtype=np.float32)})
    >>> halves = convert(weights, Manifest((Entry("w", (1, 2), "bfloat16", 0), Entry("head", (2,), "float32", 2))))
    >>> [entry.dtype for entry in halves.order.entries]
    ['float32', 'bfloat16']
    """
    if all(weights.header.get(entry.name, {}).get("dtype") == NAMES[entry.dtype] for entry in manifest.entries):
        return weights
    wanted = {entry.name: entry for entry in manifest.entries}
    kept = [name for name in weights.header if name not in wanted and name != "__metadata__"]
    parts = [_trained(entry) for entry in manifest.entries] + [_other(weights, name) for name in kept]
    parts.sort(key=lambda part: -part[2] // max(1, prod(part[1]["shape"])))  # wide types first, to align all
    metadata = weights.header.get("__metadata__")
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data, at = np.empty(sum(size for _, _, size in parts), dtype=np.uint8), 0
    for name, place, size in parts:
        header[name] = {**place, "data_offsets": [at, at + size]}
        if name in wanted:
            _write(weights, wanted[name], data[at : at + size])
        else:
            begin, end = weights.header[name]["data_offsets"]
            data[at : at + size] = weights.data[begin:end]
        at += size
    return Weights(header, data)


Part = tuple[str, dict[str, Any], int]  # a tensor's name, its type and shape, and its bytes


def _trained(entry: Entry) -> Part:
    size = entry.size * NUMPY[entry.dtype].itemsize
    return entry.name, {"dtype": NAMES[entry.dtype], "shape": list(entry.shape)}, size


def _other(weights: Weights, name: str) -> Part:
    place = weights.header[name]
    begin, end = place["data_offsets"]
    return name, {"dtype": place["dtype"], "shape": place["shape"]}, end - begin


def _write(weights: Weights, entry: Entry, out: NDArray[np.uint8]) -> None:
    """Write a tensor in the type of its entry, a chunk at a time to save memory; zeros if it is missing."""
    place = weights.header.get(entry.name)
    if place is None:
        out[:] = 0
        return
    if tuple(place["shape"]) != entry.shape or place["dtype"] not in READ:
        raise InvalidParameters(
            f"tensor {entry.name!r} is {TYPES.get(place['dtype'], place['dtype'])} {place['shape']}, "
            f"but the run trains {entry.dtype} {list(entry.shape)}"
        )
    begin, end = place["data_offsets"]
    values, target = weights.data[begin:end].view(READ[place["dtype"]]), out.view(NUMPY[entry.dtype])
    for first in range(0, len(values), CHUNK):
        target[first : first + CHUNK] = _converted(values[first : first + CHUNK], entry)


def _converted(values: NDArray[Any], entry: Entry) -> NDArray[Any]:
    """Return float32 or float16 values, or the bits of bf16, as float32 or as the bits of bf16."""
    if entry.dtype == "float32":
        bits = values.dtype == np.uint16
        return (values.astype(np.uint32) << 16).view(np.float32) if bits else values.astype(np.float32)
    if values.dtype == np.uint16:
        return values
    words = values.astype(np.float32).view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)
