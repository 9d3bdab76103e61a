"""The arithmetic of a decision: the same for a simulator, a federator, and whoever verifies a ledger.

Votes are float32 and aggregated in float64, in roster order, so that the same votes give the same bytes anywhere.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.aggregation import Rule
from cyber0.errors import InvalidAggregation, InvalidConfig

__all__ = ["admissible", "as_scalars", "decide", "quorum"]

LARGEST = float(np.finfo(np.float32).max)


def admissible(votes: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Whose votes [rows, n, k] are votes: what is not finite is none.

    >>> admissible(np.array([[[1.0], [np.nan]]]))
    array([ True, False])
    """
    return np.asarray(np.isfinite(votes).all(axis=(0, 2)))


def decide(rule: Rule, votes: NDArray[np.float32], byzantine: int) -> NDArray[np.float32]:
    """The scalars [rows, k] that a rule makes of admissible votes [rows, n, k], clipped to the range of float32.

    >>> from cyber0.aggregation import median
    >>> decide(median, np.array([[[1.0], [2.0], [9.0]]], dtype=np.float32), byzantine=1)
    array([[2.]], dtype=float32)
    """
    return as_scalars(rule, _ask(rule, votes.astype(np.float64, order="C"), byzantine), votes.shape)


def as_scalars(rule: Rule, result: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """What a rule made of votes of this shape, as the scalars of a commit; refuses what are none.

    >>> as_scalars(max, np.array([[1e300]]), shape=(1, 3, 1))
    array([[3.4028235e+38]], dtype=float32)
    """
    result, expected = np.asarray(result), (*shape[:1], *shape[2:])
    if result.shape != expected or not np.isfinite(result).all():
        raise InvalidAggregation(
            f"rule {_name(rule)} made {tuple(shape)} votes into {result.shape}: it must give {expected}, "
            "without the clients' axis, and finite numbers"
        )
    return np.clip(result, -LARGEST, LARGEST).astype(np.float32)


def quorum(rule: Rule, byzantine: int, invited: int) -> int:
    """The fewest votes a rule can decide on, at least 2b + 1; refuses a rule that needs more than are invited.

    >>> from cyber0.aggregation import bulyan, cwtm
    >>> quorum(cwtm, byzantine=1, invited=10), quorum(bulyan, byzantine=1, invited=10)
    (3, 7)
    """
    for votes in range(2 * byzantine + 1, invited + 1):
        try:
            shape = np.shape(_ask(rule, np.zeros((2, votes, 3)), byzantine))
        except InvalidAggregation:
            if votes == invited:
                raise
            continue
        if shape != (2, 3):
            raise InvalidAggregation(f"rule {_name(rule)} made (2, {votes}, 3) votes into {shape}: it must give (2, 3)")
        return votes
    raise InvalidConfig(f"byzantine = {byzantine} of {invited} invited clients: fewer than half of them may lie")


def _ask(rule: Rule, votes: NDArray[np.float64], byzantine: int) -> Any:
    """What a rule says; whatever votes a rule of somebody's cannot take, they stop no federator."""
    try:
        return rule(votes, byzantine)
    except InvalidAggregation:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidAggregation(f"rule {_name(rule)} cannot be used: {type(error).__name__}: {error}") from error


def _name(rule: Rule) -> str:
    return repr(getattr(rule, "name", getattr(rule, "__name__", rule)))
