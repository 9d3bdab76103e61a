"""An attack of your own: cyber0 run --attack "examples.my_attack:shout(volume=50)" --rule cwtm --alpha 1 --rounds 40."""

from typing import Any

import numpy as np


def shout(vectors: Any, liars: Any, rule: Any, byzantine: int, rng: Any, *, volume: float = 10.0) -> Any:  # noqa: ARG001
    """Every liar sends the honest mean, reversed and `volume` times as long."""
    honest = np.delete(vectors, liars, axis=-2)
    lie = -volume * honest.mean(axis=-2, keepdims=True)  # [..., 1, k]
    return np.repeat(lie, len(liars), axis=-2)
