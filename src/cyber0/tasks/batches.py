"""Batches: the samples a client uses in a local step, a function of (seed, client, round, epoch) without any state.

So a client that crashes and comes back draws the same batch, and a simulator draws all clients' batches at once.

The definition. Draw i = 0, 1, ..., size - 1 of a batch is a 32-bit word w[i]: word i mod 4 of Philox4x32-10 with

    key      the 64-bit seed, its high word XORed with 0x42544348 ("BTCH")
    counter  (i div 4, client, epoch, round)

and |x| below is the whole part of x. A client that holds m samples, in ascending order, uses these of them:
- m < size, with replacement: sample number |w[i] m / 2**32|;
- m >= size, without replacement (Floyd's algorithm; Bentley and Floyd, 1987): with j = m - size + i, sample number
  |w[i] (j + 1) / 2**32|, or number j if that one is in the batch already. Every set of samples is equally likely.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cyber0.directions.stream import philox4x32
from cyber0.errors import InvalidData, KeyOutOfRange

__all__ = ["batch_indices", "batches", "positions"]

Indices = NDArray[np.int64]
DOMAIN = 0x42544348  # "BTCH"


def batch_indices(seed: int, client: int, round: int, epoch: int, held: ArrayLike, size: int) -> Indices:  # noqa: A002
    """Return the samples a client uses in one local step, out of those it holds.

    >>> batch_indices(seed=7, client=3, round=0, epoch=0, held=[10, 20, 30, 40, 50], size=3)
    array([30, 40, 20])
    >>> batch_indices(seed=7, client=3, round=0, epoch=0, held=[10, 20], size=3)
    array([20, 20, 10])
    """
    held = np.asarray(held, dtype=np.int64)
    return held[positions(seed, client, round, epoch, len(held), size)]


def batches(
    seed: int,
    clients: ArrayLike,
    round: int,  # noqa: A002
    epoch: int,
    held: Sequence[ArrayLike],
    size: int,
) -> Indices:
    """Return the batches of many clients: row i is `batch_indices` of clients[i], who holds held[i].

    >>> batches(seed=7, clients=[3, 4], round=0, epoch=0, held=[[10, 20, 30, 40, 50], [60, 70]], size=3)
    array([[30, 40, 20],
           [70, 70, 70]])
    """
    counts = np.array([len(np.asarray(samples)) for samples in held], dtype=np.int64)
    if np.shape(clients) != counts.shape:
        raise InvalidData(f"clients of shape {np.shape(clients)} and {len(counts)} holdings: give one for each client")
    chosen = positions(seed, clients, round, epoch, counts, size)
    starts = np.cumsum(counts) - counts
    return np.concatenate(held).astype(np.int64, copy=False)[starts[:, None] + chosen]


def positions(
    seed: int, clients: ArrayLike, rounds: ArrayLike, epochs: ArrayLike, counts: ArrayLike, size: int
) -> Indices:
    """Return the positions of each client's batch in its own list of samples: [..., size] for shapes that broadcast.

    One call for many rounds costs a fraction of a call for each.

    >>> positions(seed=7, clients=[3, 4], rounds=[[0], [1]], epochs=0, counts=[1500, 40], size=2)
    array([[[1372,  798],
            [  34,   33]],
    <BLANKLINE>
           [[ 668,  105],
            [  17,    4]]])
    """
    keys = {"client": clients, "round": rounds, "epoch": epochs, "number of samples": counts}
    client, t, epoch, m = np.broadcast_arrays(*(_words(name, value) for name, value in keys.items()))
    _check(seed, m, size)
    flat = [array.reshape(1, -1) for array in (client, epoch, t)]
    draws = _draws(seed, flat, size)
    chosen = _choose(draws, m.reshape(-1))
    return np.ascontiguousarray(chosen.T).reshape(*m.shape, size)


def _words(name: str, value: ArrayLike) -> Indices:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() < 2**32):
        raise KeyOutOfRange(f"{name} = {value} is out of range: it must be an integer from 0 to 2**32 - 1")
    return array.astype(np.int64)


def _check(seed: int, counts: Indices, size: int) -> None:
    if not 0 <= seed < 2**64:
        raise KeyOutOfRange(f"seed = {seed} is out of range: it must be an integer from 0 to 2**64 - 1")
    if size < 1:
        raise InvalidData(f"size = {size}: a batch has at least one sample")
    if counts.size and not 1 <= counts.min() <= counts.max() < 2**31:
        raise InvalidData("a client holds no samples, or 2**31 or more: it must hold from 1 to 2**31 - 1")


def _draws(seed: int, keys: list[Indices], size: int) -> Indices:
    """Return the words w[i] of every client: [size, rows]."""
    block = np.arange((size + 3) // 4, dtype=np.int64)[:, None]
    counter: list[Any] = list(np.broadcast_arrays(block, *keys))
    words = np.stack(philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) ^ DOMAIN)), axis=1)
    return words.reshape(-1, words.shape[-1])[:size]


def _choose(draws: Indices, counts: Indices) -> Indices:
    """Scale each client's words [size, rows] to its samples, with or without replacement."""
    size = len(draws)
    enough = counts >= size
    last = np.where(enough, counts - size, counts - 1) + np.where(enough, np.arange(size)[:, None], 0)
    chosen = (draws * (last + 1)) >> 32
    for i in range(1, size if enough.any() else 0):
        taken = (chosen[:i] == chosen[i]).any(axis=0) & enough
        np.copyto(chosen[i], last[i], where=taken)
    return chosen
