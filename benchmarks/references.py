"""What the layer-wise walk is measured against: plain forwards of the same model, MeZO's step, backpropagation.

Each reference is a function that makes a piece of work: a callable without arguments that does it once. At the end are
the clocks and scales for any such work.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from copy import deepcopy
from importlib import import_module
from itertools import count
from typing import Any

import torch
from transformers import AttentionInterface, RobertaConfig, RobertaForMaskedLM

from benchmarks.measure import Row
from cyber0.parameters import to_bf16
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.heads import Head

Tensor = torch.Tensor
Batch = tuple[Tensor, Tensor]
Work = Callable[[], Any]
Times = dict[str, list[tuple[float, float]]]
"""Of each work, in each block: seconds by the wall clock, and by the device's."""

MASK, FIRST_WORD = 4, 5
MU, RATE = 1e-3, 1e-7
OWN = "perturb and update, together"
ROBERTA_LARGE = {
    "vocab_size": 50265,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 514,
}
ROBERTA_TINY = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}


def _no_mask(
    module: Any,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,  # noqa: ARG001
    scaling: float | None = None,
    **options: Any,  # noqa: ARG001
) -> tuple[Tensor, None]:
    """Attention to every token: captured, transformers writes out even a mask of ones, and the fast path is lost."""
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling)
    return mixed.transpose(1, 2).contiguous(), None


seeded: Any = vars(torch)["manual_seed"]
_attention: Any = AttentionInterface
_attention.register("no_mask", _no_mask)


def classifier(shape: dict[str, int]) -> Classifier:
    """RoBERTa with random weights, classifying at its mask: in float32, without dropout."""
    options: dict[str, Any] = {**shape, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "tie_word_embeddings": True}
    make: Any = RobertaForMaskedLM
    seeded(0)
    module = Classifier(make(RobertaConfig(**options)).eval(), Head("masked", 2, label_ids=(7, 30), mask_id=MASK))
    assert module.top is not None
    return module


def copied(module: Classifier, kind: str) -> Any:
    """A copy: in "float32", as "masters" (bf16, one-dimensional parameters float32), or in "bfloat16" wholly."""
    copy: Any = deepcopy(module)
    if kind == "masters":
        copy = to_bf16(copy)
    return copy.to(torch.bfloat16) if kind == "bfloat16" else copy


