"""How near each search comes to the strongest attack: `python -m benchmarks.attacks`.

With 8, 12, 20 and 40 clients, a quarter of them Byzantine, who send 1, 4, 16 and 64 scalars. Real rounds are of a short
training of logistic regression on the embedded MNIST images, Dirichlet(0.1) over labels; in synthetic ones each client
has a mean of its own, far from the common one. A share is the distance a search achieves over the best known: of 530
strengths, then 20 around each of the best five, and of all that any search found. `ms` is the time of one attack on the
votes of one round.

`--seed` plays other rounds, `--rules` and `--searches` play some of them; the results of all rounds of seed 0 are kept
in `benchmarks/results/attacks.json`, others in `attacks-seeds.json`. `python -m benchmarks.attacks --seed 1 2 3 4 5
--rules nnm+krum --searches zoom zoom-2` compares two searches where they differ most.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Row, report
from cyber0.aggregation import get_rule
from cyber0.attacks.scene import Scene, observe
from cyber0.attacks.search import SEARCHES, Distance
from cyber0.attacks.strength import distance_of, unit_of, worth_a_try
from cyber0.directions import DirectionKey, sample
from cyber0.tasks.mnist import embedded

CLIENTS, SCALARS, ALPHA = (8, 12, 20, 40), (1, 4, 16, 64), 0.1
ROUNDS, SYNTHETIC, BATCH, RATE, CLASSES = 12, 24, 64, 0.01, 10
RULES = ("cwtm", "krum", "nnm+cwtm", "nnm+krum")
STRENGTHS = np.concatenate([[0.0], np.geomspace(2e-2, 30, 500), np.geomspace(31, 1e6, 30)])  # in units
GOOD = 0.97

Array = NDArray[Any]


def owners(labels: Array, clients: int, rng: np.random.Generator) -> list[Array]:
    """The rows of each client: of each label, Dirichlet shares; a client left with none gets one."""
    owner = np.empty(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        held = rng.permutation(np.flatnonzero(labels == label))
        bounds = np.cumsum(rng.dirichlet(np.full(clients, ALPHA)))[:-1]
        owner[held] = np.searchsorted(bounds, np.arange(len(held)) / len(held), side="right")
    return [
        rows if len(rows := np.flatnonzero(owner == client)) else rng.integers(0, len(labels), 1)
        for client in range(clients)
    ]


def votes_of_a_training(clients: int, directions: int = SCALARS[-1], seed: int = 0) -> Array:
    """What all clients would send in each round, `[rounds, clients, directions]`."""
    images, labels = embedded()
    images = np.hstack([images, np.ones((len(images), 1), dtype=np.float32)])
    rng = np.random.default_rng(seed)
    held, weights = owners(labels, clients, rng), np.zeros((images.shape[1], CLASSES))
    rounds: list[Array] = []
    for round_ in range(ROUNDS):
        keys = [DirectionKey(seed=seed, round=round_, index=index) for index in range(directions)]
        along = np.stack([sample(key, weights.size, family="sphere") for key in keys])
        batch = np.stack([rng.choice(rows, BATCH, replace=len(rows) < BATCH) for rows in held])
        gradients = gradients_of(weights, images[batch], labels[batch]).reshape(clients, -1)
        rounds.append(gradients @ along.T * (weights.size / directions))
        weights -= RATE * (rounds[-1].mean(axis=0) @ along).reshape(weights.shape)
    return np.stack(rounds)


def gradients_of(weights: Array, images: Array, labels: Array) -> Array:
    """The gradient of each client's softmax cross-entropy, `[clients, pixels, classes]`."""
    logits = images @ weights
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    error = odds / odds.sum(axis=-1, keepdims=True) - np.eye(CLASSES)[labels]
    return images.swapaxes(-1, -2) @ error / images.shape[-2]


