"""Measure the slopes of single samples such that each depends on its own sample alone, to the last bit.

How a matrix product is rounded depends on its shape: on how many samples are measured together, and how long the
longest text among them is. So a private client measures in parts of fixed shapes. A part has one of a few numbers of
samples, the last one being filled up with copies whose slopes are thrown away, and a text is padded to a width that
follows from its own length. That rows of such a part depend neither on their place, nor on the rows beside them, nor on
which of these numbers it is, is tried out with samples that are not voted on; where it fails, parts are made smaller,
down to single samples.
"""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cyber0.directions import Backend, DirectionKey, Family
from cyber0.errors import InvalidEstimate
from cyber0.estimate import Losses, computed_in_double
from cyber0.layerwise import modules
from cyber0.layerwise.measure import LayerwiseEstimate, Measure, part_slopes_of
from cyber0.layerwise.micro_batches import OVERHEAD
from cyber0.layerwise.part_sizes import ROWS, best_part, fixed_width, part_sizes, split, widths_for
from cyber0.layerwise.proof import SMALL
from cyber0.layerwise.protocols import PaddableInputs, SizedInputs, implements
from cyber0.layerwise.trial import LEAST as ENOUGH_TO_TRY
from cyber0.layerwise.trial import Trial, not_one_each
from cyber0.parameters import Parameters

__all__ = ["FixedShapes"]

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
CALL, LEAST = 2**20, 2.0  # what a part costs besides its samples: so many weights, and at least so many samples
WALKED = 2**27  # what a part costs that is walked, besides its tokens: so many weights
VALUES = {True: 16, False: 32}  # elementwise kernels (of AVX-512) may round what is left over of them otherwise
ENOUGH, BUCKETS = 32, 6  # by as many texts that are not voted on widths are chosen; without them there are six, about
SAVED, TOKENS = 32, 2**12  # a part of so many overheads, or of so many tokens, saves nothing by being larger


class Width(NamedTuple):
    """How texts are measured that may be measured together: models leave a mask out where no text is padded."""

    size: int
    padded: bool


WHOLE = Width(0, padded=False)  # of samples that are no texts, and are measured as they are


class Costs(NamedTuple):
    """What decides how large parts are, all of it public.

    - `expected`: how many samples of a width are expected in a batch;
    - `overhead`: what a part costs besides its samples, in samples;
    - `most`: beyond so many samples, larger parts save nothing;
    - `step`: what the sizes of parts are multiples of.
    """

    expected: float
    overhead: float
    most: float
    step: int


