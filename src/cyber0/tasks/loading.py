"""In which precision the models that a task builds are loaded, so that no weight is in memory in another one before."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["PRECISION", "loading"]

PRECISION: ContextVar[str] = ContextVar("precision that models are loaded in", default="float32")


@contextmanager
def loading(precision: str) -> Generator[None]:
    """Load models in a precision, as a run names it, within the context.

    >>> with loading("bf16"):
    ...     PRECISION.get()
    'bf16'
    """
    before = PRECISION.set(precision)
    try:
        yield
    finally:
        PRECISION.reset(before)
