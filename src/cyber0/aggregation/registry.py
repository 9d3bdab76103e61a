"""Rules by name: `"cwtm"`, `"nnm+krum(power=1)"`, `"my_package.my_module:my_rule"`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cyber0 import registry
from cyber0.aggregation.decorators import like, on_host, widened
from cyber0.aggregation.pre.bucketing import bucketing
from cyber0.aggregation.pre.clip import clip
from cyber0.aggregation.pre.nnm import nnm
from cyber0.aggregation.rules.bulyan import bulyan
from cyber0.aggregation.rules.centered_clipping import centered_clipping
from cyber0.aggregation.rules.coordinatewise import cwtm, mean, median
from cyber0.aggregation.rules.geometric_median import geometric_median
from cyber0.aggregation.rules.krum import krum, multikrum
from cyber0.aggregation.rules.meamed import meamed
from cyber0.aggregation.rules.minimum_diameter import minimum_diameter
from cyber0.errors import InvalidAggregation

__all__ = ["PREAGGREGATIONS", "RULES", "Composition", "Rule", "compose", "get_rule", "is_ours"]

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {
    "bulyan": bulyan,
    "centered_clipping": centered_clipping,
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
OURS = frozenset([*RULES.values(), *PREAGGREGATIONS.values()])

PLUS = re.compile(r"\+(?![^(]*\))")  # one that joins two steps, not one inside parentheses


@dataclass(frozen=True, slots=True)
class Composition:
    """A rule after its pre-aggregations, called like a rule; made by `compose` and `get_rule`.

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

    def __call__(self, vectors: Any, byzantine: int, **options: Any) -> Any:
        """Aggregate; options are the rule's."""
        if not self.pre:
            return self.rule(vectors, byzantine, **options)
        if not on_host(vectors) or not is_ours(self):
            return self._run(vectors, byzantine, options)
        return like(vectors, self._run(widened(vectors), byzantine, options))  # one conversion, no rounding in between

    def _run(self, vectors: Any, byzantine: int, options: dict[str, Any]) -> Any:
        for step in self.pre:
            vectors = step(vectors, byzantine)
        return self.rule(vectors, byzantine, **options)


def compose(*steps: Rule) -> Composition:
    """Pre-aggregations from left to right, then a rule.

    >>> from functools import partial
    >>> compose(partial(clip, radius=1.0), nnm, krum).name
    'clip(radius=1.0)+nnm+krum'
    """
    if not steps:
        raise InvalidAggregation("nothing to compose: give a rule, after any pre-aggregations")
    if len(steps) == 1 and isinstance(steps[0], Composition):
        return steps[0]
    return Composition(steps[:-1], steps[-1], "+".join(map(_name, steps)))


def get_rule(name: str | Rule) -> Composition:
    """The rule of a name: steps joined by `+`, options in parentheses, a callable of yours as `package.module:object`.

    >>> get_rule("nnm+cwtm").pre[0] is nnm
    True
    >>> get_rule("krum(power=1, neighbours='n-b-2')").rule.keywords
    {'power': 1, 'neighbours': 'n-b-2'}
    >>> get_rule("nmm+krum")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown pre-aggregation 'nmm': use one of bucketing, clip, nnm (did you mean 'nnm'?)
    """
    if not isinstance(name, str):
        return compose(name)
    *first, last = PLUS.split(name)
    steps = [registry.resolve("pre-aggregation", text, PREAGGREGATIONS) for text in first]
    return compose(*steps, registry.resolve("rule", last, RULES))


def _name(step: Rule) -> str:
    return step.name if isinstance(step, Composition) else registry.name_of(step, {**RULES, **PREAGGREGATIONS})


def is_ours(step: Rule) -> bool:
    """Whether a step, or all steps of a composition, are of this package: they compute in float64, batch by batch.

    >>> is_ours(get_rule("nnm+krum(power=1)")), is_ours(lambda vectors, byzantine: vectors[0])
    (True, False)
    """
    if isinstance(step, Composition):
        return all(map(is_ours, (*step.pre, step.rule)))
    return getattr(step, "func", step) in OURS
