"""Large bases: a round beside plain inference of the same model, of Llama-3-8B's shape with random weights.

    python -m benchmarks.bases [--only load walk stream] [--small] [--out FILE]

walk: on a CUDA device; all weights trained in bf16, LoRA over a frozen bf16 base, the same streamed with a cap, LoRA
over a packed base. Times are medians of blocks that take turns. stream: batches of several sizes over a streamed base,
beside its floor, the longer of copying and of a round on the device. load: the memory that a process takes to load a
model from its files, by the operating system's count, each way in a process of its own; on a CPU.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.measure import RESULTS, Row, machine
from benchmarks.references import MU, RATE, Batch, Work, captured, interleaved, median, seeded
from cyber0.commit import Commit
from cyber0.directions import DirectionKey, Family
from cyber0.layerwise import Walk
from cyber0.layerwise.frozen import pack_linears
from cyber0.layerwise.stream import Stream, stream_linears
from cyber0.parameters import Parameters, to_bf16
from cyber0.tasks.loading import loading
from cyber0.tasks.task import cross_entropy
from cyber0.tasks.text import checkpoint, tiny
from cyber0.tasks.text.adapters import lora
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.heads import Head

transformers: Any = import_module("transformers")
GIB = 2**30
LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
SMALL = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LOADED = SMALL | {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16}
ROUNDS = count()
FAMILIES: tuple[Family, ...] = ("rademacher", "gaussian")
NARROW: dict[tuple[int, int], torch.Tensor] = {}  # vectors in bf16, which captured graphs read


def _causal(_: Any, query: Any, key: Any, value: Any, __: Any, scaling: float | None = None, **___: Any) -> Any:
    """Causal attention without a mask, as prompts are not padded: captured, transformers would write one out."""
    attend = nn.functional.scaled_dot_product_attention
    return attend(query, key, value, scale=scaling, is_causal=True, enable_gqa=True).transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("causal", _causal)


class Llama(Classifier):
    """Of random weights, made on the device; that its base and its head can be called apart is known."""

    def _prove(self) -> None: ...


def built(shape: dict[str, int], device: torch.device) -> Llama:
    config = transformers.LlamaConfig(**shape, tie_word_embeddings=False)
    with torch.device("meta"):
        whole: Any = transformers.LlamaForCausalLM(config)
    whole = whole.to(torch.bfloat16).to_empty(device=device).eval()
    rotary: Any = import_module(type(whole).__module__).LlamaRotaryEmbedding  # whose buffers are computed
    whole.model.rotary_emb = rotary(config).to(device)
    seeded(0)
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.ndim == 1:
                parameter.data = torch.ones_like(parameter, dtype=torch.float32)
            else:
                parameter.normal_(0, 0.02)
    return Llama(whole, Head("causal", 2, label_ids=(7, 30))).to(device)


@contextmanager
def narrow(model: Llama) -> Generator[None]:
    """Let the model's own code run: in it all vectors are bf16, which are float32 in a walk."""
    vectors = [each for each in model.parameters() if each.ndim == 1]
    wide = [each.data for each in vectors]
    for vector in vectors:
        vector.data = NARROW.setdefault((id(vector), vector.data_ptr()), vector.data.bfloat16())
    try:
        yield
    finally:
        for vector, data in zip(vectors, wide, strict=True):
            vector.data = data


def forwards(model: Llama, tokens: torch.Tensor, attention: str = "causal") -> Work:
    """Both plain forwards over the same tokens, as one batch, by the model's own code."""
    ids = torch.cat([tokens, tokens]).long()
    places = torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)
    rows = torch.arange(len(ids), device=ids.device)

    def work() -> Any:
        with torch.no_grad(), narrow(model):
            model.whole.set_attn_implementation(attention)
            hidden = model.base(input_ids=ids, use_cache=False).last_hidden_state
            found = model.top(hidden[rows, places])
            model.whole.set_attn_implementation("sdpa")
        return found

    return work


def one_after_the_other(model: Llama, tokens: torch.Tensor) -> Work:
    first, second = (forwards(model, half) for half in tokens.chunk(2))  # each doubles what it is given
    return lambda: (first(), second())


def a_round(walk: Walk, batch: Batch, family: Family) -> Work:
    x, y = batch

    def work() -> Any:
        number = next(ROUNDS)
        votes = walk.slopes(x[None], y[None], DirectionKey(1, number), MU, family).cpu().numpy()
        walk.parameters.defer(Commit(1, number, RATE, votes[None], family))
        return votes

    return work


def peak(make: Callable[[], Work], device: torch.device) -> tuple[float, Work]:
    """The most GiB that a device holds while a work is made, captured as a graph, and done; 0 without a device."""
    freed()
    if device.type != "cuda":
        return 0.0, make()
    torch.cuda.reset_peak_memory_stats()
    work = make()
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / GIB, work


