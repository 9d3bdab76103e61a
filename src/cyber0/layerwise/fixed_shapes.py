"""Measure the slopes of single samples such that each depends on its own sample alone, to the last bit.

How a matrix product is rounded depends on its shape: on how many samples are measured together, and how long the
longest text among them is. So a private client measures in parts of a fixed shape. A part has always the same number of
samples, the last one being filled up with copies whose slopes are thrown away, and a text is padded to a width that
follows from its own length. That rows of such a part do not depend on their place, nor on the rows beside them, is
tried out with samples that are not voted on; where it fails, parts are made smaller, down to single samples.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.directions import Backend, DirectionKey, Family
from cyber0.errors import InvalidEstimate
from cyber0.estimate import Losses
from cyber0.layerwise import modules
from cyber0.layerwise.graphs import is_out_of_memory
from cyber0.layerwise.measure import LayerwiseEstimate, Measure, part_slopes_of
from cyber0.layerwise.proof import SMALL
from cyber0.layerwise.protocols import PaddableInputs, SizedInputs, implements
from cyber0.layerwise.walk import OVERHEAD
from cyber0.parameters import Parameters

__all__ = ["FixedShapes", "best_part", "fixed_width"]

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
CALL, LEAST = 2**20, 2.0  # what a part costs besides its samples: so many weights, and at least so many samples
ROWS = 8  # kernels treat as many rows alike, and often not what is left over
VALUES = 16  # elementwise kernels (of AVX2) may round what is left over after as many values otherwise
TEXT = 32  # tokens of a text, about
BUCKETS = 6  # widths among which the texts of a batch are spread, about
PROBES = 16  # different samples to try parts with
TRIED = 2  # directions along which parts are tried
AT_ONCE = 128  # samples that are tried in one call, about


class Width(NamedTuple):
    """How texts are measured that may be measured together: models leave a mask out where no text is padded."""

    size: int
    padded: bool


WHOLE = Width(0, padded=False)  # of samples that are no texts, and are measured as they are


def fixed_width(size: int, widest: int) -> int:
    """Return the width that a text of so many tokens is padded to: the next of a few widths, or its own beyond them.

    A text that is padded has at least one token of padding: models leave a mask out where nothing is padded.

    >>> [fixed_width(size, widest=496) for size in (3, 8, 20, 100, 400, 490)]
    [8, 16, 24, 128, 400, 490]
    """
    step = max(8, 1 << max(0, size.bit_length() - 2))
    width = (size // step + 1) * step
    return width if width <= widest else max(1, size)


def best_part(expected: float, overhead: float, rows: int = ROWS) -> int:
    """Return how many samples a part should have, half of `rows` or a multiple of them, so that batches cost least.

    Args:
        expected: The expected size of a Poisson batch.
        overhead: What a part costs besides its samples, in samples.
        rows: How many samples kernels treat alike.

    >>> [best_part(64, overhead) for overhead in (0.1, 2, 100)], best_part(64, 100, rows=32)
    ([4, 16, 80], 96)

    """
    sizes = np.arange(1, math.ceil(expected + 6 * math.sqrt(expected) + 16))
    factorials = np.cumsum(np.log(sizes))
    chances = np.exp(sizes * math.log(expected) - expected - factorials)
    parts = (rows // 2, *range(rows, len(sizes) + rows, rows))
    costs = [(float(chances @ np.ceil(sizes / part)) * (overhead + part), part) for part in parts]
    return min(costs)[1]


class FixedShapes:
    """The slopes of single samples, each a function of its sample alone.

    Args:
        measure: How the client measures.
        expected: The expected size of its batches.
        probes: Inputs and labels of samples that are not voted on, to try parts with. Without them samples are measured
            one by one.

    `parts` has the number of samples of a part, for each shape of samples that was met so far.

    >>> from cyber0.estimate import estimate
    >>> model, losses = torch.nn.Linear(3, 1), lambda model, batch: model(batch[0]).squeeze(1)
    >>> x, options = torch.randn(9, 3), {"mu": 1e-3, "family": "sphere"}
    >>> keys = [DirectionKey(seed=1, round=0)]
    >>> slopes = FixedShapes(estimate, expected=4.0, probes=(torch.randn(5, 3), torch.zeros(5)))
    >>> all_nine = slopes(Parameters.of(model), losses, (x, torch.zeros(9)), keys, **options)
    >>> torch.equal(slopes(Parameters.of(model), losses, (x[:5], torch.zeros(5)), keys, **options), all_nine[:5])
    True

    """

    def __init__(self, measure: Measure, expected: float, probes: Pair | None = None) -> None:
        self._measure, self._expected, self._probes = measure, expected, probes
        self._slopes = part_slopes_of(measure)
        self.parts: dict[tuple[object, ...], int] = {}

    def __call__(
        self,
        parameters: Parameters,
        losses: Losses,
        batch: Pair,
        keys: Sequence[DirectionKey],
        *,
        mu: float,
        family: Family,
        backend: str | Backend | None = None,
    ) -> Tensor:
        """Return how the loss of each sample of a batch changes along each direction: [samples, directions]."""
        inputs, labels = batch
        out = torch.zeros(len(labels), len(keys), dtype=torch.float64, device=labels.device)
        along: dict[str, Any] = {"mu": mu, "family": family, "backend": backend}
        if isinstance(self._measure, LayerwiseEstimate) and mu > 0 and len(labels) > 0:
            self._choose_way(self._measure, parameters, losses, batch, backend)
        rows: list[Tensor] = []
        parts: list[Pair] = []
        for width, places in _by_width(parameters.module, inputs, labels):
            some = _padded(inputs[places], width.size), labels[places]
            size = self._part(parameters, losses, some, width, keys[:TRIED], along)
            for first in range(0, len(places), size):
                rows.append(places[first : first + size])
                filled = torch.arange(first, first + size, device=places.device)
                filled = torch.where(filled < len(places), filled, first)
                parts.append((some[0][filled], some[1][filled]))
        if not parts:
            return out
        # What is first decides whether all are computed in float64: a sample that is not voted on.
        before: list[Pair] = []
        if not isinstance(self._measure, LayerwiseEstimate):
            x, y = self._public(batch)
            before.append((x[:1], y[:1]))
        found = self._slopes(parameters, losses, [*before, *parts], keys, **along)[len(before) :]
        for place, (_, of_part), slopes in zip(rows, parts, found, strict=True):
            if slopes.shape != (len(of_part), len(keys)):
                raise InvalidEstimate(
                    f"losses() gave {len(slopes)} losses for {len(of_part)} samples: privacy needs one for each, or a "
                    "sample could count more than once"
                )
            out[place] = slopes[: len(place)].to(out.dtype)
        return out

    def _choose_way(
        self, measure: LayerwiseEstimate, parameters: Parameters, losses: Losses, batch: Pair, backend: Any
    ) -> None:
        """Let samples that are not voted on decide whether a model is walked."""
        walk = measure.walk(parameters, losses, backend)
        if not walk.proven:
            inputs, labels = self._public(batch)
            walk.prove_for_good(walk.batch(inputs[None], labels[None]))

    def _public(self, batch: Pair) -> Pair:
        """Return samples that are not voted on: a blank one, if there are no others."""
        if self._probes is None or len(self._probes[1]) == 0:
            return torch.zeros_like(batch[0][:1]), torch.zeros_like(batch[1][:1])
        return self._probes

    def _part(
        self, parameters: Parameters, losses: Losses, samples: Pair, width: Width, keys: Any, along: dict[str, Any]
    ) -> int:
        """Return how many samples a part has: a function of the model and of the shape of a sample alone."""
        inputs, labels = samples
        shape = id(parameters), *width, *inputs.shape[1:], *labels.shape[1:]
        if shape not in self.parts:
            probes = self._of_width(parameters.module, width)
            fits = [each.shape[1:] for each in probes] == [inputs.shape[1:], labels.shape[1:]] if probes else False
            self.parts[shape] = self._found(parameters, losses, probes, keys, along) if fits else 1
        return self.parts[shape]

    def _found(self, parameters: Parameters, losses: Losses, probes: Any, keys: Any, along: dict[str, Any]) -> int:
        size = wanted = self._wanted(parameters)
        few = probes[0][:PROBES], probes[1][:PROBES]
        while size > 1 and not self._alike(parameters, losses, few, size, keys, along):
            size = 1 << ((size - 1).bit_length() - 1)  # the next smaller power of 2
        if 1 < size < wanted and not self._alike(parameters, losses, probes, size, keys, along):
            size = 1  # a kernel that treats the last rows otherwise shows it with some samples only: a few may pass
        if isinstance(self._measure, LayerwiseEstimate):
            walk = self._measure.walk(parameters, losses, along["backend"])
            if walk.handlers is None or modules.blocks(walk.handlers):
                size = 1  # its code may route samples by their values, as a mixture of experts does
        if size > 1:
            return size
        if not self._alike(parameters, losses, few, 1, keys, along):
            raise InvalidEstimate(
                "a sample's loss is another one when it is measured again after other samples: the model or losses() "
                "keep something of the samples before, or draw at random, so that a vote would tell of more than its "
                "noise covers; a private client needs losses that depend on their own sample alone"
            )
        if wanted > 1:
            warnings.warn(
                "this model's losses depend on who else is in a batch, on the place in it, or on operations that route "
                "samples by their values: for privacy samples are measured one by one, which takes longer",
                stacklevel=2,
            )
        return 1

    def _wanted(self, parameters: Parameters) -> int:
        overhead = CALL / parameters.size
        if not isinstance(self._measure, LayerwiseEstimate):
            rows = VALUES if self._expected >= 4 * VALUES else ROWS
            return best_part(self._expected, max(LEAST, overhead), rows)
        kept = parameters.device.type == "cpu" and parameters.size <= SMALL
        overhead += 0 if kept else OVERHEAD.get(parameters.device.type, 64) / TEXT
        return best_part(max(1.0, self._expected / BUCKETS), overhead)

    def _of_width(self, module: Any, width: Width) -> Pair | None:
        """Return probes at a width, as samples of that width are measured; None if there are not two."""
        if self._probes is None:
            return None
        inputs, labels = self._probes
        if width != WHOLE:
            sizes = module.sizes(inputs)
            fits = (sizes < width.size) if width.padded else (sizes == width.size)
            longest = sizes.masked_fill(~fits, -1).argsort(descending=True, stable=True)
            chosen = longest[: int(fits.sum())]
            inputs, labels = _padded(inputs[chosen], width.size), labels[chosen]
        return None if len(labels) < 2 else (inputs, labels)

    def _alike(
        self, parameters: Parameters, losses: Losses, probes: Pair, size: int, keys: Any, along: dict[str, Any]
    ) -> bool:
        """Return whether each sample's slopes are the same bits at every place of a part, and beside any others."""
        inputs, labels = probes
        places = torch.arange(size)
        everywhere = [(places + by) % len(labels) for by in range(len(labels))]
        same = [torch.full_like(places, index) for index in (0, 1)]
        tried = [each.to(labels.device) for each in (everywhere[0].flip(0), *same, *everywhere, *reversed(same))]
        samples, slopes = torch.empty(0, dtype=torch.int64, device=labels.device), torch.empty(0)
        step = max(1, AT_ONCE // size)
        for first in range(0, len(tried), step):
            some = tried[first : first + step]
            try:
                parts = [(inputs[each], labels[each]) for each in some]
                found = self._slopes(parameters, losses, parts, keys, **along)
            except Exception as error:
                if size > 1 and is_out_of_memory(error):
                    return False
                raise
            samples, slopes = torch.cat([samples, *some]), torch.cat([*([slopes] if first else []), *found])
            if len(slopes) != len(samples):
                raise InvalidEstimate(
                    f"losses() gave {len(slopes)} losses for {len(samples)} samples: privacy needs one for each, or a "
                    "sample could count more than once"
                )
            counted = slopes.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            known = counted.new_zeros(len(labels), counted.shape[1])
            known[samples] = counted
            if not torch.equal(known[samples], counted):
                return False
        return size == 1 or bool(slopes.isfinite().any())  # else they show nothing


def _is_text(module: Any, inputs: Tensor, labels: Tensor) -> bool:
    """Return whether samples are texts that may be cut; where each token has a label, they are not."""
    return implements(module, SizedInputs) and inputs.ndim == 2 and labels.ndim == 1


def _by_width(module: Any, inputs: Tensor, labels: Tensor) -> list[tuple[Width, Tensor]]:
    """Return the places of the samples of each width."""
    if len(labels) == 0:
        return []
    if not _is_text(module, inputs, labels):
        return [(WHOLE, torch.arange(len(labels), device=labels.device))]
    widest = _widest(module)
    sizes: NDArray[np.int64] = module.sizes(inputs).cpu().numpy()
    widths = np.array([fixed_width(int(size), widest) for size in sizes])
    padded = sizes < widths
    found: list[tuple[Width, Tensor]] = []
    for size, is_padded in sorted({*zip(widths.tolist(), padded.tolist(), strict=True)}):
        places = np.flatnonzero((widths == size) & (padded == is_padded))
        found.append((Width(size, is_padded), torch.from_numpy(places).to(labels.device)))  # pyright: ignore
    return found


def _widest(module: Any) -> int:
    return module.widest() if implements(module, PaddableInputs) else 0


def _padded(inputs: Tensor, width: int) -> Tensor:
    """Return texts at a width; all as they are, if that is 0."""
    if not width:
        return inputs
    missing = width - inputs.shape[1]
    return torch.nn.functional.pad(inputs, (0, missing), value=-1) if missing > 0 else inputs[:, :width].contiguous()
