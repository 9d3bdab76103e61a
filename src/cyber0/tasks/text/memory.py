"""How much memory a model needs, against how much there is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cyber0.config import RunConfig
from cyber0.errors import InvalidEstimate, InvalidModel, UnknownName
from cyber0.layerwise.batching import cuts
from cyber0.layerwise.measure import is_layerwise
from cyber0.layerwise.modules import blocks, handlers, trained
from cyber0.layerwise.source import TOGETHER
from cyber0.layerwise.walk import FIXED
from cyber0.tasks.text.classifier import AT_ONCE
from cyber0.tasks.text.heads import LabelRows

__all__ = [
    "Need",
    "available",
    "check",
    "check_run",
    "check_training",
    "held",
    "needed",
    "of_module",
    "of_run",
    "readable",
]

ENGINES = ("plain", "layerwise")
BYTES = {"float32": (4, 4), "mixed": (4, 2), "bf16": (2, 2)}  # of a weight, and of a number in the arithmetic
WIDE = 8  # vectors of a token's width that a layer of a transformer holds at once
MATRICES = {"cuda": TOGETHER}  # matrices whose signs a walk makes together; one elsewhere


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that training needs: for weights, which is known, and for activations, which is a guess.

    >>> Need(weights=3 * 2**30, activations=2**29).total
    3758096384
    """

    weights: int
    activations: int = 0

    @property
    def total(self) -> int:
        """SignPair."""
        return self.weights + self.activations


