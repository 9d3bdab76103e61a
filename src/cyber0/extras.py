"""Optional dependencies, imported where they are needed, with an error that says how to get them."""

from importlib import import_module
from typing import Any

from cyber0.errors import MissingExtra

__all__ = ["require"]


def require(module: str, extra: str) -> Any:
    """Import and return a module, or raise MissingExtra with the `pip install` line for the extra that has it.

    >>> require("math", extra="train").pi > 3
    True
    >>> require("no_such_module", extra="study")
    Traceback (most recent call last):
    cyber0.errors.MissingExtra: no_such_module is not installed: pip install 'cyber0[study]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        if error.name is None or module.partition(".")[0] != error.name.partition(".")[0]:
            raise  # the module is installed, but fails to import: do not hide why
        raise MissingExtra(f"{module} is not installed: pip install 'cyber0[{extra}]'") from error
