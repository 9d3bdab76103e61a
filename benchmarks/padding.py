"""How much of a batch of prompts is padding: as one rectangle, and as the layer-wise engine cuts it.

    python -m benchmarks.padding --data DATA --tokenizer DIR

A packed batch would have none. So the share of padding that is left is the most that packing could save of the work
that grows with tokens; attention between packed prompts must then be masked.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer

from benchmarks.measure import Row, report
from cyber0.layerwise.batching import cuts, round_up
from cyber0.layerwise.micro_batches import GRAIN, OVERHEAD
from cyber0.tasks.text import prompts, rows
from cyber0.tasks.text.tokens import encode, lengths

CLIENTS, BATCHES = 12, 50


def padding(sizes: NDArray[Any], batch: int, device: str | None) -> float:
    """Return the share of padding in batches of all clients, drawn by seed; as one rectangle if no device is given."""
    rng = np.random.default_rng(0)
    drawn = [np.sort(rng.choice(sizes, CLIENTS * batch)) for _ in range(BATCHES)]
    used, held, grain = 0, 0, GRAIN if device == "cuda" else 1
    widths = [[round_up(int(size), grain) for size in each] for each in drawn]
    ends = (0, CLIENTS * batch) if device is None else cuts(np.array(widths[0]), OVERHEAD[device])
    for each, wide in zip(drawn, widths, strict=True):
        held += sum((b - a) * wide[b - 1] for a, b in pairwise(ends))
        used += int(each.sum())
    return 1 - used / held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    given = parser.parse_args()
    automatic: Any = AutoTokenizer
    tokenizer = automatic.from_pretrained(given.tokenizer)
    table: list[Row] = []
    for name in ("sst2", "snli", "trec"):
        prompt = prompts.load(name)
        train, _ = rows.locate(name, prompt, given.data)
        found = rows.read(train, prompt, prompt.columns("masked")).texts[:5000]
        sizes = lengths(encode(tokenizer, prompt, "masked", found, 128))
        for batch in (8, 32):
            row = {"task": name, "batch": batch, "tokens on average": float(sizes.mean())}
            row |= {f"padding, {how}": padding(sizes, batch, device) for how, device in WAYS.items()}
            table.append(row)
            print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    report("padding", table, "python -m benchmarks.padding --data DATA --tokenizer DIR")


WAYS = {"one rectangle": None, "cut on a CPU": "cpu", "cut on CUDA": "cuda"}

if __name__ == "__main__":
    main()
