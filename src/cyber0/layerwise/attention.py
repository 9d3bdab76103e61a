"""Attention that a captured graph can run fast.

Under capture transformers cannot look at a mask's values, and builds a full one, with which attention leaves its
fast path. Prompts are padded at the right, so a causal model needs no mask, and any other model one of keys only.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

__all__ = ["fast"]

NAME = "cyber0"
PLAIN = {"dropout", "is_causal", "scaling", "position_ids", "cache_position", "use_cache", "output_attentions"}
_PADDED: ContextVar[bool] = ContextVar("padded", default=True)


@contextmanager
def fast(module: nn.Module, *, padded: bool) -> Generator[None]:
    """Make the transformers models in a module attend this way; `padded` says whether any prompt is padded.

    >>> with fast(nn.Linear(3, 2), padded=True):
    ...     pass
    """
    configs = {id(config): config for config in map(_config, module.modules()) if config is not None}
    before = [(config, config._attn_implementation) for config in configs.values()]
    before = [(config, name) for config, name in before if name == "sdpa"]
    if before:
        _register()
    token = _PADDED.set(padded)
    try:
        for config, _ in before:
            config._attn_implementation = NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        _PADDED.reset(token)


def _config(module: Any) -> Any:
    config = getattr(module, "config", None)
    return config if getattr(config, "_attn_implementation", None) is not None else None


@cache
def _register() -> None:
    transformers: Any = import_module("transformers")
    masks: Any = import_module("transformers.masking_utils")
    transformers.AttentionInterface.register(NAME, _attend)
    masks.AttentionMaskInterface.register(NAME, _mask)


def _attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    """Attend as transformers does by default, or by our own kernel where prompts are short and Triton is installed."""
    plain = all(name in PLAIN or value is None for name, value in options.items()) and not options.get("dropout")
    if plain and query.is_cuda and find_spec("triton") is not None:
        from cyber0.layerwise import short_attention

        if short_attention.suits(query, key, attention_mask):
            causal = options.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            scale = options.get("scaling") or query.shape[3] ** -0.5
            return short_attention.attention(
                query, key, value, attention_mask, scale, causal=bool(causal) and attention_mask is None
            ), None
    sdpa: Any = import_module("transformers.integrations.sdpa_attention")
    return sdpa.sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def _mask(*arguments: Any, mask_function: Any = None, attention_mask: Any = None, **options: Any) -> Any:
    masks: Any = import_module("transformers.masking_utils")
    same = options["q_length"] == options["kv_length"]
    if mask_function is masks.causal_mask_function and same:
        return None
    if mask_function is masks.bidirectional_mask_function and same:
        return attention_mask[:, None, None, :].bool() if _PADDED.get() and attention_mask is not None else None
    return masks.sdpa_mask(*arguments, mask_function=mask_function, attention_mask=attention_mask, **options)
