"""Things by name: `"dirichlet"`, `"krum(power=1)"`, `"my_package.my_module:my_rule"`.

A rule, an attack, a partition, a task is a plain callable. Its options are its keyword-only parameters.
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from cyber0.errors import InvalidName, UnknownName

__all__ = ["check", "check_options", "name_of", "resolve"]

TEXT = re.compile(r"\s*([\w.:-]+)\s*(\(.*\))?\s*", re.DOTALL)


def resolve(what: str, text: str | Callable[..., Any], known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The callable of a name, with its options bound; a callable of yours as `package.module:object`, or itself.

    >>> resolve("shape", "line(length=2)", {"line": lambda *, length=1: length})()
    2
    >>> resolve("shape", "math:hypot", {})(3, 4)
    5.0
    >>> resolve("shape", "lime", {"line": print, "circle": print})
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown shape 'lime': use one of circle, line (did you mean 'line'?)
    """
    if not isinstance(text, str):
        return text
    name, options = check(what, text, known)
    found = _imported(what, name) if ":" in name else known[name]
    check_options(options, found, name)
    return partial(found, **options) if options else found


def check(what: str, text: str, known: Collection[str]) -> tuple[str, dict[str, Any]]:
    """The name and the options in a text; a name that is neither known nor of a package of yours is refused.

    >>> check("shape", "line(length=2)", ["line"])
    ('line', {'length': 2})
    >>> check("shape", "lime", ["line", "circle"])
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown shape 'lime': use one of circle, line (did you mean 'line'?)
    """
    match = TEXT.fullmatch(text)
    if match is None:
        raise InvalidName(f"{what} {text!r}: write name, name(option=value) or package.module:object")
    name, arguments = match.groups()
    if ":" not in name and name not in known:
        raise UnknownName(what, name, known)
    return name, _options(what, arguments, text)


def name_of(found: Callable[..., Any], known: Mapping[str, Callable[..., Any]]) -> str:
    """The text by which `resolve` finds a callable.

    >>> name_of(partial(print, end=""), {"write": print})
    "write(end='')"
    """
    if isinstance(found, partial):
        options = ", ".join(f"{key}={value!r}" for key, value in found.keywords.items())
        return f"{name_of(found.func, known)}({options})"
    for name, value in known.items():
        if value is found:
            return name
    return f"{found.__module__}:{getattr(found, '__qualname__', type(found).__qualname__)}"


def _imported(what: str, name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidName(f"{what} {name!r}: {module_name!r} names no module; write package.module:object")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # it is there and itself misses something: do not hide that
        raise InvalidName(f"{what} {name!r}: there is no module {error.name!r} to import") from None
    found = getattr(module, attribute, None)
    if not callable(found):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise UnknownName(f"callable of {module_name}", attribute, callables)
    return found


def _options(what: str, arguments: str | None, text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f{arguments or '()'}", mode="eval").body
        named = isinstance(call, ast.Call) and not call.args and all(keyword.arg for keyword in call.keywords)
        if isinstance(call, ast.Call) and named and isinstance(call.func, ast.Name):
            return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, TypeError, ValueError):
        pass
    raise InvalidName(f"{what} {text!r}: options are written name=value, e.g. krum(power=1)")


def check_options(options: dict[str, Any], found: Callable[..., Any], name: str) -> None:
    """Refuse options that a callable does not take.

    >>> check_options({"weight": 2}, lambda labels, *, height=1: None, "shape")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown option of shape 'weight': use one of height (did you mean 'height'?)
    """
    try:
        parameters = signature(found).parameters.values()
    except ValueError:  # written in C, without a signature
        return
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise UnknownName(f"option of {name}", option, known or ["(it has none)"])
