"""Rounds on a CPU against two plain forwards of transformers over the same tokens, in the same precision.

    python -m benchmarks.cpu_rounds [--only minilm smollm2 growth] [--small]

Shapes of all-MiniLM-L6-v2 (mean pooling, a head of 6 classes) and SmolLM2-135M (label words), random weights. Each work
has a process of its own, as a client has, since what others leave in the heap would slow it down or speed it up. The
processes take turns, and a ratio is the median of those within a turn: other work on the machine slows all alike. In a
turn a process does its work twice, and the second time counts, as one round follows another: the first one, after a
pause, takes up to a tenth longer, by how a system wakes its cores. Peak memory is that of the operating system: what a
process held beyond the libraries, weights included, after its first round, which checks the walk in two whole copies of
the model. `growth`: how a round of MiniLM's shape in float32 grows with clients, directions and layers, with a plot.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from typing import Any

import torch

from benchmarks.layerwise import FORWARDS, plot
from benchmarks.measure import RESULTS, Row, report, seconds
from benchmarks.memory import forget_peak, held
from benchmarks.references import MU, RATE, Work, seeded
from cyber0.commit import Commit
from cyber0.directions import DirectionKey, Family
from cyber0.layerwise import Walk, native_attention
from cyber0.parameters import Parameters, to_bf16
from cyber0.tasks.task import cross_entropy
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.heads import Head
from cyber0.threads import cores

COMMAND = "python -m benchmarks.cpu_rounds"
PRECISIONS = ("float32", "bf16")
PLAIN = "plain: two forwards, one after the other"
AT_ONCE = "plain: two forwards, both as one batch"
FAMILIES: tuple[Family, ...] = ("gaussian", "rademacher")
WITHOUT = "rademacher, torch's attention"
SHAPES: dict[str, tuple[int, int]] = {"minilm": (32, 53), "smollm2": (8, 64)}  # samples and tokens of a batch
ROUNDS = count()
TURNS = 5
GROWTH = {"clients": (1, 2, 4, 8), "directions": (1, 2, 4, 8), "layers": (3, 6, 12, 24)}
EACH = 8  # samples of a client there


def model(name: str, *, small: bool, layers: int = 6) -> Classifier:
    transformers: Any = import_module("transformers")
    seeded(0)
    if name == "minilm":
        sizes: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": layers, "intermediate_size": 1536}
        config = transformers.BertConfig(
            num_attention_heads=12, **(sizes | {"num_hidden_layers": 1} if small else sizes)
        )
        return Classifier(transformers.BertModel(config, add_pooling_layer=False).eval(), Head("pooled", 6))
    sizes = {"hidden_size": 576, "num_hidden_layers": 1 if small else 30, "intermediate_size": 1536}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(**sizes, **heads, pad_token_id=0)
    return Classifier(transformers.LlamaForCausalLM(config).eval(), Head("causal", 2, label_ids=(7, 30)))


def batch(name: str, *, small: bool) -> tuple[torch.Tensor, torch.Tensor]:
    samples, length = SHAPES[name]
    samples = 2 if small else samples
    tokens = torch.randint(1000, 20_000, (samples, length), generator=torch.Generator().manual_seed(1))
    return tokens.int(), torch.zeros(samples, dtype=torch.int64)


def plain(module: Any, precision: str, batches: Sequence[torch.Tensor]) -> Work:
    module = module if precision == "float32" else module.to(torch.bfloat16)

    def work() -> None:
        with torch.no_grad():
            for tokens in batches:
                module.base(**module.inputs(tokens)).last_hidden_state  # noqa: B018

    return work


def a_round(
    module: Any,
    precision: str,
    given: tuple[torch.Tensor, torch.Tensor],
    family: Family,
    clients: int = 1,
    directions: int = 1,
) -> Work:
    """A round along some directions of clients who share the samples evenly."""
    parameters = Parameters.of(module if precision == "float32" else to_bf16(module))
    arithmetic = torch.float32 if precision == "float32" else torch.bfloat16
    walk = Walk(parameters, cross_entropy, arithmetic)
    samples = walk.batch(given[0].view(clients, -1, given[0].shape[1]), given[1].view(clients, -1))

    def work() -> None:
        number = next(ROUNDS)
        keys = [DirectionKey(1, number, index=index) for index in range(directions)]
        slopes = [float(walk.along(samples, key, MU, family).mean()) for key in keys]
        parameters.apply(Commit(1, number, RATE, [slopes], family))
        assert walk.layered

    return work


def work_of(name: str, precision: str, what: str, *, small: bool) -> Work:
    given = batch(name, small=small)
    module = model(name, small=small)
    tokens = given[0]
    if what == PLAIN:
        return plain(module, precision, [tokens, tokens])
    if what == AT_ONCE:
        return plain(module, precision, [torch.cat([tokens, tokens])])
    if what == WITHOUT:
        native_attention.library = lambda: None
    family: Any = what.partition(",")[0]
    return a_round(module, precision, given, family)


class Process:
    """A work in a process of its own, which does it whenever it is asked to."""

    def __init__(self, name: str, precision: str, what: str, *, small: bool) -> None:
        asked = [name, precision, what, *(["--small"] if small else [])]
        command = [sys.executable, "-m", "benchmarks.cpu_rounds", "--work", *asked]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process: Any = subprocess.Popen(command, **pipes)  # noqa: S603

    def ready(self) -> None:
        assert self.process.stdout.readline() == "ready\n"

    def seconds(self) -> float:
        self.process.stdin.write("again\n")
        return float(self.process.stdout.readline())

    def peak(self) -> int:
        """Let the process end, and return the most memory that it held beyond what the libraries take."""
        return int(self.process.communicate()[0].splitlines()[-1])


def serve(name: str, precision: str, what: str, *, small: bool) -> None:
    """Do a work twice for each line that is read, print how long the second took; in the end, the peak of memory."""
    before = held()
    work = work_of(name, precision, what, small=small)
    work()
    forget_peak()
    print("ready", flush=True)
    for _ in sys.stdin:
        work()
        begin = time.perf_counter()
        work()
        print(time.perf_counter() - begin, flush=True)
    print(held(peak=True) - before)


def measured(name: str, precision: str, *, small: bool) -> list[Row]:
    works = (PLAIN, AT_ONCE, *FAMILIES, WITHOUT)
    processes = {what: Process(name, precision, what, small=small) for what in works}
    for process in processes.values():
        process.ready()
    spent: dict[str, list[float]] = {what: [] for what in works}
    for turn in range(TURNS):
        first = turn % len(works)
        for what in works[first:] + works[:first]:
            spent[what].append(processes[what].seconds())
    peaks = {what: process.peak() for what, process in processes.items()}
    return [
        {
            "model": name,
            "precision": precision,
            "what": what if what in (PLAIN, AT_ONCE) else f"a round, {what}",
            "ms": statistics.median(spent[what]) * 1e3,
            "times plain": statistics.median(a / b for a, b in zip(spent[what], spent[PLAIN], strict=True)),
            "peak GiB": peaks[what] / 2**30,
            "times its peak": peaks[what] / peaks[PLAIN],
        }
        for what in works
    ]


def grown(*, small: bool) -> list[Row]:
    """How long a round takes, and two plain forwards for each direction, one axis at a time."""
    rows: list[Row] = []
    for axis, value in ((axis, value) for axis, values in GROWTH.items() for value in values):
        at = {"clients": 1, "directions": 1, "layers": 6, axis: value}
        tokens, labels = batch("minilm", small=False)
        given = tokens[:EACH].repeat(at["clients"], 1), labels[:EACH].repeat(at["clients"])
        modules = [model("minilm", small=small, layers=at["layers"]) for _ in range(2)]
        ours = a_round(modules[0], "float32", given, "rademacher", at["clients"], at["directions"])
        forwards = plain(modules[1], "float32", [given[0]] * 2)
        spent, floor = seconds(ours, forwards, repeats=1 if small else 5)
        rows.append({"axis": axis, "value": value, "ms a round": spent * 1e3, FORWARDS: floor * at["directions"] * 1e3})
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--only", nargs="+", choices=[*SHAPES, "growth"], default=[*SHAPES, "growth"])
    parser.add_argument("--small", action="store_true", help="one layer and two samples, to try the script out")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(cores())
    if given.work:
        serve(*given.work, small=given.small)
        return
    end = "_small" if given.small else ""
    if names := [name for name in SHAPES if name in given.only]:
        rows = [row for name in names for each in PRECISIONS for row in measured(name, each, small=given.small)]
        report(f"cpu_rounds{end}", rows, COMMAND)
    if "growth" in given.only:
        report(f"cpu_rounds_growth{end}", grown(small=given.small), f"{COMMAND} --only growth")
        plot(RESULTS / f"cpu_rounds_growth{end}.json", "two plain forwards")


if __name__ == "__main__":
    main(sys.argv[1:])