def batches(words: int, clients: int, batch: int, length: int, device: torch.device, many: int = 2) -> list[Batch]:
    """Prompts [clients, batch, length] of random words, none padded, a mask in each; labels [clients, batch]."""
    x = torch.randint(FIRST_WORD, words, (many, clients, batch, length), dtype=torch.int32)
    x[..., length // 2] = MASK
    y = torch.randint(0, 2, (many, clients, batch))
    return list(zip(x.to(device), y.to(device), strict=True))


def captured(work: Work, device: torch.device) -> Work:
    """The work as a CUDA graph; on a CPU as it is. Without gradients in either case."""
    if device.type != "cuda":
        return torch.no_grad()(work)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        kept = work, work()  # what it reads and writes must live as long as the graph

    def replay() -> Any:
        graph.replay()
        return kept[1]

    return replay


def plain(model: Any, tokens: Tensor) -> Work:
    """The scores of prompts [samples, length] by transformers' own code, and nothing else: the forward to beat.

    What depends on the tokens alone is made beforehand.
    """
    model.whole.set_attn_implementation("no_mask")
    ids = tokens.long()
    samples, places = torch.arange(len(ids), device=ids.device), model.label_head.positions(ids)
    start = int(model.whole.config.pad_token_id) + 1  # RoBERTa counts positions from there
    positions = torch.arange(start, start + ids.shape[1], device=ids.device).expand_as(ids).contiguous()
    types = torch.zeros_like(ids)

    def work() -> Tensor:
        hidden = model.base(ids, position_ids=positions, token_type_ids=types).last_hidden_state
        return model.top(hidden[samples, places])

    return work


def losses(model: Any, batch: Batch) -> Any:
    """One for each sample, as one calls transformers: with an attention mask, positions left to the model."""
    tokens, labels = batch
    hidden = model.base(**model.inputs(tokens)).last_hidden_state
    scores = model.top(hidden[torch.arange(len(tokens), device=tokens.device), model.label_head.positions(tokens)])
    return torch.nn.functional.cross_entropy(scores, labels, reduction="none")


def twice(work: Work) -> Work:
    return lambda: (work(), work())


def mezo(model: Any, batch: Batch, *, published: bool = False) -> Work:
    """A step of MeZO (Malladi et al., 2023): the weights go to +mu, to -mu, back, then down the slope; run eagerly.

    Every pass draws its direction anew, a torch.normal for each tensor. `published` computes the sums as MeZO's own
    code does, in several kernels and into new memory; else each is one kernel, in place.
    """
    model.whole.set_attn_implementation("sdpa")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    walk, descend = (_walk_published, _descend_published) if published else (_walk, _walk)
    seeds = count()

    def work() -> float:
        seed = next(seeds)
        with torch.no_grad():
            walk(parameters, seed, MU)
            plus = losses(model, batch).mean()
            walk(parameters, seed, -2 * MU)
            minus = losses(model, batch).mean()
            walk(parameters, seed, MU)
            slope = float((plus - minus) / (2 * MU))
            descend(parameters, seed, -RATE * slope)
        return slope

    return work


def _normal(like: Tensor) -> Tensor:
    return torch.normal(mean=0.0, std=1.0, size=like.shape, device=like.device, dtype=like.dtype)


def _walk(parameters: Iterable[Tensor], seed: int, step: float) -> None:
    seeded(seed)
    for parameter in parameters:
        parameter.data.add_(_normal(parameter), alpha=step)


def _walk_published(parameters: Iterable[Tensor], seed: int, step: float) -> None:
    seeded(seed)
    for parameter in parameters:
        parameter.data = parameter.data + (step / MU) * _normal(parameter) * MU


def _descend_published(parameters: Iterable[Tensor], seed: int, step: float) -> None:
    """With its weight decay, of weight zero."""
    seeded(seed)
    slope = -step / RATE
    for parameter in parameters:
        parameter.data = parameter.data - RATE * (slope * _normal(parameter) + 0.0 * parameter.data)


def backpropagation(model: Any, batch: Batch, optimizer: str, *, autocast: bool = False) -> Work:
    """A step of AdamW or SGD, without dropout; `autocast` computes in bf16 on masters of another type."""
    model.whole.set_attn_implementation("sdpa")
    parameters: list[Tensor] = list(model.parameters())
    make: Any = getattr(torch.optim, optimizer)
    fused = make(parameters, lr=RATE, fused=True)  # the leanest: no copies of all weights in a step
    device = parameters[0].device.type

    def work() -> None:
        with torch.autocast(device, torch.bfloat16) if autocast else nullcontext():
            loss = losses(model, batch).mean()
        loss.backward()
        fused.step()
        fused.zero_grad(set_to_none=True)

    return work


# Clocks


def timed(work: Work, repeats: int) -> tuple[float, float]:
    """Seconds of one of many in a row: by the wall clock, and by the device's."""
    if not torch.cuda.is_available():
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        wall = (time.perf_counter() - begin) / repeats
        return wall, wall
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats, first.elapsed_time(last) / 1e3 / repeats


def interleaved(works: dict[str, Work], blocks: int, block: float) -> Times:
    """Each work in blocks of about so many seconds that take turns, beginning with another one each time."""
    for work in works.values():
        timed(work, 2)
    repeats = {name: max(3, round(block / timed(work, 1)[0])) for name, work in works.items()}
    times: Times = {name: [] for name in works}
    names = list(works)
    for number in range(blocks):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(timed(works[name], repeats[name]))
    return times


def median(times: Times, name: str, clock: int = 0) -> float:
    return statistics.median(block[clock] for block in times[name])


def ratio(times: Times, name: str, other: str) -> float:
    """How many times longer one takes than another, block by block."""
    return statistics.median(one[0] / two[0] for one, two in zip(times[name], times[other], strict=True))


def fastest(times: Times) -> str:
    """Of the plain forwards."""
    return min((name for name in times if name.startswith("plain")), key=lambda name: median(times, name))


def compared(times: Times) -> list[Row]:
    """A row for each work, by both clocks, and against the fastest of the plain forwards."""
    best = fastest(times)
    return [
        {
            "what": name,
            "wall ms": median(times, name) * 1e3,
            "device ms": median(times, name, 1) * 1e3,
            "times the fastest plain": ratio(times, name, best),
        }
        for name in times
    ]


Launch = tuple[str, float, float]  # a kernel's name, begin and end in milliseconds


def launches(work: Work, rounds: int) -> list[Launch]:
    """Every kernel that ran on the device, those of captured graphs too."""
    tools: Any = import_module("torch.profiler")
    with tools.profile(activities=[tools.ProfilerActivity.CPU, tools.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            work()
        torch.cuda.synchronize()
    return [
        (event.name, event.time_range.start / 1e3, event.time_range.end / 1e3)
        for event in profile.events()
        if event.device_type.name == "CUDA"
    ]


def covered(ran: Iterable[Launch]) -> float:
    """Milliseconds in which at least one of them ran."""
    total, until = 0.0, float("-inf")
    for _, begin, end in sorted(ran, key=lambda launch: launch[1]):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def kernels(ran: list[Launch], rounds: int, own: tuple[str, ...]) -> dict[str, float]:
    """Milliseconds a round: of each kernel whose name begins so, of all these, of the longest others.

    Kernels on two streams run at the same time: so also how long those of ours ran while no other did.
    """
    spent: dict[str, float] = {}
    for name, begin, end in ran:
        spent[name] = spent.get(name, 0.0) + (end - begin) / rounds
    ours = {name: ms for name, ms in spent.items() if name.startswith(own)}
    others = sorted(((ms, name) for name, ms in spent.items() if name not in ours), reverse=True)[:12]
    alone = covered(ran) - covered(launch for launch in ran if launch[0] not in ours)
    together = {OWN: sum(ours.values()), "of these, while nothing else ran": alone / rounds}
    return {**ours, **together, **{name[:100]: ms for ms, name in others}, "any kernel ran": covered(ran) / rounds}


# Scales


def free() -> int:
    """Let go of all the device memory that can be; the bytes that stay."""
    gc.collect()
    native: Any = import_module("torch._C")
    native._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def peak(make: Callable[[], Work], left: int) -> dict[str, float]:
    """The most GiB held at a time beside `left` bytes, from before the work is made, and after.

    A replayed graph allocates nothing, its capture does: so "later", the peak of one more step, does not see what a
    graph holds. "reserved" is what the allocator then keeps of the device, graphs included.
    """
    torch.cuda.reset_peak_memory_stats()
    work = make()
    timed(work, 3)
    whole = torch.cuda.max_memory_allocated() - left
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved() - left
    torch.cuda.reset_peak_memory_stats()
    timed(work, 1)
    later = torch.cuda.max_memory_allocated() - left
    return {"peak GiB": whole / 2**30, "later GiB": later / 2**30, "reserved GiB": reserved / 2**30}
