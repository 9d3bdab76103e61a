"""The calibrated objective: clients with unequal shares of the classes agree, in every engine, and in a federation."""

import numpy as np
import pytest
import torch
from tests.network.test_federation import play
from torch import nn

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig
from cyber0.network.local_model import LocalModel
from cyber0.network.member import Member
from cyber0.network.private_data import PrivacyOptions
from cyber0.objective import Objective
from cyber0.parameters import Parameters
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.verify import verify
from cyber0.simulation import Simulation
from cyber0.simulation.ensemble import Ensemble
from cyber0.simulation.run import run
from cyber0.tasks.calibration import calibrated, with_objective, with_shares
from cyber0.tasks.convert import task_of
from cyber0.tasks.task import cross_entropy, get_task

SMALL = {"clients": 5, "byzantine": 1, "directions": 3, "batch": 16, "rounds": 3, "source": "embedded", "lr": 0.05}
OWN = SMALL | {"objective": "calibrated", "alpha": 0.3, "mu": 0.05}
MNIST, MLP = get_task("mnist")(None, "embedded"), get_task("mnist-mlp(hidden=4)")(None, "embedded")


def gradient(weight, features, targets, losses):
    weight = weight.clone().requires_grad_(True)
    losses(lambda x: x @ weight.T, (features, targets)).mean().backward()
    return weight.grad


def test_a_model_that_tells_classes_apart_as_well_as_possible_is_best_for_every_client():
    """Three features, two classes: clients whose classes are as frequent as they like have the same best model."""
    frequencies = np.array([[6, 3, 1], [1, 3, 6]]) * 400  # of each feature, given the class
    best = torch.tensor(np.log(frequencies / frequencies.sum(1, keepdims=True)), dtype=torch.float32)
    plain, corrected = [], []
    for times in ((1, 1), (5, 1), (1, 9)):
        drawn = [(c, f) for c in (0, 1) for f in range(3) for _ in range(times[c] * frequencies[c, f])]
        labels, features = np.array([c for c, _ in drawn]), torch.eye(3)[[f for _, f in drawn]]
        plain.append(gradient(best, features, torch.from_numpy(labels), cross_entropy))
        corrected.append(gradient(best, features, torch.from_numpy(with_shares(labels, 2)), calibrated))
    assert max(float(g.norm()) for g in corrected) < 1e-3
    assert min(float(g.norm()) for g in plain[1:]) > 0.1


def test_equal_shares_change_nothing_beyond_rounding():
    labels = np.tile(np.arange(10), 8)
    outputs = torch.randn(80, 10)
    found = calibrated.of(outputs, torch.from_numpy(with_shares(labels, 10)))
    torch.testing.assert_close(found, cross_entropy.of(outputs, torch.from_numpy(labels)))


@pytest.mark.parametrize("task", [MNIST, MLP])
@pytest.mark.parametrize("others", [{}, {"local_epochs": 2}, {"mu": 0.0}])
def test_engines_agree(task, others):
    def votes(engine):
        return [played.honest for played in Simulation(RunConfig(**OWN | others, engine=engine), task).play()]

    for batched, sequential in zip(votes("batched"), votes("sequential"), strict=True):
        np.testing.assert_allclose(batched, sequential, rtol=0, atol=2e-3 * np.abs(sequential).max())


def test_layers_are_walked_with_it():
    x, y = torch.randn(40, 6), torch.arange(40) % 3

    def votes(engine):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        task = task_of(model, (x, y), (x, y), layerwise=True)
        simulation = Simulation(RunConfig(**OWN | {"alpha": 1.0, "batch": 5}, engine=engine), task)
        rounds = [played.honest for played in simulation.play()]
        assert simulation.evaluate().accuracy is not None
        assert len(simulation.participant.measure._walks) == 1
        return rounds

    for one, other in zip(votes("batched"), votes("sequential"), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-3 * np.abs(other).max())


def test_runs_that_are_played_together_have_their_own_shares():
    configs = [RunConfig(**OWN, seed=seed) for seed in (1, 2)]
    together = list(Ensemble(configs, MNIST).play())
    for place, config in enumerate(configs):
        for alone, rounds in zip(Simulation(config, MNIST).play(), together, strict=True):
            np.testing.assert_allclose(
                rounds[place].honest, alone.honest, rtol=0, atol=1e-3 * np.abs(alone.honest).max()
            )


def test_fedavg_can_be_calibrated():
    played = list(Simulation(RunConfig(**OWN, algorithm="fedavg"), MNIST).play())
    plain = list(Simulation(RunConfig(**OWN | {"objective": "plain"}, algorithm="fedavg"), MNIST).play())
    assert np.abs(played[0].honest - plain[0].honest).max() > 0


def test_a_client_of_a_federation_measures_what_its_simulation_measures():
    config, ledger = RunConfig(**OWN | {"clients": 3, "rounds": 4}), Memory()

    def maker(place):
        name, deal = f"client-{place}", "dirichlet(alpha=0.3)"
        return name, lambda settings: Member(settings, name, LocalModel(config.agreement, place, MNIST, "cpu", deal))

    ended, _ = play(config, ledger, dict(map(maker, range(3))), settings={"deadline": 20.0})
    simulation = Simulation(config.updated(engine="sequential", attack="none"), MNIST)
    list(simulation.play())
    assert {member.model.fingerprint() for member in ended.values()} == {simulation.parameters.fingerprint()}
    assert verify(ledger).findings == []
    assert ledger.identity.agreement.objective == "calibrated"


def test_a_run_is_resumed_to_the_same_bits(tmp_path):
    config = RunConfig(**OWN)
    whole = run(config, tmp_path / "whole", task=MNIST)
    run(config.updated(rounds=2), tmp_path / "half", task=MNIST)
    assert run(config, tmp_path / "half", task=MNIST, resume=True).fingerprint == whole.fingerprint


