"""Robust aggregation: combine the vectors of n clients, b of which may lie, into one.

A rule is a callable `rule(vectors, byzantine, **options)` from `[..., n, k]` to `[..., k]`, for arrays of NumPy or
torch; a pre-aggregation returns `[..., m, k]`. Any rule can follow any pre-aggregations.

>>> import numpy as np
>>> from cyber0.aggregation import compose, cwtm, get_rule, nnm
>>> votes = np.array([[1.0, 2.0], [2.0, 1.0], [1.5, 1.5], [9e9, -9e9]])
>>> get_rule("nnm+cwtm")(votes, byzantine=1)
array([1.5, 1.5])
>>> bool((compose(nnm, cwtm)(votes, 1) == get_rule("nnm+cwtm")(votes, 1)).all())
True

No rule modifies its input; finite vectors give finite results; the order of the vectors matters only to rounding.
`cyber0.testing.check_rule` tests your own rule for that. On the CPU the same votes give the same bits on every machine.

A rule may have memory: see `RuleWithMemory`. `begin`, `aggregate` and `after` call rules with and without memory alike.
"""

from cyber0.aggregation.decorators import convert_like, on_rows
from cyber0.aggregation.memory import after, aggregate, begin, with_memory
from cyber0.aggregation.pre.bucketing import bucketing
from cyber0.aggregation.pre.clip import clip
from cyber0.aggregation.pre.nnm import nnm
from cyber0.aggregation.registry import (
    PREAGGREGATIONS,
    RULES,
    SEMANTICS,
    Composition,
    compose,
    get_rule,
    is_isometric,
    is_ours,
)
from cyber0.aggregation.rows import namespace, safe_scale, to_numpy
from cyber0.aggregation.rule import Rule, RuleWithMemory
from cyber0.aggregation.rules.bulyan import bulyan
from cyber0.aggregation.rules.centered_clipping import CenteredClippingPrevious, centered_clipping
from cyber0.aggregation.rules.coordinatewise import cwtm, mean, median
from cyber0.aggregation.rules.geometric_median import geometric_median
from cyber0.aggregation.rules.krum import krum, multikrum
from cyber0.aggregation.rules.meamed import meamed
from cyber0.aggregation.rules.minimum_diameter import minimum_diameter

trimmed_mean = cwtm

__all__ = [
    "PREAGGREGATIONS",
    "RULES",
    "SEMANTICS",
    "CenteredClippingPrevious",
    "Composition",
    "Rule",
    "RuleWithMemory",
    "after",
    "aggregate",
    "begin",
    "bucketing",
    "bulyan",
    "centered_clipping",
    "clip",
    "compose",
    "convert_like",
    "cwtm",
    "geometric_median",
    "get_rule",
    "is_isometric",
    "is_ours",
    "krum",
    "meamed",
    "mean",
    "median",
    "minimum_diameter",
    "multikrum",
    "namespace",
    "nnm",
    "on_rows",
    "safe_scale",
    "to_numpy",
    "trimmed_mean",
    "with_memory",
]
