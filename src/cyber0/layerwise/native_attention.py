"""Attention over short prompts on a CPU: one sample and head of keys at a time, in the caches of a core.

torch's own is made for long sequences; `python -m benchmarks.short_prompts` compares them.
"""

import ctypes
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils._device import DeviceContext

from cyber0.directions.native import openmp

__all__ = ["LONGEST", "attention", "library", "supports"]

Tensor = torch.Tensor
NAME = "cyber0.layerwise._attention"
LONGEST, WIDEST, LANES = 128, 128, 8  # tokens; values of a head, and of what they must be a multiple


class _Strided(ctypes.Structure):
    """A tensor, and its strides but the last one."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3))


class _Problem(ctypes.Structure):
    """What _attention.c calls `problem`."""

    _fields_ = (
        *((name, _Strided) for name in ("query", "key", "value")),
        *(("mask", ctypes.c_void_p), ("mask_strides", ctypes.c_int64 * 2), ("out", ctypes.c_void_p)),
        *((name, ctypes.c_int64) for name in ("samples", "groups", "heads_of_group", "tokens", "width")),
        *(("scale", ctypes.c_float), ("bf16", ctypes.c_int32), ("causal", ctypes.c_int32), ("next", ctypes.c_int64)),
    )


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the compiled library; None if there is none, or this processor is not one that it is made for."""
    spec = find_spec(NAME)
    if spec is None or spec.origin is None:
        return None
    loaded = ctypes.CDLL(spec.origin)
    loaded.cyber0_attention.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.cyber0_attention.restype = None
    return loaded if loaded.cyber0_attention_runs() else None


def supports(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Return whether `attention` can take tensors [batch, heads, tokens, width], on this machine.

    A mask is one of keys for each query: booleans that broadcast to [batch, 1, tokens, tokens].

    >>> x = torch.ones(1, 2, 5, 16)
    >>> supports(x, x, x.double(), None), supports(x, x, x, torch.zeros(5, 5))
    (False, False)
    """
    given = (query, key, value)
    if library() is None or _transformed() or _replaced() or not all(map(_plain, given)):
        return False
    if torch.is_grad_enabled() and any(each.requires_grad for each in given):
        return False
    if query.dtype not in (torch.float32, torch.bfloat16):
        return False
    if any(each.dtype != query.dtype or each.ndim != 4 or each.numel() == 0 for each in given):
        return False
    batch, heads, tokens, width = query.shape
    if tokens > LONGEST or width > WIDEST or width % LANES:
        return False
    if key.shape != value.shape or (len(key), *key.shape[2:]) != (batch, tokens, width) or heads % key.shape[1]:
        return False
    if mask is None:
        return True
    shapes = ((1, batch), (1,), (1, tokens), (tokens,))
    known = _plain(mask) and mask.dtype == torch.bool and mask.ndim == 4
    return known and all(size in sizes for size, sizes in zip(mask.shape, shapes, strict=True))


def _plain(x: Tensor) -> bool:
    """Return whether a tensor is what lies in its memory, on the CPU."""
    usual = type(x) is Tensor and x.device.type == "cpu" and x.layout == torch.strided
    return usual and not (x.is_nested or x.is_neg() or x._is_zerotensor())


def _transformed() -> bool:
    """Return whether torch computes something else than it is told: derivatives forward, batches, or another type."""
    functorch = vars(torch)["_C"]._functorch
    forward = vars(torch.autograd.forward_ad)["_current_level"] >= 0
    return forward or functorch.peek_interpreter_stack() is not None or torch.is_autocast_enabled("cpu")


def _replaced() -> bool:
    """Return whether somebody has torch's own attention do something else; a default device changes nothing."""
    if nn.functional.scaled_dot_product_attention is not vars(torch)["_C"]._nn.scaled_dot_product_attention:
        return True
    modes: list[Any] = vars(torch.overrides)["_get_current_function_mode_stack"]()
    return any(type(each) is not DeviceContext for each in modes)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, *, causal: bool) -> Tensor:
    """Return the attention of query [batch, heads, tokens, width] to keys and values of as many or fewer heads.

    It is computed in float32. The result is [batch, tokens, heads, width], as transformers expects it; zero for a query
    that sees no key. It does not depend on how many threads compute it.

    >>> x = torch.eye(16).view(1, 1, 16, 16)
    >>> if supports(x, x, x, None):
    ...     near = attention(x, x, x, None, 100.0, causal=True).view(16, 16)
    ...     assert torch.allclose(near, torch.eye(16))
    """
    batch, heads, tokens, width = query.shape
    query, key, value = (each if each.stride(3) == 1 else each.contiguous() for each in (query, key, value))
    out = query.new_empty(batch, tokens, heads, width)
    seen = None if mask is None else mask.expand(batch, 1, tokens, tokens)
    seen = seen if seen is None or seen.stride(3) == 1 else seen.contiguous()
    problem = _Problem(
        *(_Strided(each.data_ptr(), each.stride()[:3]) for each in (query, key, value)),
        *((None, (0, 0)) if seen is None else (seen.data_ptr(), (seen.stride(0), seen.stride(2)))),
        *(out.data_ptr(), batch, key.shape[1], heads // key.shape[1], tokens, width),
        *(scale, query.dtype == torch.bfloat16, causal),
    )
    team = openmp()
    library().cyber0_attention(None if team is None else ctypes.addressof(team), ctypes.addressof(problem))
    return out
