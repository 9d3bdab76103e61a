"""Weights that are not trained in few bits each: in blocks of 64, each with a scale of its own.

    8 bits: w = code * scale                 with whole codes from -127 to 127, scale = the block's largest / 127
    4 bits: w = NORMAL[code] * scale         with 16 levels (NF4; Dettmers et al., 2023), scale = the block's largest

Scales are rounded to bf16 before the codes are chosen. All of it is made of IEEE-exact float32 operations (divisions,
roundings, comparisons), so every machine packs the same weights to the same bits, which parties can compare; the
kernels of libraries lay out their codes differently on each kind of processor. A product unpacks its matrix to the type
of the activations first: batches of many tokens are bound by the product itself, not by reading the weights.
"""

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch

from cyber0.errors import InvalidModel

__all__ = ["BITS", "BLOCK", "pack", "unpack"]

Tensor = torch.Tensor
BITS = (4, 8)
BLOCK = 64
AT_ONCE = 2**24  # weights that are packed in one step
NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def pack(weights: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the codes of weights, in row-major order, and the scales of their blocks.

    Codes are int8, or uint8 of two codes of 4 bits, the first one low.

    >>> codes, scales = pack(torch.tensor([[1.0, -0.5, 0.25, 0.0]]), bits=8)
    >>> codes, scales
    (tensor([127, -64,  32,   0], dtype=torch.int8), tensor([0.0079], dtype=torch.bfloat16))
    >>> pack(torch.tensor([[1.0, -0.5, 0.25, 0.0]]), bits=4)[0]
    tensor([ 47, 122], dtype=torch.uint8)
    """
    if bits not in BITS:
        raise InvalidModel(f"bits = {bits!r}: weights are packed in {' or '.join(map(str, BITS))} bits")
    flat = weights.detach().reshape(-1)
    parts = [_packed(flat[first : first + AT_ONCE], bits) for first in range(0, len(flat), AT_ONCE)]
    codes, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return codes[: len(flat) if bits == 8 else -(-len(flat) // 2)], scales


def _packed(part: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    blocks = torch.zeros(-(-len(part) // BLOCK), BLOCK, device=part.device)
    blocks.view(-1)[: len(part)] = part
    if not blocks.isfinite().all():
        raise InvalidModel("a weight that is to be packed is not finite")
    largest = blocks.abs().amax(1, keepdim=True)
    scales = (largest / torch.full_like(largest, 127) if bits == 8 else largest).bfloat16()  # a true division
    scaled = blocks / scales.float().clamp(min=torch.finfo(torch.bfloat16).tiny)
    if bits == 8:
        return scaled.round().clamp(-127, 127).to(torch.int8).view(-1), scales.view(-1)
    levels = _levels(part.device)
    codes = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2).to(torch.uint8).view(-1, 2)
    return codes[:, 0] | (codes[:, 1] << 4), scales.view(-1)


def unpack(codes: Tensor, scales: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    """Return packed weights in a type, where their codes are; each is one product in float32, rounded once.

    >>> weights = torch.linspace(-1, 1, 128).view(2, 64)
    >>> [float((unpack(*pack(weights, bits), weights.shape, torch.float32) - weights).abs().max()) for bits in (8, 4)]
    [6.10...e-05, 0.146...]
    """
    count, device = int(torch.Size(shape).numel()), codes.device
    if device.type == "cuda" and find_spec("triton") is not None:
        from cyber0.layerwise import kernels

        return kernels.unpack(codes, scales, torch.empty(shape, dtype=dtype, device=device), _levels(device))
    if codes.dtype == torch.int8:
        values = codes.float()
    else:
        pairs = torch.stack([codes & 15, codes >> 4], dim=1).view(-1)[:count]
        values = _levels(device)[pairs.int()]
    if count % BLOCK == 0:
        values.view(-1, BLOCK).mul_(scales.float()[:, None])
    else:
        values *= scales.float().repeat_interleave(BLOCK)[:count]
    return values.view(shape).to(dtype)


@lru_cache
def _levels(device: torch.device) -> Tensor:
    return torch.tensor(NORMAL, device=device)
