"""How fast commits are replayed, in coordinates a second of one core: by family, by type and beside the floor.

Times are of the processor (CPU time of one thread), so that other work on the machine matters less; candidates take
turns. The floor is what no replay of this stream can beat: generating the words alone, and reading and writing the
weights once for all commits of a pass. `--before LIBRARY` adds an earlier build of `_stream`, in the same run.
"""

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row, report
from cyber0.config import Agreement
from cyber0.directions import DirectionKey, native
from cyber0.directions.key import Family, pack
from cyber0.directions.select import get_backend
from cyber0.parameters import Parameters
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import Decision
from cyber0.replay import rebuild

COMMAND = "python -m benchmarks.replay"
SIZE, COMMITS, REPEATS = 2**20, 64, 9
CASES: list[tuple[Family, bool]] = [
    ("rademacher", False),
    ("rademacher", True),
    ("gaussian", False),
    ("gaussian", True),
]


def packed(family: Family, first: int) -> Any:
    keys = [DirectionKey(1, first + t) for t in range(COMMITS)]
    return pack(keys, family, [1.0] * COMMITS, [1e-4] * COMMITS).reshape(COMMITS, 1)


def fold(library: Any, weights: Any, directions: Any) -> None:
    """All commits in one pass, by one thread."""
    library.cyber0_fold(
        *(weights.ctypes.data, int(weights.itemsize == 2), len(weights), 0, directions.ctypes.data), *directions.shape
    )


def one_by_one(library: Any, weights: Any, directions: Any) -> None:
    """A pass for each commit."""
    at, bf16 = weights.ctypes.data, int(weights.itemsize == 2)
    for row in directions:
        library.cyber0_descend(at, bf16, at, bf16, len(weights), 0, row.ctypes.data, 1)


def lengths(library: Any, weights: Any, directions: Any) -> None:
    """What a sphere needs first: the length of each direction."""
    for row in directions:
        library.cyber0_squared_length(len(weights), 0, row.ctypes.data)


def copies(library: Any, weights: Any, directions: Any) -> None:  # noqa: ARG001
    """A read and a write of all weights, once for a pass."""
    np.copyto(np.empty_like(weights), weights)


def rate(works: dict[str, Any], family: Family, bf16: bool) -> dict[str, float]:
    """Billions of coordinates a second, the median of each."""
    spent: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(REPEATS + 1):
        for name, (work, library) in works.items():
            weights = np.zeros(SIZE, dtype=np.uint16 if bf16 else np.float32)
            directions = packed(family, repeat * COMMITS)
            begin = time.thread_time()
            work(library, weights, directions)
            if repeat:
                spent[name].append(time.thread_time() - begin)
    return {name: SIZE * COMMITS / statistics.median(times) / 1e9 for name, times in spent.items()}


def rows(before: Any) -> list[Row]:
    library = native.library()
    found: list[Row] = []
    for family, bf16 in CASES:
        works: dict[str, Any] = {"in one pass": (fold, library), "one by one": (one_by_one, library)}
        works |= {"a copy of the weights": (copies, library)}
        if before is not None:
            works["before"] = fold, before
        if family == "gaussian" and not bf16:
            works["lengths"] = lengths, library
            if before is not None:
                works["lengths before"] = lengths, before
        rates = rate(works, family, bf16)
        found.append(_row(family, bf16, rates, rates["in one pass"], rates.get("before")))
        if "lengths" in rates:
            ours = 1 / (1 / rates["in one pass"] + 1 / rates["lengths"])
            theirs = None if before is None else 1 / (1 / rates["before"] + 1 / rates["lengths before"])
            found.append(_row("sphere, lengths first", bf16, rates, ours, theirs))
    return found


def _row(family: str, bf16: bool, rates: dict[str, float], ours: float, theirs: float | None) -> Row:
    return {
        "family": family,
        "weights": "bf16" if bf16 else "float32",
        "G coordinates/s a core": ours,
        "times one by one": "-" if family.startswith("sphere") else ours / rates["one by one"],
        "before, G/s": "-" if theirs is None else theirs,
        "times before": "-" if theirs is None else ours / theirs,
        "a copy for each pass, G/s": rates["a copy of the weights"],
    }


def whole_runs() -> list[Row]:
    """A model of the size of all-MiniLM-L6-v2, rebuilt on all cores; from that, how long 40,000 rounds take."""
    cases: list[tuple[Family, int]] = [("rademacher", 4000), ("gaussian", 400), ("sphere", 200)]
    found: list[Row] = []
    for family, rounds in cases:
        weights = {"embeddings": np.zeros((30522, 384), dtype=np.float32)}
        weights |= {f"layer-{layer}": np.zeros((4620, 384), dtype=np.float32) for layer in range(6)}
        parameters, ledger = Parameters(weights), Memory()
        agreement = Agreement(clients=1, byzantine=0, directions=1, family=family, rounds=rounds)
        ledger.found(Identity.of(agreement, ["ann"], parameters))
        for number in range(rounds):
            ledger.append(Decision(number, np.float32(0.1 + number / rounds).tobytes(), ()))
        begin, busy = time.perf_counter(), time.process_time()
        rebuild(ledger, parameters)
        wall, busy = time.perf_counter() - begin, time.process_time() - busy
        row = {
            "family": family,
            "weights": parameters.size,
            "rounds": rounds,
            "seconds": wall,
            "processor seconds": busy,
        }
        minutes = {"by the clock": wall, "by the processor, on two cores": busy / 2}
        found.append(row | {f"40,000 rounds, minutes {how}": s / rounds * 4e4 / 60 for how, s in minutes.items()})
    return found


def gpu(size: int = 355_000_000) -> list[Row]:
    """On a CUDA device: passes of some commits, beside a copy of the same weights."""
    import torch

    from benchmarks.references import interleaved, median

    found: list[Row] = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = torch.zeros(size, device="cuda", dtype=dtype)
        backend, other = get_backend("triton", weights.device), torch.empty_like(weights)
        works: dict[str, Any] = {"copy": lambda other=other, weights=weights: other.copy_(weights)}
        families: tuple[Family, ...] = ("rademacher", "gaussian")
        cases: list[tuple[Family, int]] = [(family, commits) for family in families for commits in (1, 4, 8, 16, 32)]
        for family, commits in cases:
            works[f"{family} {commits}"] = partial(backend.fold, weights, packed(family, 0)[:commits], 0)
        times = interleaved(works, 3, 0.05)
        for family, commits in cases:
            ms, copy = (median(times, name) * 1e3 for name in (f"{family} {commits}", "copy"))
            row = {"family": family, "weights": str(dtype).removeprefix("torch."), "commits in a pass": commits}
            rates = {"times a copy": ms / copy, "G coordinates/s": size * commits / ms / 1e6}
            found.append({**row, "ms a pass": ms, **rates})
    return found


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, help="an earlier build of cyber0.directions._stream")
    given = parser.parse_args(arguments)
    if find_spec("triton") is not None:
        report("replay_gpu", gpu(), COMMAND)
        return
    before = None if given.before is None else native.declared(ctypes.CDLL(str(given.before)))
    report("replay_cpu", rows(before), COMMAND)
    report("replay_runs_cpu", whole_runs(), COMMAND)


if __name__ == "__main__":
    main(sys.argv[1:])
