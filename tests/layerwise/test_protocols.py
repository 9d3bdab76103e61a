"""Which engine measures a model rests on what its class declares, not on what its attributes are called."""

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier, keys
from torch import nn

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig
from cyber0.estimate import estimate
from cyber0.layerwise import LayerwiseEstimate, Walk, is_layerwise, measure_of
from cyber0.layerwise.protocols import Scorer, SignPairModule, SizedInputs, implements
from cyber0.layerwise.source import CapturableSource, Layout, TorchSource
from cyber0.parameters import Parameters
from cyber0.simulation import Simulation
from cyber0.simulation.learners import Layered
from cyber0.tasks.convert import task_of
from cyber0.tasks.task import cross_entropy


class Misleading(nn.Module):
    """A model with children and attributes that are called as the methods of the protocols are."""

    def __init__(self):
        super().__init__()
        self.scores, self.forward_pair = nn.Linear(8, 6), nn.Linear(6, 3)
        self.sizes, self.kind = [8, 6, 3], "mlp"

    def forward(self, x):
        return self.forward_pair(torch.tanh(self.scores(x)))


def test_a_language_model_declares_all_that_it_is():
    model = classifier("roberta")
    assert implements(model, Scorer)
    assert implements(model, SizedInputs)
    assert any(implements(module, SignPairModule) for module in model.modules())
    assert is_layerwise(model)
    assert isinstance(measure_of(model), LayerwiseEstimate)


@pytest.mark.parametrize("protocol", [Scorer, SizedInputs, SignPairModule])
def test_names_of_attributes_declare_nothing(protocol):
    assert not implements(Misleading(), protocol)
    assert not implements(nn.Linear(3, 2), protocol)


def test_a_model_with_misleading_names_is_measured_as_any_other():
    model = Misleading()
    assert measure_of(model) is estimate
    parameters = Parameters.of(model)
    x, y = torch.linspace(-1, 1, 48).view(6, 8), torch.arange(6) % 3
    own = estimate(parameters, cross_entropy, (x, y), keys()[:1], mu=1e-2)
    walk = Walk(parameters, cross_entropy)
    np.testing.assert_allclose(walk.slopes(x[None], y[None], keys()[0], 1e-2), own, rtol=1e-3, atol=1e-4)
    assert walk.layered


def test_the_source_of_any_device_cannot_be_captured():
    assert not isinstance(TorchSource(Layout(Parameters.of(nn.Linear(3, 2)))), CapturableSource)


class Gated(nn.Module):
    """A model of nobody's library: a recurrent layer, an embedding of its own, and a plain parameter."""

    def __init__(self):
        super().__init__()
        self.look_up, self.cells = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True)
        self.inner, self.gate, self.out = nn.Linear(8, 8), nn.Parameter(torch.ones(8)), nn.Linear(8, 3)

    def forward(self, x):
        hidden, _ = self.cells(self.look_up(x))
        return self.out(torch.tanh(self.inner(hidden[:, -1])) * self.gate)


def test_any_module_is_walked_if_it_is_declared():
    x, y = torch.randint(9, (40, 5)), torch.arange(40) % 3

    def played(engine, layerwise=True, **changes):
        torch.manual_seed(0)
        task = task_of(nn.Sequential(nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(40, 3))), (x, y), (x, y),
                       layerwise=layerwise)  # fmt: skip
        config = RunConfig(clients=4, byzantine=0, directions=3, rounds=3, batch=5, lr=0.05, task="mine:own", mu=0.01,
                           family="gaussian", partition="iid", engine=engine, **changes)  # fmt: skip
        simulation = Simulation(config, task)
        return [each.honest for each in simulation.play()], simulation

    (walked, simulation), (alone, _), (plain, other) = played("batched"), played("sequential"), played("batched", False)
    assert isinstance(simulation.learner, Layered)
    assert not isinstance(other.learner, Layered)
    for one, two, three in zip(walked, alone, plain, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=2e-3 * np.abs(two).max())
        np.testing.assert_allclose(one, three, rtol=0, atol=2e-3 * np.abs(three).max())
    low, _ = played("batched", precision="bf16")
    assert np.corrcoef(np.ravel(low[0]), np.ravel(walked[0]))[0, 1] > 0.95
    with pytest.raises(InvalidConfig, match=r"unless it is declared by layerwise=True"):
        played("batched", False, precision="bf16")


def test_a_recurrent_model_with_parameters_of_its_own_is_measured_too():
    x, y = torch.randint(9, (12, 5)), torch.arange(12) % 3
    model = Gated().eval()
    parameters = Parameters.of(model)
    own = estimate(parameters, cross_entropy, (x, y), keys()[:1], mu=1e-2)
    with pytest.warns(UserWarning, match="it is measured in two whole copies"):
        walk = Walk(parameters, cross_entropy)
    np.testing.assert_allclose(walk.slopes(x[None], y[None], keys()[0], 1e-2), own, rtol=1e-2, atol=1e-3)
