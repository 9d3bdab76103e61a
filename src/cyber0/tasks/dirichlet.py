"""Partitions by label: how many samples of each label each client holds.

Arrays of counts are [clients, classes]; `samples` is how many there are of each label.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["by_client", "by_label", "deal", "evenly", "fill_empty"]

Indices = NDArray[np.int64]


def by_label(samples: Indices, clients: int, alpha: float, generator: np.random.Generator) -> Indices:
    """Return counts by cutting each label's samples where the running sum of the clients' shares falls.

    >>> by_label(np.array([100, 100]), 3, 1e6, np.random.default_rng(0)).tolist()
    [[33, 33], [34, 34], [33, 33]]
    """
    shares = generator.dirichlet(np.full(clients, alpha), size=len(samples))
    cuts = np.rint(np.minimum(np.cumsum(shares, axis=1), 1) * samples[:, None]).astype(np.int64)
    cuts[:, -1] = samples
    return np.diff(cuts, axis=1, prepend=0).T


def by_client(samples: Indices, clients: int, alpha: float, generator: np.random.Generator) -> Indices:
    """Return counts by letting all clients ask for labels by their mixtures until every sample has an owner.

    A pass either gives everybody what they ask for or uses up a label, so there is at most one pass more than labels.

    >>> by_client(np.array([100, 100]), 4, 1e-3, np.random.default_rng(0)).sum(axis=1).tolist()
    [50, 50, 50, 50]
    """
    mixtures = generator.dirichlet(np.full(len(samples), alpha), size=clients)
    counts = np.zeros((clients, len(samples)), dtype=np.int64)
    needs, left = np.diff(np.arange(clients + 1) * samples.sum() // clients), samples.copy()
    while needs.any():
        wishes = generator.multinomial(needs, _among(mixtures, left))
        for label in np.flatnonzero(wishes.sum(axis=0) > left):
            wishes[:, label] = generator.multivariate_hypergeometric(wishes[:, label], left[label], method="marginals")
        counts += wishes
        needs, left = needs - wishes.sum(axis=1), left - wishes.sum(axis=0)
    return counts


def _among(mixtures: NDArray[np.float64], left: Indices) -> NDArray[np.float64]:
    """Return the mixtures over the labels that are left; a client with no weight on them asks for all of them."""
    weights = mixtures * (left > 0)
    weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, left / left.sum())
    return weights / weights.sum(axis=1, keepdims=True)


def evenly(samples: Indices, clients: int) -> Indices:
    """Return counts of equal shares of each label; what is left over of one label goes on where the last one ended.

    >>> evenly(np.array([4, 5]), 3).tolist()
    [[2, 1], [1, 2], [1, 2]]
    """
    ends = np.cumsum(samples)
    places: Indices = np.arange(int(ends[-1])) % clients
    return np.stack([np.bincount(own, minlength=clients) for own in np.split(places, ends[:-1])], axis=1)


def fill_empty(counts: Indices) -> Indices:
    """Give each client without a sample one of the label that the largest holder has most of.

    >>> fill_empty(np.array([[9, 1], [0, 0]])).tolist()
    [[8, 1], [1, 0]]
    """
    counts = counts.copy()
    for client in np.flatnonzero(counts.sum(axis=1) == 0):
        giver = counts.sum(axis=1).argmax()
        label = counts[giver].argmax()
        counts[giver, label] -= 1
        counts[client, label] += 1
    return counts


def deal(known: NDArray[Any], classes: NDArray[Any], counts: Indices, generator: np.random.Generator) -> list[Indices]:
    """Return each client's samples: those of each label, shuffled and cut by the counts.

    >>> known = np.array([5, 5, 7])
    >>> deal(known, np.array([5, 7]), np.array([[2, 0], [0, 1]]), np.random.default_rng(0))
    [array([0, 1]), array([2])]
    """
    hands: list[list[Indices]] = [[] for _ in counts]
    for label, column in zip(classes, counts.T, strict=True):
        mixed = generator.permutation(np.flatnonzero(known == label))
        for hand, piece in zip(hands, np.split(mixed, np.cumsum(column)[:-1]), strict=True):
            hand.append(piece)
    return [np.sort(np.concatenate(hand)) for hand in hands]
