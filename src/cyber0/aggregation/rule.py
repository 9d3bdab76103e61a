"""What a rule is: a plain callable, or an object that remembers earlier commits."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rule", "RuleWithMemory"]

Rule = Callable[..., Any]
"""rule(vectors, byzantine, **options): from `[..., n, k]` to `[..., k]`."""


@runtime_checkable
class RuleWithMemory(Protocol):
    """A rule whose result depends on earlier commits.

    The memory is a value that is passed in, not an attribute: it must be a function of the earlier commits alone, so
    that whoever holds them can compute any round again. So `after` changes neither the rule nor its arguments.
    """

    def begin(self) -> Any:
        """Return the memory before the first commit."""
        ...

    def after(self, memory: Any, scalars: NDArray[np.float32], /) -> Any:
        """Return the memory after a commit of these scalars `[rows, k]`; a round without a commit changes nothing."""
        ...

    def __call__(self, vectors: Any, byzantine: int, /, *, memory: Any) -> Any:
        """Aggregate votes `[..., rows, n, k]` to `[..., rows, k]`."""
        ...
