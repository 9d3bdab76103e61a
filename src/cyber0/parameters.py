"""The flat view of a model's trainable parameters, and the one place where they are written.

    model at round t = fold(apply, initial model, commits 1..t)

Two parties that start from the same weights and apply the same commits hold the same bits, on any device, in any
chunks, on any number of threads.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from cyber0.blocks import cut
from cyber0.commit import Commit
from cyber0.directions import Backend, fingerprint
from cyber0.directions.api import buffer, fold, prepare
from cyber0.directions.backend import Packed
from cyber0.directions.key import PACKED
from cyber0.directions.select import device_of, is_numpy
from cyber0.errors import InvalidArray, InvalidParameters
from cyber0.extras import require

if TYPE_CHECKING:
    from torch.nn import Module

AT_ONCE = 2**14  # directions: their table is half a megabyte

__all__ = ["Entry", "Manifest", "Parameters", "to_bf16"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor's place in the flat vector: coordinates start .. start + size, in row-major order.

    >>> Entry("weight", (10, 784), "float32", start=0).size
    7840
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int

    @property
    def size(self) -> int:
        """The number of its coordinates."""
        return prod(self.shape)


@dataclass(frozen=True)
class Manifest:
    """Names, shapes and types of all tensors, in flat order. Parties with different digests cannot train together.

    >>> Manifest((Entry("weight", (10, 784), "float32", 0), Entry("bias", (10,), "float32", 7840))).digest[:16]
    '48e9c53df86e316d'
    """

    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """The number of trainable parameters: the paper's d."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the list of [name, shape, type], as JSON without spaces, in UTF-8."""
        layout = [[entry.name, list(entry.shape), entry.dtype] for entry in self.entries]
        return hashlib.sha256(json.dumps(layout, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


class Parameters:
    """A model's trainable parameters as one flat vector, in place: nothing is copied.

    Built from named NumPy arrays or torch tensors, float32 or bf16 (in NumPy: the bits, as uint16). One-dimensional
    parameters must be float32: near 1.0, a small step is lost in the rounding of bf16.

    >>> import numpy as np
    >>> weights = {"weight": np.zeros((2, 3), dtype=np.float32), "bias": np.zeros(2, dtype=np.float32)}
    >>> parameters = Parameters(weights)
    >>> parameters.size
    8
    >>> parameters.apply(Commit(seed=7, round=0, lr=0.1, scalars=[[1.0]]))
    >>> weights["bias"]
    array([-0.18115038,  0.04912409], dtype=float32)
    >>> hex(parameters.fingerprint())
    '0x777132df505676a1'
    """

    offset = 0  # of a block: where it begins in the flat vector of the whole model

    def __init__(self, tensors: Mapping[str, Any], module: "Module | None" = None) -> None:
        if not tensors:
            raise InvalidParameters("there is nothing to train: no parameter has requires_grad = True")
        entries: list[Entry] = []
        start = 0
        for name, tensor in tensors.items():
            entries.append(Entry(name, tuple(tensor.shape), _dtype(name, tensor), start))
            start += entries[-1].size
        self._tensors = dict(tensors)
        self._module = module
        self._pending: Commit | None = None
        self._blocks: dict[int, list[Parameters]] = {}
        self.manifest = Manifest(tuple(entries))
        self._flat = [_flat(name, tensor) for name, tensor in tensors.items()]
        _refuse_shared_memory(self.manifest, self._flat)

    @classmethod
    def of(cls, module: "Module") -> "Parameters":
        """Return the trainable parameters of a torch module, in the order of `named_parameters()`, tied tensors once.

        >>> import torch
        >>> Parameters.of(torch.nn.Linear(784, 10)).size
        7850
        """
        return cls({name: p for name, p in module.named_parameters() if p.requires_grad}, module)

    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors by name. Raises InvalidParameters while a commit is pending."""
        self.check_settled()
        return self._tensors

    @property
    def module(self) -> "Module | None":
        """The module they belong to, if any. Raises InvalidParameters while a commit is pending."""
        self.check_settled()
        return self._module

    @property
    def size(self) -> int:
        """The number of trainable parameters: the paper's d."""
        return self.manifest.size

    @property
    def device(self) -> Any:
        """The device of the first tensor; None for NumPy arrays."""
        return device_of(self._flat[0])

    def __iter__(self) -> Iterator[tuple[Entry, Any]]:
        """Yield each tensor's entry, and the tensor as a flat buffer that shares its memory.

        Raises InvalidParameters while a commit is pending.
        """
        self.check_settled()
        yield from self._buffers()

    def _buffers(self) -> Iterator[tuple[Entry, Any]]:
        self.check()
        yield from zip(self.manifest.entries, self._flat, strict=True)

    def check(self) -> None:
        """Raise InvalidParameters if a tensor has been given other memory since this object was built."""
        for entry, flat in zip(self.manifest.entries, self._flat, strict=True):
            if _address(self._tensors[entry.name]) != _address(flat):
                raise InvalidParameters(f"parameter {entry.name!r} has been moved: build its Parameters anew")

    def block(self, blocks: int, seed: int, round: int) -> "Parameters":  # noqa: A002
        """Return what a round moves: one of so many blocks, as parameters in the same memory, or all, if that is 1.

        >>> import numpy as np
        >>> whole = Parameters({name: np.zeros(3, dtype=np.float32) for name in "abc"})
        >>> [list(whole.block(2, seed=7, round=t).tensors) for t in range(3)]
        [['b', 'c'], ['a'], ['b', 'c']]
        """
        if blocks == 1:
            return self
        if blocks not in self._blocks:
            self._blocks[blocks] = [self._part(part) for part in cut([e.size for e in self.manifest.entries], blocks)]
        found = self._blocks[blocks]
        return found[(seed + round) % len(found)]

    def _part(self, places: range) -> "Parameters":
        entries = [self.manifest.entries[place] for place in places]
        part = Parameters({entry.name: self._tensors[entry.name] for entry in entries}, self._module)
        part.offset = entries[0].start
        return part

    def _moved(self, commit: Commit) -> "Parameters":
        return self.block(commit.blocks, commit.seed, commit.round)

    def apply(self, commit: Commit, backend: str | Backend | None = None) -> None:
        """Advance by one round: the one writer of a federation's weights.

        u is summed over the commit's rows, then columns, each product and each sum rounded to float32; then w - u,
        once. bf16 weights round that stochastically with bits of the stream. A pending commit is applied before.
        """
        self.settle()
        for tensors, chosen, packed in self._moved(commit)._steps(commit, backend):
            chosen.descend_all(tensors, packed)

    def _steps(self, commit: Commit, backend: str | Backend | None = None) -> list[tuple[Any, Backend, Packed]]:
        """Return the writes that apply a commit; whatever is wrong with it raises here, before anything is written."""
        where = commit.family, self.size, backend
        return [
            (tensors, *prepare(commit.keys, commit.coefficients, *where, device))
            for device, tensors in self._by_device().items()
        ]

    def defer(self, commit: Commit) -> None:
        """Keep a commit pending until `settle`, or until a walk, which reads all weights anyway, applies it on its way.

        One that moves a block is applied at once, as the next round reads another block. A commit that is pending
        already is applied first. Until the new one is applied, reading the weights raises InvalidParameters, so that
        nobody can take the old ones for the new. Who holds a tensor or the module without asking this object for it
        must call `settle` before reading it.

        >>> import numpy as np
        >>> parameters = Parameters({"w": np.zeros(5, dtype=np.float32)})
        >>> parameters.defer(Commit(seed=7, round=0, lr=0.1, scalars=[[1.0]]))
        >>> parameters.tensors
        Traceback (most recent call last):
        cyber0.errors.InvalidParameters: the commit of round 0 is pending: call settle() before reading the weights
        >>> parameters.settle()
        >>> parameters.tensors["w"][0]
        np.float32(-2.9155475e-05)
        """
        if commit.blocks > 1:
            self.apply(commit)
            return
        self.settle()
        self._pending = commit

    @property
    def pending(self) -> Commit | None:
        """The commit that was deferred and is not applied yet, if there is one."""
        return self._pending

    def settle(self) -> None:
        """Apply the pending commit, if there is one."""
        if self._pending is not None:
            steps = self._steps(self._pending)
            self._pending = None
            for tensors, backend, packed in steps:
                backend.descend_all(tensors, packed)

    def mark_applied(self) -> None:
        """Forget the pending commit, after writing the bits that `settle` would have written."""
        self._pending = None

    def check_settled(self) -> None:
        """Raise InvalidParameters while a commit is pending."""
        if self._pending is not None:
            raise InvalidParameters(
                f"the commit of round {self._pending.round} is pending: call settle() before reading the weights"
            )

    def apply_all(self, commits: Iterable[Commit], backend: str | Backend | None = None) -> None:
        """Advance by many rounds, to the same bits as one by one, in few passes over the weights.

        >>> import numpy as np
        >>> weights = np.zeros(5, dtype=np.float32)
        >>> Parameters({"w": weights}).apply_all(Commit(7, t, 0.1, [[1.0]]) for t in range(100))
        >>> weights[:2]
        array([-2.1869912 , -0.26883638], dtype=float32)
        """
        self.settle()
        for blocks, same in groupby(commits, key=lambda commit: commit.blocks):
            for part, own in [(self, same)] if blocks == 1 else self._by_block(same):
                for group in _groups(own):
                    part._fold(group, backend)

    def _by_block(self, commits: Iterable[Commit]) -> "Iterable[tuple[Parameters, Iterable[Commit]]]":
        """Return commits by the block that each moves; blocks share no weights, so one can follow the other."""
        found: dict[int, tuple[Parameters, list[Commit]]] = {}
        for commit in commits:
            part = self._moved(commit)
            found.setdefault(id(part), (part, []))[1].append(commit)
        return found.values()

    def _fold(self, group: list[Commit], backend: str | Backend | None) -> None:
        packed = _packed(group)
        for device, tensors in self._by_device().items():
            fold(tensors, packed, group[0].family, self.size, backend, device)

    def _by_device(self) -> dict[Any, list[tuple[Any, int]]]:
        places: dict[Any, list[tuple[Any, int]]] = {}
        for entry, flat in self._buffers():
            places.setdefault(device_of(flat), []).append((flat, entry.start))
        return places

    def fingerprint(self, backend: str | Backend | None = None) -> int:
        """Return a 64-bit hash of all weights, computed where they live: equal bits, equal fingerprints.

        Raises InvalidParameters while a commit is pending.
        """
        return sum(fingerprint(flat, start=entry.start, backend=backend) for entry, flat in self) % 2**64


def to_bf16(module: "Module", *, frozen_only: bool = False) -> "Module":
    """Convert a module's float32 parameters of two or more dimensions to bf16, in place, and return the module.

    >>> import torch
    >>> layer = to_bf16(torch.nn.Linear(3, 2))
    >>> layer.weight.dtype, layer.bias.dtype
    (torch.bfloat16, torch.float32)
    """
    torch = require("torch", extra="train")
    for parameter in module.parameters():
        left = parameter.ndim < 2 or (frozen_only and parameter.requires_grad)
        if parameter.dtype == torch.float32 and not left:
            parameter.data = parameter.data.to(torch.bfloat16)
    return module


def _packed(commits: list[Commit]) -> Packed:
    """Return the directions of commits of one kind, packed as [commits, directions], with units of 1."""
    rows, width = np.shape(commits[0].scalars)
    packed = np.zeros((len(commits), rows, width), dtype=PACKED)
    seeds = np.array([commit.seed for commit in commits], dtype=np.uint64)[:, None, None]
    packed["k0"], packed["k1"] = seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)
    packed["t"] = np.array([commit.round for commit in commits])[:, None, None]
    packed["l"] = np.array([commit.epochs for commit in commits])[:, :, None]
    packed["r"] = np.arange(width)
    packed["bits"] = commits[0].family == "rademacher"
    packed["unit"] = 1
    packed["coefficient"] = np.stack([commit.coefficients for commit in commits]).reshape(packed.shape)
    return packed.reshape(len(commits), rows * width)


def _groups(commits: Iterable[Commit]) -> Iterator[list[Commit]]:
    """Yield consecutive commits of one family and shape, in groups of at most AT_ONCE directions."""
    group: list[Commit] = []
    for commit in commits:
        if group and (_kind(commit) != _kind(group[0]) or len(group) * _kind(commit)[1] * _kind(commit)[2] >= AT_ONCE):
            yield group
            group = []
        group.append(commit)
    if group:
        yield group


def _kind(commit: Commit) -> tuple[str, int, int]:
    return commit.family, len(commit.scalars), len(commit.scalars[0])


def _dtype(name: str, tensor: Any) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if is_numpy(tensor) and dtype == "uint16":
        dtype = "bfloat16"
    if dtype not in ("float32", "bfloat16"):
        raise InvalidParameters(f"parameter {name!r} is {dtype}: train float32 or bfloat16, e.g. by module.float()")
    if dtype == "bfloat16" and len(tensor.shape) < 2:
        raise InvalidParameters(
            f"parameter {name!r} is one-dimensional and bfloat16: keep it float32 (cyber0.parameters.to_bf16 does)"
        )
    if prod(tensor.shape) == 0:
        raise InvalidParameters(f"parameter {name!r} has shape {tuple(tensor.shape)}: it is empty")
    if getattr(device_of(tensor), "type", None) == "meta":
        raise InvalidParameters(f"parameter {name!r} is on the meta device: load its weights first")
    return dtype


def _flat(name: str, tensor: Any) -> Any:
    try:
        return buffer(tensor, f"parameter {name!r}")
    except InvalidArray as error:
        raise InvalidParameters(str(error)) from error


def _refuse_shared_memory(manifest: Manifest, flats: list[Any]) -> None:
    """Refuse tensors that overlap in memory: a commit would be applied to the overlap twice."""
    ranges = sorted(
        (str(device_of(flat)), _address(flat), _address(flat) + flat.nbytes, entry.name)
        for entry, flat in zip(manifest.entries, flats, strict=True)
    )
    for (device, _, end, name), (other_device, begin, _, other) in pairwise(ranges):
        if device == other_device and begin < end:
            raise InvalidParameters(f"parameters {name!r} and {other!r} overlap in memory: tie them as one tensor")


def _address(flat: Any) -> int:
    return flat.ctypes.data if is_numpy(flat) else flat.data_ptr()
