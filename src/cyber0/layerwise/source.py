"""Sources of perturbed weights: both signs of one tensor at a time, while the masters are only read.

    w - (c z + c' z' + ...) + mu z*    and    w - (c z + c' z' + ...) - mu z*

Each direction is generated once for the two. The sum is a client's own drift from the global model; usually it has
none.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.commit import Commit
from cyber0.directions import Backend, DirectionKey, Family
from cyber0.directions.api import prepare
from cyber0.directions.backend import Packed
from cyber0.directions.native import Cpu
from cyber0.directions.select import host
from cyber0.errors import InvalidEstimate
from cyber0.parameters import Entry, Parameters

__all__ = [
    "CapturableSource",
    "Layout",
    "Perturbation",
    "Source",
    "TorchSource",
    "Unperturbed",
    "affine",
    "affine_gelu",
    "normed",
    "perturbation_of",
]

Tensor = torch.Tensor
MATRICES_AT_ONCE = 2  # how many matrices of the largest size a CUDA device perturbs in one launch
GAP = 2**15  # coordinates that cost as much as another call: rows closer than this are perturbed in one
LONGEST = 2**20  # most coordinates of one call, unless a single row has more
WRITTEN = torch.float32, torch.bfloat16  # the types in which backends write what they perturb
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Perturbation:
    """The direction to perturb along and the drift of the model, as rows of a packed table.

    With `applies_commit` the rows after the first are those of a commit, which the walk applies to the masters.

    >>> parameters, keys = Parameters.of(torch.nn.Linear(3, 2)), [DirectionKey(seed=1, round=t) for t in range(3)]
    >>> perturbation_of(parameters, keys[0], 1e-3, drift=(keys[1:], [0.1, 0.2])).rows["t"]
    array([0, 1, 2], dtype=uint32)
    """

    backend: Backend
    rows: Packed
    applies_commit: bool = False

    @property
    def direction(self) -> Packed:
        """Return the row of the direction."""
        return self.rows[:1]

    @property
    def drift(self) -> Packed | None:
        """Return the rows of the drift; None if there is none."""
        return None if self.applies_commit or len(self.rows) == 1 else self.rows[1:]


def perturbation_of(
    parameters: Parameters,
    key: DirectionKey,
    mu: float,
    family: Family = "gaussian",
    drift: tuple[Sequence[DirectionKey], Any] | None = None,
    backend: str | Backend | None = None,
    commit: Commit | None = None,
) -> Perturbation:
    """Return the perturbation of a model by mu along the direction `key`.

    `drift` has keys and a coefficient for each, by which a client's model has descended. `commit`, if given, takes its
    place, and the walk applies it to the masters.
    """
    others = drift if commit is None else (commit.keys, commit.coefficients)
    keys, values = ([key], [mu]) if others is None else ([key, *others[0]], [mu, *others[1]])
    return Perturbation(*prepare(keys, values, family, parameters.size, backend, parameters.device), commit is not None)


class Source(Protocol):
    """Gives the modules of a walk their weights. A matrix may be overwritten when the next one is asked for.

    Where `keeps` is set, matrices may be kept, in memory of their own, for further walks along the same direction.
    """

    keeps: bool

    def set_perturbation(self, perturbation: Perturbation) -> None:
        """Perturb in this way from now on."""
        ...

    def begin(self) -> None:
        """Prepare for a walk."""
        ...

    def matrix(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        """Return both signs of a tensor of two or more dimensions; twice the same tensor if it is frozen."""
        ...

    def vector(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        """Return both signs of a one-dimensional tensor; twice the same tensor if it is frozen."""
        ...

    def rows(self, parameter: Tensor, ids: Tensor, plus: Tensor, minus: Tensor) -> None:
        """Write both signs of the rows `ids` of a matrix to `plus` and `minus`, [*ids.shape, width]."""
        ...

    def norm(
        self, x: Tensor, weight: Pair, bias: Pair | None, eps: float, *, centred: bool, residual: Tensor | None = None
    ) -> Tensor:
        """Return the layer norm of x, or its root-mean-square norm if not `centred`, by halves of the batch.

        With a `residual` it is the norm of their sum, which may be written over x.
        """
        ...

    def affine_gelu(self, rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, approximate: str) -> None:
        """Write GELU(rows times the transpose of a matrix, plus a bias) to `out`."""
        ...


@runtime_checkable
class CapturableSource(Source, Protocol):
    """A source whose launches can be captured as a CUDA graph and replayed along other directions."""

    @property
    def graph_key(self) -> tuple[Any, ...]:
        """Return what a captured walk cannot change: a graph serves only walks with the same key."""
        ...

    def warm_up(self) -> AbstractContextManager[Iterator[bool]]:
        """Yield the walks to make before one is captured, and whether each launches what that will launch.

        They leave the masters as they are.
        """
        ...


class Layout:
    """Where each trained tensor lies in the flat vector of a model, and its frozen tensors, each cast once.

    >>> model = torch.nn.Linear(3, 2)
    >>> Layout(Parameters.of(model)).place(model.bias)[0].start
    6
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        flats = {entry.name: (entry, flat) for entry, flat in parameters}
        self.places: dict[int, tuple[Entry, Tensor]] = {
            id(tensor): flats[name] for name, tensor in parameters.tensors.items()
        }
        self.vectors = [place for place in self.places.values() if len(place[0].shape) < 2]
        self._frozen: dict[tuple[int, torch.dtype], Tensor] = {}

    def is_trained(self, parameter: Tensor | None) -> bool:
        """Return whether a tensor is trained, and so perturbed."""
        return id(parameter) in self.places

    def place(self, parameter: Tensor) -> tuple[Entry, Tensor]:
        """Return the entry of a trained tensor, and its flat buffer."""
        return self.places[id(parameter)]

    def frozen(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor that is not moved, in the type of the arithmetic.

        It is kept, unless other rounds move it, or it would take more memory than the tensor itself.
        """
        copied = not isinstance(parameter, torch.nn.Parameter)  # by a module that runs as a block
        if parameter.element_size() <= dtype.itemsize or copied or parameter.requires_grad:
            return parameter.detach().to(dtype)
        kept = id(parameter), dtype
        if kept not in self._frozen:
            self._frozen[kept] = parameter.detach().to(dtype)
        return self._frozen[kept]


class TorchSource:
    """A source for any device, made of the operations that every backend has.

    >>> from cyber0.directions import sample
    >>> model, key = torch.nn.Linear(3, 2, bias=False), DirectionKey(seed=1, round=0)
    >>> source = TorchSource(Layout(Parameters.of(model)))
    >>> source.set_perturbation(perturbation_of(Parameters.of(model), key, mu=0.5))
    >>> plus, minus = source.matrix(model.weight, torch.float32)
    >>> torch.allclose(plus - minus, torch.as_tensor(sample(key, 6)).view(2, 3), atol=1e-6)
    True
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._perturbation: Perturbation | None = None
        self._scratch: dict[torch.dtype, Tensor] = {}
        self._drifted: Tensor | None = None
        self.keeps = False
        self._kept: dict[tuple[int, torch.dtype], Tensor] = {}
        self._fresh = set[tuple[int, torch.dtype]]()

    def set_perturbation(self, perturbation: Perturbation) -> None:
        """Perturb in this way from now on; tensors are perturbed when they are asked for."""
        self._perturbation = perturbation
        self._fresh.clear()

    def begin(self) -> None:
        """Prepare nothing."""

    def matrix(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        if not self.layout.is_trained(parameter):
            frozen = self.layout.frozen(parameter, dtype)
            return frozen, frozen
        if self.keeps or dtype not in WRITTEN:
            return self._kept_pair(parameter, dtype)
        entry, flat = self.layout.place(parameter)
        plus, minus = self._scratch_pair(entry.size, dtype)
        self._pair(flat, entry.start, plus, minus)
        return plus.view(entry.shape), minus.view(entry.shape)

    def vector(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        if not self.layout.is_trained(parameter):
            frozen = self.layout.frozen(parameter, dtype)
            return frozen, frozen
        return self._kept_pair(parameter, dtype)

    def _kept_pair(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        """Return both signs of a tensor in memory of their own, which is kept: no hole is left in the heap."""
        if dtype not in WRITTEN:
            plus, minus = self._kept_pair(parameter, torch.float32)
            return plus.to(dtype), minus.to(dtype)
        entry, flat = self.layout.place(parameter)
        kept = id(parameter), dtype
        if kept not in self._kept:
            self._kept[kept] = torch.empty(2, *entry.shape, dtype=dtype, device=flat.device)
        plus, minus = self._kept[kept]
        if kept not in self._fresh:
            self._pair(flat, entry.start, plus.view(-1), minus.view(-1))
            self._fresh.add(kept)
        return plus, minus

    def rows(self, parameter: Tensor, ids: Tensor, plus: Tensor, minus: Tensor) -> None:
        if not self.layout.is_trained(parameter):
            plus.copy_(parameter.detach()[ids])
            minus.copy_(plus)
            return
        entry, flat = self.layout.place(parameter)
        width = entry.shape[-1]
        wanted: Any = ids
        tokens, inverse = wanted.long().unique(return_inverse=True)
        if len(tokens) and not 0 <= int(tokens[0]) <= int(tokens[-1]) < entry.shape[0]:
            worst = int(tokens[0] if tokens[0] < 0 else tokens[-1])
            raise IndexError(f"{entry.name} has {entry.shape[0]} rows, and row {worst} is looked up")
        kind = plus.dtype if plus.dtype in WRITTEN else torch.float32
        up, down = (torch.empty(len(tokens), width, dtype=kind, device=flat.device) for _ in range(2))
        self._pairs_of_rows(flat, entry.start, tokens, up, down)
        for rows, out in ((up, plus), (down, minus)):
            if out.dtype == kind and out.is_contiguous():  # straight to where they belong
                torch.index_select(rows, 0, inverse.reshape(-1), out=out.view(-1, width))
            else:
                out.copy_(rows.to(out.dtype)[inverse])

    def _pairs_of_rows(self, flat: Tensor, start: int, rows: Tensor, up: Tensor, down: Tensor) -> None:
        """Write both signs of some rows of a matrix, ascending: by picking them, or with those between them."""
        perturbation, width = self._perturbation, up.shape[1]
        native = None if perturbation is None else getattr(perturbation.backend, "inner", None)
        if isinstance(native, Cpu) and flat.device.type == "cpu" and perturbation and perturbation.drift is None:
            outs = host(up), host(down)
            native.move_rows(host(flat), host(rows), perturbation.direction, start, *outs)
            return
        for some in _runs_of_rows(rows.cpu().numpy(), width):
            wanted = rows[some]
            first, end = int(wanted[0]) * width, (int(wanted[-1]) + 1) * width
            pair = torch.empty(2, end - first, device=flat.device)
            self._pair(flat[first:end], start + first, pair[0], pair[1])
            up[some], down[some] = pair.view(2, -1, width)[:, wanted - wanted[0]]

    def norm(
        self, x: Tensor, weight: Pair, bias: Pair | None, eps: float, *, centred: bool, residual: Tensor | None = None
    ) -> Tensor:
        out = torch.empty_like(x) if residual is None else x.add_(residual)
        half = len(x) // 2
        for sign, part in enumerate((slice(None, half), slice(half, None))):
            if centred or bias is not None:
                out[part] = normed(x[part], weight[sign], None if bias is None else bias[sign], eps, centred=centred)
            else:
                torch.mul(weight[sign], _scaled(x[part], eps), out=out[part])
        return out

    def affine_gelu(self, rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, approximate: str) -> None:
        affine_gelu(rows, weight, bias, out, approximate)

    def _scratch_pair(self, size: int, dtype: torch.dtype) -> Pair:
        if dtype not in self._scratch or self._scratch[dtype].shape[1] < size:
            self._scratch[dtype] = torch.empty(2, size, dtype=dtype, device=self.layout.parameters.device)
        plus, minus = self._scratch[dtype]
        return plus[:size], minus[:size]

    def _pair(self, flat: Tensor, start: int, plus: Tensor, minus: Tensor) -> None:
        perturbation = self._perturbation
        if perturbation is None:
            raise InvalidEstimate("the source has no perturbation yet: call set_perturbation before asking for weights")
        if perturbation.drift is not None:
            if self._drifted is None or len(self._drifted) < len(flat):
                self._drifted = torch.empty(len(flat), device=flat.device)
            drifted = self._drifted[: len(flat)]
            perturbation.backend.descend(flat, perturbation.drift, start, drifted)
            flat = drifted
        perturbation.backend.move(flat, perturbation.direction, start, plus, minus)


def _runs_of_rows(rows: NDArray[np.int64], width: int) -> Iterator[slice]:
    """Yield slices of ascending rows to perturb in one call each, with the rows between them if these are few."""
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or (rows[end] - rows[end - 1]) * width > GAP or (rows[end] - rows[begin]) * width > LONGEST:
            yield slice(begin, end)
            begin = end


class Unperturbed:
    """A source that gives the weights as they are, in the type asked for.

    >>> model = torch.nn.Linear(3, 2)
    >>> torch.equal(Unperturbed().matrix(model.weight, torch.float32)[0], model.weight)
    True
    """

    keeps = False

    def set_perturbation(self, perturbation: Perturbation) -> None:
        """Ignore the perturbation."""

    def begin(self) -> None:
        """Prepare nothing."""

    def matrix(self, parameter: Tensor, dtype: torch.dtype) -> Pair:
        weights = parameter.detach().to(dtype)
        return weights, weights

    vector = matrix

    def rows(self, parameter: Tensor, ids: Tensor, plus: Tensor, minus: Tensor) -> None:
        plus.copy_(parameter.detach()[ids])
        minus.copy_(plus)

    def norm(
        self, x: Tensor, weight: Pair, bias: Pair | None, eps: float, *, centred: bool, residual: Tensor | None = None
    ) -> Tensor:
        x = x if residual is None else x.add_(residual)
        return normed(x, weight[0], None if bias is None else bias[0], eps, centred=centred)

    def affine_gelu(self, rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, approximate: str) -> None:
        affine_gelu(rows, weight, bias, out, approximate)


def normed(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, centred: bool) -> Tensor:
    """Return the norm of x over its last dimension, computed in float32, in the type of x.

    >>> x = torch.tensor([[1.0, 2.0, 4.0]])
    >>> torch.allclose(normed(x, torch.ones(3), None, 1e-5, centred=True), torch.nn.functional.layer_norm(x, (3,)))
    True
    """
    if centred and x.dtype == torch.bfloat16 and x.device.type == "cpu":  # computes in float32 without a copy
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)
    if centred:
        return torch.nn.functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)
    return (weight * _scaled(x, eps)).to(x.dtype)


def _scaled(x: Tensor, eps: float) -> Tensor:
    """Return x in float32, divided by its root mean square."""
    values = x.float()
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)


def affine(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write rows times the transpose of a matrix, plus a bias, to `out`.

    >>> affine(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]), torch.ones(1), out := torch.empty(1, 1))
    >>> out
    tensor([[4.]])
    """
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def affine_gelu(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, approximate: str) -> None:
    """Write what `affine` writes, and overwrite it by its GELU."""
    affine(rows, weight, bias, out)
    torch.ops.aten.gelu_(out, approximate=approximate)
