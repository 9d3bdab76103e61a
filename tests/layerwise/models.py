"""Small random language models of many families, as classifiers, and ragged prompts for them."""

import pytest

from cyber0.directions import DirectionKey

pytest.importorskip("transformers")

from benchmarks.families import BLOCKS, FAMILIES, MASK, built, prompts

__all__ = ["BLOCKS", "FAMILIES", "MASK", "classifier", "keys", "prompts"]


def classifier(family, adapter=None, **changes):
    return built((FAMILIES | BLOCKS)[family], adapter, **changes)


def keys(count=2, round=0):
    return [DirectionKey(seed=5, round=round, index=index) for index in range(count)]
