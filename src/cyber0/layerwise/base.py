"""The digest of all that a model holds and does not train: frozen weights, buffers, packed bits.

Two parties whose frozen weights or quantisers differ would measure different models, and no weight that they train
would show it. Buffers that are not saved with a model are left out: its code computes them anew on each machine, not
always to the same last bit.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from cyber0.directions.select import host
from cyber0.layerwise.frozen import FrozenLinear, StreamedLinear

__all__ = ["frozen_digest"]

DOMAIN = "cyber0 frozen 1"


def frozen_digest(module: nn.Module) -> str | None:
    """Return a SHA-256 over the name, shape, type and SHA-256 of each tensor that is not trained; None without any.

    It is the same wherever these lie: on a device, in pinned memory, or in files. They are read one after the other.

    >>> frozen_digest(nn.Linear(3, 2)) is None
    True
    >>> model = nn.Linear(3, 2).requires_grad_(False)
    >>> _ = nn.init.zeros_(model.weight), nn.init.ones_(model.bias)
    >>> frozen_digest(model)[:16]
    '970743f2a198b9bc'
    """
    found = dict(_tensors(module))
    if not found:
        return None
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        digests = list(threads.map(_digest, found.values()))
    facts = [
        [name, list(tensor.shape), str(tensor.dtype).removeprefix("torch."), digest]
        for (name, tensor), digest in zip(found.items(), digests, strict=True)
    ]
    text = json.dumps([DOMAIN, sorted(facts)], separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    trained = {id(each) for each in module.parameters() if each.requires_grad}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in trained:
            yield name, tensor.detach()
    whole: Any = module
    for name, part in whole.named_modules():
        if isinstance(part, FrozenLinear):
            for own, tensor in part.stored().items():
                yield f"{name}.{'weight' if isinstance(part, StreamedLinear) else own}", tensor


def _digest(tensor: torch.Tensor) -> str:
    array: Any = host(tensor.cpu().contiguous().view(-1))
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<"), copy=False).data).hexdigest()