def freed() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measured(
    name: str, model: Llama, batch: Batch, inference: float, plain: dict[str, Work], family: Family = "rademacher"
) -> tuple[Row, Walk]:
    """A round of a model beside the plain works; `inference` is what these take of memory."""
    device = batch[0].device
    walk = Walk(Parameters.of(model), cross_entropy, torch.bfloat16)
    most, ours = peak(lambda: a_round(walk, batch, family), device)
    times = interleaved({**plain, "ours": ours}, blocks=3, block=0.2)
    row = {
        "way": name,
        "trained": walk.parameters.size,
        "layered": walk.layered,
        "a round, ms": 1e3 * median(times, "ours"),
        **{f"{each}, ms": 1e3 * median(times, each) for each in plain},
        **({"times the faster": median(times, "ours") / min(median(times, each) for each in plain)} if plain else {}),
        "peak of a round, GiB": most,
        "peak of inference, GiB": inference,
        "times inference": most / inference if inference else 0.0,
    }
    walk.parameters.settle()
    print(json.dumps(row), flush=True)
    return row, walk


def bandwidth(device: torch.device, size: int) -> float:
    """GB/s from pinned memory of the host to the device."""
    if device.type != "cuda":
        return 0.0
    here, there = torch.empty(size, dtype=torch.uint8).pin_memory(), torch.empty(size, dtype=torch.uint8, device=device)
    times = interleaved({"copy": lambda: there.copy_(here, non_blocking=True)}, blocks=3, block=0.2)
    return size / median(times, "copy", 1) / 1e9


def walked(device: torch.device, small: bool, cap: int) -> list[Row]:
    shape, samples, length = (SMALL, 4, 16) if small else (LLAMA_8B, 64, 64)
    x = torch.randint(5, shape["vocab_size"], (samples, length), device=device, dtype=torch.int32)
    batch = x, torch.randint(0, 2, (samples,), device=device)
    model, rows = built(shape, device), list[Row]()
    inference = peak(partial(forwards, model, x), device)[0]
    for family in FAMILIES:
        row, walk = measured(f"bf16, all trained, {family}", model, batch, inference, {}, family)
        rows.append(row)
        del walk
    freed()
    plain = captures(model, x, device)  # after the peaks, of which it would be a part
    for family, row in zip(FAMILIES, rows, strict=True):
        timed, walk = measured(f"bf16, all trained, {family}", model, batch, inference, plain, family)
        row |= {key: value for key, value in timed.items() if "peak" not in key and key != "times inference"}
        del walk
    freed()
    adapt(model, device)
    row, walk = measured("bf16 frozen, LoRA", model, batch, inference, plain)
    del walk
    plain.clear()
    freed()
    alone, walk = measured("bf16 frozen, LoRA", model, batch, inference, {})
    rows.append(row | {key: value for key, value in alone.items() if "peak" in key or key == "times inference"})
    del walk
    freed()
    rows.append(streamed(model, batch, inference, cap))
    del model
    for bits in (4, 8):
        freed()
        rows.append(packed(shape, batch, bits))
    return rows


def captures(model: Llama, tokens: torch.Tensor, device: torch.device) -> dict[str, Work]:
    return {
        "two forwards, one after the other": captured(one_after_the_other(model, tokens), device),
        "two forwards as one batch": captured(forwards(model, tokens), device),
    }


