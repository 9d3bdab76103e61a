"""Look up callables by name: `"dirichlet"`, `"krum(power=1)"`, `"my_package.my_module:my_rule"`.

Rules, attacks, partitions and tasks are plain callables. Their options are their keyword-only parameters. In a name,
`-` and `_` are the same.
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from inspect import Parameter, isroutine, signature
from typing import Any

from cyber0.errors import InvalidName, UnknownName

__all__ = ["check", "check_options", "is_class", "map_options", "name_of", "resolve"]

TEXT = re.compile(r"\s*([\w.:-]+)\s*(\(.*\))?\s*", re.DOTALL)


def resolve(
    what: str,
    text: str | Callable[..., Any],
    known: Mapping[str, Callable[..., Any] | str],
    *,
    aliases: Mapping[str, str] | None = None,
    reserved: Collection[str] = (),
) -> Callable[..., Any]:
    """Return the callable that a name stands for, with its options bound; a callable is returned as it is.

    A known callable may be given as `package.module:object`, which is imported when it is asked for. `aliases` maps
    other names to known ones. `reserved` lists keyword-only parameters of functions that are not options, because
    whoever calls the function supplies them.

    >>> resolve("shape", "line(length=2)", {"line": lambda *, length=1: length})()
    2
    >>> resolve("shape", "math:hypot", {})(3, 4)
    5.0
    >>> resolve("shape", "triangle", {"triangle": "math:hypot"})(3, 4)
    5.0
    >>> resolve("shape", "segment", {"line": print}, aliases={"segment": "line"}) is print
    True
    >>> resolve("shape", "lime", {"line": print, "circle": print})
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown shape 'lime': use one of circle, line (did you mean 'line'?)
    """
    if not isinstance(text, str):
        if not callable(text):
            raise InvalidName(f"{what} = {text!r} is a {type(text).__name__}: give a name or a callable")
        return text
    name, options = check(what, text, known, aliases=aliases)
    entry = name if ":" in name else known[name]
    found = _imported(what, entry) if isinstance(entry, str) else entry
    check_options(options, found, name, reserved=() if is_class(found) else reserved)
    return partial(found, **options) if options else found


def check(
    what: str, text: str, known: Collection[str], *, aliases: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the name and the options in a text; refuse a name that is neither known nor a `package.module:object`.

    >>> check("shape", "long_line(length=2)", ["long-line"])
    ('long-line', {'length': 2})
    >>> check("shape", "lime", ["line", "circle"])
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown shape 'lime': use one of circle, line (did you mean 'line'?)
    """
    match = TEXT.fullmatch(text)
    if match is None:
        raise InvalidName(f"{what} {text!r}: write name, name(option=value) or package.module:object")
    name, arguments = match.groups()
    if ":" not in name and name not in known:
        spellings = {key.replace("_", "-"): key for key in known}
        spellings |= {alias.replace("_", "-"): key for alias, key in (aliases or {}).items()}
        if name.replace("_", "-") not in spellings:
            raise UnknownName(what, name, known)
        name = spellings[name.replace("_", "-")]
    return name, _options(what, arguments, text)


def name_of(found: Callable[..., Any], known: Mapping[str, Callable[..., Any]]) -> str:
    """Return the text that `resolve` turns into a callable; of an instance or a local function, a text to print.

    >>> name_of(partial(print, end=""), {"write": print})
    "write(end='')"
    >>> name_of(str.upper, {})
    '__main__:str.upper'
    """
    if isinstance(found, partial):
        options = ", ".join(f"{key}={value!r}" for key, value in found.keywords.items())
        return f"{name_of(found.func, known)}({options})" if options else name_of(found.func, known)
    for name, value in known.items():
        if value is found:
            return name
    described = found if isroutine(found) or isinstance(found, type) else type(found)
    module = getattr(described, "__module__", None) or "__main__"  # what `exec` made, or is written in C, may have none
    return f"{module}:{described.__qualname__}"


def is_class(found: Callable[..., Any]) -> bool:
    """Return whether a callable that was found is a class, with or without options, rather than a function.

    >>> is_class(partial(dict, a=1)), is_class(print)
    (True, False)
    """
    return isinstance(found.func if isinstance(found, partial) else found, type)


def check_options(
    options: Collection[str], found: Callable[..., Any], name: str, *, reserved: Collection[str] = ()
) -> None:
    """Refuse options that a callable does not take, and those that are `reserved` for whoever calls it.

    >>> check_options(["weight"], lambda labels, *, height=1: None, "shape")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown option 'weight' of shape: use one of height (did you mean 'height'?)
    """
    try:
        parameters = signature(found).parameters.values()
    except ValueError:  # written in C, without a signature
        return
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    known = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
    known = [parameter for parameter in known if parameter not in reserved]
    for option in options:
        if option not in known and (option in reserved or not takes_any):
            raise UnknownName("option", option, known, of=name)


def _imported(what: str, name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidName(f"{what} {name!r}: {module_name!r} names no module; write package.module:object")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module exists and itself misses another one: do not hide that
        raise InvalidName(f"{what} {name!r}: there is no module {error.name!r} to import") from None
    found = getattr(module, attribute, None)
    if not callable(found):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise UnknownName("callable", attribute, callables, of=module_name)
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


def map_options(what: str, text: str, change: Callable[[Any], Any]) -> str:
    """Return a text with the values of its options changed.

    >>> map_options("shape", "line(length=2, name='a')", lambda value: value * 2)
    "line(length=4, name='aa')"
    """
    match = TEXT.fullmatch(text)
    if match is None or match[2] is None:
        return text
    given = _options(what, match[2], text)
    changed = {key: change(value) for key, value in given.items()}
    return (
        text if changed == given else f"{match[1]}({', '.join(f'{key}={value!r}' for key, value in changed.items())})"
    )
