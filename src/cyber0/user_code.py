"""Calls of code that users bring along: what goes wrong in it is reported under its own name."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from cyber0.errors import Cyber0Error, InvalidUserCode

__all__ = ["calling", "label_of"]


@contextmanager
def calling(what: str, thing: object, given: str = "") -> Generator[None]:
    """Turn whatever a user's object raises into InvalidUserCode that names the object; the original is its cause.

    Errors of this library pass as they are, and so does a lack of memory, which callers may know how to handle.

    Args:
        what: What the object is used as: "loss", "metric 'f1'", "model".
        thing: The object that is called.
        given: What it was called with, to be put at the end of the message.

    >>> def my_loss(outputs, targets):
    ...     return outputs / 0
    >>> with calling("loss", my_loss):
    ...     my_loss(1, 2)
    Traceback (most recent call last):
    cyber0.errors.InvalidUserCode: loss cyber0.user_code.my_loss raised ZeroDivisionError: division by zero

    """
    try:
        yield
    except (Cyber0Error, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            raise
        text = str(error).strip()
        without = "vmap" in text or "Batching rule not implemented" in text
        hint = "; engine='sequential' calls it without vmap" if without else ""
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise InvalidUserCode(f"{what} {label_of(thing)} raised {said}{given}{hint}") from error


def label_of(thing: object) -> str:
    """Return the module and the name of a function, a class, or the class of an object.

    >>> label_of(partial(sorted, reverse=True)), label_of(ValueError), label_of(ValueError())
    ('sorted', 'ValueError', 'ValueError')
    """
    while isinstance(thing, partial):
        thing = thing.func
    named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    module = getattr(named, "__module__", None)
    return named.__qualname__ if module in (None, "builtins", "__main__") else f"{module}.{named.__qualname__}"