class FixedShapes:
    """The slopes of single samples, each a function of its sample alone.

    Args:
        measure: How the client measures.
        expected: The expected size of its batches.
        probes: Inputs and labels of samples that are not voted on, to try parts with. Without them samples are measured
            one by one.

    `parts` has the number of samples of a part, for each shape of samples that was met so far, and `others` the other
    numbers that were tried for it, with whether they give the same bits.

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
        self._models: dict[int, Parameters] = {}  # which keeps them alive, and their ids their own
        self._doubles: dict[int, bool] = {}
        self._widths: tuple[int, ...] | None = None
        self._shares: dict[Width, float] | None = None
        self.parts: dict[tuple[object, ...], int] = {}
        self.others: dict[tuple[object, ...], dict[int, bool]] = {}

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
        if len(labels) == 0:
            return out
        self._models[id(parameters)] = parameters
        along: dict[str, Any] = {"mu": mu, "family": family, "backend": backend}
        if mu > 0:
            along |= self._choose_way(parameters, losses, batch, backend)
        rows: list[Tensor] = []
        parts: list[Pair] = []
        for width, places in self._by_width(parameters, inputs, labels):
            some = _padded(inputs[places], width.size), labels[places]
            first = 0
            for size in self._sizes(parameters, losses, some, width, keys, along):
                rows.append(places[first : first + size])
                filled = torch.arange(first, first + size, device=places.device)
                filled = torch.where(filled < len(places), filled, first)
                parts.append((some[0][filled], some[1][filled]))
                first += size
        found = self._slopes(parameters, losses, parts, keys, **along)
        for place, (_, of_part), slopes in zip(rows, parts, found, strict=True):
            if slopes.shape != (len(of_part), len(keys)):
                raise not_one_each(len(slopes), len(of_part))
            out[place] = slopes[: len(place)].to(out.dtype)
        return out

    def _choose_way(self, parameters: Parameters, losses: Losses, batch: Pair, backend: Any) -> dict[str, Any]:
        """Let samples that are not voted on decide, once, whether a model is walked, or computed in float64."""
        inputs, labels = self._public(batch)
        if isinstance(self._measure, LayerwiseEstimate):
            walk = self._measure.walk(parameters, losses, backend)
            if not walk.proven:
                walk.prove_for_good(walk.batch(inputs[None], labels[None]))
            return {}
        if id(parameters) not in self._doubles:
            self._doubles[id(parameters)] = computed_in_double(parameters, losses, (inputs[:1], labels[:1]))
        return {"double": self._doubles[id(parameters)]}

    def _public(self, batch: Pair) -> Pair:
        """Return samples that are not voted on: a blank one, if there are no others."""
        if self._probes is None or len(self._probes[1]) == 0:
            return torch.zeros_like(batch[0][:1]), torch.zeros_like(batch[1][:1])
        return self._probes

    def _sizes(
        self,
        parameters: Parameters,
        losses: Losses,
        samples: Pair,
        width: Width,
        keys: Sequence[DirectionKey],
        along: dict[str, Any],
    ) -> tuple[int, ...]:
        """Return the sizes of the parts to measure samples of a width in.

        A part has as many samples as costs least for an expected batch: that follows from the model and the shape of a
        sample alone. Where parts of other sizes give the same bits, they are taken as they suit the number of samples.
        """
        inputs, labels = samples
        shape = id(parameters), torch.get_num_threads(), *width, *inputs.shape[1:], *labels.shape[1:]
        costs = self._costs(parameters, inputs, width, along)

        @cache
        def trial() -> Trial | None:
            probes = self._of_width(parameters.module, width)
            if probes is None or [each.shape[1:] for each in probes] != [inputs.shape[1:], labels.shape[1:]]:
                return None
            return Trial(self._measure, parameters, losses, probes, keys, along)

        if shape not in self.parts:
            self.parts[shape] = (
                1 if (tried := trial()) is None else self._found(parameters, losses, tried, costs, along)
            )
            self.others[shape] = {}
        part, known = self.parts[shape], self.others[shape]
        sizes = {part}
        if part > 1 and along["mu"] > 0 and labels.device.type == "cpu":
            sizes.update(part_sizes(costs.expected, costs.most, costs.step))
        while True:
            sizes -= {size for size, passed in known.items() if not passed}
            chosen = split(len(labels), tuple(sorted(sizes)), costs.overhead)
            untried = {*chosen} - {part, *known}
            if not untried:
                return chosen
            for size in untried:
                known[size] = (tried := trial()) is not None and tried.passes(size, reference=part)

    def _found(
        self,
        parameters: Parameters,
        losses: Losses,
        trial: Trial,
        costs: "Costs",
        along: dict[str, Any],
    ) -> int:
        trial.refuse_unordered()
        size = wanted = best_part(costs.expected, costs.overhead, costs.step)
        if isinstance(self._measure, LayerwiseEstimate):
            walk = self._measure.walk(parameters, losses, along["backend"])
            if walk.handlers is None or modules.blocks(walk.handlers):
                size = 1  # its code may route samples by their values, as a mixture of experts does
        while size > 1 and not trial.passes(size):
            size = 1 << ((size - 1).bit_length() - 1)  # the next smaller power of 2
        if 1 < size < wanted and not trial.passes(size, with_all=True):
            size = 1  # a kernel that treats the last rows otherwise shows it with some samples only: a few may pass
        if size > 1:
            return size
        if not trial.passes(1):
            raise InvalidEstimate(
                "a sample's loss is another one when it is measured again after other samples: the model or losses() "
                "keep something of the samples before, draw at random, or add in no fixed order, so that a vote would "
                "tell more than its noise covers; a private client needs losses that depend on their own sample alone"
            )
        if wanted > 1:
            warnings.warn(
                "this model's losses depend on who else is in a batch, on the place in it, or on operations that route "
                "samples by their values: for privacy samples are measured one by one, which takes longer",
                stacklevel=2,
            )
        return 1

    def _costs(self, parameters: Parameters, inputs: Tensor, width: Width, along: dict[str, Any]) -> "Costs":
        if not isinstance(self._measure, LayerwiseEstimate):
            overhead, values = max(LEAST, CALL / parameters.size), VALUES[bool(along.get("double"))]
            return Costs(self._expected, overhead, SAVED * overhead, values)
        if inputs.ndim != 2 or inputs.is_floating_point():  # no texts: nothing is known of the numbers of their values
            overhead, values = self._overhead(parameters), VALUES[False]
            return Costs(self._expected, overhead, SAVED * overhead, values)
        expected, tokens = self._expected * (1 if width == WHOLE else self._share(parameters, width)), inputs.shape[1]
        overhead = self._overhead(parameters) / tokens
        return Costs(max(1.0, expected), overhead, max(TOKENS / tokens, SAVED * overhead), ROWS // 2)

    def _overhead(self, parameters: Parameters) -> float:
        """Return what a part that is walked costs besides its tokens, in tokens."""
        known = OVERHEAD.get(parameters.device.type, 64)
        kept = parameters.device.type == "cpu" and parameters.size <= SMALL  # perturbed weights, for all parts
        return max(known, WALKED / parameters.size) if kept else known + WALKED / parameters.size

    def _share(self, parameters: Parameters, width: Width) -> float:
        """Return which share of texts is of a width, by those that are not voted on."""
        known = 0 if self._probes is None else len(self._probes[1])
        if self._probes is None or known < ENOUGH:
            return 1 / BUCKETS
        if self._shares is None:
            found = self._by_width(parameters, *self._probes)
            self._shares = {each: len(places) / known for each, places in found}
        return self._shares.get(width, 0.0)

    def _of_width(self, module: Any, width: Width) -> Pair | None:
        """Return probes at a width, as samples of that width are measured; None if there are too few."""
        if self._probes is None:
            return None
        inputs, labels = self._probes
        if width != WHOLE:
            sizes = module.sizes(inputs)
            fits = (sizes < width.size) if width.padded else (sizes == width.size)
            longest = sizes.masked_fill(~fits, -1).argsort(descending=True, stable=True)
            chosen = longest[: int(fits.sum())]
            inputs, labels = _padded(inputs[chosen], width.size), labels[chosen]
        return None if len(labels) < ENOUGH_TO_TRY else (inputs, labels)

    def _by_width(self, parameters: Parameters, inputs: Tensor, labels: Tensor) -> list[tuple[Width, Tensor]]:
        """Return the places of the samples of each width."""
        module: Any = parameters.module
        if not _is_text(module, inputs, labels):
            return [(WHOLE, torch.arange(len(labels), device=labels.device))]
        widest, known = _widest(module), self._widths
        if known is None:
            known = self._widths = self._chosen_widths(parameters, widest)
        sizes: NDArray[np.int64] = module.sizes(inputs).cpu().numpy()
        widths = np.array([fixed_width(int(size), widest, known) for size in sizes])
        padded = sizes < widths
        found: list[tuple[Width, Tensor]] = []
        for size, is_padded in sorted({*zip(widths.tolist(), padded.tolist(), strict=True)}):
            places = np.flatnonzero((widths == size) & (padded == is_padded))
            found.append((Width(size, is_padded), torch.from_numpy(places).to(labels.device)))  # pyright: ignore
        return found

    def _chosen_widths(self, parameters: Parameters, widest: int) -> tuple[int, ...]:
        """Return the widths that texts are padded to, by those that are not voted on."""
        if self._probes is None or len(self._probes[1]) < ENOUGH:
            return ()
        module: Any = parameters.module
        sizes: NDArray[np.int64] = module.sizes(self._probes[0]).cpu().numpy()
        return widths_for(sizes, self._expected, self._overhead(parameters), widest)


def _is_text(module: Any, inputs: Tensor, labels: Tensor) -> bool:
    """Return whether samples are texts that may be cut; where each token has a label, they are not."""
    return implements(module, SizedInputs) and inputs.ndim == 2 and labels.ndim == 1


def _widest(module: Any) -> int:
    return module.widest() if implements(module, PaddableInputs) else 0


def _padded(inputs: Tensor, width: int) -> Tensor:
    """Return texts at a width; all as they are, if that is 0."""
    if not width:
        return inputs
    missing = width - inputs.shape[1]
    return torch.nn.functional.pad(inputs, (0, missing), value=-1) if missing > 0 else inputs[:, :width].contiguous()
