"""Run every benchmark: `make bench`, or `python -m benchmarks`."""

from importlib import import_module

for name in (
    "directions",
    "estimate",
    "aggregation",
    "attacks",
    "simulation",
    "spread",
    "ledger",
    "replay",
    "recovery",
    "network",
    "links",
    "rules_at_scale",
    "families",
    "short_prompts",
    "layerwise",
):
    import_module(f"benchmarks.{name}").main()
