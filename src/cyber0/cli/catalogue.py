"""Every name that comes with cyber0, with its options and what it stands for: for `cyber0 list`, help and reference."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import Parameter, getdoc, isclass, signature
from typing import Any, get_args

from cyber0 import aggregation, attacks
from cyber0.aggregation import registry as rules
from cyber0.attacks import registry as attack_names
from cyber0.attacks.scene import CONTEXT
from cyber0.config import MachineOptions
from cyber0.directions.key import FAMILIES
from cyber0.objective import OBJECTIVES
from cyber0.plan import SCHEMES
from cyber0.schedule import PARTS
from cyber0.step_rule import RULES as STEP_RULES
from cyber0.study.recipe import get_recipe, shipped
from cyber0.tasks import TASKS
from cyber0.tasks.partition import PARTITIONS, SUPPLIED
from cyber0.tracking import TRACKERS

__all__ = ["KINDS", "NAMES", "Entry", "entries"]

MISSING = "(needs an extra that is not installed)"
HIDDEN = (*CONTEXT, *SUPPLIED, "folder", "memory", "model")  # keyword-only, but given by whoever calls
ENGINES: tuple[str, ...] = get_args(MachineOptions.model_fields["engine"].annotation)
SAID = {
    "constant": "The learning rate stays as it is.",
    "cosine": "It falls along half a cosine to `end` times itself.",
    "linear": "It falls in a line to `end` times itself.",
    "warmup": "It rises from nearly 0 over so many `rounds`; another schedule may follow, after a +.",
    "plain": "A round moves by the learning rate times its scalars.",
    "normalised": "By about the learning rate, whatever the scale of the loss: scalars over what they usually are.",
    "gaussian": "Directions of normal numbers.",
    "sphere": "Directions drawn evenly from the sphere.",
    "rademacher": "Directions of signs, the cheapest to make and to replay.",
    "unbiased": "Fresh directions for each local epoch; a client sends every step's scalars.",
    "biased": "The same directions for all local epochs of a round; a client sends sums.",
    "compressed": "A client projects its whole update on directions of their own, and sends these scalars.",
    "batched": "All clients at once, on one device.",
    "sequential": "One client after the other.",
    "ray": "Shares of the clients on Ray actors, one client after the other.",
    "ray-batched": "Shares of the clients on Ray actors, each share at once.",
}
"""What a name stands for that has no docstring of its own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name, its other names, its options as they are written, what it is in a sentence, and the function itself."""

    name: str
    others: tuple[str, ...]
    options: str
    summary: str
    found: Any = None

    @property
    def path(self) -> str:
        """Where the function is, as the reference names it."""
        return f"{self.found.__module__}.{self.found.__qualname__}"


def _known(what: Mapping[str, Any], aliases: Mapping[str, str] | None = None) -> list[Entry]:
    others = [(name, known) for known, name in (aliases or {}).items()]
    return [
        _entry(name, found, tuple(other for known, other in others if known == name)) for name, found in what.items()
    ]


def _entry(name: str, found: Any, others: tuple[str, ...]) -> Entry:
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except ImportError:
            return Entry(name, others, "", MISSING)
    return Entry(name, others, _options(found), _summary(found), found)


def _summary(found: Any) -> str:
    """Return the first line of a docstring, as what the thing is: without `Return`."""
    first = (getdoc(found) or "").partition("\n")[0].removeprefix("Return").lstrip(", ")
    return first[:1].upper() + first[1:]


def _options(found: Callable[..., Any]) -> str:
    given = signature(found.__init__ if isclass(found) else found).parameters.values()
    shown = [f"{each.name}={each.default!r}" for each in given if each.kind is Parameter.KEYWORD_ONLY]
    shown += ["..." for each in given if each.kind is Parameter.VAR_KEYWORD]  # those of all tasks on texts
    return ", ".join(each for each in shown if each.partition("=")[0] not in HIDDEN)


def _made(parts: Mapping[str, Callable[..., Any]]) -> list[Entry]:
    return [Entry(name, (), _options(part), SAID[name], part) for name, part in parts.items()]


def _words(names: Iterable[str]) -> list[Entry]:
    return [Entry(name, (), "", SAID[name]) for name in names]


def _studies() -> list[Entry]:
    return [Entry(name, (), "", get_recipe(name).title) for name in shipped()]


KINDS: dict[str, Callable[[], list[Entry]]] = {
    "rules": partial(_known, aggregation.RULES, rules.ALIASES),
    "pre-aggregations": partial(_known, aggregation.PREAGGREGATIONS),
    "attacks": partial(_known, attacks.ATTACKS, attack_names.ALIASES),
    "tasks": partial(_known, TASKS),
    "partitions": partial(_known, PARTITIONS),
    "schedules": partial(_made, PARTS),
    "step-rules": partial(_made, STEP_RULES),
    "objectives": partial(_known, OBJECTIVES),
    "families": partial(_words, FAMILIES),
    "schemes": partial(_words, SCHEMES),
    "engines": partial(_words, ENGINES),
    "trackers": partial(_known, TRACKERS),
    "studies": _studies,
}
NAMES: dict[str, tuple[str, ...]] = {
    "task": tuple(TASKS),
    "rule": (*aggregation.RULES, *(f"{name}+RULE" for name in aggregation.PREAGGREGATIONS)),
    "attack": tuple(attacks.ATTACKS),
    "partition": tuple(PARTITIONS),
    "schedule": tuple(PARTS),
}
"""The names that a key of the configuration may have, for its help."""


def entries(kind: str) -> list[Entry]:
    """Return every name of a kind.

    >>> [entry.name for entry in entries("partitions")]
    ['dirichlet', 'iid', 'natural', 'shards', 'shuffled']
    >>> entries("partitions")[3].options
    'per_client=2'
    """
    return KINDS[kind]()
