"""Rounds on a CPU against two plain forwards of transformers over the same tokens, in the same precision.

    python -m benchmarks.cpu_rounds [--only minilm smollm2] [--small]

Shapes of all-MiniLM-L6-v2 (mean pooling, a head of 6 classes) and SmolLM2-135M (label words), random weights. Works
take turns, and a ratio is the median of those within a turn: other work on the machine slows all alike. Peak memory is
that of the operating system, of each work in a process of its own: what it held beyond the libraries, weights included,
after its first round, which checks the walk in two whole copies of the model.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from typing import Any

import torch

from benchmarks.measure import Row, report
from benchmarks.memory import forget_peak, held
from benchmarks.references import MU, RATE, Work, interleaved, median, ratio, seeded
from cyber0.commit import Commit
from cyber0.directions import DirectionKey, Family
from cyber0.layerwise import Walk
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
SHAPES: dict[str, tuple[int, int]] = {"minilm": (32, 53), "smollm2": (8, 64)}  # samples and tokens of a batch
ROUNDS = count()


def model(name: str, *, small: bool) -> Classifier:
    transformers: Any = import_module("transformers")
    seeded(0)
    if name == "minilm":
        sizes: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
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


def a_round(module: Any, precision: str, given: tuple[torch.Tensor, torch.Tensor], family: Family) -> Work:
    parameters = Parameters.of(module if precision == "float32" else to_bf16(module))
    arithmetic = torch.float32 if precision == "float32" else torch.bfloat16
    walk = Walk(parameters, cross_entropy, arithmetic)
    samples = walk.batch(given[0][None], given[1][None])

    def work() -> None:
        number = next(ROUNDS)
        slope = walk.along(samples, DirectionKey(1, number), MU, family).numpy()
        parameters.apply(Commit(1, number, RATE, slope[None], family))
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
    return a_round(module, precision, given, what)  # pyright: ignore[reportArgumentType]


def times(name: str, precision: str, *, small: bool) -> list[Row]:
    works = {what: work_of(name, precision, what, small=small) for what in (PLAIN, AT_ONCE, *FAMILIES)}
    found = interleaved(works, 5, 0.05)
    peaks = {what: _apart(name, precision, what, small=small) for what in works}
    return [
        {
            "model": name,
            "precision": precision,
            "what": what if what in (PLAIN, AT_ONCE) else f"a round, {what}",
            "ms": median(found, what) * 1e3,
            "times plain": ratio(found, what, PLAIN),
            "peak GiB": peaks[what] / 2**30,
            "times its peak": peaks[what] / peaks[PLAIN],
        }
        for what in works
    ]


def peak(name: str, precision: str, what: str, *, small: bool) -> int:
    """The most memory of three in a row, beyond what the libraries take."""
    before = held()
    work = work_of(name, precision, what, small=small)
    work()
    forget_peak()
    for _ in range(3):
        work()
    return held(peak=True) - before


def _apart(name: str, precision: str, what: str, *, small: bool) -> int:
    asked = [name, precision, what, *(["--small"] if small else [])]
    command = [sys.executable, "-m", "benchmarks.cpu_rounds", "--peak", *asked]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--small", action="store_true", help="one layer and two samples, to try the script out")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.peak:
        print(peak(*given.peak, small=given.small))
        return
    torch.set_num_threads(cores())
    rows = [row for name in given.only for each in PRECISIONS for row in times(name, each, small=given.small)]
    report("cpu_rounds_small" if given.small else "cpu_rounds", rows, COMMAND)


if __name__ == "__main__":
    main(sys.argv[1:])
