"""One way to call any rule, with or without memory.

>>> import numpy as np
>>> rule = get_rule("centered_clipping_previous(radius=1.0)")
>>> memory = begin(rule)
>>> votes = np.array([[[2.0], [2.5], [3.0]]])  # [rows, n, k]
>>> for t in range(3):
...     scalars = aggregate(rule, votes, 1, memory)
...     memory = after(rule, memory, scalars.astype(np.float32))
...     print(scalars)
[[1.]]
[[2.]]
[[2.5]]
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.aggregation.registry import Composition, calling, get_rule
from cyber0.aggregation.rule import Rule, RuleWithMemory

__all__ = ["after", "aggregate", "begin", "with_memory"]


def begin(rule: str | Rule) -> Any:
    """Return the memory of a rule before the first commit; None for a rule without memory."""
    found = get_rule(rule)
    if not isinstance(found.rule, RuleWithMemory):
        return None
    with calling(found.name):
        return found.rule.begin()


def after(rule: str | Rule, memory: Any, scalars: NDArray[np.float32]) -> Any:
    """Return the memory of a rule after a commit of scalars `[rows, k]`; None for a rule without memory.

    A round that made no commit leaves the memory as it is.
    """
    found = get_rule(rule)
    if not isinstance(found.rule, RuleWithMemory):
        return None
    with calling(found.name):
        return found.rule.after(memory, np.array(scalars, dtype=np.float32))


def aggregate(rule: str | Rule, vectors: Any, byzantine: int, memory: Any = None) -> Any:
    """Return what a rule makes of vectors `[..., n, k]`, given its memory; without one, as before the first commit."""
    return with_memory(rule, memory)(vectors, byzantine)


def with_memory(rule: str | Rule, memory: Any) -> Composition:
    """Return a rule without memory that does what this one does with the given memory: what an attack is shown.

    >>> import numpy as np
    >>> rule = with_memory("centered_clipping_previous", np.array([[2.0]], dtype=np.float32))
    >>> rule(np.array([[[1.0], [2.0], [3.0]]]), 1)
    array([[2.]])
    """
    found = get_rule(rule)
    if memory is None or not isinstance(found.rule, RuleWithMemory):
        return found
    return Composition(found.pre, partial(found.rule, memory=memory), found.name)
