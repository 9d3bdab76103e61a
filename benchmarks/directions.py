"""How fast directions are made and applied.

CPU: against `torch.randn` of the same size and threads. GPU: against a copy of the same bytes, 355 million float32
parameters. The floor of `w + s z` is one read and one write of the weights; both signs write twice.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Row, cuda_seconds, report, seconds
from cyber0.directions import Cpu, DirectionKey, fingerprint
from cyber0.directions.key import Family, pack
from cyber0.directions.select import empty, get_backend

COMMAND = "python -m benchmarks.directions"
KEY = DirectionKey(seed=1, round=2)


def packed(count: int = 1, family: Family = "gaussian") -> Any:
    keys = [DirectionKey(1, 2, index=index) for index in range(count)]
    return pack(keys, family, [1.0] * count, [1e-3] * count)


def cpu(size: int = 2**24) -> list[Row]:
    rows: list[Row] = []
    w, out, other = (np.ones(size, dtype=np.float32) for _ in range(3))
    row = out.reshape(1, -1)
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        tensor = torch.empty(size)
        fast = Cpu(threads=threads)
        works: dict[str, Callable[[], Any]] = {
            "torch.randn": lambda tensor=tensor: torch.randn(tensor.shape, out=tensor),
            "sample gaussian": lambda fast=fast: fast.fill(row, packed(), 0),
            "sample rademacher": lambda fast=fast: fast.fill(row, packed(family="rademacher"), 0),
            "squared length": lambda fast=fast: fast.squared_lengths(packed(), size, None),
            "w + s z": lambda fast=fast: fast.move(w, packed(), 0, out, None),
            "w + s z, w - s z": lambda fast=fast: fast.move(w, packed(), 0, out, other),
            "w - sum of 8": lambda fast=fast: fast.descend(w, packed(8), 0, out),
            "fingerprint": lambda fast=fast: fast.fingerprint(w, 0),
        }
        times = seconds(*works.values())
        rows += [
            {
                "operation": name,
                "threads": threads,
                "million a second": size / time / 1e6,
                "times torch.randn": times[0] / time,
            }
            for name, time in zip(works, times, strict=True)
        ]
    small = 2**20
    for name in ("numpy", "torch"):
        device = None if name == "numpy" else torch.device("cpu")
        buffer = empty(small, device).reshape(1, -1)
        backend = get_backend(name, device)
        peer, time = seconds(
            lambda: torch.randn(small), lambda backend=backend, buffer=buffer: backend.fill(buffer, packed(), 0)
        )
        rows.append(
            {
                "operation": f"sample gaussian, backend {name} (no compiler)",
                "threads": torch.get_num_threads(),
                "million a second": small / time / 1e6,
                "times torch.randn": peer / time,
            }
        )
    return rows


def gpu(size: int = 355_000_000) -> list[Row]:
    from cyber0.directions.kernels import descend, move, table

    w = torch.randn(size, device="cuda")
    plus, minus = torch.empty_like(w), torch.empty_like(w)
    half_plus, half_minus = (torch.empty_like(w, dtype=torch.bfloat16) for _ in range(2))
    half = w.to(torch.bfloat16)
    backend = get_backend("triton", w.device)
    tables = {count: table(packed(count), w.device) for count in (1, 8, 64)}
    signs = table(packed(family="rademacher"), w.device)
    works: dict[str, Callable[[], Any]] = {
        "copy, float32": lambda: plus.copy_(w),
        "torch.randn": lambda: torch.randn(size, out=plus),
        "w + s z": lambda: move(w, tables[1], 0, plus, None),
        "w + s z, w - s z": lambda: move(w, tables[1], 0, plus, minus),
        "w + s z, rademacher": lambda: move(w, signs, 0, plus, None, bits=True),
        "w + s z, w - s z, bf16 out": lambda: move(w, tables[1], 0, half_plus, half_minus),
        "w + s z, w - s z, bf16 in and out": lambda: move(half, tables[1], 0, half_plus, half_minus),
        "w - c z": lambda: descend(w, tables[1], 0, plus),
        "w - sum of 8": lambda: descend(w, tables[8], 0, plus),
        "w - sum of 64": lambda: descend(w, tables[64], 0, plus),
        "w - c z, bf16 rounded stochastically": lambda: descend(half, tables[1], 0, half_plus),
        "squared length": lambda: backend.squared_lengths(packed(), size, w.device),
        "fingerprint": lambda: fingerprint(w),
    }
    times = cuda_seconds(*works.values())
    return [
        {"operation": name, "milliseconds": time * 1e3, "times a float32 copy": time / times[0]}
        for name, time in zip(works, times, strict=True)
    ]


def main() -> None:
    if torch.cuda.is_available():
        report("directions_gpu", gpu(), COMMAND)
    else:
        report("directions_cpu", cpu(), COMMAND)


if __name__ == "__main__":
    main()
