"""What privacy costs in time and memory: a round with clipping and noise beside one without, interleaved in one run.

    python -m benchmarks.privacy

A client's vote on 64 MNIST digits along 64 directions, on 64 texts by a small encoder, and a round of 40 simulated
clients. Private batches are of Poisson sizes, measured in parts of shapes that were tried out before: a few votes
try them. What the first vote takes, with all that it tries, is told apart. Memory is the peak of a process of its own
that plays such rounds.
"""

import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.families import SHAPE, built, prompts
from benchmarks.measure import report
from benchmarks.references import seeded
from cyber0.client import Client
from cyber0.config import RunConfig
from cyber0.estimate import estimate
from cyber0.layerwise import LayerwiseEstimate
from cyber0.parameters import Parameters
from cyber0.plan import Plan
from cyber0.privacy.client_steps import PrivateSteps, system_noise
from cyber0.privacy.mechanism import Mechanism
from cyber0.simulation import Simulation
from cyber0.tasks.task import cross_entropy

REPEATS, WARM = 41, 16
SIMULATED: dict[str, Any] = {"source": "embedded", "partition": "iid", "rounds": 10**6}


def clients() -> dict[str, Client]:
    """Return the same client of MNIST with and without privacy."""
    simulation = Simulation(RunConfig(**SIMULATED, engine="sequential"))
    data = simulation.task.dataset
    samples: Any = tuple(map(torch.as_tensor, (data.train_inputs, data.train_labels)))
    return _both(simulation.parameters, samples, simulation.plan, simulation.task.probes(), estimate)


def text_clients() -> dict[str, Client]:
    """Return a client with an encoder of 1.2 million weights, on texts of 3 to 48 tokens."""
    return _text_clients({"hidden_size": 128, "num_hidden_layers": 6, "intermediate_size": 512})


def large_text_clients() -> dict[str, Client]:
    """Return a client with an encoder of the shape of MiniLM: 23 million weights, half of them of its words."""
    return _text_clients(
        {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536, "vocab_size": 30522},
    )


def _text_clients(larger: dict[str, int]) -> dict[str, Client]:
    shape = SHAPE | larger | {"num_attention_heads": larger["hidden_size"] // 32}
    seeded(0)
    model = built(("Bert", "masked", shape), max_position_embeddings=128)
    (x, y), (probes, labels) = (prompts(1, count, 48, seed) for seed, count in enumerate((1000, 128)))
    plan = Plan(seed=0, directions=4, local_epochs=1, scheme="unbiased", mu=1e-3, lr=0.1)
    return _both(Parameters.of(model), (x[0], y[0]), plan, (probes[0], labels[0]), LayerwiseEstimate())


def _both(parameters: Parameters, samples: Any, plan: Plan, probes: Any, measure: Any) -> dict[str, Client]:
    """Return a client without privacy on batches of 64, and one with it on Poisson batches of 64 expected."""
    x, y = samples

    def drawn(t: int, _epoch: int) -> Any:
        chosen = np.random.default_rng(t).permutation(len(y))[:64]
        return x[chosen], y[chosen]

    def poisson(t: int, _epoch: int) -> Any:
        chosen = np.flatnonzero(np.random.default_rng(t).random(len(y)) < 64 / len(y))
        return x[chosen], y[chosen]

    mechanism = Mechanism(clip=10.0, noise=0.85, batch=64.0)
    private = PrivateSteps(mechanism, system_noise(mechanism), probes)
    return {
        "plain": Client(parameters, cross_entropy, drawn, plan, measure=measure),
        "private": Client(parameters, cross_entropy, poisson, plan, measure=measure, private=private),
    }


def simulations() -> dict[str, Simulation]:
    """Return a simulation with and without privacy; noise and batches are drawn in the round."""
    plain, private = RunConfig(**SIMULATED), RunConfig(**SIMULATED, noise=0.85)
    return {"plain": Simulation(plain), "private": Simulation(private)}


def ratios() -> dict[str, float]:
    """Return how long a private vote and a private round take, in plain ones."""
    found: dict[str, float] = {}
    cases: dict[str, tuple[int, int, dict[str, Any]]] = {
        "vote of a client": (WARM, REPEATS, {name: client.vote for name, client in clients().items()}),
        "vote of a client on texts": (WARM, REPEATS // 4, {name: each.vote for name, each in text_clients().items()}),
        "vote with 23 million weights": (4, 5, {name: each.vote for name, each in large_text_clients().items()}),
        "round of a simulation": (3, REPEATS, {name: run.play_round for name, run in simulations().items()}),
    }
    for case, (warm, repeats, calls) in cases.items():
        seconds: dict[str, list[float]] = {"plain": [], "private": []}
        for t in range(warm + repeats):
            for name in ("plain", "private") if t % 2 else ("private", "plain"):
                begin = time.process_time()
                calls[name](t)
                seconds[name].append(time.process_time() - begin)
        quotients = [private / plain for private, plain in zip(seconds["private"], seconds["plain"], strict=True)]
        found[case] = median(quotients[warm:])
        if case != "round of a simulation":
            found[f"first {case}"] = seconds["private"][0] / median(seconds["plain"])
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
