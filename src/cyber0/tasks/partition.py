"""Partitions: which client holds which samples.

A partition is a plain callable:

    partition(labels, clients, seed, **options) -> one sorted array of sample indices for each client

Every sample goes to one client, every client gets at least one, and the same seed gives the same partition. A
partition with a keyword-only parameter `owners` is given the number of whoever each sample came from, which is no
option; data without owners cannot be dealt by it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cyber0 import registry
from cyber0.errors import InvalidData, UnknownName
from cyber0.printable import many
from cyber0.tasks.dataset import Dataset, to_numpy
from cyber0.tasks.dirichlet import by_client, by_label, deal, evenly, fill_empty
from cyber0.user_code import calling

__all__ = [
    "PARTITIONS",
    "SUPPLIED",
    "Partition",
    "count",
    "dirichlet",
    "get_partition",
    "iid",
    "natural",
    "shards",
    "shares_of",
    "shuffled",
    "split",
]

Indices = NDArray[np.int64]
Partition = Callable[..., list[Indices]]
DOMAIN = 0x50415254  # "PART": other draws of the same seed are independent of these


def iid(labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
    """Return parts with the same fraction of each label, as the paper has it.

    Of each label, and in all, clients hold numbers of samples that differ by one at most.

    >>> labels = np.repeat([0, 1, 2], [40, 41, 6])
    >>> count(labels, iid(labels, clients=4, seed=0)).tolist()
    [[10, 11, 1], [10, 10, 2], [10, 10, 2], [10, 10, 1]]
    """
    known, generator = _enter(labels, clients, seed)
    classes, samples = np.unique(known, return_counts=True)
    return deal(known, classes, evenly(samples, clients), generator)


def shuffled(labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
    """Return equal parts of all samples, shuffled, whatever their labels; the sizes differ by one at most.

    >>> [part.tolist() for part in shuffled([0, 1, 2, 3, 4], clients=2, seed=0)]
    [[0, 3, 4], [1, 2]]
    """
    known, generator = _enter(labels, clients, seed)
    return [np.sort(part) for part in np.array_split(generator.permutation(len(known)), clients)]


def dirichlet(labels: ArrayLike, clients: int, seed: int, *, alpha: float = 0.1, per: str = "label") -> list[Indices]:
    """Return unequal parts: the smaller `alpha`, the fewer labels make up most of a client's samples.

    per="label" (Yurochkin et al., 2019): the samples of each label are cut by shares over the clients, drawn from a
    symmetric Dirichlet distribution; clients differ in size too. per="client" (Hsu et al., 2019): each client draws
    its mixture of labels and gets an equal number of samples by it, as far as each label lasts; where clients ask for
    more of a label than there is, chance decides who gets it, and the others ask again among the labels left.

    Either way, a client left without a sample gets one of the label that the largest holder has most of.

    >>> labels = np.repeat([0, 1], 500)
    >>> count(labels, dirichlet(labels, clients=3, seed=0, alpha=0.1)).tolist()
    [[500, 95], [0, 219], [0, 186]]
    >>> count(labels, dirichlet(labels, clients=3, seed=0, alpha=100.0)).tolist()
    [[155, 161], [178, 157], [167, 182]]
    >>> count(labels, dirichlet(labels, clients=4, seed=0, alpha=0.1, per="client")).tolist()
    [[250, 0], [46, 204], [156, 94], [48, 202]]
    """
    known, generator = _enter(labels, clients, seed)
    if not isinstance(alpha, int | float) or not 0 < alpha < np.inf:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidData(f"alpha = {alpha!r}: the concentration of a Dirichlet distribution is greater than 0")
    if per not in ("label", "client"):
        raise UnknownName("value", per, ["label", "client"], of="per")
    classes, samples = np.unique(known, return_counts=True)
    draw = by_label if per == "label" else by_client
    counts = fill_empty(draw(samples, clients, alpha, generator))
    return deal(known, classes, counts, generator)


def shards(labels: ArrayLike, clients: int, seed: int, *, per_client: int = 2) -> list[Indices]:
    """Return `per_client` shards for each client, of all samples sorted by label (McMahan et al., 2017).

    >>> labels = np.repeat([0, 1, 2, 3], 50)
    >>> count(labels, shards(labels, clients=2, seed=0)).tolist()
    [[0, 50, 50, 0], [50, 0, 0, 50]]
    """
    known, generator = _enter(labels, clients, seed)
    if not isinstance(per_client, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidData(f"per_client = {per_client!r}: the number of shards for each client is an integer")
    pieces = clients * per_client
    if per_client < 1 or pieces > len(known):
        raise InvalidData(
            f"per_client = {per_client}: {clients} clients need {pieces} shards of one sample or more, "
            f"and there are {len(known)} samples"
        )
    mixed = generator.permutation(len(known))
    ordered = np.array_split(mixed[np.argsort(known[mixed], kind="stable")], pieces)
    hands: list[list[int]] = generator.permutation(pieces).reshape(clients, per_client).tolist()
    return [np.sort(np.concatenate([ordered[shard] for shard in hand])) for hand in hands]


def natural(labels: ArrayLike, clients: int, seed: int, *, owners: ArrayLike) -> list[Indices]:
    """Return parts by owner: each client holds all samples of one writer, or of several if there are more of them.

    Owners are dealt at random, so that clients hold numbers of them that differ by one at most.

    >>> [part.tolist() for part in natural([5, 6, 5, 7, 7], clients=2, seed=0, owners=[0, 1, 0, 2, 2])]
    [[0, 1, 2], [3, 4]]
    """
    known, generator = _enter(labels, clients, seed)
    whose = np.asarray(owners)
    if whose.shape != known.shape:
        raise InvalidData(f"owners of shape {whose.shape} for {len(known)} samples: one for each is needed")
    found, places = np.unique(whose, return_inverse=True)
    if len(found) < clients:
        raise InvalidData(
            f"clients = {clients}, and the samples have {len(found)} owners: use at most as many clients, as each "
            "holds all samples of one owner or more"
        )
    hands = np.empty(len(found), dtype=np.int64)
    hands[generator.permutation(len(found))] = np.arange(len(found)) % clients
    client_of = hands[places]
    return [np.flatnonzero(client_of == client) for client in range(clients)]


PARTITIONS: dict[str, Partition] = {
    "dirichlet": dirichlet,
    "iid": iid,
    "natural": natural,
    "shards": shards,
    "shuffled": shuffled,
}
SUPPLIED = ("owners",)  # keyword-only parameters of a partition that are no options


def get_partition(name: str | Partition) -> Partition:
    """Return the partition of a name, with its options bound; a function of yours as `package.module:object`.

    >>> get_partition("dirichlet(alpha=1)").keywords
    {'alpha': 1}
    >>> get_partition("iit")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown partition 'iit': use one of ... (did you mean 'iid'?)
    """
    return registry.resolve("partition", name, PARTITIONS, reserved=SUPPLIED)


def split(
    how: str | Partition,
    labels: ArrayLike,
    clients: int,
    seed: int,
    *,
    owners: ArrayLike | None = None,
    **options: Any,
) -> list[Indices]:
    """Return the parts that a partition makes, by name or as a function, and refuse a result that is no partition.

    `owners` says whom each sample came from, for a partition that asks for it.

    >>> [len(part) for part in split("dirichlet", [0, 0, 0, 1, 1], clients=2, seed=1, alpha=0.5)]
    [4, 1]
    >>> split("iid", [0, 0, 0, 1, 1], clients=2, seed=0, alpha=0.5)
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown option 'alpha' of the partition: it has no options
    >>> split(lambda labels, clients, seed: [[0, 1], [1]], [5, 6], clients=2, seed=0)
    Traceback (most recent call last):
    cyber0.errors.InvalidData: the partition must give each of the 2 samples to one client: it gives away 3, 2 of them \
