"""How much memory a step takes, by backpropagation and by ours: `python -m benchmarks.memory --model DIR --data DATA`.

One client's batch of a text task, on the model in the folder DIR or of that name on the hub. Each way to train runs in
a process of its own: ours along one direction by two forward passes, `exact` along 64 by a backward pass. A peak is
what it held at most, the weights included and what was there besides them before the first step not: on a GPU by
torch's own count, elsewhere by the operating system's. All ways have the same batch, and no dropout.
"""

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Row, report
from cyber0.config import RunConfig
from cyber0.simulation.simulation import Simulation

WAYS = ("ours", "exact", "SGD", "AdamW")
STEPS = 3


def main(arguments: list[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--model", required=True, help="a folder with a model, or its name on the hub")
    parser.add_argument("--task", default="sst2", help="a text task, e.g. 'sst2(scale=50)'")
    parser.add_argument("--data", type=Path, help="the folder of its data")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", default="float32", choices=("float32", "mixed", "bf16"), help="of ours")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", choices=WAYS, help="print the peak of one way, in bytes, and stop")
    parser.add_argument("--name", help="what to call the result; by default memory_MODEL")
    given = parser.parse_args(arguments)
    if given.only:
        print(json.dumps(peak_of(given.only, given)))
        return
    words = sys.argv[1:] if arguments is None else arguments
    peaks = {way: _apart(way, words) for way in WAYS}
    rows: list[Row] = [
        {"way": way, "peak GiB": peak["bytes"] / 2**30, "times ours": peak["bytes"] / peaks["ours"]["bytes"], **peak}
        for way, peak in peaks.items()
    ]
    name = Path(given.model).name
    command = f"python -m benchmarks.memory --model {name} --task {given.task!r} --data DATA --batch {given.batch}"
    report(given.name or f"memory_{name}", rows, f"{command} --precision {given.precision}")


def peak_of(way: str, given: Namespace) -> dict[str, Any]:
    """The most memory that some steps of a way took, and how large the model and its batch are."""
    options: dict[str, Any] = {
        "task": given.task,
        "model": given.model,
        "data": None if given.data is None else str(given.data),
    }
    precision = given.precision if way in ("ours", "exact") else "float32"
    one_client: dict[str, Any] = {
        "clients": 1,
        "byzantine": 0,
        "rule": "mean",
        "partition": "iid",
        "family": "gaussian",
        "directions": 64 if way == "exact" else 1,
        "mu": 0.0 if way == "exact" else 1e-3,
    }
    config = RunConfig(**options, **one_client, batch=given.batch, rounds=STEPS, lr=1e-9, precision=precision)
    simulation = Simulation(config.model_copy(update={"device": given.device}))
    before = held() - simulation.parameters.size * (2 if precision == "bf16" else 4)
    forget_peak()
    if way in ("ours", "exact"):
        for _ in simulation.play():
            pass
    else:
        _backpropagate(simulation, way)
    x, _ = simulation.population.batches(0, 0, [0])  # pyright: ignore[reportArgumentType]
    shape = " x ".join(map(str, getattr(x, "shape", (given.batch,))[1:]))
    return {"bytes": held(peak=True) - before, "parameters": simulation.parameters.size, "batch": shape}


def _backpropagate(simulation: Simulation, optimizer: str) -> None:
    model: Any = simulation.participant.model
    losses: Any = simulation.task.losses
    model.requires_grad_(requires_grad=True)
    steps: Any = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-9)
    for t in range(STEPS):
        x, y = simulation.population.batches(t, 0, [0])  # pyright: ignore[reportArgumentType]
        losses(model, (x[0], y[0])).mean().backward()
        steps.step()
        steps.zero_grad()


def held(*, peak: bool = False) -> int:
    """How much memory is held now, or was at most."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:" if peak else "VmRSS:"))


def forget_peak() -> None:
    """Begin to look for the peak anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _apart(way: str, words: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.memory", *words, "--only", way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
