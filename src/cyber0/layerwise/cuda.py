"""The source for a CUDA device with Triton: matrices a few at a time, all vectors at once.

Which matrices a walk asks for, and in which order, is learned from a first one; later ones make as many at a time as
three of the largest hold, since a launch for each would leave the device half empty. Making them ahead, on a stream
beside the model's, does not pay: the generator takes from matrix products more than it gains.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cyber0.directions.tensors import Tensors, descend_all, gather, pair_all
from cyber0.errors import InvalidEstimate
from cyber0.layerwise import kernels
from cyber0.layerwise.batching import pinned
from cyber0.layerwise.source import TOGETHER, Layout, Pair, Perturbation

__all__ = ["CudaSource"]

Tensor = torch.Tensor
Wish = tuple[int, torch.dtype]  # a parameter by id, and the type it is wanted in


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Matrices that are made together; `fresh` ones are asked for by a walk for the first time."""

    tensors: Tensors
    dtype: torch.dtype
    fresh: bool


class CudaSource:
    """A `Source` whose launches can be captured: `begin` comes first in every walk.

    If the perturbation applies a commit, matrices are written as they are read, and all other tensors
    at the start of the walk.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.device = layout, layout.parameters.device
        self.bits, self.applies_commit = False, False
        self.table = torch.zeros(8, dtype=torch.int32, device=self.device)
        self._tables: dict[int, Tensor] = {}
        flats = [(flat, entry.start) for entry, flat in layout.vectors]
        self._tensors = Tensors(flats) if flats else None
        offsets = [] if self._tensors is None else self._tensors.offsets
        self._offsets = {entry.name: offset for (entry, _), offset in zip(layout.vectors, offsets, strict=True)}
        room = 0 if self._tensors is None else self._tensors.room
        self._vectors = torch.empty(2, room, device=self.device)
        self._low = torch.empty(2, room, dtype=torch.bfloat16, device=self.device)
        self._wishes: list[Wish] = []
        self._looked: set[int] = set()  # matrices of which rows are read, maybe before the whole is made
        self._groups: list[tuple[_Group, int]] = []  # for each wish, its group, and its place there
        self._others: list[Tensors] = []
        self._scratch: dict[torch.dtype, Tensor] = {}
        self._asked = 0

    @property
    def kind(self) -> tuple[Any, ...]:
        """What a captured walk cannot change."""
        return self.table.numel(), self.bits, self.applies_commit

    def set_perturbation(self, perturbation: Perturbation) -> None:
        """Write the directions to where kernels, captured ones too, read them."""
        words = perturbation.rows.view(np.int32)
        self.bits, self.applies_commit = bool(perturbation.rows["bits"][0]), perturbation.applies_commit
        if len(words) not in self._tables:
            self._tables[len(words)] = torch.zeros(len(words), dtype=torch.int32, device=self.device)
        self.table = self._tables[len(words)]
        self.table.copy_(pinned(words, self.device), non_blocking=True)

    @contextmanager
    def warm_up(self) -> Generator[Iterator[None]]:
        """The walks to make before one is captured; they leave the masters as they are.

        The first of all shows what is asked for. Another applies the commit times zero, which changes no bit.
        """
        table, applies = self.table, self.applies_commit

        def passes() -> Iterator[None]:
            if not self._groups:
                self._wishes, self.table, self.applies_commit = [], table[:8] if applies else table, False
                yield
                self._plan()
            self.table, self.applies_commit = table.clone(), applies
            if applies:
                self.table[15::8] = 0  # the coefficients
            yield

        try:
            yield passes()
        finally:
            self.table, self.applies_commit = table, applies

    def begin(self) -> None:
        """Apply the commit to all but matrices, and prepare all vectors."""
        self._asked = 0
        if not self._groups:
            self._wishes = []
        if self.applies_commit:
            descend_all(self._others, self.table[8:], bits=self.bits)
        if self._tensors is not None:
            drift = self.table[:8] if self.applies_commit else self.table
            pair_all(self._tensors, drift, self._vectors[0], self._vectors[1], bits=self.bits)
            self._low.copy_(self._vectors)

    def matrix(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        """Made together with those that come next."""
        if not self.layout.trains(parameter):
            frozen = self.layout.frozen(parameter, dtype)
            return frozen, frozen
        wish, number, self._asked = (id(parameter), dtype), self._asked, self._asked + 1
        if not self._groups:
            self._wishes.append(wish)
            group, place = self._group([wish], fresh=False), 0
        elif self._wishes[number : number + 1] == [wish]:
            group, place = self._groups[number]
        else:
            raise InvalidEstimate("the model asks for its matrices in another order than before")
        if place == 0:
            self._make(group)
        entry, _ = self.layout.place(parameter)
        first, room = group.tensors.offsets[place], group.tensors.room
        both = self._scratch[dtype][: 2 * room].view(2, room)[:, first : first + entry.size]
        return both[0].view(entry.shape), both[1].view(entry.shape)

    def vector(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        """A part of what `begin` prepared."""
        if not self.layout.trains(parameter):
            frozen = self.layout.frozen(parameter, dtype)
            return frozen, frozen
        entry, _ = self.layout.place(parameter)
        first = self._offsets[entry.name]
        both = (self._low if dtype == torch.bfloat16 else self._vectors)[:, first : first + entry.size]
        return both[0].view(entry.shape), both[1].view(entry.shape)

    def rows(self, parameter: Tensor, ids: Tensor, plus: Tensor, minus: Tensor) -> None:
        """One program for some coordinates of a row."""
        if not self.layout.trains(parameter):
            plus.copy_(parameter.detach()[ids])
            minus.copy_(plus)
            return
        self._looked.add(id(parameter))
        entry, flat = self.layout.place(parameter)
        table = self.table[:8] if self.applies_commit else self.table
        kernels.rows(flat.view(entry.shape), ids.contiguous(), table, entry.start, plus, minus, bits=self.bits)

    def norm(self, x: Tensor, weight: Pair, bias: Pair | None, eps: float, *, centred: bool) -> Tensor:
        """One kernel for both halves."""
        return kernels.norm(x, weight, bias, eps, centred=centred)

    def _make(self, group: _Group) -> None:
        needed = 2 * group.tensors.room
        if group.dtype not in self._scratch or self._scratch[group.dtype].numel() < needed:
            self._scratch[group.dtype] = torch.empty(needed, dtype=group.dtype, device=self.device)
        plus, minus = self._scratch[group.dtype][:needed].view(2, -1)
        write = self.applies_commit and group.fresh
        table = self.table[:8] if self.applies_commit and not write else self.table
        pair_all(group.tensors, table, plus, minus, bits=self.bits, write=write)

    def _plan(self) -> None:
        """Put neighbours of one kind into groups, and take note of what is not asked for as a matrix."""
        most = TOGETHER * max((self._size(wish) for wish in self._wishes), default=1)
        groups: list[list[Wish]] = []
        seen = set(self._looked)
        kinds: list[tuple[Any, ...]] = []
        for wish in self._wishes:
            kind = wish[1], self.layout.places[wish[0]][1].dtype, wish[0] not in seen
            fits = bool(groups) and sum(map(self._size, groups[-1])) + self._size(wish) <= most
            if fits and kind == kinds[-1]:
                groups[-1].append(wish)
            else:
                groups.append([wish])
                kinds.append(kind)
            seen.add(wish[0])
        made = [self._group(wishes, fresh=kind[2]) for wishes, kind in zip(groups, kinds, strict=True)]
        self._groups = [(group, place) for group in made for place in range(len(group.tensors.offsets))]
        whole = seen - self._looked
        others = [(flat, entry.start) for number, (entry, flat) in self.layout.places.items() if number not in whole]
        self._others = gather(others) if others else []
        for group in made:  # memory for all of them, before any is captured
            self._make(group)

    def _group(self, wishes: list[Wish], *, fresh: bool) -> _Group:
        places = [self.layout.places[number] for number, _ in wishes]
        return _Group(Tensors([(flat, entry.start) for entry, flat in places]), wishes[0][1], fresh)

    def _size(self, wish: Wish) -> int:
        return self.layout.places[wish[0]][0].size
