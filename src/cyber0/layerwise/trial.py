"""Try out, with samples that are not voted on, whether a sample has the same bits wherever it is measured.

At every place of a part, beside any others and beside copies of itself, and in parts of several sizes, the slopes of a
sample must be the same bits, and so must be what each operation on the way gives for it: what is rounded otherwise in
one of many activations seldom moves the loss of a sample to try it with, and could move that of another.
"""

from collections.abc import Sequence
from typing import Any

import torch

from cyber0.directions import DirectionKey
from cyber0.errors import InvalidEstimate
from cyber0.estimate import Losses
from cyber0.layerwise.measure import LayerwiseEstimate, Measure, part_slopes_of
from cyber0.layerwise.micro_batches import is_out_of_memory
from cyber0.layerwise.recorded import RecordedOperations, recorded_modules, same_rows
from cyber0.layerwise.unordered import UnorderedOperations
from cyber0.parameters import Parameters

__all__ = ["LEAST", "Trial", "not_one_each"]

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
PROBES, LEAST = 16, 8  # different samples to try parts with, and the least number of them
DIRECTIONS = 2  # along which parts are tried where nothing but slopes is compared
ROTATIONS = 4  # of the samples over the places of a part that is walked


class Trial:
    """A model at a shape of samples, to be tried out with samples that are not voted on.

    Args:
        measure: How the client measures.
        parameters: The model's.
        losses: Its losses.
        probes: Inputs and labels of samples that are not voted on.
        keys: Directions.
        along: The other options of the measurement.

    >>> from cyber0.estimate import estimate
    >>> losses, probes = lambda model, batch: model(batch[0]).squeeze(1), (torch.randn(8, 3), torch.zeros(8))
    >>> keys, along = [DirectionKey(seed=1, round=0)], {"mu": 1e-3, "family": "sphere"}
    >>> trial = Trial(estimate, Parameters.of(torch.nn.Linear(3, 1)), losses, probes, keys, along)
    >>> trial.passes(16), trial.passes(32, reference=16)
    (True, True)

    """

    def __init__(
        self,
        measure: Measure,
        parameters: Parameters,
        losses: Losses,
        probes: Pair,
        keys: Sequence[DirectionKey],
        along: dict[str, Any],
    ) -> None:
        self._slopes, self._parameters, self._losses = part_slopes_of(measure), parameters, losses
        self._module: Any = parameters.module
        self._probes, self._keys, self._along = probes, keys, along
        self._walked = isinstance(measure, LayerwiseEstimate) and along["mu"] > 0
        # Elsewhere graphs are replayed, and torch fails where operations are recorded under forward mode.
        self._records = along["mu"] > 0 and (not self._walked or parameters.device.type == "cpu")

    def passes(self, size: int, reference: int | None = None, *, with_all: bool = False) -> bool:
        """Return whether each sample has the same bits at every place of parts of a size.

        With a `reference` they must be those of parts of that size, which has passed itself. `with_all` tries every
        sample there is at every place, instead of a few.
        """
        count = len(self._probes[1]) if with_all else min(PROBES, len(self._probes[1]))
        few = self._walked and self._records and not with_all
        places = torch.arange(size)
        everywhere = [(places + by) % count for by in range(0, count, max(1, count // ROTATIONS) if few else 1)]
        copies = [torch.full_like(places, index) for index in (0, 1)]
        if reference is not None:
            everywhere = everywhere[:2] if few else everywhere
            everywhere += [(torch.arange(reference) + by) % count for by in range(0, count, reference)]
            copies = [torch.where(places < size // 2, places % count, 0)]  # as the last part of a batch is filled up
        everywhere.insert(0, everywhere[0].flip(0))
        try:
            if self._records and size > 1:
                return self._alike(everywhere, copies)
            return self._alike([], [*copies, *everywhere, *copies[::-1]])
        except Exception as error:
            if size > 1 and is_out_of_memory(error):
                return False
            raise

    def refuse_unordered(self) -> None:
        """Raise InvalidEstimate if the model uses operations that add in no fixed order, on a CUDA device."""
        if self._parameters.device.type != "cuda" or self._along["mu"] == 0:
            return
        with UnorderedOperations() as found:
            self._measured([torch.arange(2)], self._keys[:1])
        if found.names:
            raise InvalidEstimate(
                f"the model or losses() use {', '.join(sorted(found.names))}, which on a CUDA device add in no fixed "
                "order: their rounding may tell more than a vote's noise covers; use others, or device = 'cpu'"
            )

    def _alike(self, recorded: list[Tensor], others: list[Tensor]) -> bool:
        """Return whether each sample has the same bits in all parts, which are given by the samples at their places.

        In some of them all that happens on the way is recorded and compared. In the others nothing is, since that might
        change what a model does.
        """
        found = self._measured(others, self._keys[: 1 if recorded else DIRECTIONS])
        if recorded:
            one = torch.zeros(1, dtype=torch.int64)  # tells how many rows there are for a sample
            slopes_of_each = self._recorded([one, *recorded])
            if slopes_of_each is None:
                return False
            found += slopes_of_each[1:]
        samples, slopes = torch.cat([*others, *recorded]), torch.cat(found)
        counted = slopes.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        shown = len(samples) == len(found) or bool(slopes.isfinite().any())  # what is not finite shows nothing
        return shown and same_rows(samples, counted)

    def _recorded(self, parts: list[Tensor]) -> list[Tensor] | None:
        """Return the slopes of parts; None if something on the way is not the same for equal samples."""
        if self._walked:
            with recorded_modules(self._module) as found:
                slopes = self._measured(parts, self._keys[:1])
            return slopes if found.same(parts, halves=True) else None
        with RecordedOperations() as mode:
            slopes = [each for part in parts for each in self._measured([part], self._keys[:1])]
        return slopes if mode.recorded.same(parts, halves=False) else None

    def _measured(self, parts: list[Tensor], keys: Sequence[DirectionKey]) -> list[Tensor]:
        inputs, labels = self._probes
        pairs = [(inputs[each], labels[each]) for each in (part.to(labels.device) for part in parts)]
        found = self._slopes(self._parameters, self._losses, pairs, keys, **self._along)
        for part, slopes in zip(parts, found, strict=True):
            if len(slopes) != len(part):
                raise not_one_each(len(slopes), len(part))
        return found


def not_one_each(losses: int, samples: int) -> InvalidEstimate:
    """Return the error about losses of which there are more or fewer than samples."""
    return InvalidEstimate(
        f"losses() gave {losses} losses for {samples} samples: privacy needs one for each, or a sample could count "
        "more than once"
    )
