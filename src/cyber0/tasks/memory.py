"""How much memory a run needs, against how much there is."""

import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidEstimate, InvalidModel, UnknownName
from cyber0.layerwise.batching import cuts
from cyber0.layerwise.frozen import PackedLinear, weights_at_hand
from cyber0.layerwise.mapped import is_mapped
from cyber0.layerwise.micro_batches import OVERHEAD, most_tokens
from cyber0.layerwise.modules import blocks, handlers, trained
from cyber0.layerwise.protocols import is_layerwise
from cyber0.layerwise.source import MATRICES_AT_ONCE
from cyber0.tasks.dataset import Dataset

__all__ = [
    "Need",
    "RowReader",
    "TokenModel",
    "at_most",
    "available",
    "bytes_of",
    "check",
    "check_batches",
    "check_run",
    "check_training",
    "held",
    "needed",
    "of_module",
    "of_run",
    "readable",
]

ENGINES = ("plain", "layerwise", "backward")
BYTES = {"float32": (4, 4), "mixed": (4, 2), "bf16": (2, 2)}  # of a weight, and of a number in the arithmetic
DRAWN = 48  # bytes that it takes to draw the number of a sample
ALLOWED: ContextVar[int | None] = ContextVar("bytes that may be used", default=None)
MATRICES = {"cuda": MATRICES_AT_ONCE}  # matrices whose signs a walk makes together; one elsewhere


@runtime_checkable
class TokenModel(Protocol):
    """A model of texts that says what a token takes."""

    def numbers_per_token(self) -> int:
        """Return how many numbers a layer holds at once for each token, roughly."""
        ...

    def tokens_at_once(self) -> int:
        """Return how many tokens it takes in one forward pass at most."""
        ...


@runtime_checkable
class RowReader(Protocol):
    """A module that reads a few rows of its `weight`, as an embedding does, so that only these are perturbed."""

    def rows_read(self) -> int:
        """Return how many rows it reads."""
        ...


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that training needs: for weights, which is known, and for activations, which is a guess."""

    weights: int
    activations: int = 0

    @property
    def total(self) -> int:
        """Return the bytes for weights and activations together."""
        return self.weights + self.activations


def needed(
    parameters: int,
    largest: int = 0,
    *,
    precision: str = "float32",
    engine: str = "plain",
    frozen: int = 0,
    packed: int = 0,
    most: int | None = None,
    at_once: int = 1,
    block: int = 0,
    local_models: int = 0,
    gradients: int = 0,
    activations: int = 0,
) -> Need:
    """Return the memory that it takes to train so many parameters.

    Args:
        parameters: How many are trained.
        largest: How many the largest matrix among them has.
        precision: That of weights and arithmetic: float32, mixed or bf16.
        engine: plain holds w, w + mu z and w - mu z; layerwise w, and both signs of a few matrices; backward w, and
            gradients.
        frozen: How many parameters are not trained.
        packed: Bytes of those that are packed.
        most: Bytes that what is not trained may take, where the rest is streamed.
        at_once: How many matrices the layerwise engine perturbs at once.
        block: Parameters of the largest block of modules that run as one, perturbed in float32.
        local_models: How many clients keep a model of their own.
        gradients: How many gradients are held at once, in float32.
        activations: How many numbers a forward pass holds.

    >>> readable(needed(355_000_000).total), readable(needed(355_000_000, 4_200_000, engine="layerwise").total)
    ('4.0 GiB', '1.4 GiB')

    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if precision not in BYTES:
        raise UnknownName("precision", precision, BYTES)
    master, number = BYTES[precision]
    whole = 2 * parameters
    if engine == "backward":
        beside = 4 * gradients * parameters
    else:
        beside = min(2 * at_once * largest, whole) * number + 8 * block if engine == "layerwise" else whole * master
    kept = frozen * (master if master == number else master + number) + packed
    kept = kept if most is None else min(kept, most)
    models = (1 + local_models) * (parameters * master + kept)
    return Need(models + max(1, local_models) * beside, activations * number)


