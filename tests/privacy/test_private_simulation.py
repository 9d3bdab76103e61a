"""Private clients in a simulation: both engines agree, clipping that never binds changes nothing but the batches."""

import numpy as np
import pytest
import torch

import cyber0
from cyber0.client import Client
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig, InvalidEstimate
from cyber0.estimate import estimate, sample_slopes
from cyber0.parameters import Parameters
from cyber0.plan import Plan
from cyber0.privacy.client_steps import PrivateSteps
from cyber0.privacy.mechanism import LEVELS, Mechanism
from cyber0.simulation import Simulation
from cyber0.simulation.ensemble import Ensemble
from cyber0.tasks.task import cross_entropy, mnist_mlp
from cyber0.tasks.text import tiny

SMALL = {"source": "embedded", "clients": 5, "byzantine": 1, "directions": 4, "rounds": 2, "device": "cpu"}
SMALL |= {"batch": 16, "clip": 5.0, "evaluate_every": 2}


def votes(**options):
    simulation = Simulation(RunConfig(**{**SMALL, **options}))
    return np.stack([played.honest for played in simulation.play()])


@pytest.mark.parametrize("mu", [1e-3, 0.0])
@pytest.mark.parametrize(
    "options", [{}, {"local_epochs": 2, "scheme": "compressed", "lr": 1e-4}, {"participation": 0.8}]
)
def test_the_batched_engine_is_the_clients_own_code(mu, options):
    """Up to the rounding of slopes: noise and batches are the same."""
    batched = votes(noise=0.7, mu=mu, **options)
    sequential = votes(noise=0.7, mu=mu, engine="sequential", **options)
    assert np.abs(batched).max() > 1
    assert np.allclose(batched, sequential, rtol=1e-3, atol=1e-3 * np.abs(batched).max())


@pytest.mark.parametrize("task", ["mnist-mlp(hidden=3)", "mnist-cnn"])
def test_other_models_are_measured_sample_by_sample(task):
    options = {"task": task, "noise": 0.1, "clients": 3, "directions": 2, "rounds": 1}
    for mu in (1e-3, 0.0):
        batched, sequential = votes(mu=mu, **options), votes(mu=mu, engine="sequential", **options)
        assert np.allclose(batched, sequential, rtol=5e-3, atol=5e-3 * np.abs(batched).max())


@pytest.mark.parametrize("local_epochs", [1, 2])
def test_so_is_the_layerwise_engine(tmp_path, local_epochs):
    pytest.importorskip("transformers")
    tiny.data(tmp_path)
    tiny.model(tmp_path / "roberta", "roberta")
    options = {"task": "text-classification(prompt='prompt.toml')", "data": str(tmp_path), "source": "auto"}
    options |= {"model": str(tmp_path / "roberta"), "partition": "iid", "mu": 0.01, "family": "gaussian", "lr": 1e-3}
    options |= {"clients": 3, "directions": 2, "batch": 6, "local_epochs": local_epochs, "noise": 0.3, "delta": 1e-3}
    batched, sequential = votes(**options), votes(engine="sequential", **options)
    assert np.allclose(batched, sequential, rtol=0, atol=2e-3 * np.abs(batched).max())


def test_the_front_door_takes_a_budget():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    data = {"train": (x[:500], (x[:500, 0] > 0).long()), "test": (x[500:], (x[500:, 0] > 0).long())}
    given = {"clients": 4, "partition": "iid", "rounds": 20, "lr": 1.0, "directions": 8}
    result = cyber0.simulate(torch.nn.Linear(2, 2), **data, **given, epsilon=8.0, delta=1e-3, clip=1.0)
    assert result.summary["epsilon"] == 8.0
    assert result.accuracy > 0.8


def test_runs_of_several_budgets_are_played_together():
    configs = [RunConfig(**SMALL, noise=noise, seed=seed) for noise, seed in ((0.0, 1), (2.0, 1), (2.0, 2))]
    together = [np.stack([each.honest for each in rounds]) for rounds in Ensemble(configs).play()]
    for number, config in enumerate(configs):
        alone = [played.honest for played in Simulation(config).play()]
        assert np.allclose(alone[0], together[0][number], rtol=1e-4, atol=1e-4)


def test_a_run_is_repeated_to_the_bit_and_another_seed_draws_otherwise():
    assert (votes(noise=0.5) == votes(noise=0.5)).all()
    assert (votes(noise=0.5) != votes(noise=0.5, seed=1)).all()


def test_noise_is_as_large_as_it_should_be():
    """The same batches and slopes with and without noise differ by Gaussians of sigma C / B in units of the vote."""
    options = {"clients": 20, "directions": 32, "rounds": 1, "byzantine": 0, "partition": "iid"}
    quiet, loud = votes(noise=0.0, **options), votes(noise=2.0, **options)
    deviation = 2.0 * 5.0 / 16 * np.sqrt(7850 / 32)
    assert abs((loud - quiet).std() / deviation - 1) < 0.1


