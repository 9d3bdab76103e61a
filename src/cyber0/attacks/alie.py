"""A little is enough.

Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning. NeurIPS 2019.
The strength is found by a search, as in Allouah et al., Fixing by Mixing, AISTATS 2023.
"""
# ruff: noqa: ARG001 (attacks share one signature)

from typing import Any

from numpy.random import Generator

from cyber0.attacks.scene import Liars, Report, Rule, observe, unreported
from cyber0.attacks.strength import pushed

__all__ = ["alie", "alie_nnm"]


def alie(
    vectors: Any,
    liars: Liars,
    rule: Rule,
    byzantine: int,
    rng: Generator,
    *,
    omega: float | None = None,
    search: str | None = None,
    range: float | None = None,  # noqa: A002
    target: str = "rule",
    sign: str = "+",
    report: Report = unreported,
) -> Any:
    """All liars send mean + omega standard deviations of the honest vectors.

    `omega` fixes the strength. Otherwise a `search` ('zoom' by default, 'line', 'grid' or 'both') finds the omega that
    moves the aggregate farthest from the honest mean: the aggregate of the `target`, which is the 'rule' alone, or the
    whole 'composition' with its pre-aggregations. With a `range` it tries no omega above it. The omega used is
    reported.

    `sign='-'` sends mean - omega standard deviations. To clients that send changes of the model, as FedAvg's do, that
    is what '+' is to clients that send gradients. `sign='worse'` tries both in each round, takes the one that moves the
    aggregate farther, and reports which it was, 1 or -1.

    >>> import numpy as np
    >>> from cyber0.aggregation import get_rule
    >>> votes = np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0], [0.0, 0.0]])
    >>> alie(votes, [3], get_rule("nnm+cwtm"), 1, np.random.default_rng(0), omega=2)
    array([[4., 5.]])
    """
    scene = observe(vectors, liars)
    return pushed(scene, scene.deviation, rule, byzantine, omega, search, range, target, report, sign)


def alie_nnm(
    vectors: Any,
    liars: Liars,
    rule: Rule,
    byzantine: int,
    rng: Generator,
    *,
    omega: float | None = None,
    search: str | None = None,
    range: float | None = None,  # noqa: A002
    sign: str = "+",
    report: Report = unreported,
) -> Any:
    """`alie` against the whole composition, pre-aggregations included.

    >>> import numpy as np
    >>> from cyber0.aggregation import get_rule
    >>> rng, rule = np.random.default_rng(0), get_rule("nnm+cwtm")
    >>> votes, liars = rng.normal(1.0, 1.0, (20, 8)), range(15, 20)
    >>> lies = alie_nnm(votes, liars, rule, 5, rng)
    >>> bool((lies == alie(votes, liars, rule, 5, rng, target="composition")).all())
    True
    """
    options: dict[str, Any] = {"omega": omega, "search": search, "range": range, "target": "composition", "sign": sign}
    return alie(vectors, liars, rule, byzantine, rng, **options, report=report)
