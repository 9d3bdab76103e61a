"""Which engine measures a model rests on what its class declares, not on what its attributes are called."""

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier, keys
from torch import nn

from cyber0.estimate import estimate
from cyber0.layerwise import LayerwiseEstimate, Walk, is_layerwise, measure_of
from cyber0.layerwise.protocols import Scorer, SignPairModule, SizedInputs, implements
from cyber0.layerwise.source import CapturableSource, Layout, TorchSource
from cyber0.parameters import Parameters
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