def of_module(module: nn.Module, tokens: int = 0, **options: Any) -> Need:
    """Return the memory that it takes to train a module with so many tokens in a forward pass.

    Options are those of `needed`. The layer-wise engine perturbs only those rows of embeddings that a batch looks up.

    >>> of_module(nn.Linear(9, 100), engine="layerwise").weights == 4 * (1000 + 2 * 900)
    True
    """
    tables = {id(part.weight) for part in module.modules() if issubclass(type(part), nn.Embedding | RowReader)}
    others = (part for part in module.modules() if not issubclass(type(part), nn.Embedding | RowReader))
    tables -= {id(parameter) for part in others for parameter in part.parameters(recurse=False)}
    frozen = sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)
    matrices = [each.numel() for each in module.parameters() if each.requires_grad and id(each) not in tables]
    model: Any = module
    width = model.numbers_per_token() if issubclass(type(model), TokenModel) else 0
    layers = [each for each in module.modules() if isinstance(each, PackedLinear)]
    packed = sum(part.nbytes for layer in layers for part in layer.stored().values())
    matrices += [layer.in_features * layer.out_features // 2 for layer in layers]  # one of them is unpacked at a time
    found: dict[str, Any] = {"frozen": frozen, "packed": packed, "activations": tokens * width}
    try:
        found["block"] = max(
            (trained(each) + max(p.numel() for p in each.parameters()) for each in blocks(handlers(module))), default=0
        )
    except InvalidEstimate:
        options["engine"] = "plain" if options.get("engine") == "layerwise" else options.get("engine", "plain")
    return needed(trained(module), max(matrices, default=0), **found | options)


def of_run(
    module: nn.Module,
    config: RunConfig,
    device: torch.device | str = "cpu",
    sizes: Sequence[int] = (),
    tests: Sequence[int] = (),
) -> Need:
    """Return the memory that a run takes to train and to evaluate a module.

    Args:
        module: The model.
        config: The run.
        device: Where it is trained.
        sizes: How many tokens each training sample has, if samples have tokens.
        tests: The same of test samples.

    >>> of_run(nn.Linear(9, 100), RunConfig()).weights == 3 * 4 * 1000  # not a language model: three copies
    True

    """
    differentiated = is_layerwise(module) and config.mu == 0  # one client after the other
    together = config.clients if config.engine == "batched" and not differentiated else 1
    samples = config.batch * together or len(sizes)
    model: Any = module
    most = model.tokens_at_once() if issubclass(type(model), TokenModel) else 0
    evaluated = min(most, len(tests) * max(tests, default=0))
    weights = None if differentiated or config.stream is not None else weights_at_hand(module)
    measured = _tokens(sizes, samples, torch.device(device), weights)
    if differentiated:  # a backward pass keeps what each layer held, of one sign
        measured = (
            measured // 2 * max((len(each) for each in module.modules() if isinstance(each, nn.ModuleList)), default=1)
        )
    return of_module(module, max(measured, evaluated), **_options(module, config, device))


def check_run(
    module: nn.Module, config: RunConfig, device: torch.device | str = "cpu", dataset: Dataset | None = None
) -> None:
    """Refuse a run whose weights, if it trains a language model, or whose batches do not fit into memory.

    >>> check_run(nn.Linear(9, 100), RunConfig())
    """
    if is_layerwise(module):
        check_training(module, device, **_options(module, config, device))
    if dataset is not None and (config.batch or config.clients == 1):  # else who holds how many is not known yet
        check_batches(module, config, dataset, device)


def check_batches(
    module: nn.Module,
    config: RunConfig,
    dataset: Dataset,
    device: torch.device | str = "cpu",
    largest: int | None = None,
) -> None:
    """Refuse a run whose clients' batches do not fit into memory.

    Counted are the numbers of the samples that all clients draw, their inputs, and, unless a language model takes them
    in parts that fit, the outputs of the model's largest layer, for those clients that are measured together. `largest`
    is how many samples one of them holds at most; None: all.

    >>> x, y = np.zeros((5, 9)), np.arange(5)
    >>> data = Dataset(x, y, x, y, classes=100, source="mine")
    >>> check_batches(nn.Linear(9, 100), RunConfig(), data)
    >>> check_batches(nn.Linear(9, 100), RunConfig(batch=10**12), data)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: batch = 1,000,000,000,000 of 40 clients needs ... GiB for a local step, and ... GiB \
are free on cpu: use a smaller batch, fewer clients, or another machine
    """
    together = config.clients if config.engine == "batched" or config.algorithm == "fedavg" else 1
    drawn = DRAWN * config.batch * config.clients * config.local_epochs
    sample = dataset.train_inputs[:1]
    measured = config.batch * together or _held(module, config, together, len(dataset.train_inputs), largest)
    need = measured * sample.nbytes
    free = available(device)
    if free is not None and need > free // 1000 and not is_layerwise(module):  # else no layer's output matters
        need += 2 * 4 * measured * _widest(module, torch.as_tensor(sample))
    if torch.device(device).type == "cpu":
        _refuse_batches(config, drawn + need, "cpu", helps=together > 1 and (free is None or drawn < free))
    else:
        _refuse_batches(config, drawn, "cpu", helps=False)
        _refuse_batches(config, need, device, helps=together > 1)


def _held(module: nn.Module, config: RunConfig, together: int, samples: int, largest: int | None) -> int:
    """Return how many samples are measured together where clients use all they hold."""
    if together == 1:
        return largest or samples
    alike = not is_layerwise(module) and (config.local_epochs > 1 or config.mu == 0)  # rows of clients are filled up
    return together * (largest or samples) if alike else samples


def _refuse_batches(config: RunConfig, need: int, device: torch.device | str, *, helps: bool) -> None:
    """Refuse what does not fit; `helps` says whether measuring one client after the other could."""
    free = available(device)
    if free is not None and need > free:
        ways = ["use a smaller batch", "fewer clients"] if config.batch else ["give the samples of a batch, as 64"]
        ways += ["engine = 'sequential'"] * helps
        given = f"batch = {config.batch:,}" if config.batch else "batch = 0, all samples,"
        raise InvalidConfig(
            f"{given} of {config.clients} clients needs {readable(need)} for a local step, and "
            f"{readable(free)} are free on {device}: {', '.join(ways)}, or another machine"
        )


def _widest(module: nn.Module, sample: torch.Tensor) -> int:
    """Return how many numbers the largest output of a module's layers has for one sample."""
    sizes = [0]

    def note(_: nn.Module, __: Any, output: Any) -> None:
        sizes.append(output.numel() if isinstance(output, torch.Tensor) else 0)

    hooks = [part.register_forward_hook(note) for part in module.modules()]
    device = next((parameter.device for parameter in module.parameters()), sample.device)
    try:
        with torch.no_grad():
            module(sample.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def _options(module: nn.Module, config: RunConfig, device: torch.device | str) -> dict[str, Any]:
    walked = "layerwise" if config.mu > 0 else "backward"
    differentiated = is_layerwise(module) and config.mu == 0
    alone = (config.engine == "sequential" or differentiated) and config.local_epochs > 1
    together = config.clients if config.engine == "batched" and config.local_epochs == 1 else 0
    return {
        "engine": walked if is_layerwise(module) else "plain",
        "gradients": 2 + together,  # a sum, a part of it, and those of all clients
        "precision": config.precision,
        "at_once": MATRICES.get(torch.device(device).type, 1),
        "local_models": config.clients if alone else 0,
        "most": None if config.stream is None else bytes_of(config.stream),
    }


def _tokens(sizes: Sequence[int], samples: int, device: torch.device, weights: int | None) -> int:
    """Return how many tokens are in a forward pass of both signs: those of the largest part of so many samples."""
    if len(sizes) == 0:
        return 0
    batch = np.quantile(np.asarray(sizes), np.linspace(0, 1, samples), method="nearest").astype(np.int64)
    ends = cuts(batch, OVERHEAD.get(device.type, OVERHEAD["cpu"]), most_tokens(device, weights))
    return 2 * max((end - begin) * int(batch[end - 1]) for begin, end in pairwise(ends))


def check_training(module: nn.Module, device: torch.device | str = "cpu", **options: Any) -> Need:
    """Return the memory that it takes to train a module, and refuse weights that do not fit on a device.

    What the module holds there already counts as free. Options are those of `of_module`. What activations take is a
    guess, so nothing is refused for it.

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
    """Return how many bytes of a device a module takes already; what lies in mapped files takes none.

    >>> held(nn.Linear(9, 100), "cpu")
    4000
    """
    there = torch.device(device).type
    tensors = (each for each in (*module.parameters(), *module.buffers()) if each.device.type == there)
    return sum(each.nbytes for each in tensors if not is_mapped(each))


def available(device: torch.device | str = "cpu") -> int | None:
    """Return how many bytes are free on a device, or allowed; None where the system does not tell.

    >>> available("cpu") > 2**20
    True
    """
    free, allowed = _free(device), ALLOWED.get()
    return free if allowed is None else min(allowed, allowed if free is None else free)


@contextmanager
def at_most(size: int | None) -> Generator[None]:
    """Allow so many bytes in what follows, however many are free; None: all of these.

    >>> with at_most(1000):
    ...     available("cpu")
    1000
    """
    before = ALLOWED.set(size)
    try:
        yield
    finally:
        ALLOWED.reset(before)


def _free(device: torch.device | str) -> int | None:
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo")
    if lines.exists():
        found = dict(line.split(":", 1) for line in lines.read_text().splitlines())
        return int(found["MemAvailable"].split()[0]) * 1024
    names: Any = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else None


def check(parameters: int, copies: int, device: torch.device | str = "cpu", *, size: int = 4) -> None:
    """Refuse a model of which so many copies do not fit into memory: 1 to load it, 3 to train it.

    `size` is how many bytes a weight takes: 4 in float32, 2 in bf16, 1 if it is packed.

    >>> check(parameters=10**15, copies=3)
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: 3 float32 copies of 1,000,000,000,000,000 parameters need 11,175,870.9 GiB, and ... \
GiB are free on cpu: use a smaller model, an adapter as in sst2(adapter='lora'), or another machine
    """
    need, free = size * parameters * copies, available(device)
    if free is not None and need > free:
        kind = {4: "float32", 2: "bf16"}.get(size, "packed")
        raise InvalidModel(
            f"{copies} {kind} copies of {parameters:,} parameters need {readable(need)}, and {readable(free)} are "
            f"free on {device}: use a smaller model, an adapter as in sst2(adapter='lora'), or another machine"
        )


def bytes_of(text: str) -> int:
    """Return how many bytes a text like 8GiB means.

    >>> bytes_of("1.5 GiB"), bytes_of("300MB")
    (1610612736, 300000000)
    >>> bytes_of("a lot")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: stream = 'a lot': write a number of bytes with its unit, as 8GiB or 500MB
    """
    match = re.fullmatch(r"([0-9.]+)\s*([KMGT])(i?)B", text.strip())
    try:
        if match is not None and (size := float(match[1])) > 0:
            return int(size * (1024 if match[3] else 1000) ** (1 + "KMGT".index(match[2])))
    except ValueError:  # no number
        pass
    raise InvalidConfig(f"stream = {text!r}: write a number of bytes with its unit, as 8GiB or 500MB")


def readable(size: float) -> str:
    """Return a number of bytes in GiB.

    >>> readable(3 * 2**29)
    '1.5 GiB'
    """
    return f"{size / 2**30:,.1f} GiB"
