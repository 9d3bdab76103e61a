"""Results of a study that nobody ran: curves that rise to about the published means."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cyber0.study.recipe import Recipe, get_recipe
from cyber0.study.results import Results

SMALL = {
    "title": "Two rules <under> two attacks & more",
    "seeds": 3,
    "base": {"rounds": 20},
    "axes": {"rule": ["cwtm", "krum"], "attack": {"SF": "sf", "FOE": "foe"}},
}
FIGURES = [
    {"name": "plain", "title": "Attacks", "line": ["attack"], "where": {"rule": "krum"}},
    {"name": "worst", "title": "Worst", "x": "bytes", "line": ["rule"], "worst": "attack"},
    {"name": "panels", "title": "Panels", "x": "bytes", "line": ["rule"], "panel": "attack"},
]
PAPER = {
    "table": {"rows": ["rule"], "columns": ["attack"]},
    "paper": {"cwtm": {"SF": [81.3, 2.5], "FOE": [64.7, 3.1]}, "krum": {"SF": [43.9, 8.2], "FOE": [35.6, 5.4]}},
}


def small(**more: object) -> Recipe:
    """A study of four cells."""
    return Recipe.of({**SMALL, **more})


def invent(recipe: Recipe, seeds: int = 3, without: Sequence[int] = (), every: int = 10, rounds: int = 20) -> Results:
    """Runs of each cell but those `without`, by their places in the recipe."""
    drawn = np.random.default_rng(0)
    rows = []
    for place, cell in enumerate(recipe.cells()):
        mean, sd = recipe.published(cell.labels) or (80.0, 2.0)
        numbers = 7850 if cell.labels.get("algorithm") == "FedAvg" else 64
        for seed in range(seeds if place not in without else 0):
            top = drawn.normal(mean, sd)
            for at in range(0, rounds + 1, every):
                accuracy = (10 + (top - 10) * at / rounds) / 100
                sent = dict.fromkeys(("bytes_up_per_client", "bytes_down_per_client"), 4.0 * numbers * at)
                loss = None if at else 2.3
                rows.append({**cell.labels, "seed": seed, "round": at, "accuracy": accuracy, "loss": loss, **sent})
    return Results(recipe, pd.DataFrame(rows))


def table1(**options: object) -> Results:
    """The paper's study, invented."""
    return invent(get_recipe("table1"), **options)  # pyright: ignore[reportArgumentType]
