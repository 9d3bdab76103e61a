"""How well the scalars of bf16 arithmetic agree with those of float32, on a pretrained model.

    python -m benchmarks.precision --model DIR --data DIR [--task trec] [--directions 20] [--batch 4] [--device cpu]

Twelve clients measure along the same directions in each precision; the correlation is over all their scalars. With
`--lr` the model is first moved by some rounds of float32, so that a head that begins at zero is not all that counts.
"""

import argparse
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Row, report
from cyber0.config import RunConfig
from cyber0.layerwise import Precision, Walk, in_precision
from cyber0.layerwise.measure import arithmetic_of
from cyber0.parameters import Parameters
from cyber0.simulation import Simulation

PRECISIONS: tuple[Precision, ...] = ("float32", "mixed", "bf16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--task", default="trec")
    parser.add_argument("--directions", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--mu", type=float, default=1e-3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--name", default="model")
    given = parser.parse_args()
    keys = ("model", "data", "task", "batch", "lr", "mu", "device")
    setting: dict[str, Any] = {
        "clients": 12,
        "byzantine": 3,
        "partition": "dirichlet(alpha=1)",
        "family": "gaussian",
        "directions": 1,
    }
    options: dict[str, Any] = {key: getattr(given, key) for key in keys}
    options |= {**setting, "rounds": max(1, given.rounds)}
    config = RunConfig(**options)
    simulation = Simulation(config)
    for _ in range(given.rounds):
        next(simulation.play())
    simulation.parameters.settle()
    scalars = {precision: measured(simulation, precision, given.directions) for precision in PRECISIONS}
    rows = [compared(precision, scalars["float32"], scalars[precision]) for precision in PRECISIONS[1:]]
    shown = " ".join(f"--{key} {getattr(given, key)}" for key in ("task", "directions", "batch", "rounds", "lr", "mu"))
    report(f"precision_{given.name}", rows, f"python -m benchmarks.precision --model DIR --data DIR {shown}")


def compared(precision: Precision, exact: NDArray[np.float64], found: NDArray[np.float64]) -> Row:
    """How far scalars are from those of float32."""
    error = np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))
    correlation = np.corrcoef(exact.ravel(), found.ravel())[0, 1]
    return {"precision": precision, "correlation": float(correlation), "error, relative": float(error)}


def measured(simulation: Simulation, precision: Precision, directions: int) -> NDArray[np.float64]:
    """The scalars [directions, clients] of the model as it stands."""
    module = in_precision(deepcopy(simulation.parameters.module), precision)
    walk = Walk(Parameters.of(module), simulation.task.losses, arithmetic_of(precision))
    batch = walk.batch(*simulation.population.batches(0, 0, np.arange(12)))
    plan = simulation.config.plan
    return np.stack([walk.along(batch, plan.keys(t, 0)[0], plan.mu).cpu().numpy() for t in range(directions)])


if __name__ == "__main__":
    main()
