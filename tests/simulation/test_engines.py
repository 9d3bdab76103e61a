"""The batched engine and the clients' own code agree to rounding, for every scheme."""

import numpy as np
import pytest
import torch

from cyber0.config import RunConfig
from cyber0.simulation import Simulation, learners
from cyber0.simulation.ensemble import Ensemble
from cyber0.tasks.task import get_task

SMALL = {"clients": 5, "byzantine": 1, "directions": 6, "batch": 8, "rounds": 3, "source": "embedded"}
TASKS = {name: get_task(name)(None, "embedded") for name in ("mnist", "mnist-mlp(hidden=6)", "mnist-cnn")}


def simulate(task="mnist", **options):
    return Simulation(RunConfig(**{**SMALL, **options}), TASKS[task])


def votes(engine, task, **options):
    simulation = simulate(task, engine=engine, lr=0.005, **options)
    simulation.play_round(0)  # so that the weights are not all zero
    return simulation.votes(1, np.arange(5))


@pytest.mark.parametrize("scheme", ["unbiased", "biased", "compressed"])
@pytest.mark.parametrize("mu", [0.02, 0.0])
@pytest.mark.parametrize("local_epochs", [1, 3])
@pytest.mark.parametrize("family", ["sphere", "gaussian"])
def test_engines_agree(scheme, mu, local_epochs, family):
    options = {"scheme": scheme, "mu": mu, "local_epochs": local_epochs, "family": family}
    batched, sequential = (votes(engine, "mnist", **options) for engine in ("batched", "sequential"))
    assert batched.shape == (local_epochs if scheme == "unbiased" else 1, 5, 6)
    np.testing.assert_allclose(batched, sequential, rtol=0.01, atol=0.01 * np.abs(sequential).max())


@pytest.mark.parametrize("size", [0.0, 0.5, 3.0, 30.0])  # losses of 2 to 1,000
@pytest.mark.parametrize("local_epochs", [1, 2])
def test_a_large_loss_costs_logistic_regression_no_digits(size, local_epochs):
    """The sequential engine computes it in float64."""
    measured = {}
    for engine in ("batched", "sequential"):
        simulation = simulate(engine=engine, mu=1e-3, lr=1e-3, local_epochs=local_epochs)
        drawn = torch.Generator().manual_seed(0)
        for _, flat in simulation.parameters:
            flat.copy_(size * torch.randn(flat.shape, generator=drawn))
        measured[engine] = simulation.votes(0, np.arange(5))
    largest = np.abs(measured["sequential"]).max()
    np.testing.assert_allclose(measured["batched"], measured["sequential"], rtol=1e-5, atol=1e-5 * largest)


def test_a_huge_perturbation_of_logistic_regression_does_not_overflow():
    batched, sequential = (votes(engine, "mnist", mu=1e3) for engine in ("batched", "sequential"))
    np.testing.assert_allclose(batched, sequential, rtol=1e-4, atol=1e-4 * np.abs(sequential).max())


@pytest.mark.parametrize("options", [{}, {"attack": "lf"}, {"objective": "calibrated"}, {"mu": 1e3}])
def test_a_sample_that_is_drawn_again_is_measured_once(options, monkeypatch):
    """Votes are those of measuring every draw, also of runs that draw different numbers: with MKL to the bit."""
    small = {**SMALL, "clients": 20, "byzantine": 4, "batch": 64, **options}
    configs = [RunConfig(**small, seed=seed) for seed in (1, 2)]

    def all_votes():
        return [[played.honest for played in rounds] for rounds in Ensemble(configs, TASKS["mnist"]).play()]

    population = Simulation(configs[0], TASKS["mnist"]).population
    samples, places = population.distinct(0, 0, np.arange(20))
    assert population.repeats
    assert len(samples) < places.size
    np.testing.assert_array_equal(samples[places], population.chosen(0, 0, np.arange(20)))
    once = all_votes()
    monkeypatch.setattr(learners, "measures_alike", lambda *_: False)
    every = np.array(all_votes())
    np.testing.assert_allclose(once, every, rtol=1e-4, atol=1e-5 * np.abs(every).max())


@pytest.mark.parametrize("task", ["mnist-mlp(hidden=6)", "mnist-cnn"])
@pytest.mark.parametrize("mu", [1e-3, 0.0])
@pytest.mark.parametrize("local_epochs", [1, 2])
def test_engines_agree_on_other_models(task, mu, local_epochs):
    options = {"mu": mu, "local_epochs": local_epochs, "family": "gaussian"}
    batched, sequential = (votes(engine, task, **options) for engine in ("batched", "sequential"))
    np.testing.assert_allclose(batched, sequential, rtol=0.02, atol=0.02 * np.abs(sequential).max())


@pytest.mark.parametrize("task", ["mnist", "mnist-cnn"])
def test_chunks_of_directions_change_nothing(task, monkeypatch):
    whole = votes("batched", task, mu=0.02)
    monkeypatch.setattr("cyber0.simulation.slopes.BUDGET", 1)
    parts = votes("batched", task, mu=0.02)
    np.testing.assert_allclose(parts, whole, rtol=1e-2, atol=1e-2 * np.abs(whole).max())


@pytest.mark.parametrize("scheme", ["unbiased", "biased", "compressed"])
def test_one_local_epoch_is_the_same_in_every_scheme_but_the_compressed(scheme):
    ours, theirs = (votes("batched", "mnist", scheme=name) for name in (scheme, "unbiased"))
    assert (scheme == "compressed") != np.array_equal(ours, theirs)


@pytest.mark.parametrize("family", ["sphere", "gaussian"])
def test_the_compressed_scheme_is_right_on_average(family):
    """Under `mean`, E over the round's own directions of Z_t (scale Z_t^T u) is u: its projection on u is |u|^2."""
    from cyber0.directions import COMPRESSED_EPOCH, combine, matrix

    simulation = simulate("mnist-mlp(hidden=6)", scheme="compressed", family=family, directions=64, mu=0.0)
    plan, size = simulation.config.plan, simulation.parameters.size
    ratios = []
    for t in range(40):
        sent = simulation.votes(t, np.array([0]))[0, 0]
        step = simulate("mnist-mlp(hidden=6)", family=family, directions=64, mu=0.0).votes(t, np.array([0]))
        update = combine(plan.keys(t, 0), step[0, 0], size, family=family).astype(np.float64)
        rebuilt = sent @ matrix(plan.keys(t, COMPRESSED_EPOCH), size, family=family)
        ratios.append(rebuilt @ update / (update @ update))
    error = np.std(ratios, ddof=1) / np.sqrt(len(ratios))
    assert abs(np.mean(ratios) - 1) < 5 * error
    assert error < 0.05


def test_the_papers_compressed_scheme_has_no_factor():
    ours, paper = (simulate(scheme="compressed", scale=scale).votes(0, np.arange(5)) for scale in ("unbiased", "paper"))
    np.testing.assert_allclose(ours, paper * (7850 / 6), rtol=1e-5)


def test_fedavg_sends_how_its_model_changed():
    simulation = simulate(algorithm="fedavg", local_epochs=1, lr=0.5)
    sent = simulation.votes(0, np.arange(5))
    assert sent.shape == (1, 5, 7850)
    x, y = simulation.population.batches(0, 0, np.array([3]))
    model = simulation.parameters.module
    simulation.task.losses(model, (x[0], y[0])).mean().backward()
    gradient = np.concatenate([p.grad.numpy().ravel() for p in model.parameters()])
    np.testing.assert_allclose(sent[0, 3], -0.5 * gradient, atol=1e-6)
