"""Clients that measure on all their samples in every step, `batch = 0`: as many as each holds."""

import numpy as np
import pytest
import torch
from tests.network.test_federation import play, trained
from torch import nn

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig
from cyber0.network.consent import terms
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings
from cyber0.simulation import Simulation
from cyber0.simulation.ensemble import Ensemble
from cyber0.tasks.convert import task_of
from cyber0.tasks.task import get_task

SMALL = {"clients": 5, "byzantine": 1, "directions": 3, "batch": 0, "rounds": 3, "lr": 0.005, "family": "gaussian"}
UNEQUAL = {"partition": "dirichlet", "alpha": 0.3}
TASKS = {name: get_task(name)(None, "embedded") for name in ("mnist", "mnist-mlp(hidden=6)")}


def simulate(task="mnist", **options):
    return Simulation(RunConfig(**{**SMALL, **UNEQUAL, "source": "embedded", **options}), TASKS[task])


def second_votes(task="mnist", present=5, **options):
    simulation = simulate(task, **options)
    simulation.play_round(0)
    return simulation.votes(1, np.arange(present))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("mu", [0.02, 0.0])
@pytest.mark.parametrize("local_epochs", [1, 2])
def test_engines_agree(task, mu, local_epochs):
    options = {"mu": mu, "local_epochs": local_epochs}
    batched, sequential = (second_votes(task, engine=engine, **options) for engine in ("batched", "sequential"))
    assert len({len(share) for share in simulate(task).population.shares}) == 5
    np.testing.assert_allclose(batched, sequential, rtol=1e-3, atol=1e-3 * np.abs(sequential).max())


def test_it_is_a_batch_of_as_many_samples_as_each_client_holds():
    """Drawn without replacement, these are all of them, in another order."""
    every, as_many = (second_votes(partition="iid", alpha=None, batch=batch) for batch in (0, 800))
    np.testing.assert_allclose(every, as_many, rtol=1e-4, atol=1e-5 * np.abs(as_many).max())


def test_some_clients_vote_as_they_do_among_all():
    np.testing.assert_allclose(second_votes(present=3), second_votes()[:, :3], rtol=1e-4, atol=1e-4)


def test_layers_are_walked_with_it():
    x, y = torch.randn(40, 6), torch.arange(40) % 3

    def votes(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        simulation = Simulation(
            RunConfig(**{**SMALL, **UNEQUAL, **options}), task_of(model, (x, y), (x, y), layerwise=True)
        )
        return [played.honest for played in simulation.play()]

    for options in ({}, {"local_epochs": 2}, {"participation": 0.7}):
        for one, other in zip(votes(**options), votes(**options, engine="sequential"), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=5e-3 * np.abs(other).max())


def test_runs_that_are_played_together_measure_what_they_measure_alone():
    configs = [RunConfig(**{**SMALL, **UNEQUAL, "source": "embedded", "seed": seed}) for seed in (0, 1)]
    together = list(Ensemble(configs, TASKS["mnist"]).play())
    for place, config in enumerate(configs):
        for alone, rounds in zip(Simulation(config, TASKS["mnist"]).play(), together, strict=True):
            largest = np.abs(alone.honest).max()
            np.testing.assert_allclose(rounds[place].honest, alone.honest, rtol=0, atol=1e-3 * largest)


def test_a_client_of_a_federation_measures_what_its_simulation_measures():
    config, ledger = RunConfig(**{**SMALL, **UNEQUAL, "source": "embedded", "clients": 3}), Memory()
    ended, _ = play(config, ledger, trained(config, TASKS["mnist"]), settings={"deadline": 20.0})
    simulation = Simulation(config.updated(engine="sequential"), TASKS["mnist"])
    list(simulation.play())
    assert {member.model.fingerprint() for member in ended.values()} == {simulation.parameters.fingerprint()}
    assert "all samples" in "".join(terms(Settings.of(config), None, 0.0, secure=True))


def test_a_private_client_uses_all_samples_without_coins():
    private = simulate(noise=0.5).world.private
    assert private.rates.tolist() == [1.0] * 5
    batched, sequential = (second_votes(noise=0.5, engine=engine) for engine in ("batched", "sequential"))
    np.testing.assert_allclose(batched, sequential, rtol=1e-3, atol=1e-3 * np.abs(sequential).max())


def test_the_same_run_gives_the_same_bits():
    first, second = simulate(), simulate()
    for simulation in (first, second):
        list(simulation.play())
    assert first.parameters.fingerprint() == second.parameters.fingerprint()


@pytest.mark.parametrize("options", [{"local_epochs": 2}, {"engine": "sequential"}])
def test_memory_is_counted_by_the_largest_client(options, monkeypatch):
    """One of ten holds nearly all: its samples at once, and as many for each client where rows are filled up."""
    x, y = np.zeros((2000, 500), dtype=np.float32), np.arange(2000) % 2
    shares = [np.arange(1991), *(np.array([each]) for each in range(1991, 2000))]
    task = task_of(nn.Linear(500, 2), (x, y), (x[:10], y[:10]))
    monkeypatch.setattr("cyber0.tasks.memory.available", lambda _: 3 * 2**20 if "engine" in options else 30 * 2**20)
    config = RunConfig(**{**SMALL, "clients": 10, "partition": "iid", **options})
    with pytest.raises(
        InvalidConfig, match=r"batch = 0, all samples, of 10 clients needs .* give the samples of a batch"
    ):
        Simulation(config, task, split=lambda *_: shares)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_model_without_forward_mode_is_measured_by_its_gradients():
    x, y = torch.randn(30, 4, 3), torch.arange(30) % 2

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    options = {**SMALL, **UNEQUAL, "mu": 0.0, "rounds": 1, "local_epochs": 1, "clients": 3}
    votes = [
        next(iter(Simulation(RunConfig(**options, engine=engine), task_of(Recurrent, (x, y), (x, y))).play())).honest
        for engine in ("batched", "sequential")
    ]
    np.testing.assert_allclose(votes[0], votes[1], rtol=0, atol=1e-4 * np.abs(votes[1]).max())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": -1}, "batch = -1: input should be greater than or equal to 0"),
        ({"batch": 0, "algorithm": "fedavg"}, "give FedAvg a number of samples"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message):
    with pytest.raises(InvalidConfig, match=message):
        RunConfig(**options)