def test_without_clipping_and_with_all_samples_the_vote_is_the_estimate():
    """A clip that never binds, a rate of 1 and no noise leave what `estimate` measures on all samples."""
    torch.manual_seed(0)
    parameters = Parameters.of(mnist_mlp(source="embedded", hidden=3).build(0))
    batch = torch.randn(30, 784), torch.randint(10, (30,))
    plan = Plan(seed=1, directions=5, local_epochs=1, scheme="unbiased", mu=1e-3, lr=0.1)
    quiet = PrivateSteps(Mechanism(1e3, 0.0, 30.0), lambda _t, _epoch, count: np.zeros(count, dtype=np.int64))
    client = Client(parameters, cross_entropy, lambda _t, _epoch: batch, plan, private=quiet)
    options = {"mu": 1e-3, "family": "sphere"}
    exact = estimate(parameters, cross_entropy, batch, plan.keys(0, 0), **options)
    assert np.allclose(client.vote(0)[0], exact, rtol=1e-3, atol=1e3 / LEVELS * np.sqrt(parameters.size / 5))
    slopes = sample_slopes(parameters, cross_entropy, batch, plan.keys(0, 0), **options)
    assert np.allclose(slopes.mean(0) * parameters.size / 5, exact, rtol=1e-6)


def test_a_sample_that_is_not_finite_is_not_seen_from_outside():
    torch.manual_seed(0)
    parameters = Parameters.of(torch.nn.Linear(784, 10))
    inputs, labels = torch.randn(6, 784), torch.randint(10, (6,))
    inputs[2] = torch.nan
    plan = Plan(seed=1, directions=5, local_epochs=1, scheme="unbiased", mu=1e-3, lr=0.1)
    quiet = PrivateSteps(Mechanism(1.0, 0.0, 6.0), lambda _t, _epoch, count: np.zeros(count, dtype=np.int64))
    with_it = Client(parameters, cross_entropy, lambda _t, _epoch: (inputs, labels), plan, private=quiet)
    others = [0, 1, 3, 4, 5]
    without = Client(
        parameters, cross_entropy, lambda _t, _epoch: (inputs[others], labels[others]), plan, private=quiet
    )
    assert (with_it.vote(0) == without.vote(0)).all()
    assert with_it.problem == ""


def test_epsilon_gives_each_client_the_noise_that_its_share_needs():
    simulation = Simulation(RunConfig(**{**SMALL, "rounds": 50, "clients": 3, "byzantine": 1}, epsilon=4.0))
    counts = [len(share) for share in simulation.population.shares]
    of_few, of_many = (simulation.world.private.mechanisms[i].noise for i in (np.argmin(counts), np.argmax(counts)))
    assert of_few > of_many > 0.3


def test_the_summary_says_what_was_simulated():
    summary = cyber0.run(RunConfig(**SMALL, noise=1.0, delta=1e-4)).summary
    assert summary["epsilon"] > 0
    assert (summary["delta"], summary["clip"]) == (1e-4, 5.0)
    assert "no guarantee" in summary["privacy"]
    assert "epsilon" not in cyber0.run(RunConfig(**SMALL)).summary


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"epsilon": 1.0, "noise": 1.0}, "epsilon = 1.0 and noise = 1.0: one follows from the other"),
        ({"epsilon": 1.0, "algorithm": "fedavg"}, "'fedavg' has no slopes of samples"),
        ({"epsilon": 0.0}, "epsilon = 0.0: input should be greater than 0"),
        ({"noise": 1.0, "clip": 0.0}, "clip = 0.0: input should be greater than 0"),
        ({"noise": 1.0, "delta": 0.5}, "delta = 0.5: it must be above 0 and below 1 / samples"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(InvalidConfig, match=text):
        Simulation(RunConfig(**{**SMALL, **options}))


def test_what_gives_no_slopes_of_samples_is_refused():
    def mine(*_given, **_options):
        return np.zeros(2, dtype=np.float32)

    plan = Plan(seed=1, directions=2, local_epochs=1, scheme="unbiased", mu=1e-3, lr=0.1)
    private = PrivateSteps(Mechanism(1.0, 1.0, 1.0), lambda _t, _epoch, count: np.zeros(count, dtype=np.int64))
    with pytest.raises(InvalidEstimate, match="gives no losses of single samples, which privacy needs"):
        Client(
            Parameters.of(torch.nn.Linear(2, 2)), cross_entropy, lambda *_: None, plan, measure=mine, private=private
        )


def test_an_agreement_without_privacy_is_written_as_it_always_was():
    assert not {"clip", "least_noise"} & set(Agreement().model_dump())
    assert not {"epsilon", "delta", "noise"} & set(RunConfig().model_dump())
    assert Agreement(clip=2.0).model_dump()["clip"] == 2.0
    assert RunConfig(**RunConfig(clip=2.0, epsilon=3.0).model_dump()).epsilon == 3.0
