"""Compute what is read: after the last attention, a classifier of prompts reads one token of each.

Where modules treat tokens one by one, the outputs of the other tokens need not be computed then. Which modules these
are is tried out: a text is run many times in one batch, each time with another module's outputs at the other tokens
replaced. Where its loss stays what it was, nothing reads them.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cyber0.layerwise.frozen import FrozenLinear
from cyber0.layerwise.micro_batches import is_out_of_memory
from cyber0.layerwise.modules import TOKENWISE, Handler, SignPair
from cyber0.layerwise.patched import patched
from cyber0.layerwise.protocols import OneTokenReader, SizedInputs, implements
from cyber0.layerwise.source import Unperturbed

if TYPE_CHECKING:
    from cyber0.layerwise.micro_batches import MicroBatch
    from cyber0.layerwise.walk import Walk

__all__ = ["at_tokens_read", "tokens_read"]

Tensor = torch.Tensor
Handlers = Sequence[tuple[nn.Module, Handler]]
TRIED = 48  # modules, the last ones of a model: more than those of a layer with adapters
FEWEST, MOST = 3, 8  # tokens of a text to try them with, cut off after so many
OTHERS = torch.nan, 0.0, 3.0  # what the outputs of other tokens are replaced by
ROUNDING = 1e-6  # how far losses of equal rows of a batch may differ, relative


def tokens_read(module: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the row and place of each token that is read, as indices of a tensor [samples, tokens, ...].

    None if more than one token of a sample is.

    >>> tokens_read(nn.Linear(3, 2), torch.ones(2, 3))
    """
    places = module.token_read(inputs) if implements(module, OneTokenReader) else None
    return None if places is None else (torch.arange(len(inputs), device=inputs.device), places)


def at_tokens_read(walk: "Walk", handlers: Handlers, part: "MicroBatch") -> list[tuple[nn.Module, Handler]]:
    """Return handlers of which those that need no other tokens compute the tokens that are read."""
    module: Any = walk.module
    if not implements(module, SizedInputs) or part.inputs.ndim != 2:
        return list(handlers)
    sizes = module.sizes(part.inputs)
    long_enough = (sizes >= FEWEST).nonzero()
    if len(long_enough) == 0:
        return list(handlers)
    chosen = int(long_enough[0])
    text, label = part.inputs[chosen, : min(MOST, int(sizes[chosen]))], part.labels[chosen]
    read = tokens_read(walk.module, text[None])
    if read is None:
        return list(handlers)
    tried = [(each, run) for each, run in handlers if run in TOKENWISE or isinstance(each, FrozenLinear)][-TRIED:]
    try:
        unread = _unread(walk, handlers, tried, text, label, int(read[1]))
    except Exception as error:  # the model's own code may fail in any way
        if is_out_of_memory(error):
            raise
        unread = set[nn.Module]()
    return [(each, partial(_at_tokens_read, run) if each in unread else run) for each, run in handlers]


def _at_tokens_read(handler: Handler, signs: SignPair, module: Any, *inputs: Tensor) -> Tensor:
    """Run a module on the tokens that are read; its outputs at the others are zero."""
    if signs.read is None or any(each.ndim != 3 for each in inputs):
        return handler(signs, module, *inputs)
    found = handler(signs, module, *(each[signs.read] for each in inputs))
    out = found.new_zeros(*inputs[0].shape[:2], *found.shape[1:])
    out[signs.read] = found
    return out


@contextmanager
def _buffers_kept(model: nn.Module) -> Generator[None]:
    """Undo what is done to a model's buffers within the context: a trial would leave NaN in a running mean."""
    owners = [each for each in model.modules() if not isinstance(each, FrozenLinear)]  # whose weights are not written
    kept = [(each, name, x, x.clone()) for each in owners for name, x in each.named_buffers(recurse=False)]
    try:
        yield
    finally:
        for owner, name, buffer, values in kept:
            setattr(owner, name, buffer.copy_(values))


def _rows(first: int) -> slice:
    return slice(first, first + len(OTHERS))


def _unread(
    walk: "Walk", handlers: Handlers, tried: Handlers, text: Tensor, label: Tensor, place: int
) -> set[nn.Module]:
    """Return the modules, of those tried, that are called after all whose outputs are read at other places of a text.

    One that comes before such a module is not among them, though its own outputs may seem unread: a loss may hardly
    depend on the queries of an early attention, and attention may leave out NaN.
    """
    rows = 1 + len(OTHERS) * len(tried)
    calls = Counter[nn.Module]()

    def changed(first: int, handler: Handler, signs: SignPair, module: Any, *inputs: Any, **named: Any) -> Any:
        out = handler(signs, module, *inputs, **named)
        if all(isinstance(x, Tensor) and x.ndim == 2 and len(x) == rows for x in inputs) and not named:
            return out  # called on the tokens that are read
        shaped = [isinstance(x, Tensor) and x.ndim == 3 and x.shape[:2] == (rows, len(text)) for x in (*inputs, out)]
        calls[module] += 1 if all(shaped) and not named else 2
        if calls[module] == 1:
            for row, value in enumerate(OTHERS, first):
                kept = out[row, place].clone()
                out[row] = value
                out[row, place] = kept
        return out

    firsts = {each: 1 + len(OTHERS) * number for number, (each, _) in enumerate(tried)}
    mixed = [(each, partial(changed, firsts[each], run) if each in firsts else run) for each, run in handlers]
    signs = SignPair(Unperturbed(), torch.float32, rows, unperturbed=True)
    with torch.no_grad(), _buffers_kept(walk.module), patched(mixed, signs):
        losses = walk.losses(walk.scores, (text.expand(rows, -1), label.expand(rows, *label.shape))).float()
    same = (losses - losses[0]).abs() <= ROUNDING * losses[0].abs()
    order = list(calls)
    read = [number for number, each in enumerate(order) if calls[each] > 1 or not bool(same[_rows(firsts[each])].all())]
    return set(order[max(read, default=-1) + 1 :])
