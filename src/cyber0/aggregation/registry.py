"""Look up rules by name, compose them and call them: `"cwtm"`, `"nnm+krum(power=1)"`, `"my_module:my_rule"`."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cyber0 import registry
from cyber0.aggregation.decorators import convert_like, is_isometric_step, like, on_host, refuse_nonfinite, widened
from cyber0.aggregation.pre.bucketing import bucketing
from cyber0.aggregation.pre.clip import clip
from cyber0.aggregation.pre.nnm import nnm
from cyber0.aggregation.rule import Rule, RuleWithMemory
from cyber0.aggregation.rules.bulyan import bulyan
from cyber0.aggregation.rules.centered_clipping import CenteredClippingPrevious, centered_clipping
from cyber0.aggregation.rules.coordinatewise import cwtm, mean, median
from cyber0.aggregation.rules.geometric_median import geometric_median, geometric_median_1
from cyber0.aggregation.rules.krum import krum, multikrum
from cyber0.aggregation.rules.meamed import meamed
from cyber0.aggregation.rules.minimum_diameter import minimum_diameter
from cyber0.errors import Cyber0Error, InvalidAggregation

__all__ = [
    "PREAGGREGATIONS",
    "RULES",
    "SEMANTICS",
    "Composition",
    "Rule",
    "calling",
    "compose",
    "get_rule",
    "is_isometric",
    "is_ours",
]

RULES: dict[str, Rule] = {
    "bulyan": bulyan,
    "centered_clipping": centered_clipping,
    "centered_clipping_previous": CenteredClippingPrevious,
    "cwtm": cwtm,
    "geometric_median": geometric_median,
    "krum": krum,
    "meamed": meamed,
    "mean": mean,
    "median": median,
    "minimum_diameter": minimum_diameter,
    "multikrum": multikrum,
}
PREAGGREGATIONS: dict[str, Rule] = {"bucketing": bucketing, "clip": clip, "nnm": nnm}
ALIASES = {"trimmed_mean": "cwtm"}
SEMANTICS = 2  # of what rules compute, to the bit: raised when one changes, and its older self goes to OLDER
OLDER: dict[int, dict[str, Rule]] = {1: {"geometric_median": geometric_median_1}}  # by version: what differed up to it
OURS = (*RULES.values(), *PREAGGREGATIONS.values())

PLUS = re.compile(r"\+(?![^(]*\))")  # one that joins two steps, not one inside parentheses


@dataclass(frozen=True, slots=True)
class Composition:
    """A rule after its pre-aggregations, called like a rule; made by `compose` and `get_rule`.

    What a user's step raises becomes an InvalidAggregation that names the rule, and what it returns is converted to an
    array like the vectors.

    >>> import numpy as np
    >>> robust = compose(nnm, cwtm)
    >>> robust(np.array([[1.0], [2.0], [3.0], [9e9]]), 1)
    array([2.])
    >>> robust.name, robust.rule is cwtm
    ('nnm+cwtm', True)
    """

    pre: tuple[Rule, ...]
    rule: Rule
    name: str
    ours: bool = field(init=False, repr=False, compare=False)  # known before the calls, which may take microseconds

    def __post_init__(self) -> None:
        object.__setattr__(self, "ours", all(map(is_ours, (*self.pre, self.rule))))

    def __call__(self, vectors: Any, byzantine: int, **options: Any) -> Any:
        """Aggregate; options are the rule's. A rule with memory that is given none starts from its first one."""
        if not self.ours:
            return self._run_checked(vectors, byzantine, options)
        if not self.pre or not on_host(vectors):
            return self._run(vectors, byzantine, options)
        return like(vectors, self._run(widened(vectors), byzantine, options))  # one conversion, no rounding in between

    def _run(self, vectors: Any, byzantine: int, options: dict[str, Any]) -> Any:
        for step in self.pre:
            vectors = step(vectors, byzantine)
        return self.rule(vectors, byzantine, **options)

    def _run_checked(self, vectors: Any, byzantine: int, options: dict[str, Any]) -> Any:
        refuse_nonfinite(vectors)
        with calling(self.name):
            if isinstance(self.rule, RuleWithMemory) and "memory" not in options:
                options = {**options, "memory": self.rule.begin()}
            for step in self.pre:
                mixed = convert_like(vectors, step(vectors, byzantine))
                self._check(vectors, mixed, (*vectors.shape[:-2], *mixed.shape[-2:-1], vectors.shape[-1]))
                vectors = mixed
            result = convert_like(vectors, self.rule(vectors, byzantine, **options))
            self._check(vectors, result, (*vectors.shape[:-2], vectors.shape[-1]))
            return result

    def _check(self, vectors: Any, result: Any, expected: tuple[int, ...]) -> None:
        if tuple(result.shape) != expected:
            raise InvalidAggregation(
                f"rule {self.name!r} made {tuple(vectors.shape)} votes into {tuple(result.shape)}: "
                f"it must give {expected}; the clients' axis is the last but one, axis=-2"
            )