def test_it_belongs_to_the_identity_and_the_plain_one_is_what_it_was():
    parameters = Parameters({"a": np.zeros(3, dtype=np.float32)})
    before, plain, own = (Identity.of(Agreement(clients=1, byzantine=0, **more), ["ann"], parameters).digest
                          for more in ({}, {"objective": "plain"}, {"objective": "calibrated"}))  # fmt: skip
    assert before == plain != own
    assert "objective" not in Agreement().model_dump()


@pytest.mark.parametrize("others", [{"epsilon": 8.0}, {"noise": 1.0}, {"least_noise": 1.0}])
def test_a_budget_cannot_account_for_it(others):
    with pytest.raises(InvalidConfig, match=r"objective = 'calibrated'.*no budget accounts for"):
        RunConfig(**OWN | others)


def test_a_private_client_does_not_join_with_it(tmp_path):
    agreement = Agreement(clients=3, byzantine=0, objective="calibrated")
    with pytest.raises(InvalidConfig, match=r"epsilon = 8\.0 in a run with objective = 'calibrated'"):
        LocalModel(agreement, 0, MNIST, "cpu", privacy=PrivacyOptions(8.0, tmp_path))


def test_tasks_without_one_class_for_each_sample_are_refused():
    x = torch.randn(12, 3)
    numbers = task_of(nn.Linear(3, 1), (x, x[:, :1]), (x, x[:, :1]), loss=nn.MSELoss())
    with pytest.raises(InvalidConfig, match="for tasks that give each sample one class, and 'Linear' has no classes"):
        with_objective(numbers, Objective(calibrated=True))


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("balanced", "unknown objective 'balanced': use one of calibrated, plain"),
        ("calibrated(shares=(1, 0))", "shares = .1, 0.: give a number above 0 for each class"),
        ("calibrated(shares=0.5)", "shares = 0.5: give a number above 0 for each class"),
        ("calibrated(shares=(1e308, 1e308))", "shares = .*: give a number above 0 for each class"),
        (f"calibrated(shares=({'9' * 400}, 1))", "shares = .*: give a number above 0 for each class"),
        ("calibrated(shares=(1, 1e-300))", "shares = .*: give a number above 0 for each class"),
        ("calibrated(prior=1)", "prior"),
        ("plain(shares=(1, 1))", "shares"),
    ],
)
def test_what_is_no_objective_is_refused(objective, message):
    with pytest.raises(InvalidConfig, match=message):
        RunConfig(objective=objective)


def test_shares_are_those_of_the_classes():
    with pytest.raises(InvalidConfig, match=r"has 2 shares, and 'mnist' 10 classes: give 10"):
        Simulation(RunConfig(**OWN | {"objective": "calibrated(shares=(1, 2))"}), MNIST)


@pytest.mark.parametrize("samples", [10, 100])
def test_a_client_whose_shares_are_those_agreed_on_measures_the_plain_loss(samples):
    """However few samples it has: those that are counted besides are in the same shares."""
    labels, outputs = np.repeat([0, 1, 2], [samples // 2, samples * 3 // 10, samples // 5]), torch.randn(samples, 3)
    targets = with_shares(labels, 3, Objective(calibrated=True, shares=(5, 3, 2)).frequencies)
    found = calibrated.of(outputs, torch.from_numpy(targets))
    torch.testing.assert_close(found, cross_entropy.of(outputs, torch.from_numpy(labels)))


def test_clients_with_a_single_sample_do_not_count_the_shares_twice():
    """A constant model for 90 clients of one class and 10 of the other: it should say 9 to 1, about."""
    parts = [with_shares(np.array([label]), 2, (0.9, 0.1)) for label in [0] * 90 + [1] * 10]
    targets, bias = torch.from_numpy(np.concatenate(parts)), torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.LBFGS([bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = calibrated.of(bias.expand(100, 2), targets).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert 0.05 < bias.detach().softmax(0)[1].item() < 0.2


def test_outputs_that_no_class_has_stay_as_they_are():
    x, y = torch.randn(80, 6), torch.arange(80) % 3
    for model in (nn.Linear(6, 5), nn.Sequential(nn.Linear(6, 5))):
        task = task_of(model, (x, y), (x, y))
        found = [
            [played.honest for played in Simulation(RunConfig(**OWN, engine=engine), task).play()]
            for engine in ("batched", "sequential")
        ]
        np.testing.assert_allclose(*found, rtol=0, atol=2e-3 * np.abs(found[0]).max())


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy, None])
def test_the_cross_entropy_of_torch_is_one(loss):
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    assert with_objective(task_of(nn.Linear(3, 2), (x, y), (x, y), loss=loss), Objective(True)).losses is calibrated


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(weight=torch.ones(2)), nn.MultiMarginLoss()]
)
def test_another_loss_is_refused(loss):
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    task = task_of(nn.Linear(3, 2), (x, y), (x, y), loss=loss)
    with pytest.raises(
        InvalidConfig, match=r"is for the cross-entropy, .* leave the loss out, or use objective = 'plain'"
    ):
        with_objective(task, Objective(True))


def test_an_objective_has_one_spelling_in_an_agreement():
    spellings = ("calibrated", "calibrated()", "calibrated(shares=None)")
    assert {RunConfig(objective=each).agreement.objective for each in spellings} == {"calibrated"}
    assert RunConfig(objective="plain()").agreement == RunConfig().agreement
    own = RunConfig(objective="calibrated(shares=[1, 2])").agreement
    assert own.objective == "calibrated(shares=(1, 2))"
    assert Agreement(**own.model_dump()) == own
