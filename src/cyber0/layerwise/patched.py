"""Run a module with other code for those of its parts that hold weights, within a context."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidEstimate
from cyber0.layerwise import modules
from cyber0.layerwise.modules import Handler, SignPair
from cyber0.layerwise.source import Unperturbed
from cyber0.layerwise.whole_model import in_arithmetic

__all__ = ["in_float32", "patched"]


@contextmanager
def patched(handlers: Sequence[tuple[nn.Module, Handler]], signs: SignPair) -> Generator[None]:
    """Let handlers run their modules within the context.

    >>> model = nn.Sequential(nn.Linear(3, 2))
    >>> with patched(modules.handlers(model), SignPair(Unperturbed(), torch.float32, 0, unperturbed=True)):
    ...     model(torch.ones(1, 3)).shape
    torch.Size([1, 2])
    """
    before = [(module, module.__dict__.get("forward")) for module, _ in handlers]
    try:
        for module, handler in handlers:
            module.__dict__["forward"] = partial(handler, signs, module)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


@contextmanager
def in_float32(module: Any) -> Generator[None]:
    """Let a module whose weights are of several types run within the context, each in float32 when it is used.

    One that cannot be walked has its products computed in bf16 instead.

    >>> model = nn.Sequential(nn.Linear(3, 3).bfloat16(), nn.LayerNorm(3))
    >>> with in_float32(model):
    ...     model(torch.ones(1, 3)).dtype
    torch.float32
    """
    if all(parameter.dtype == torch.float32 for parameter in module.parameters()):
        yield
        return
    try:
        found = modules.handlers(module)
    except InvalidEstimate:
        with in_arithmetic(next(module.parameters()).device, torch.bfloat16):
            yield
        return
    with patched(found, SignPair(Unperturbed(), torch.float32, 0, unperturbed=True)):
        yield
