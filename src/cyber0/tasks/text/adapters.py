"""Adapters: a few trainable weights beside a model's own, which stay as they are."""

import math
from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from cyber0 import registry
from cyber0.directions import DirectionKey, sample
from cyber0.errors import InvalidModel
from cyber0.extras import require
from cyber0.layerwise.frozen import FrozenLinear, is_packed, pack_linears
from cyber0.tasks.models import INITIAL_ROUND
from cyber0.tasks.text import hub
from cyber0.tasks.text.checkpoint import Checkpoint

__all__ = ["ADAPTERS", "get_adapter", "loader", "lora", "merged"]


def lora(
    model: Any,
    seed: int,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    targets: str | tuple[str, ...] | None = None,
    bits: int | None = None,
) -> None:
    """Add low-rank adapters (Hu et al., 2022) to a model by peft: W + (alpha / rank) B A, with B zero at the start.

    A is drawn from the direction stream of the seed. `targets` are names of layers, or one name; by default those that
    peft has for the architecture. With `bits`, 4 or 8, the weights of all linear layers are packed first; A and B are
    float32 then, at any precision.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
    >>> lora(model, seed=0, rank=2)
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
    256
    """
    peft = require("peft", extra="text")
    if not _above_zero(rank, Integral):
        raise InvalidModel(f"lora(rank={rank!r}): the rank of an adapter is a whole number, at least 1")
    if not _above_zero(alpha, Real) or not 1e-30 * rank < alpha < 1e30 * rank:
        raise InvalidModel(f"lora(alpha={alpha!r}): alpha is a number above 0, by which an adapter is scaled")
    largest = max((min(each.shape) for each in model.parameters() if each.dim() == 2), default=1)
    if rank > largest:
        raise InvalidModel(f"lora(rank={rank:,}): the largest matrix of this model has rank {largest:,}, use less")
    if bits is not None and not is_packed(model):
        pack_linears(model, bits)
    layers = [targets] if isinstance(targets, str) else targets  # peft takes a bare string for a pattern
    layers = None if layers is None else list(layers)
    decoder = getattr(model, "get_output_embeddings", lambda: None)()
    outputs = next((name for name, each in model.named_modules() if each is decoder), None)
    if outputs is not None and any(f".{outputs}".endswith(f".{name}") for name in layers or ()):
        raise InvalidModel(f"lora(targets={targets!r}): {outputs}, the output embeddings, can have no adapter")
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers)
    random: Any = torch.random
    try:
        with random.fork_rng(devices=[]):
            peft.inject_adapter_in_model(config, model)
    except ValueError as error:
        raise InvalidModel(
            f"no adapter can be put into this model ({str(error).splitlines()[0]}): "
            "name its layers, as in adapter=\"lora(targets=('q_proj', 'v_proj'))\""
        ) from error
    _initialise(model, seed)


def _above_zero(given: Any, kind: type) -> bool:
    return isinstance(given, kind) and not isinstance(given, bool) and given > 0


def _initialise(model: Any, seed: int) -> None:
    key, start = DirectionKey(seed, INITIAL_ROUND), 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if "lora_A" in name:
                z = sample(key, parameter.numel(), start)
                z *= np.float32(1 / math.sqrt(parameter.shape[-1]))
                parameter.copy_(torch.as_tensor(z).view(parameter.shape))
            start += parameter.numel()


ADAPTERS: dict[str, Callable[..., None]] = {"lora": lora}


def get_adapter(name: str | Callable[..., None]) -> Callable[..., None]:
    """Return the adapter of a name, with its options bound, to be called with a model and a seed.

    >>> get_adapter("lora(rank=4)").keywords
    {'rank': 4}
    """
    return registry.resolve("adapter", name, ADAPTERS)


def loader(found: Checkpoint, adapter: str | Callable[..., None] | None) -> Callable[[int], Any]:
    """Return the function of a seed that loads a model and adds an adapter, if one is named, to it.

    If the adapter packs the model's weights, this is done as they are read.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> found = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama")))
    >>> loader(found, "lora(bits=4)")(0).model.layers[0].mlp.up_proj
    PackedLinear(in_features=16, out_features=32, bias=False, bits=4, block=64)
    """
    adapt: Any = None if adapter is None else get_adapter(adapter)
    bits = getattr(adapt, "keywords", {}).get("bits") if getattr(adapt, "func", None) is lora else None

    def load(seed: int) -> Any:
        with hub.ALONE:  # an adapter draws from torch's generator
            whole = found.load(None if bits is None else partial(pack_linears, bits=bits))
            if adapt is not None:
                adapt(whole, seed)
        return whole

    return load


def merged(model: Any) -> dict[str, torch.Tensor]:
    """Return a model's weights with its adapters added to them, under the names they have without adapters.

    >>> import tempfile
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
    >>> before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    >>> lora(model, seed=0)
    >>> after = merged(model)
    >>> all(torch.equal(before[name], after[name]) for name in before)          # B is zero
    True
    """
    weights = {
        name.replace(".base_layer.", "."): tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, module in model.named_modules():
        if isinstance(module, FrozenLinear):
            plain = name.removesuffix(".base_layer")
            for part in module.stored():
                weights.pop(f"{plain}.{part}", None)
            weights[f"{plain}.weight"] = module.weight
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and len(module.lora_A):
            for adapter in module.lora_A:
                weights[f"{name}.weight"] += module.get_delta_weight(adapter).detach()
    return weights
