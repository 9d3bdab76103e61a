"""How a round is decided: the same for a simulator, a federator, and whoever verifies a ledger.

Votes are float32 and aggregated in float64, in roster order, so that the same votes give the same bytes anywhere.
"""

from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from cyber0.aggregation import Rule, aggregate, get_rule, is_ours, namespace
from cyber0.aggregation.registry import calling
from cyber0.errors import InvalidAggregation, InvalidConfig

__all__ = ["admissible", "decide", "quorum"]

LARGEST = float(np.finfo(np.float32).max)
TRIALS = 8  # calls of a user's rule on the same votes, which must give the same bits


def admissible(votes: Any) -> NDArray[np.bool_]:
    """Return which of the votes [..., n, k] count: those that are finite everywhere.

    >>> admissible(np.array([[[1.0], [np.nan]]]))
    array([ True, False])
    """
    xp = namespace(votes)
    axes = tuple(axis for axis in range(votes.ndim) if axis != votes.ndim - 2)
    return _on_host(xp.all(xp.isfinite(votes), axis=axes))


def decide(rule: Rule, votes: Any, byzantine: int, memory: Any = None) -> NDArray[np.float32]:
    """Return the scalars [..., k] that a rule makes of admissible votes [..., n, k], clipped to the range of float32.

    Args:
        rule: Any rule; what a user's rule raises becomes an InvalidAggregation that names it.
        votes: An array of any library, on any device.
        byzantine: How many of the votes may be lies.
        memory: Of a rule with memory, what it remembers of the commits so far; without it, as before the first one.

    >>> from cyber0.aggregation import median
    >>> decide(median, np.array([[[1.0], [2.0], [9.0]]], dtype=np.float32), byzantine=1)
    array([[2.]], dtype=float32)

    """
    xp = namespace(votes)
    doubles: Any = votes.astype(np.float64, order="C") if xp is np else xp.astype(votes, xp.float64)
    result = _on_host(aggregate(rule, doubles, byzantine, memory))
    if not np.isfinite(result).all():
        raise InvalidAggregation(
            f"rule {get_rule(rule).name!r} made {tuple(votes.shape)} votes into infinities or NaN: "
            "it must give finite numbers"
        )
    return np.clip(result, -LARGEST, LARGEST).astype(np.float32)


def quorum(rule: Rule, byzantine: int, invited: int) -> int:
    """Return the fewest votes a rule can decide on, at least 2b + 1; refuse a rule that needs more than are invited.

    A user's rule is refused too if it gives other results for the same votes.

    >>> from cyber0.aggregation import bulyan, cwtm
    >>> quorum(cwtm, byzantine=1, invited=10), quorum(bulyan, byzantine=1, invited=10)
    (3, 7)
    """
    for votes in range(2 * byzantine + 1, invited + 1):
        try:
            with calling(get_rule(rule).name):  # one of this package may have been given options that it cannot use
                aggregate(rule, np.zeros((2, votes, 3)), byzantine)
        except InvalidAggregation:
            if votes == invited:
                raise
            continue
        _check_repeatable(rule, byzantine, invited)
        return votes
    raise InvalidConfig(f"byzantine = {byzantine} of {invited} invited clients: fewer than half of them may lie")


def _check_repeatable(rule: Rule, byzantine: int, invited: int) -> None:
    """Refuse a user's rule that gives other bits for the same votes: no one could verify or resume its rounds."""
    found = get_rule(rule)
    if is_ours(found):
        return
    votes = np.linspace(-1.0, 1.0, 2 * invited * 3).reshape(2, invited, 3)  # no two are equal
    try:
        results = {aggregate(found, votes.copy(), byzantine).tobytes() for _ in range(TRIALS)}
    except InvalidAggregation:  # a round with such votes will say so
        return
    if len(results) > 1:
        raise InvalidAggregation(
            f"rule {found.name!r} gives other results for the same votes: it must depend on the votes and its memory "
            "alone; what it draws at random must come from a generator seeded in each call, as "
            "numpy.random.default_rng(0)"
        )


def _on_host(array: Any) -> NDArray[Any]:
    return array.detach().cpu().numpy() if is_torch_array(array) else np.asarray(array)
