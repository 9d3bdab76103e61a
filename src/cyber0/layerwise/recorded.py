"""Record what the modules or the operations of a model give for each sample, as digests of all bits.

A loss shows little of what happened on the way: a value that is rounded otherwise in one of many activations moves it
rarely, and so would move it for some samples only. What the operation gives shows it at once.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as trees
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Recorded", "RecordedOperations", "recorded_modules", "same_rows"]

Tensor = torch.Tensor


class Recorded:
    """What was recorded: for each output, in the order of calls, what gave it and a digest of each of its rows."""

    def __init__(self) -> None:
        self.outputs: list[tuple[object, Tensor]] = []
        self._weights: dict[tuple[int, torch.device], Tensor] = {}
        self._last: Tensor | None = None

    def add(self, owner: object, output: Any) -> None:
        """Record the tensors among the outputs of a module or an operation; integers, such as places, are exact."""
        for each in trees.tree_leaves(output):
            if each is self._last:  # a module made of others gives what the last of them gave
                continue
            if isinstance(each, Tensor) and each.is_floating_point() and each.ndim > 0 and each.numel() > 0:
                self._last = each
                self.outputs.append((owner, self._digests(each.detach())))

    def same(self, parts: Sequence[Tensor], *, halves: bool) -> bool:
        """Return whether equal samples have equal digests in all parts, which were measured one after the other.

        What has not as many rows for each sample as for the sample of the first part, which is alone there, belongs to
        no sample. The rows of a sample may follow each other, or those of all samples at a token.

        Args:
            parts: The samples of each part, as numbers, by their places.
            halves: Whether the rows of w + mu z come first, and then those of w - mu z.

        """
        length, over = divmod(len(self.outputs), len(parts))
        calls = [self.outputs[at * length : (at + 1) * length] for at in range(len(parts))]
        if over or len({tuple(owner for owner, _ in call) for call in calls}) > 1:
            return False
        samples = torch.cat([*parts[1:]])
        return all(
            any(same_rows(samples, torch.cat(rows)) for rows in _by_sample(digests, [*map(len, parts)], halves=halves))
            for digests in ([call[at][1] for call in calls] for at in range(length))
            if all(len(each) == len(digests[0]) * len(part) for each, part in zip(digests, parts, strict=True))
        )

    def _digests(self, x: Tensor) -> Tensor:
        """Return a sum of each row's bits, as integers with odd weights: one value that differs always moves it."""
        rows = x.resolve_conj().resolve_neg().contiguous().view(len(x), -1)
        aligned = rows.shape[1] * rows.element_size() % 8 == 0 and rows.storage_offset() * rows.element_size() % 8 == 0
        bits = rows.view(torch.int64) if aligned else rows.view(torch.uint8).to(torch.int64)
        key = bits.shape[1], bits.device
        if key not in self._weights:
            generator = torch.Generator().manual_seed(bits.shape[1])
            weights = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator) * 2 + 1
            self._weights[key] = weights.to(bits.device)
        return (bits * self._weights[key]).sum(dim=1)


def _by_sample(digests: Sequence[Tensor], sizes: Sequence[int], *, halves: bool) -> Iterator[list[Tensor]]:
    """Yield the digests of the samples of all parts but the first, [samples, rows], by either order of rows."""
    signs = 2 if halves and len(digests[0]) % 2 == 0 else 1
    for minor in (False, True) if len(digests[0]) > signs else (False,):
        shaped = [
            each.view(signs, -1, size).transpose(1, 2) if minor else each.view(signs, size, -1)
            for each, size in zip(digests[1:], sizes[1:], strict=True)
        ]
        yield [each.transpose(0, 1).flatten(1) for each in shaped]


def same_rows(samples: Tensor, values: Tensor) -> bool:
    """Return whether equal samples have equal rows of values.

    >>> same_rows(torch.tensor([0, 1, 0]), torch.tensor([[5.0], [6.0], [5.0]]))
    True
    """
    samples = samples.to(values.device)
    known = values.new_zeros(int(samples.max()) + 1, values.shape[1])
    known[samples] = values
    return torch.equal(known[samples], values)


class RecordedOperations(TorchDispatchMode):
    """A context in which what operations of torch give is recorded.

    >>> x, parts = [torch.ones(1, 1), torch.tensor([[1.0], [2.0], [1.0]])], [torch.tensor([0]), torch.tensor([0, 1, 0])]
    >>> with RecordedOperations() as mode:
    ...     _ = [each.exp() for each in x]
    >>> mode.recorded.same(parts, halves=False), mode.recorded.same([parts[0], torch.tensor([0, 1, 1])], halves=False)
    (True, False)
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.recorded = Recorded()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record what it gives."""
        output = func(*args, **(kwargs or {}))
        if not (func.is_view or "empty" in func.overloadpacket.__name__):  # nothing is computed
            self.recorded.add(func, output)
        return output


@contextmanager
def recorded_modules(root: nn.Module) -> Generator[Recorded]:
    """Record what modules give within the context.

    >>> model, parts = nn.Sequential(nn.Flatten(), nn.ReLU()), [torch.tensor([0]), torch.tensor([0, 1, 0])]
    >>> with recorded_modules(model) as found:
    ...     _, _ = model(torch.ones(1, 3)), model(torch.tensor([[1.0], [2.0], [1.0]]).expand(3, 3))
    >>> len(found.outputs), found.same(parts, halves=False)
    (4, True)
    """
    found = Recorded()
    hooks = [
        module.register_forward_hook(lambda module, _, output: found.add(id(module), output))
        for module in root.modules()
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