def synthetic(clients: int, scalars: int, seed: int = 0) -> Array:
    """Rounds of clients that differ, `[rounds, clients, scalars]`."""
    rng = np.random.default_rng([1 + seed, clients, scalars])
    shape = (SYNTHETIC, clients, scalars)
    return rng.normal(0.3, 1.0, shape) * np.exp(rng.normal(size=(SYNTHETIC, 1, scalars))) + 0.5 * rng.normal(size=shape)


def scenes(seed: int = 0) -> Iterator[tuple[str, int, Scene]]:
    """All rounds: their kind, how many lie, and the scenes."""
    for clients in CLIENTS:
        trained, liars = votes_of_a_training(clients, seed=seed), clients // 4
        for scalars in SCALARS:
            for kind, votes in (("real", trained[..., :scalars]), ("synthetic", synthetic(clients, scalars, seed))):
                yield kind, liars, observe(votes, range(clients - liars, clients))


def best_known(distance: Distance, unit: Array) -> Array:
    """The largest distance of many strengths, and of many more around the best of them."""
    omegas = STRENGTHS[:, None] * unit
    found = distance(omegas)
    best = found.max(axis=0)
    for place in np.argsort(-found, axis=0)[:5]:
        low, high = (
            np.take_along_axis(omegas, np.clip(place + step, 0, len(omegas) - 1)[None], 0)[0] for step in (-1, 1)
        )
        best = np.maximum(best, distance(low + (high - low) * np.linspace(0, 1, 22)[1:-1, None]).max(axis=0))
    return best


def shares(
    scene: Scene, rule_name: str, attack: str, liars: int, searches: Sequence[str] = tuple(SEARCHES)
) -> dict[str, tuple[Array, float]]:
    """The share of each search in each scene, and the milliseconds that a scene took."""
    rule, direction = get_rule(rule_name), scene.deviation if attack == "alie" else -scene.mean
    distance, unit = distance_of(scene, direction, rule, liars), unit_of(scene, direction)
    found: dict[str, tuple[Array, float]] = {}
    for name in searches:
        begin = time.perf_counter()
        moved = SEARCHES[name](distance, unit, worth_a_try(scene, direction, rule, liars, name))[1]
        found[name] = moved, (time.perf_counter() - begin) * 1e3 / len(unit)
    best = np.max([best_known(distance, unit), *(moved for moved, _ in found.values())], axis=0)
    return {name: (moved / np.where(best > 0, best, 1.0), taken) for name, (moved, taken) in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare searches for the strongest attack.")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="of the rounds; several are played together")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--searches", nargs="+", choices=sorted(SEARCHES), default=sorted(SEARCHES))
    options = parser.parse_args()
    collected: dict[tuple[str, str, str], dict[tuple[str, int, int, int], tuple[Array, float]]] = defaultdict(dict)
    for seed in options.seed:
        for kind, liars, scene in scenes(seed):
            n, k = scene.vectors.shape[-2:]
            for rule in options.rules:
                for attack in ("alie", "foe"):
                    for name, found in shares(scene, rule, attack, liars, options.searches).items():
                        collected[rule, f"{attack}-nnm" if "+" in rule else attack, name][kind, n, k, seed] = found
    rows: list[Row] = []
    for (rule, attack, search), cells in collected.items():
        every = np.concatenate([share for share, _ in cells.values()])
        worst = min(cells, key=lambda cell: cells[cell][0].min())
        quality = {"scenes": len(every), "median": float(np.median(every)), "worst": float(every.min())}
        quality |= {
            f"below {GOOD}": int((every < GOOD).sum()),
            "worst in": "{}, n = {}, nu = {}, seed {}".format(*worst),
        }
        taken = {
            f"ms, n = {n}, nu = {k}": float(np.median([cells["real", n, k, seed][1] for seed in options.seed]))
            for n, k in ((12, 1), (40, 64))
        }
        rows.append({"rule": rule, "attack": attack, "search": search, **quality, **taken})
    command = " ".join(["python -m benchmarks.attacks", *sys.argv[1:]])
    report("attacks" if len(sys.argv) == 1 else "attacks-seeds", rows, command)


if __name__ == "__main__":
    main()
