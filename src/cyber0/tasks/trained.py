"""What of a model is trained: `"all"`, `"head"`, `"last(layers=2)+head"`, `"all-embeddings"`, `"*.query.*"`.

A pattern is made of parts, each after `+` (train these, too) or `-` (but not these). A part is a name of `PARTS`, or
a shell pattern that is compared with the names of parameters. What a model itself does not train stays frozen.
"""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from cyber0.errors import InvalidConfig, InvalidModel
from cyber0.registry import check, check_options

__all__ = ["PARTS", "choose"]

SIGNED = re.compile(r"([+-]?)\s*((?:[^()+\-\s]+)(?:\([^()]*\))?)\s*")


def choose(model: nn.Module, pattern: str) -> None:
    """Freeze all parameters of a model but those of a pattern; tied ones are trained if one of their names is meant.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    >>> choose(model, "biases+norms+head-2.weight")
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['1.bias', '2.bias', '3.weight', '3.bias']
    >>> choose(model, "attention.*")
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: train = 'attention.*' names no parameter of this model, which has 0.weight, ...
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    if not names:
        raise InvalidModel(f"model {type(model).__name__} has no parameters: there is nothing to train")
    trained = set[int]()
    for sign, part in _parts(pattern):
        found = _found(model, part, names)
        if not found:
            known = next(iter(names.values()))[0]
            raise InvalidModel(f"train = {part!r} names no parameter of this model, which has {known}, ...")
        trained = trained - found if sign == "-" else trained | found
    if not any(p.requires_grad and id(p) in trained for p in model.parameters()):
        raise InvalidModel(f"train = {pattern!r} leaves nothing to train of this model")
    for parameter in model.parameters():
        if id(parameter) not in trained:
            parameter.requires_grad_(False)


def _parts(pattern: str) -> list[tuple[str, str]]:
    found, at = list[tuple[str, str]](), 0
    while match := SIGNED.match(pattern.strip(), at):
        if bool(match[1]) == (at == 0):  # the first part has no sign, every other one has
            break
        found.append((match[1], match[2]))
        at = match.end()
    if not found or at < len(pattern.strip()):
        raise InvalidConfig(
            f"train = {pattern!r}: write parts with + or - between them, such as head, last(layers=2)+head, "
            f"all-embeddings or encoder.layer.5.*; parts are patterns of names, or {', '.join(sorted(PARTS))}"
        )
    return found


def _found(model: nn.Module, part: str, names: dict[int, list[str]]) -> set[int]:
    """Return the parameters that a part means, by their identity."""
    if part.partition("(")[0] in PARTS:
        name, options = check("part", part, PARTS)
        check_options(options, PARTS[name], name)
        return {id(parameter) for parameter in PARTS[name](model, **options)}
    return {key for key, own in names.items() if any(fnmatchcase(name, part) for name in own)}


def _all(model: Any) -> list[nn.Parameter]:
    return list(model.parameters())


def _head(model: Any) -> list[nn.Parameter]:
    """The head of a language model; of any other model its last layer."""
    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    named: Any = getattr(model, "head_module", None)
    head: Any = named() if callable(named) else layers[-1]
    return list(head.parameters())


def _last(model: Any, *, layers: int = 1) -> list[nn.Parameter]:
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    longest = max(stacks, key=len, default=None)
    if longest is None:
        raise InvalidModel("train = 'last': this model has no list of layers; name parameters by patterns instead")
    if not isinstance(layers, int) or not 1 <= layers <= len(longest):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidConfig(f"train = 'last(layers={layers!r})': this model has {len(longest)} layers")
    return [parameter for layer in list(longest)[-layers:] for parameter in layer.parameters()]


def _biases(model: Any) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.rpartition(".")[2] == "bias"]


def _norms(model: Any) -> list[nn.Parameter]:
    norms = (module for module in model.modules() if "norm" in type(module).__name__.lower())
    return [parameter for module in norms for parameter in module.parameters(recurse=False)]


def _embeddings(model: Any) -> list[nn.Parameter]:
    return [p for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()]


PARTS: dict[str, Callable[..., list[nn.Parameter]]] = {
    "all": _all,
    "biases": _biases,
    "embeddings": _embeddings,
    "head": _head,
    "last": _last,
    "norms": _norms,
}
