"""A simulated round against the same round done client by client and direction by direction, as the peers do it.

n = 40 clients, nu = 64 directions, batch 64, logistic regression. The reference perturbs the weights in place (three
passes), as in the paper's Algorithms 3 and 4; it must give the same scalars to rounding. Both take turns, in blocks;
what is kept is the median over blocks. Of the embedded digits many clients hold fewer than a batch and draw some twice,
which are measured once: so also with an equal share for each client, where no sample is drawn twice. Then: how the cost
of a round grows with clients, directions, local epochs and parameters.
"""

from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, Row, report, seconds
from benchmarks.references import Work, interleaved, median, ratio
from cyber0.config import RunConfig
from cyber0.directions import sample
from cyber0.simulation import Simulation
from cyber0.tasks.task import Task, get_task

COMMAND = "python -m benchmarks.simulation"


def reference_votes(simulation: Simulation, t: int) -> Any:
    """The scalars of all clients, one client and one direction at a time, perturbing the weights in place."""
    config, parameters, task = simulation.config, simulation.parameters, simulation.task
    model: Any = parameters.module
    votes = np.zeros((config.clients, config.directions), dtype=np.float32)
    with torch.no_grad():
        for client in range(config.clients):
            x, y = simulation.population.batches(t, 0, np.array([client]))
            for index, key in enumerate(config.plan.keys(t, 0)):
                steps = [
                    config.mu * sample(key, e.size, e.start, "sphere", parameters.size, device=flat.device)
                    for e, flat in parameters
                ]
                sides: list[torch.Tensor] = []
                for sign in (1, -2):
                    for (_, flat), step in zip(parameters, steps, strict=True):
                        flat.add_(step, alpha=sign)
                    sides.append(task.losses(model, (x[0], y[0])))
                for (_, flat), step in zip(parameters, steps, strict=True):
                    flat.add_(step)
                slope = float((sides[0] - sides[1]).mean()) / (2 * config.mu)
                votes[client, index] = parameters.size * slope / config.directions
    return votes


def against_reference(task: Task) -> list[Row]:
    simulation, equal = Simulation(RunConfig(), task), Simulation(RunConfig(partition="iid"), task)
    present = np.arange(40)
    ours, theirs = simulation.votes(0, present)[0], reference_votes(simulation, 0)
    error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    assert error < 5e-3, error
    loop, fast, shared = (
        "client by client, direction by direction",
        "ours: votes, aggregate, commit, apply",
        "ours, where no sample is drawn twice",
    )
    works = {loop: lambda: reference_votes(simulation, 1), fast: rounds_of(simulation), shared: rounds_of(equal)}
    times = interleaved(works, blocks=9, block=0.5)
    rows: list[Row] = [
        {"what": name, "ms a round": median(times, name) * 1e3, "times faster": ratio(times, loop, name)}
        for name in works
    ]
    return [*rows, {"what": "largest difference of a scalar, relative", "ms a round": "-", "times faster": error}]


def rounds_of(simulation: Simulation) -> Work:
    """One round after the other."""
    numbers = count()
    return lambda: simulation.play_round(next(numbers))


def scaling(task: Task, mlp: Any) -> list[Row]:
    base: dict[str, Any] = {"clients": 10, "byzantine": 2, "directions": 16, "batch": 64}
    axes: dict[str, list[int]] = {
        "clients": [5, 10, 20, 40, 80],
        "directions": [8, 16, 32, 64, 128],
        "local_epochs": [1, 2, 4, 8, 16],
        "parameters": [8, 16, 32, 64, 128],  # of a hidden layer: d = 795 h + 10
    }
    rows: list[Row] = []
    for axis, values in axes.items():
        for value in values:
            options: dict[str, Any] = base if axis == "parameters" else {**base, axis: value}
            simulation = Simulation(RunConfig(**options), mlp(value) if axis == "parameters" else task)
            rounds = iter(range(10**6))

            def whole_round(simulation: Simulation = simulation, rounds: Any = rounds) -> None:
                simulation.play_round(next(rounds))
                simulation.parameters.settle()
                simulation.parameters.fingerprint()  # waits for the device

            (time,) = seconds(whole_round, repeats=15)
            shown = simulation.parameters.size if axis == "parameters" else value
            rows.append({"axis": axis, "value": shown, "ms a round": time * 1e3})
    return rows


def plot(rows: list[Row], name: str) -> None:
    """Cost over each axis, with a line through the largest value and the origin: linear growth."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("svg")
    plt: Any = import_module("matplotlib.pyplot")
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    figure, panels = plt.subplots(1, len(axes), figsize=(3 * len(axes), 2.8), constrained_layout=True)
    for panel, axis in zip(panels, axes, strict=True):
        x, y = zip(*((row["value"], row["ms a round"]) for row in rows if row["axis"] == axis), strict=True)
        panel.plot([0, x[-1]], [0, y[-1]], color="0.8", linewidth=1)
        panel.plot(x, y, "o-", color="#0b6e99", markersize=4)
        panel.set(xlabel=axis.replace("_", " "), xlim=(0, None), ylim=(0, None))
        panel.spines[["top", "right"]].set_visible(False)
        panel.locator_params(axis="x", nbins=4)
    panels[0].set_ylabel("milliseconds a round")
    figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})


def main() -> None:
    where = "gpu" if torch.cuda.is_available() else "cpu"
    task = get_task("mnist")(None, "auto")
    report(f"simulation_{where}", against_reference(task), COMMAND)

    def mlp(hidden: int) -> Task:
        return get_task(f"mnist-mlp(hidden={hidden})")(None, "auto")

    rows = scaling(task, mlp)
    report(f"simulation_scaling_{where}", rows, COMMAND)
    plot(rows, f"simulation_scaling_{where}")


if __name__ == "__main__":
    main()
