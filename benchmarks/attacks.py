"""How near each search comes to the strongest attack: `python -m benchmarks.attacks`.

On real rounds: the scalars of 40 clients, 10 of them Byzantine, along 64 directions, in a short training of logistic
regression on the embedded MNIST images, Dirichlet(0.1) over labels. A share is the distance a search achieves over the
best of 2,000 strengths; `ms` is the time of one attack on the votes of one round.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Row, report, seconds
from cyber0.aggregation import get_rule
from cyber0.attacks import ATTACKS
from cyber0.attacks.scene import Scene, observe
from cyber0.attacks.search import SEARCHES
from cyber0.attacks.strength import distance_of, unit_of
from cyber0.directions import DirectionKey, sample
from cyber0.tasks.mnist import embedded

CLIENTS, BYZANTINE, DIRECTIONS, ALPHA = 40, 10, 64, 0.1
ROUNDS, BATCH, RATE, CLASSES = 40, 64, 0.01, 10
LIARS = range(CLIENTS - BYZANTINE, CLIENTS)
STRENGTHS = np.concatenate([np.geomspace(1e-3, 1e6, 1200), np.linspace(0, 20, 800)])

Array = NDArray[Any]


def owners(labels: Array, rng: np.random.Generator) -> list[Array]:
    """The rows of each client: of each label, Dirichlet shares; a client left with none gets one."""
    owner = np.empty(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        held = rng.permutation(np.flatnonzero(labels == label))
        bounds = np.cumsum(rng.dirichlet(np.full(CLIENTS, ALPHA)))[:-1]
        owner[held] = np.searchsorted(bounds, np.arange(len(held)) / len(held), side="right")
    return [
        rows if len(rows := np.flatnonzero(owner == client)) else rng.integers(0, len(labels), 1)
        for client in range(CLIENTS)
    ]


def votes_of_a_training(seed: int = 0) -> Array:
    """What all clients would send in each round, `[rounds, clients, directions]`."""
    images, labels = embedded()
    images = np.hstack([images, np.ones((len(images), 1), dtype=np.float32)])
    rng = np.random.default_rng(seed)
    held, weights = owners(labels, rng), np.zeros((images.shape[1], CLASSES))
    rounds: list[Array] = []
    for round_ in range(ROUNDS):
        keys = [DirectionKey(seed=seed, round=round_, index=index) for index in range(DIRECTIONS)]
        directions = np.stack([sample(key, weights.size, family="sphere") for key in keys])
        batch = np.stack([rng.choice(rows, BATCH, replace=len(rows) < BATCH) for rows in held])
        gradients = gradients_of(weights, images[batch], labels[batch]).reshape(CLIENTS, -1)
        rounds.append(gradients @ directions.T * (weights.size / DIRECTIONS))
        weights -= RATE * (rounds[-1].mean(axis=0) @ directions).reshape(weights.shape)
    return np.stack(rounds)


def gradients_of(weights: Array, images: Array, labels: Array) -> Array:
    """The gradient of each client's softmax cross-entropy, `[clients, pixels, classes]`."""
    logits = images @ weights
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    error = odds / odds.sum(axis=-1, keepdims=True) - np.eye(CLASSES)[labels]
    return images.swapaxes(-1, -2) @ error / images.shape[-2]


def compare(rule_name: str, attack: str, scene: Scene) -> list[Row]:
    """Each search on one rule, for each round."""
    direction = scene.deviation if attack == "alie" else -scene.mean
    distance, unit = distance_of(scene, direction, get_rule(rule_name), BYZANTINE), unit_of(scene, direction)
    best = distance(STRENGTHS[:, None] * np.ones_like(unit)).max(axis=0)
    alone = f"{attack}-nnm" if "+" in rule_name else attack
    rows: list[Row] = []
    for name, search in SEARCHES.items():
        share = search(distance, unit)[1] / best
        work = partial(ATTACKS[alone], scene.given[0], LIARS, get_rule(rule_name), BYZANTINE, np.random.default_rng(0))
        (taken,) = seconds(partial(work, search=name), repeats=3)
        quality = {"median": float(np.median(share)), "worst": float(share.min())}
        rows.append({"rule": rule_name, "attack": alone, "search": name, **quality, "ms": taken * 1e3})
    return rows


def main() -> None:
    scene = observe(votes_of_a_training(), LIARS)
    rules = ("cwtm", "krum", "nnm+cwtm", "nnm+krum")
    rows = [row for rule in rules for attack in ("alie", "foe") for row in compare(rule, attack, scene)]
    report("attacks", rows, "python -m benchmarks.attacks")


if __name__ == "__main__":
    main()
