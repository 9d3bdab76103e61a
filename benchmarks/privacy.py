"""What privacy costs in time and memory: a round with clipping and noise beside one without, interleaved in one run.

    python -m benchmarks.privacy

A client's vote on 64 MNIST digits along 64 directions, and a round of 40 simulated clients. Memory is the peak of a
process of its own that plays such rounds.
"""

import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.measure import report
from cyber0.client import Client
from cyber0.config import RunConfig
from cyber0.privacy.client_steps import PrivateSteps, system_noise
from cyber0.privacy.mechanism import Mechanism
from cyber0.simulation import Simulation

REPEATS = 101
SIMULATED: dict[str, Any] = {"source": "embedded", "partition": "iid", "rounds": 10**6}


def clients() -> dict[str, Client]:
    """Return the same client with and without privacy, on batches of the same size."""
    simulation = Simulation(RunConfig(**SIMULATED, engine="sequential"))
    batch = tuple(part[0] for part in simulation.population.batches(0, 0, np.array([0])))

    def drawn(_round: int, _epoch: int) -> Any:
        return batch

    mechanism = Mechanism(clip=10.0, noise=0.85, batch=64.0)
    model = simulation.parameters, simulation.task.losses, drawn, simulation.plan
    return {
        "plain": Client(*model),
        "private": Client(*model, private=PrivateSteps(mechanism, system_noise(mechanism))),
    }


def simulations() -> dict[str, Simulation]:
    """Return a simulation with and without privacy; noise and batches are drawn in the round."""
    plain, private = RunConfig(**SIMULATED), RunConfig(**SIMULATED, noise=0.85)
    return {"plain": Simulation(plain), "private": Simulation(private)}


def ratios() -> dict[str, float]:
    """Return how long a private vote and a private round take, in plain ones."""
    found: dict[str, float] = {}
    voting, playing = clients(), simulations()
    cases: dict[str, dict[str, Any]] = {
        "vote of a client": {name: client.vote for name, client in voting.items()},
        "round of a simulation": {name: run.play_round for name, run in playing.items()},
    }
    for case, calls in cases.items():
        for call in calls.values():
            call(0)
        quotients: list[float] = []
        for t in range(1, REPEATS + 1):
            seconds: dict[str, float] = {}
            for name in ("plain", "private") if t % 2 else ("private", "plain"):
                begin = time.process_time()
                calls[name](t)
                seconds[name] = time.process_time() - begin
            quotients.append(seconds["private"] / seconds["plain"])
        found[case] = median(quotients)
    return found


def peak(name: str) -> int:
    """Return the peak memory of a process that plays a few rounds, in KiB."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "benchmarks.privacy", name], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        simulation = simulations()[sys.argv[1]]
        for t in range(3):
            simulation.play_round(t)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    rows = {f"time of a {case}, private / plain": value for case, value in ratios().items()}
    rows["peak memory of a simulation, private / plain"] = peak("private") / peak("plain")
    measured = [{"measure": name, "ratio": round(value, 3)} for name, value in rows.items()]
    report("privacy", measured, "python -m benchmarks.privacy")


if __name__ == "__main__":
    main()
