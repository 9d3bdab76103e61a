"""Rules against ByzFL's, on the same arrays in the same run: `python -m benchmarks.aggregation`.

A ratio above 1 says how many times faster cyber0 is. ByzFL asks for torchvision, which its rules do not need:
`pip install --no-deps byzfl==0.0.11` and `byzfl()` below do without.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Row, report, seconds
from cyber0.aggregation import bucketing, get_rule

Rule = Callable[[Any], Any]

SMALL, LARGE = (40, 64, 10), (100, 100_000, 25)  # n, k, b


def byzfl() -> Any:
    """ByzFL's rules and pre-aggregations by class name, without the rest of the package; None if not installed."""
    spec = find_spec("byzfl") if "byzfl" not in sys.modules else sys.modules["byzfl"].__spec__
    if spec is None:
        return None
    if "byzfl" not in sys.modules:
        package = ModuleType("byzfl")
        package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or [])
        sys.modules["byzfl"] = package
    modules = [import_module(f"byzfl.aggregators.{name}") for name in ("aggregators", "preaggregators")]
    return SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})


def pairs(peer: Any, byzantine: int) -> dict[str, Rule]:
    """Our name of each rule the two libraries share, and ByzFL's rule. Centered clipping is made anew: it remembers."""
    return {
        "mean": peer.Average(),
        "median": peer.Median(),
        "cwtm": peer.TrMean(byzantine),
        "krum": peer.Krum(byzantine),
        "multikrum": peer.MultiKrum(byzantine),
        "meamed": peer.Meamed(byzantine),
        "geometric_median(iterations=3, smoothing=0.1, start='zero', tolerance=0)": peer.GeometricMedian(0.1, 3),
        "centered_clipping(radius=100.0, iterations=1, start='zero')": lambda v: peer.CenteredClipping()(v),
        "nnm+mean": lambda v: peer.Average()(peer.NNM(byzantine)(v)),
        "nnm+cwtm": lambda v: peer.TrMean(byzantine)(peer.NNM(byzantine)(v)),
        "nnm+krum": lambda v: peer.Krum(byzantine)(peer.NNM(byzantine)(v)),
        "clip(radius=2.0)+mean": lambda v: peer.Average()(peer.Clipping(2.0)(v)),
        "clip+mean": lambda v: peer.Average()(peer.ARC(byzantine)(v)),
        "bucketing(size=2)": peer.Bucketing(2),
    }


def compare(name: str, rule: Rule, vectors: Any, byzantine: int, calls: int) -> Row:
    """Both rules on the same array, `calls` calls at a time."""
    own = partial(bucketing, size=2) if name.startswith("bucketing") else get_rule(name)

    def many(work: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                work()

        return run

    ours, theirs = seconds(many(partial(own, vectors, byzantine)), many(partial(rule, vectors)))
    kind = "torch" if isinstance(vectors, torch.Tensor) else "numpy"
    n, k = vectors.shape
    row = {"rule": name, "n": n, "k": k, "array": f"{kind} {str(vectors.dtype).removeprefix('torch.')}"}
    return row | {"cyber0, us": ours / calls * 1e6, "ByzFL, us": theirs / calls * 1e6, "times faster": theirs / ours}


def rows(peer: Any) -> list[Row]:
    found: list[Row] = []
    for (n, k, byzantine), calls in ((SMALL, 50), (LARGE, 1)):
        data = np.random.default_rng(0).standard_normal((n, k))
        for kind in (np.copy, partial(torch.tensor, dtype=torch.float32)):
            for name, rule in pairs(peer, byzantine).items():
                if n == SMALL[0] or name == "nnm+cwtm":  # an array for each: ByzFL's clipping writes to it
                    found.append(compare(name, rule, kind(data), byzantine, calls))
    return found


def main() -> None:
    peer = byzfl()
    if peer is None:
        print("ByzFL is not installed: pip install --no-deps byzfl==0.0.11")
        return
    report("aggregation", rows(peer), "python -m benchmarks.aggregation")


if __name__ == "__main__":
    main()