def needed(
    parameters: int,
    largest: int = 0,
    *,
    precision: str = "float32",
    engine: str = "plain",
    frozen: int = 0,
    at_once: int = 1,
    block: int = 0,
    local_models: int = 0,
    activations: int = 0,
) -> Need:
    """What it takes to train so many parameters, the largest matrix of them having `largest`, beside `frozen` others.

    plain: w, w + mu z and w - mu z. layerwise: w, and both signs of as many such matrices as are made `at_once`, and in
    float32 of the largest `block` of modules that run as one. Where clients keep `local_models`, each takes that too;
    `activations` are numbers, not bytes.

    >>> readable(needed(355_000_000).total), readable(needed(355_000_000, 4_200_000, engine="layerwise").total)
    ('4.0 GiB', '1.4 GiB')
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if precision not in BYTES:
        raise UnknownName("precision", precision, BYTES)
    master, number = BYTES[precision]
    whole = 2 * parameters
    beside = min(2 * at_once * largest, whole) * number + 8 * block if engine == "layerwise" else whole * master
    kept = frozen * (master if master == number else master + number)
    models = (1 + local_models) * (parameters * master + kept)
    return Need(models + max(1, local_models) * beside, activations * number)


def of_module(module: nn.Module, tokens: int = 0, **options: Any) -> Need:
    """What it takes to train a module, with so many tokens of prompts under way at a time; options as of `needed`.

    Of embeddings the layer-wise engine only makes the rows that a batch looks up, of output embeddings those of label
    words.

    >>> of_module(nn.Linear(9, 100), engine="layerwise").weights == 4 * (1000 + 2 * 900)
    True
    """
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding | LabelRows)}
    frozen = sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)
    matrices = [each.numel() for each in module.parameters() if each.requires_grad and id(each) not in tables]
    config: Any = getattr(getattr(module, "whole", None), "config", None)
    width = 2 * getattr(config, "intermediate_size", 0) + WIDE * getattr(config, "hidden_size", 0)
    found: dict[str, Any] = {"frozen": frozen, "activations": tokens * width}
    try:
        found["block"] = max((trained(each) + _largest(each) for each in blocks(handlers(module))), default=0)
    except InvalidEstimate:
        options["engine"] = "plain"
    return needed(trained(module), max(matrices, default=0), **found | options)


def _largest(module: nn.Module) -> int:
    return max(parameter.numel() for parameter in module.parameters())


def of_run(
    module: nn.Module,
    config: RunConfig,
    device: torch.device | str = "cpu",
    sizes: Sequence[int] = (),
    tests: Sequence[int] = (),
) -> Need:
    """What a run takes to train and to evaluate a module; `sizes` and `tests` are how many tokens prompts have.

    >>> of_run(nn.Linear(9, 100), RunConfig()).weights == 3 * 4 * 1000  # not a language model: three copies
    True
    """
    samples = config.batch * (config.clients if config.engine == "batched" else 1)
    evaluated = min(AT_ONCE, len(tests) * max(tests, default=0))
    tokens = max(_tokens(sizes, samples, device), evaluated)
    return of_module(module, tokens, **_options(module, config, device))


def check_run(module: nn.Module, config: RunConfig, device: torch.device | str = "cpu") -> None:
    """Refuse a run of a language model whose weights do not fit on a device; other models are small.

    >>> check_run(nn.Linear(9, 100), RunConfig())
    """
    if is_layerwise(module):
        check_training(module, device, **_options(module, config, device))


def _options(module: nn.Module, config: RunConfig, device: torch.device | str) -> dict[str, Any]:
    walked = is_layerwise(module) and config.mu > 0
    alone = config.engine == "sequential" and config.local_epochs > 1
    return {
        "engine": "layerwise" if walked else "plain",
        "precision": config.precision,
        "at_once": MATRICES.get(torch.device(device).type, 1),
        "local_models": config.clients if alone else 0,
    }


def _tokens(sizes: Sequence[int], samples: int, device: torch.device | str) -> int:
    """How many tokens are under way at a time, both signs: those of the largest part of so many samples."""
    if len(sizes) == 0:
        return 0
    batch = np.quantile(np.asarray(sizes), np.linspace(0, 1, samples), method="nearest").astype(np.int64)
    ends = cuts(batch, FIXED.get(torch.device(device).type, FIXED["cpu"]))
    return 2 * max((end - begin) * int(batch[end - 1]) for begin, end in pairwise(ends))


def check_training(module: nn.Module, device: torch.device | str = "cpu", **options: Any) -> Need:
    """Refuse to train a module whose weights do not fit on a device; what it holds there already counts as free.

    Options as of `of_module`. What activations take is a guess, so nothing is refused for it.

    >>> check_training(nn.Linear(9, 100)).weights
    12000
    >>> check_training(nn.Linear(9, 100), local_models=10**12)
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: training in float32 needs 11,175,870.9 GiB, and ... GiB are free on cpu: use a \
smaller model, an adapter as in sst2(adapter='lora'), precision = 'bf16', engine = 'batched', one local epoch, or \
another machine
    """
    need, free = of_module(module, **options), available(device)
    if free is not None and need.weights - held(module, device) > free:
        precision = options.get("precision", "float32")
        ways = ["use a smaller model", "an adapter as in sst2(adapter='lora')"]
        ways += ["precision = 'bf16'"] * (precision != "bf16")
        ways += ["engine = 'batched'", "one local epoch"] if options.get("local_models") else []
        raise InvalidModel(
            f"training in {precision} needs {readable(need.weights)}, and {readable(free + held(module, device))} are "
            f"free on {device}: {', '.join(ways)}, or another machine"
        )
    return need


def held(module: nn.Module, device: torch.device | str) -> int:
    """How many bytes of a device a module's parameters take already.

    >>> held(nn.Linear(9, 100), "cpu")
    4000
    """
    there = [each for each in module.parameters() if each.device.type == torch.device(device).type]
    return sum(each.numel() * each.element_size() for each in there)


def available(device: torch.device | str = "cpu") -> int | None:
    """How many bytes are free on a device; None where the system does not tell.

    >>> available("cpu") > 2**20
    True
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo")
    if lines.exists():
        found = dict(line.split(":", 1) for line in lines.read_text().splitlines())
        return int(found["MemAvailable"].split()[0]) * 1024
    names: Any = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else None


def check(parameters: int, copies: int, device: torch.device | str = "cpu") -> None:
    """Refuse a model of which so many float32 copies do not fit: 1 to load it, 3 for a client (w, w + mu z, w - mu z).

    >>> check(parameters=10**15, copies=3)
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: 3 float32 copies of 1,000,000,000,000,000 parameters need 11,175,870.9 GiB, and ... \
GiB are free on cpu: use a smaller model, an adapter as in sst2(adapter='lora'), or another machine
    """
    need, free = 4 * parameters * copies, available(device)
    if free is not None and need > free:
        raise InvalidModel(
            f"{copies} float32 copies of {parameters:,} parameters need {readable(need)}, and {readable(free)} are "
            f"free on {device}: use a smaller model, an adapter as in sst2(adapter='lora'), or another machine"
        )


def readable(size: float) -> str:
    """Bytes in GiB.

    >>> readable(3 * 2**29)
    '1.5 GiB'
    """
    return f"{size / 2**30:,.1f} GiB"
