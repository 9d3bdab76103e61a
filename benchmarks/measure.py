"""Timing, tables and result files shared by the benchmarks."""

import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
RESULTS = Path(__file__).with_name("results")


def seconds(*works: Callable[[], Any], repeats: int = 9) -> list[float]:
    """The median time of each, their repeats interleaved so that a noisy minute hits all alike."""
    times: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(repeats):
        for work, spent in zip(works, times, strict=True):
            begin = time.perf_counter()
            work()
            spent.append(time.perf_counter() - begin)
    return [statistics.median(spent) for spent in times]


def cuda_seconds(*works: Callable[[], Any], repeats: int = 25) -> list[float]:
    """The same on a CUDA device, by its own clock."""
    times: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(repeats):
        for work, spent in zip(works, times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            spent.append(begin.elapsed_time(end) / 1e3)
    return [statistics.median(spent) for spent in times]


def machine() -> str:
    """Where a result was measured."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = f"{len(names)} x {names[0]}" if names else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{cpu}{gpu}, Python {platform.python_version()}, torch {torch.__version__}"


def report(name: str, rows: list[Row], command: str) -> None:
    """Print the rows as a table and keep them in results/, dated."""
    table = Table(*rows[0], title=f"{name} ({machine()})")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)
    RESULTS.mkdir(exist_ok=True)
    result = {"command": command, "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