@contextmanager
def calling(name: str) -> Generator[None]:
    """Turn what a user's rule raises into an InvalidAggregation that names the rule."""
    try:
        yield
    except Cyber0Error:
        raise
    except Exception as error:
        raise InvalidAggregation(f"rule {name!r} cannot be used: {type(error).__name__}: {error}") from error


def compose(*steps: Rule) -> Composition:
    """Return the composition of pre-aggregations, from left to right, and a rule; classes are instantiated.

    >>> compose(partial(clip, radius=1.0), nnm, krum).name
    'clip(radius=1.0)+nnm+krum'
    """
    if not steps:
        raise InvalidAggregation("nothing to compose: give a rule, after any pre-aggregations")
    if len(steps) == 1 and isinstance(steps[0], Composition):
        return steps[0]
    *pre, rule = (_instance(step) if registry.is_class(step) else step for step in steps)
    return Composition(tuple(pre), rule, "+".join(map(_name, steps)))


def get_rule(name: str | Rule, semantics: int = SEMANTICS) -> Composition:
    """Return the rule of a name: steps joined by `+`, options in parentheses, a callable as `package.module:object`.

    `semantics` is the version of what rules compute; a ledger names its own, so that it can be verified for good.

    >>> get_rule("nnm+trimmed_mean").name
    'nnm+cwtm'
    >>> get_rule("krum(power=1, neighbours='n-b-2')").rule.keywords
    {'power': 1, 'neighbours': 'n-b-2'}
    >>> get_rule("nmm+krum")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown pre-aggregation 'nmm': use one of bucketing, clip, nnm (did you mean 'nnm'?)
    """
    if not isinstance(name, str):
        return compose(registry.resolve("rule", name, RULES))
    *first, last = PLUS.split(name)
    older = {step: rule for version in range(SEMANTICS - 1, semantics - 1, -1) for step, rule in _older(version)}
    known, rules = ({**now, **{k: v for k, v in older.items() if k in now}} for now in (PREAGGREGATIONS, RULES))
    if last.partition("(")[0].strip() in PREAGGREGATIONS:
        raise InvalidAggregation(
            f"rule {name!r} ends with a pre-aggregation, {last}: a rule must follow it, as in {last}+cwtm"
        )
    steps = [registry.resolve("pre-aggregation", text, known) for text in first]
    return compose(*steps, registry.resolve("rule", last, rules, aliases=ALIASES, reserved=["memory"]))


def _older(version: int) -> list[tuple[str, Rule]]:
    return list(OLDER.get(version, {}).items())


def is_ours(step: Rule) -> bool:
    """Return whether a step, or all steps of a composition, are functions of this package.

    Those compute in float64, and each element of a batch alone.

    >>> is_ours(get_rule("nnm+krum(power=1)")), is_ours(lambda vectors, byzantine: vectors[0])
    (True, False)
    """
    if isinstance(step, Composition):
        return step.ours
    function = step.func if isinstance(step, partial) else step
    older = (rule for steps in OLDER.values() for rule in steps.values())
    return any(function is ours for ours in (*OURS, *older))


def is_isometric(rule: Rule) -> bool:
    """Return whether a rule, with its pre-aggregations, is declared to commute with rotations and translations.

    >>> is_isometric(get_rule("nnm+krum")), is_isometric(get_rule("nnm+cwtm"))
    (True, False)
    """
    steps = (*rule.pre, rule.rule) if isinstance(rule, Composition) else (rule,)
    return all(is_isometric_step(step.func if isinstance(step, partial) else step) for step in steps)


def _name(step: Any) -> str:
    if isinstance(step, Composition):
        return step.name
    known: dict[str, Any] = {**RULES, **PREAGGREGATIONS}
    given: Any = step
    function, options = (given.func, given.keywords) if isinstance(step, partial) else (given, None)
    for name, older in (named for version in OLDER for named in _older(version)):
        if function is older:  # the version of a rule is said elsewhere
            return registry.name_of(known[name] if options is None else partial(known[name], **options), known)
    return registry.name_of(given, known)


def _instance(step: Rule) -> Rule:
    with calling(_name(step)):
        made = step()
    if not callable(made):
        raise InvalidAggregation(f"rule {_name(step)!r}: its instances must be callable, as (vectors, byzantine)")
    return made
