# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Attention over short prompts on a CUDA device: one program for each sample and head, everything in registers.

Kernels made for long sequences work in tiles of 64 and 128 tokens, most of which prompts leave empty.
"""

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["LONGEST", "attention", "supports"]

LONGEST = 128


@triton.jit
def _attention(
    query, key, value, mask, out, scale, length, heads, groups,
    query_batch, query_head, query_token, key_batch, key_head, key_token, value_batch, value_head, value_token,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    sample, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    token, lane = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    inside = (token < length)[:, None]
    q_at = query + sample * query_batch + head * query_head + token[:, None] * query_token + lane[None, :]
    k_at = key + sample * key_batch + (head // groups) * key_head + token[:, None] * key_token + lane[None, :]
    v_at = value + sample * value_batch + (head // groups) * value_head + token[:, None] * value_token + lane[None, :]
    q, k = tl.load(q_at, mask=inside, other=0.0), tl.load(k_at, mask=inside, other=0.0)
    v = tl.load(v_at, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k)) * scale
    seen = (token < length)[None, :]
    if MASKED:
        seen = seen & (tl.load(mask + sample * length + token, mask=token < length, other=0) != 0)[None, :]
    if CAUSAL:
        seen = seen & (token[:, None] >= token[None, :])
    scores = tl.where(seen, scores, -1e30)
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    weights = weights / tl.sum(weights, axis=1)[:, None]
    result = tl.dot(weights.to(v.dtype), v)
    o_at = out + ((sample * length + token[:, None]) * heads + head) * WIDTH + lane[None, :]
    tl.store(o_at, result.to(out.dtype.element_ty), mask=inside)


def supports(query: Any, key: Any, mask: Any) -> bool:
    """Return whether the kernel can take tensors [batch, heads, tokens, width]; a mask must be one of keys."""
    width, tokens = query.shape[3], query.shape[2]
    plain = query.dtype == torch.bfloat16 and width in (16, 32, 64, 128) and tokens == key.shape[2] <= LONGEST
    return plain and (mask is None or (mask.dtype == torch.bool and mask.shape == (len(query), 1, 1, tokens)))


def attention(query: Any, key: Any, value: Any, mask: Any, scale: float, *, causal: bool) -> Any:
    """Return the attention of query [batch, heads, tokens, width] to keys and values of as many or fewer heads.

    The result is [batch, tokens, heads, width], as transformers expects it.
    """
    batch, heads, length, width = query.shape
    query, key, value = (each if each.stride(3) == 1 else each.contiguous() for each in (query, key, value))
    out = torch.empty(batch, length, heads, width, dtype=query.dtype, device=query.device)
    tokens = max(16, triton.next_power_of_2(length))
    strides = (each.stride(axis) for each in (query, key, value) for axis in range(3))
    keys = query if mask is None else mask.reshape(batch, length).to(torch.int8)
    _attention[(batch * heads,)](
        *(query, key, value, keys, out, scale, length, heads, heads // key.shape[1], *strides),
        MASKED=mask is not None, CAUSAL=causal, TOKENS=tokens, WIDTH=width, num_warps=max(1, tokens // 16),
    )  # fmt: skip
    return out
