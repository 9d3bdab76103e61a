"""Kinds of directions at the same number of forward passes: all weights, one block a round, low rank, scaled tensors.

    python -m benchmarks.perturbations

A network with a hidden layer learns 3,200 embedded digits by zero-order steps, two forward passes a direction, and
4 bytes sent for both. Every kind has the same passes and bytes, and the learning rate of a grid that is best on 800
held-out images with a seed of its own; the table has the accuracy on the 1,000 test images with three other seeds.

- `all`: Gaussian directions of all weights.
- `blocks`: of one layer, in turn (MeZO-BCD).
- `rank r`: for a matrix [m, n] the product of Gaussians [m, r] and [r, n], over sqrt(r) (LOZO, EGGROLL).
- `scaled`: Gaussian ones, each tensor's in proportion to the root mean square of its weights at the start, which are
  normal over sqrt(fan-in); those of biases, which are zero then, unscaled.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measure import Row, report
from cyber0.tasks.mnist import load

Tensor = torch.Tensor
Weights = dict[str, Tensor]
Draw = Callable[[Weights, int, int, torch.Generator], Weights]
SHAPES = {"in": (784, 48), "in bias": (48,), "out": (48, 10), "out bias": (10,)}
DIRECTIONS, BATCH, ROUNDS, MU = 8, 64, 600, 1e-3
RATES = (0.001, 0.002, 0.005, 0.01, 0.02)
SEEDS = (1, 2, 3)


def gaussian(weights: Weights, t: int, count: int, rng: torch.Generator) -> Weights:  # noqa: ARG001
    return {name: torch.randn(count, *each.shape, generator=rng) for name, each in weights.items()}


def blocks(weights: Weights, t: int, count: int, rng: torch.Generator) -> Weights:
    moved = ("in", "in bias") if t % 2 == 0 else ("out", "out bias")
    z = gaussian(weights, t, count, rng)
    return {name: each if name in moved else torch.zeros_like(each) for name, each in z.items()}


def low_rank(rank: int) -> Draw:
    def draw(weights: Weights, t: int, count: int, rng: torch.Generator) -> Weights:
        found = gaussian({name: each for name, each in weights.items() if each.ndim == 1}, t, count, rng)
        for name, each in weights.items():
            if each.ndim == 2:
                left, right = (torch.randn(count, size, rank, generator=rng) for size in each.shape)
                found[name] = left @ right.mT / rank**0.5
        return found

    return draw


def scaled(weights: Weights, t: int, count: int, rng: torch.Generator) -> Weights:
    sizes = {name: float(each.square().mean().sqrt()) for name, each in start(0).items()}
    mean = sum(sizes.values()) / sum(size > 0 for size in sizes.values())
    return {name: z * (sizes[name] / mean or 1.0) for name, z in gaussian(weights, t, count, rng).items()}


KINDS: dict[str, Draw] = {
    "all": gaussian,
    "blocks": blocks,
    "rank 1": low_rank(1),
    "rank 4": low_rank(4),
    "rank 16": low_rank(16),
    "scaled": scaled,
}


def start(seed: int) -> Weights:
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(*shape, generator=rng) / shape[0] ** 0.5 if len(shape) > 1 else torch.zeros(shape)
        for name, shape in SHAPES.items()
    }


def logits(w: Weights, x: Tensor) -> Tensor:
    """Return the logits of models [models, ...] on x [samples, 784]: [models, samples, 10]."""
    hidden = torch.tanh(x @ w["in"] + w["in bias"][:, None])
    return hidden @ w["out"] + w["out bias"][:, None]


def played(draw: Draw, rate: float, seed: int, train: Any, tested: Any, marks: tuple[int, ...]) -> list[float]:
    """Return the accuracy on other samples after some numbers of rounds."""
    rng, weights, found = torch.Generator().manual_seed(seed), start(seed), list[float]()
    for t in range(ROUNDS):
        chosen = torch.randint(len(train[1]), (BATCH,), generator=rng)
        z = draw(weights, t, DIRECTIONS, rng)
        both = {name: torch.cat([w + MU * z[name], w - MU * z[name]]) for name, w in weights.items()}
        scores = logits(both, train[0][chosen]).flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(scores, train[1][chosen].repeat(2 * DIRECTIONS), reduction="none")
        up, down = losses.view(2, DIRECTIONS, BATCH).mean(2)
        slopes = (up - down) / (2 * MU) / DIRECTIONS
        weights = {name: w - rate * torch.einsum("d,d...->...", slopes, z[name]) for name, w in weights.items()}
        if t + 1 in marks:
            right = logits({name: w[None] for name, w in weights.items()}, tested[0])[0].argmax(1) == tested[1]
            found.append(float(right.double().mean()))
    return found


def main() -> None:
    torch.set_num_threads(1)
    data = load(source="embedded")
    x, y = torch.as_tensor(data.train_inputs), torch.as_tensor(data.train_labels).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    held, kept = order[:800], order[800:]
    train, tests = (x[kept], y[kept]), (torch.as_tensor(data.test_inputs), torch.as_tensor(data.test_labels).long())
    marks = (ROUNDS // 4, ROUNDS // 2, ROUNDS)
    rows: list[Row] = []
    for kind, draw in KINDS.items():
        chosen = {rate: played(draw, rate, 0, train, (x[held], y[held]), (ROUNDS,))[0] for rate in RATES}
        rate = max(chosen, key=lambda each: chosen[each])
        runs = torch.tensor([played(draw, rate, seed, train, tests, marks) for seed in SEEDS])
        row: Row = {"directions": kind, "rate": rate, "numbers of a direction": numbers(kind)}
        for place, rounds in enumerate(marks):
            passes = 2 * DIRECTIONS * rounds
            row[f"{passes:,} passes, {4 * DIRECTIONS * rounds / 1e3:g} kB"] = (
                f"{100 * float(runs[:, place].mean()):.1f} ± {100 * float(runs[:, place].std()):.1f}"
            )
        rows.append(row)
    report("perturbations", rows, "python -m benchmarks.perturbations")


def numbers(kind: str) -> int:
    """Return how many random numbers a direction of a kind takes, at most."""
    sizes = {name: int(torch.Size(shape).numel()) for name, shape in SHAPES.items()}
    if kind == "blocks":
        return max(sizes["in"] + sizes["in bias"], sizes["out"] + sizes["out bias"])
    if kind.startswith("rank"):
        rank = int(kind.split()[1])
        return sum(rank * sum(shape) if len(shape) > 1 else shape[0] for shape in SHAPES.values())
    return sum(sizes.values())


if __name__ == "__main__":
    main()
