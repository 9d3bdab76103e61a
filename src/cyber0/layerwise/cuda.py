"""The source of perturbed weights for a CUDA device with Triton: a few matrices at a time, all vectors at once.

A first walk shows which matrices are asked for, and in which order. Later walks perturb several in one launch, up to
the size of two of the largest, since a launch for each would leave the device half empty. Perturbing them in advance,
on a second stream, does not pay: it slows the matrix products down by more than it saves.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cyber0.directions.tensors import Tensors, descend_all, gather, pair_all
from cyber0.errors import InvalidEstimate
from cyber0.layerwise import fused_linear, kernels
from cyber0.layerwise.batching import pinned
from cyber0.layerwise.source import MATRICES_AT_ONCE, Layout, Pair, Perturbation, affine_gelu

__all__ = ["CudaSource"]

Tensor = torch.Tensor
Request = tuple[int, torch.dtype]  # the id of a parameter, and the type it is asked for in


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Matrices that are perturbed in one launch; `first_read` if the walk has not asked for any of them before."""

    tensors: Tensors
    dtype: torch.dtype
    first_read: bool


class CudaSource:
    """A `CapturableSource`. Every walk starts with `begin`.

    If the perturbation applies a commit, a matrix is written when it is first read, and all other tensors are written
    by `begin`.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.device = layout, layout.parameters.device
        self.bits, self.applies_commit, self.keeps = False, False, False
        self.table = torch.zeros(8, dtype=torch.int32, device=self.device)
        self._tables: dict[int, Tensor] = {}
        flats = [(flat, entry.start) for entry, flat in layout.vectors]
        self._tensors = Tensors(flats) if flats else None
        offsets = [] if self._tensors is None else self._tensors.offsets
        self._offsets = {entry.name: offset for (entry, _), offset in zip(layout.vectors, offsets, strict=True)}
        room = 0 if self._tensors is None else self._tensors.room
        self._vectors = torch.empty(2, room, device=self.device)
        self._low = torch.empty(2, room, dtype=torch.bfloat16, device=self.device)
        self._requests: list[Request] = []
        self._read_by_rows: set[int] = set()  # matrices of which single rows are read
        self._groups: list[tuple[_Group, int]] = []  # for each request, its group and its position in it
        self._others: list[Tensors] = []
        self._scratch: dict[torch.dtype, Tensor] = {}
        self._next_request = 0

    @property
    def graph_key(self) -> tuple[Any, ...]:
        """Return what a captured walk cannot change: the size of the table, and how it is read."""
        return self.table.numel(), self.bits, self.applies_commit

    def set_perturbation(self, perturbation: Perturbation) -> None:
        """Copy the directions to the table that kernels read, those of captured graphs too."""
        words = perturbation.rows.view(np.int32)
        self.bits, self.applies_commit = bool(perturbation.rows["bits"][0]), perturbation.applies_commit
        if len(words) not in self._tables:
            self._tables[len(words)] = torch.zeros(len(words), dtype=torch.int32, device=self.device)
        self.table = self._tables[len(words)]
        self.table.copy_(pinned(words, self.device), non_blocking=True)

    @contextmanager
    def warm_up(self) -> Generator[Iterator[bool]]:
        """Yield the walks to make before one is captured, and whether each launches what that will launch.

        They leave the masters as they are. The very first walk shows what is asked for. Another one applies the commit
        times zero, which changes no bit.
        """
        table, applies = self.table, self.applies_commit

        def passes() -> Iterator[bool]:
            if not self._groups:
                self._requests, self.table, self.applies_commit = [], table[:8] if applies else table, False
                yield False
                self._plan()
            self.table, self.applies_commit = table.clone(), applies
            if applies:
                self.table[15::8] = 0  # the coefficients
            yield True

        try:
            yield passes()
        finally:
            self.table, self.applies_commit = table, applies

    def begin(self) -> None:
        """Apply the commit to all tensors but the grouped matrices, and perturb all vectors."""
        self._next_request = 0
        if not self._groups:
            self._requests = []
        if self.applies_commit:
            descend_all(self._others, self.table[8:], bits=self.bits)
        if self._tensors is not None:
            drift = self.table[:8] if self.applies_commit else self.table
            pair_all(self._tensors, drift, self._vectors[0], self._vectors[1], bits=self.bits)
            self._low.copy_(self._vectors)

    def matrix(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        """Return both signs of a matrix, which is perturbed together with the next ones."""
        if not self.layout.is_trained(parameter):
            frozen = self.layout.frozen(parameter, dtype)
            return frozen, frozen
        request, number, self._next_request = (id(parameter), dtype), self._next_request, self._next_request + 1
        if not self._groups:
            self._requests.append(request)
            group, place = self._group([request], first_read=False), 0
        elif self._requests[number : number + 1] == [request]:
            group, place = self._groups[number]
        else:
            raise InvalidEstimate("the model reads its weights in another order than in its first walk")
        if place == 0:
            self._make(group)
        entry, _ = self.layout.place(parameter)
        first, room = group.tensors.offsets[place], group.tensors.room
        pair = self._scratch[dtype][: 2 * room].view(2, room)[:, first : first + entry.size]
        return pair[0].view(entry.shape), pair[1].view(entry.shape)

    def vector(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        """Return both signs of a vector, which `begin` has perturbed."""
        if not self.layout.is_trained(parameter):
            frozen = self.layout.frozen(parameter, dtype)
            return frozen, frozen
        entry, _ = self.layout.place(parameter)
        first = self._offsets[entry.name]
        pair = (self._low if dtype == torch.bfloat16 else self._vectors)[:, first : first + entry.size]
        return pair[0].view(entry.shape), pair[1].view(entry.shape)

    def rows(self, parameter: Tensor, ids: Tensor, plus: Tensor, minus: Tensor) -> None:
        """Write both signs of some rows of a matrix, by one launch."""
        if not self.layout.is_trained(parameter):
            plus.copy_(parameter.detach()[ids])
            minus.copy_(plus)
            return
        self._read_by_rows.add(id(parameter))
        entry, flat = self.layout.place(parameter)
        table = self.table[:8] if self.applies_commit else self.table
        kernels.rows(flat.view(entry.shape), ids.contiguous(), table, entry.start, plus, minus, bits=self.bits)

    def norm(
        self, x: Tensor, weight: Pair, bias: Pair | None, eps: float, *, centred: bool, residual: Tensor | None = None
    ) -> Tensor:
        """Return the norm of both halves, by one launch; with a residual that of the sum, written over x."""
        return kernels.norm(x, weight, bias, eps, centred=centred, residual=residual)

    def affine_gelu(self, rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, approximate: str) -> None:
        """Write GELU(rows times the transpose of a matrix, plus a bias) to `out`; in one launch where that pays."""
        if fused_linear.supports(rows, weight, bias, out, approximate):
            fused_linear.affine_gelu(rows, weight, bias, out)
        else:
            affine_gelu(rows, weight, bias, out, approximate)

    def _make(self, group: _Group) -> None:
        needed = 2 * group.tensors.room
        if group.dtype not in self._scratch or self._scratch[group.dtype].numel() < needed:
            self._scratch[group.dtype] = torch.empty(needed, dtype=group.dtype, device=self.device)
        plus, minus = self._scratch[group.dtype][:needed].view(2, -1)
        write = self.applies_commit and group.first_read
        table = self.table[:8] if self.applies_commit and not write else self.table
        pair_all(group.tensors, table, plus, minus, bits=self.bits, write=write)

    def _plan(self) -> None:
        """Group the matrices that are asked for one after the other, and gather the tensors that are in no group.

        The matrices of a group have the same type, are asked for in the same type, and are all read for the first time
        in a walk, or none of them.
        """
        most = MATRICES_AT_ONCE * max((self._size(request) for request in self._requests), default=1)
        groups: list[list[Request]] = []
        seen = set(self._read_by_rows)
        traits: list[tuple[Any, ...]] = []
        for request in self._requests:
            trait = request[1], self.layout.places[request[0]][1].dtype, request[0] not in seen
            fits = bool(groups) and sum(map(self._size, groups[-1])) + self._size(request) <= most
            if fits and trait == traits[-1]:
                groups[-1].append(request)
            else:
                groups.append([request])
                traits.append(trait)
            seen.add(request[0])
        made = [self._group(requests, first_read=trait[2]) for requests, trait in zip(groups, traits, strict=True)]
        self._groups = [(group, place) for group in made for place in range(len(group.tensors.offsets))]
        whole = seen - self._read_by_rows
        others = [(flat, entry.start) for number, (entry, flat) in self.layout.places.items() if number not in whole]
        self._others = gather(others) if others else []
        for group in made:  # allocates the scratch memory of all, which a capture must not do
            self._make(group)

    def _group(self, requests: list[Request], *, first_read: bool) -> _Group:
        places = [self.layout.places[number] for number, _ in requests]
        return _Group(Tensors([(flat, entry.start) for entry, flat in places]), requests[0][1], first_read)

    def _size(self, request: Request) -> int:
        return self.layout.places[request[0]][0].size
