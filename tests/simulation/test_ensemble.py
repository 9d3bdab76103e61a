"""Runs that are played together end as they do alone, up to rounding."""

import numpy as np
import pytest

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig
from cyber0.simulation.ensemble import Ensemble, shape_of
from cyber0.simulation.export import recorded

SMALL = {"clients": 6, "byzantine": 1, "directions": 5, "batch": 8, "rounds": 3, "source": "embedded", "device": "cpu"}
CELLS = [
    {"rule": "nnm+krum", "attack": "foe"},
    {"rule": "nnm+krum", "attack": "foe", "seed": 1},
    {"rule": "cwtm", "attack": "alie(search='line')"},
    {"rule": "cwtm", "attack": "noise"},
    {"rule": "cwtm", "attack": "lf", "alpha": 1.0},
    {"rule": "mean", "attack": "none", "byzantine": 0},
    {"rule": "median", "attack": "nonfinite"},
]


def played(configs):
    ensemble = Ensemble(configs)
    rounds = list(ensemble.play())
    return [[played[i] for played in rounds] for i in range(len(configs))], ensemble


@pytest.mark.parametrize(
    "options", [{}, {"local_epochs": 2, "mu": 0.0}, {"algorithm": "fedavg"}, {"task": "mnist-mlp(hidden=4)"}]
)
def test_a_run_among_others_is_the_run_alone(options):
    configs = [RunConfig(**{**SMALL, **options, **cell}) for cell in CELLS]
    among, together = played(configs)
    for config, rounds, simulation in zip(configs, among, together.simulations, strict=True):
        (alone,), (single,) = played([config])[0], played([config])[1].simulations
        assert [r.admitted.tolist() for r in rounds] == [r.admitted.tolist() for r in alone]
        for ours, theirs in zip(rounds, alone, strict=True):
            scale = np.abs(theirs.aggregate).max()
            np.testing.assert_allclose(ours.aggregate, theirs.aggregate, rtol=0.02, atol=0.02 * scale)
        assert simulation.rounds == single.rounds == 3


def test_a_run_of_user_s_own_rule_plays_among_others(tmp_path, monkeypatch):
    (tmp_path / "own_rule.py").write_text(
        "def first(votes, byzantine):\n    assert votes.ndim == 3\n    return votes[..., 0, :]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    configs = [RunConfig(**SMALL, rule="own_rule:first", seed=seed) for seed in (0, 1)]
    assert [lines[-1]["rounds"] for lines, _ in recorded(configs)] == [3, 3]


def test_what_differs_in_shape_is_refused():
    with pytest.raises(InvalidConfig, match="only seed"):
        Ensemble([RunConfig(**SMALL), RunConfig(**SMALL, lr=0.5)])
    assert shape_of(RunConfig(**SMALL, engine="sequential")) is None
    assert shape_of(RunConfig(**{**SMALL, "clients": 10}, participation=0.5)) is None