different
    """
    found = get_partition(how)
    registry.check_options(options, found, "the partition", reserved=SUPPLIED)
    if _asks_for_owners(found):
        if owners is None:
            name = registry.name_of(found, PARTITIONS)
            raise InvalidData(
                f"partition = {name!r} deals samples by their owners, and these have none: use a task that knows "
                "them, such as femnist, or another partition"
            )
        options["owners"] = np.array(owners)
    with calling("partition", found):
        made: Any = found(np.array(labels), clients, seed, **options)  # a copy, which it may modify
        parts: list[Any] | None = list(made) if _is_listing(made) else None
    if parts is None:
        raise InvalidData(
            f"partition {registry.name_of(found, PARTITIONS)!r} returned {type(made).__name__}: it must return a list "
            "with the indices of each client's samples"
        )
    dealt = [_indices(part, client) for client, part in enumerate(parts)]
    _check_parts(dealt, len(np.asarray(labels)), clients)
    return dealt


def _asks_for_owners(found: Partition) -> bool:
    try:
        return "owners" in signature(found).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


def _is_listing(made: Any) -> bool:
    return isinstance(made, Iterable) and not isinstance(made, Mapping | str)


def _indices(part: Any, client: int) -> Indices:
    """Return the indices of a client's samples, in order."""
    try:
        given = np.asarray(to_numpy(part))
        whole = given.astype(np.int64)
    except (ValueError, TypeError):
        given, whole = np.empty(0, dtype=object), np.empty(0, dtype=np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iuf" or (given != whole).any():
        raise InvalidData(
            f"the partition gives client {client} {part!r:.60}: give the indices of its samples, a list of integers"
        )
    return np.sort(whole)


def shares_of(dataset: Dataset, how: str | Partition, clients: int, seed: int, **options: Any) -> list[Indices]:
    """Return the training samples of each client: those the data set says are its own, else by a partition.

    >>> x, y = np.zeros((3, 2)), [0, 1, 1]
    >>> own = Dataset(x, y, x, y, classes=2, source="mine", shares=([0, 2], [1]))
    >>> [share.tolist() for share in shares_of(own, "iid", clients=2, seed=0)]
    [[0, 2], [1]]
    """
    if dataset.shares is None:
        return split(how, dataset.strata, clients, seed, owners=dataset.owners, **options)
    if len(dataset.shares) != clients:
        raise InvalidData(
            f"clients = {clients}, and there is a data set for each of {len(dataset.shares)}: give clients = "
            f"{len(dataset.shares)}, or one data set that is dealt out"
        )
    return list(dataset.shares)


def count(labels: ArrayLike, parts: Sequence[Indices], classes: int | None = None) -> NDArray[np.int64]:
    """Return how many samples of each label each client holds: [clients, classes].

    >>> count([0, 1, 1], [np.array([0, 2]), np.array([1])]).tolist()
    [[1, 1], [0, 1]]
    """
    known = np.asarray(labels)
    width = int(known.max()) + 1 if classes is None else classes
    return np.stack([np.bincount(known[part], minlength=width) for part in parts])


def _enter(labels: ArrayLike, clients: int, seed: int) -> tuple[NDArray[Any], np.random.Generator]:
    known = np.asarray(labels)
    if known.ndim != 1:
        raise InvalidData(f"labels of shape {known.shape} cannot be dealt out: one label for each sample is needed")
    if clients < 1:
        raise InvalidData(f"clients = {clients}: at least one is needed")
    if len(known) < clients:
        few = many(len(known), "sample is", "samples are")
        raise InvalidData(f"{few} too few for {clients} clients: each needs at least one")
    if not 0 <= seed < 2**64:
        raise InvalidData(f"seed = {seed} is out of range: it must be an integer from 0 to 2**64 - 1")
    return known, np.random.default_rng((seed, DOMAIN))


def _check_parts(parts: list[Indices], samples: int, clients: int) -> None:
    if len(parts) != clients or min(map(len, parts)) == 0:
        sizes = [len(part) for part in parts]
        raise InvalidData(f"the partition must give each of {clients} clients a sample: its parts have {sizes}")
    given = np.concatenate(parts)
    if not 0 <= given.min() <= given.max() < samples:
        wrong = given[(given < 0) | (given >= samples)][0]
        raise InvalidData(f"the partition gives away sample {wrong}: the {samples} samples are numbered from 0 on")
    different = len(np.unique(given))
    if len(given) != samples or different != samples:
        raise InvalidData(
            f"the partition must give each of the {samples} samples to one client: it gives away {len(given)}, "
            f"{different} of them different"
        )