def adapt(model: Llama, device: torch.device) -> None:
    lora(model.whole, 0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float().to(device)


def streamed(model: Llama, batch: Batch, inference: float, cap: int) -> Row:
    device = batch[0].device
    rate = bandwidth(device, cap // 8)
    stream = stream_linears(model, device, cap)
    row, _ = measured("bf16 frozen, LoRA, streamed", model, batch, inference, {})
    return row | moved_by(row, stream, rate, cap)


def moved_by(row: Row, stream: Stream, rate: float, cap: int) -> Row:
    """What was brought to the device in a round, and how fast, beside a plain copy."""
    moved = stream.moved / (row["a round, ms"] / 1e3) / 1e9
    found = {"cap, GiB": cap / GIB, "streamed a round, GiB": stream.moved / GIB, "GB/s": moved, "copy, GB/s": rate}
    return found | {"of the bandwidth": moved / rate if rate else 0.0}


def streams(device: torch.device, small: bool, cap: int) -> list[Row]:
    """Rounds of batches of several sizes, on the device and streamed."""
    shape, length = (SMALL, 16) if small else (LLAMA_8B, 64)
    model, rows = built(shape, device), list[Row]()
    adapt(model, device)
    batches: dict[int, Batch] = {}
    for samples in (4, 2) if small else (64, 32, 16):
        x = torch.randint(5, shape["vocab_size"], (samples, length), device=device, dtype=torch.int32)
        batches[samples] = x, torch.randint(0, 2, (samples,), device=device)
    there = {each: measured("on the device", model, batch, 0.0, {})[0] for each, batch in batches.items()}
    freed()
    rate, stream = bandwidth(device, cap // 8), stream_linears(model, device, cap)
    for samples, batch in batches.items():
        row, _ = measured("streamed", model, batch, 0.0, {})
        row = {"samples": samples, **row, **moved_by(row, stream, rate, cap)}
        alone, copy = there[samples]["a round, ms"], stream.moved / (rate or 1) / 1e6
        row |= {
            "on the device, ms": alone,
            "copy alone, ms": copy,
            "times the floor": row["a round, ms"] / max(alone, copy),
        }
        rows.append({key: value for key, value in row.items() if "inference" not in key})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def packed(shape: dict[str, int], batch: Batch, bits: int) -> Row:
    device = batch[0].device
    model = built(shape, device)
    pack_linears(model.whole, bits)
    inference = peak(partial(forwards, model, batch[0]), device)[0]
    lora(model.whole, 0)
    model.to(device)
    alone, walk = measured(f"{bits} bits, LoRA", model, batch, inference, {})
    del walk
    freed()
    base = built(shape, device)
    pack_linears(base.whole, bits)
    row, _ = measured(f"{bits} bits, LoRA", model, batch, inference, captures(base, batch[0], device))
    return row | {key: value for key, value in alone.items() if "peak" in key or key == "times inference"}


# Loading


def loaded(small: bool) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.bfloat16, torch.float32):
            path = Path(folder) / str(dtype)
            seeded(0)
            config = transformers.LlamaConfig(**(SMALL if small else LOADED), tie_word_embeddings=False)
            transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(path, max_shard_size="200MB")
            tiny.tokenizer("llama").save_pretrained(path)
            size = sum(each.stat().st_size for each in path.glob("*.safetensors"))
            for way in WAYS:
                command = [sys.executable, "-m", "benchmarks.bases", "--way", way, "--model", str(path)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
                held = json.loads(done.stdout.splitlines()[-1])
                rows.append({"files": str(dtype).removeprefix("torch."), "files, GiB": size / GIB, "way": way, **held})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def _float32_first(path: str) -> Any:
    found = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return to_bf16(found)


def _asked(path: str, precision: str, prepare: Callable[[Any], None] | None = None) -> Any:
    with loading(precision):
        return checkpoint.get_checkpoint(path).load(prepare)


WAYS: dict[str, Callable[[str], Any]] = {
    "bf16, float32 first": _float32_first,
    "bf16": lambda path: _asked(path, "bf16"),
    "float32": lambda path: _asked(path, "float32"),
    "4 bits": lambda path: _asked(path, "bf16", lambda model: pack_linears(model, 4)),
}


def held_by(way: str, path: str) -> dict[str, float]:
    """What a process holds at most, and at the end without the pages of files, beyond what it held before, in GiB."""
    checkpoint.get_checkpoint(path).parameters()  # imports what is needed
    gc.collect()
    before, kept = _status(), WAYS[way](path)
    after = _status()
    del kept
    return {
        "peak, GiB": (after["VmHWM"] - before["VmRSS"]) / GIB,
        "kept, GiB": (after["RssAnon"] - before["RssAnon"]) / GIB,
    }


def _status() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


SECTIONS: dict[str, Callable[[torch.device, bool, int], list[Row]]] = {
    "load": lambda _, small, __: loaded(small),
    "walk": walked,
    "stream": streams,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bases", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), default=["load", "walk"])
    parser.add_argument("--small", action="store_true", help="a tiny model, to try it out")
    parser.add_argument("--cap", type=float, default=8.0, help="GiB of the device that a streamed base may take")
    parser.add_argument("--out", type=Path, help="the file of the results")
    parser.add_argument("--way", choices=WAYS, help="load a model in one way, print what that takes, and stop")
    parser.add_argument("--model", help="the folder of that model")
    given = parser.parse_args()
    if given.way:
        print(json.dumps(held_by(given.way, given.model)))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for section in given.only:
        cap = int(given.cap * (2**16 if given.small else GIB))
        rows = SECTIONS[section](device, given.small, cap)
        where = "gpu" if section != "load" and device.type == "cuda" else "cpu"
        path = given.out or RESULTS / f"bases_{'' if section == 'walk' else section + '_'}{where}.json"
        command = f"python -m benchmarks.bases --only {section}{' --small' * given.small}"
        facts = {"command": command, "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "rows": rows}
        path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
