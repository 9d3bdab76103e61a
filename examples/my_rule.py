"""A rule of your own: cyber0 run --rule examples.my_rule:midrange --attack sf --alpha 1 --clients 12 --byzantine 2 --rounds 40."""

from typing import Any

from array_api_compat import array_namespace

from cyber0.testing import check_rule


def midrange(vectors: Any, byzantine: int) -> Any:
    """Return, for each coordinate, the middle between the extremes that remain without the `byzantine` outermost."""
    xp = array_namespace(vectors)  # NumPy and torch alike
    ordered = xp.sort(vectors, axis=-2)  # [..., n, k]
    return ordered[..., byzantine, :] / 2 + ordered[..., -1 - byzantine, :] / 2


if __name__ == "__main__":
    kappa = check_rule(midrange)  # the laws that every rule keeps
    print(f"midrange keeps the laws of a rule and is (2, {kappa:.2f})-robust among 11")
