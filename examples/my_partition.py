"""A partition of your own: cyber0 run --partition examples.my_partition:halving --clients 6 --byzantine 1 --rounds 40."""

from typing import Any

import numpy as np


def halving(labels: Any, clients: int, seed: int) -> list[Any]:
    """Client 0 holds half of the samples, client 1 half of the rest, and so on."""
    order = np.random.default_rng(seed).permutation(len(labels))
    cuts = [len(order) - (len(order) >> (client + 1)) for client in range(clients - 1)]
    return np.split(order, cuts)
