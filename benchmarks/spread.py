"""One simulated run on Ray actors: rounds a second with 1, 2, 4 and more of them, and the bytes that travel in a round.

    python -m benchmarks.spread

24 clients of a multilayer perceptron on embedded digits (`mnist-mlp`), 4 directions, batch 64, client by client; one
thread each, as the actors have. Bytes are all that crossed the loopback device meanwhile, Ray's own talk included, and
beside them what votes and aggregates amount to.
"""

import statistics
import time
from pathlib import Path
from typing import Any, cast

import ray
import torch

from benchmarks.measure import Row, report
from cyber0.config import RunConfig
from cyber0.simulation import Simulation
from cyber0.threads import cores

COMMAND = "python -m benchmarks.spread"
CLIENTS, DIRECTIONS, ROUNDS, TURNS = 24, 4, 10, 3
ACTORS = (1, 2, 4) if cores() < 8 else (1, 2, 4, 8)
GIVEN: dict[str, Any] = {"task": "mnist-mlp", "source": "embedded", "device": "cpu", "partition": "iid", "batch": 64}
SIZE: dict[str, Any] = {"clients": CLIENTS, "byzantine": 5, "directions": DIRECTIONS, "rounds": 10**6}


def loopback() -> int:
    """Bytes that have crossed the loopback device."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split()[1])


def main() -> None:
    torch.set_num_threads(1)
    cast("Any", ray).init(num_cpus=sum(ACTORS), include_dashboard=False, log_to_driver=False)
    runs = {"none, one process": Simulation(RunConfig(**GIVEN, **SIZE, engine="sequential"))}
    runs |= {str(n): Simulation(RunConfig(**GIVEN, **SIZE, engine="ray", actors=n)) for n in ACTORS}
    times: dict[str, list[float]] = {name: [] for name in runs}
    sent: dict[str, list[int]] = {name: [] for name in runs}
    for simulation in runs.values():
        simulation.play_round(0)
    for turn in range(TURNS):
        for name, simulation in runs.items():
            begin, before = time.perf_counter(), loopback()
            for t in range(1 + turn * ROUNDS, 1 + (turn + 1) * ROUNDS):
                simulation.play_round(t)
            times[name].append((time.perf_counter() - begin) / ROUNDS)
            sent[name].append(round((loopback() - before) / ROUNDS))
    marks = {simulation.parameters.fingerprint() for simulation in runs.values()}
    assert len(marks) == 1, marks
    plain = statistics.median(times["none, one process"])
    rows: list[Row] = [
        {
            "actors": name,
            "rounds a second": 1 / statistics.median(times[name]),
            "times one process": plain / statistics.median(times[name]),
            "bytes a round": min(sent[name]),
            "of them votes and aggregates": 0 if "none" in name else 4 * DIRECTIONS * (CLIENTS + int(name)),
        }
        for name in runs
    ]
    report(f"spread_{cores()}_cores", rows, COMMAND)


if __name__ == "__main__":
    main()
