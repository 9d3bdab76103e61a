"""Attention that is fast on short prompts, in a captured graph and on a CPU.

During a capture, transformers cannot read a mask's values and builds a full mask, which keeps attention off its fast
path. Prompts are padded on the right, so a causal model needs no mask, and any other model needs a mask of keys only.
On a CPU its masks stay what they are.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import nn

from cyber0.layerwise import native_attention

__all__ = ["attention_on_cpu", "fast_attention"]

NAME = "cyber0"
KNOWN = {"dropout", "is_causal", "scaling", "position_ids", "cache_position", "use_cache", "output_attentions"}
_PADDED: ContextVar[bool] = ContextVar("padded", default=True)
_ON_CPU: ContextVar[bool] = ContextVar("on_cpu", default=False)


@contextmanager
def fast_attention(module: nn.Module, *, padded: bool) -> Generator[None]:
    """Make the transformers models in a module use this attention; `padded` says whether any prompt is padded.

    >>> with fast_attention(nn.Linear(3, 2), padded=True):
    ...     pass
    """
    found: list[Any] = [getattr(each, "config", None) for each in module.modules()]
    configs = {id(config): config for config in found if getattr(config, "_attn_implementation", None) == "sdpa"}
    if configs:
        _register()
    token = _PADDED.set(padded)
    tables: Any = None
    if any(getattr(config, "_attn_implementation", None) == "eager" for config in found):
        tables = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    try:
        if tables is not None:
            tables["eager"] = _eager_mask
        for config in configs.values():
            config._attn_implementation = NAME
        yield
    finally:
        for config in configs.values():
            config._attn_implementation = "sdpa"
        if tables is not None:
            del tables["eager"]  # transformers' own is there again
        _PADDED.reset(token)


@cache
def _register() -> None:
    transformers: Any = import_module("transformers")
    masks: Any = import_module("transformers.masking_utils")
    transformers.AttentionInterface.register(NAME, _attend)
    masks.AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def attention_on_cpu() -> Generator[None]:
    """Make transformers models on a CPU that use torch's attention use ours, within the context and in this thread.

    >>> with attention_on_cpu():
    ...     pass
    """
    if native_attention.library() is not None:
        _take_over()
    token = _ON_CPU.set(True)
    try:
        yield
    finally:
        _ON_CPU.reset(token)


def _take_over() -> None:
    """Let transformers call `_attend_on_cpu` for torch's attention, unless it calls something of somebody else's."""
    imported: Any = sys.modules.get("transformers.modeling_utils")
    functions = getattr(imported, "ALL_ATTENTION_FUNCTIONS", None)  # not there yet while a thread imports the module
    if functions is not None and functions["sdpa"] is (own := _forward()):
        functions.register("sdpa", partial(_attend_on_cpu, own))  # what somebody registers after it is used instead


def _attend_on_cpu(
    own: Any, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *more: Any, **options: Any
) -> tuple[Any, None]:
    """Return what transformers' own function does; by our kernel within `attention_on_cpu`, if prompts are short."""
    if torch.compiler.is_compiling() or not _ON_CPU.get() or more:  # in this order: a ContextVar cannot be compiled
        return own(module, query, key, value, attention_mask, *more, **options)
    others = {name: value for name, value in options.items() if name in _read()}  # the rest changes nothing
    if _known(others) and native_attention.supports(query, key, value, attention_mask):
        causal, scale = _causal(module, query, attention_mask, options), _scale(query, options)
        return native_attention.attention(query, key, value, attention_mask, scale, causal=causal), None
    return own(module, query, key, value, attention_mask, **options)


def _attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    """Return what transformers computes; by our own kernel if prompts are short, and nothing is differentiated."""
    if _known(options) and query.is_cuda and not query.requires_grad and find_spec("triton") is not None:
        from cyber0.layerwise import short_attention

        if short_attention.supports(query, key, attention_mask):
            causal, scale = _causal(module, query, attention_mask, options), _scale(query, options)
            return short_attention.attention(query, key, value, attention_mask, scale, causal=causal), None
    return _forward()(module, query, key, value, attention_mask, **options)


@cache
def _forward() -> Any:
    """Return transformers' attention by torch's."""
    return import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward


@cache
def _read() -> frozenset[str]:
    """Return the options that it reads: of others, such as a window, it finds what they ask for in the mask."""
    return frozenset(signature(_forward()).parameters)


def _known(options: dict[str, Any]) -> bool:
    """Return whether options change nothing that a kernel of ours computes."""
    return all(name in KNOWN or value is None for name, value in options.items()) and not options.get("dropout")


def _causal(module: Any, query: Any, mask: Any, options: dict[str, Any]) -> bool:
    """Return whether a query sees no later keys, as transformers decides it."""
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return bool(causal) and mask is None and query.shape[2] > 1


def _scale(query: Any, options: dict[str, Any]) -> float:
    scale = options.get("scaling")
    return query.shape[3] ** -0.5 if scale is None else scale


def _mask(*arguments: Any, mask_function: Any = None, attention_mask: Any = None, **options: Any) -> Any:
    masks: Any = import_module("transformers.masking_utils")
    same = options["q_length"] == options["kv_length"]
    if mask_function is masks.causal_mask_function and same:
        return None
    if mask_function is masks.bidirectional_mask_function and same:
        return attention_mask[:, None, None, :].bool() if _PADDED.get() and attention_mask is not None else None
    return masks.sdpa_mask(*arguments, mask_function=mask_function, attention_mask=attention_mask, **options)


def _eager_mask(*arguments: Any, dtype: Any, **options: Any) -> Any:
    """Return what transformers does, but without copying a number from the host, which cannot be captured."""
    masks: Any = import_module("transformers.masking_utils")
    mask = masks.sdpa_mask(*arguments, **options | {"allow_is_causal_skip": False})
    return None if mask is None else mask.new_zeros((), dtype=dtype).where(mask, torch.finfo(dtype).min)
