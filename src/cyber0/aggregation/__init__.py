"""Robust aggregation: many vectors in, some of them lies, one vector out.

A rule is a callable `rule(vectors, byzantine, **options)` from `[..., n, k]` to `[..., k]`, for arrays of NumPy or
torch; a pre-aggregation gives `[..., m, k]`. Any rule can follow any pre-aggregations.

>>> import numpy as np
>>> from cyber0.aggregation import compose, cwtm, get_rule, nnm
>>> votes = np.array([[1.0, 2.0], [2.0, 1.0], [1.5, 1.5], [9e9, -9e9]])
>>> get_rule("nnm+cwtm")(votes, byzantine=1)
array([1.5, 1.5])
>>> bool((compose(nnm, cwtm)(votes, 1) == get_rule("nnm+cwtm")(votes, 1)).all())
True

No rule changes its input, gives anything but finite numbers for finite numbers, or heeds the order of the vectors
beyond rounding; `cyber0.testing.check_rule` puts yours to the same test. On the CPU the same votes give the same bits
on every machine.
"""

from cyber0.aggregation.pre.bucketing import bucketing
from cyber0.aggregation.pre.clip import clip
from cyber0.aggregation.pre.nnm import nnm
from cyber0.aggregation.registry import PREAGGREGATIONS, RULES, Composition, Rule, compose, get_rule
from cyber0.aggregation.rules.bulyan import bulyan
from cyber0.aggregation.rules.centered_clipping import centered_clipping
from cyber0.aggregation.rules.coordinatewise import cwtm, mean, median
from cyber0.aggregation.rules.geometric_median import geometric_median
from cyber0.aggregation.rules.krum import krum, multikrum
from cyber0.aggregation.rules.meamed import meamed
from cyber0.aggregation.rules.minimum_diameter import minimum_diameter

__all__ = [
    "PREAGGREGATIONS",
    "RULES",
    "Composition",
    "Rule",
    "bucketing",
    "bulyan",
    "centered_clipping",
    "clip",
    "compose",
    "cwtm",
    "geometric_median",
    "get_rule",
    "krum",
    "meamed",
    "mean",
    "median",
    "minimum_diameter",
    "multikrum",
    "nnm",
]
