"""Losses at the worst place near a text's word embeddings: what is moved, how far, and what is refused."""

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier
from tests.layerwise.test_backward import DEVICES, close, devices, on_cuda, prompts
from tests.layerwise.test_runs import config_of, folder, second_votes, tasks
from torch import nn

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig, InvalidEstimate
from cyber0.layerwise.backward import Gradient
from cyber0.layerwise.nearby import Nearby
from cyber0.parameters import Parameters
from cyber0.simulation import Simulation
from cyber0.tasks.losses import OutputLoss
from cyber0.tasks.task import cross_entropy

KINDS = ["roberta", "llama", "encoder"]
__all__ = ["DEVICES", "folder", "on_cuda", "tasks"]


def by_hand(model, x, y, radius):
    """The gradient of the mean loss where each sample's embeddings are moved, one sample after the other."""
    words = model.embedding_module()
    trained = [each for each in model.parameters() if each.requires_grad]
    total = [torch.zeros_like(each) for each in trained]
    for each, label in zip(x, y, strict=True):
        batch = each[None, : int((each >= 0).sum())], label[None]
        found = []
        keeping = words.register_forward_hook(lambda _module, _inputs, output, found=found: found.append(output))
        loss = cross_entropy(model.scores, batch).sum()
        keeping.remove()
        (slope,) = torch.autograd.grad(loss, found)
        move = radius * slope / slope.norm()
        moving = words.register_forward_hook(lambda _module, _inputs, output, move=move: output + move)
        parts = torch.autograd.grad(cross_entropy(model.scores, batch).sum() / len(y), trained, allow_unused=True)
        moving.remove()
        total = [a if b is None else a + b for a, b in zip(total, parts, strict=True)]
    return torch.cat([part.float().flatten() for part in total])


@devices
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [None, 20])
def test_every_sample_is_moved_by_the_radius_along_its_own_slope(kind, most, device):
    model = classifier(kind).to(device)
    x, y = (part.to(device) for part in prompts(9))
    gradient = Gradient(Parameters.of(model), Nearby(cross_entropy, 0.3))
    gradient.cutter.max_tokens = most
    for _ in range(2):  # on CUDA the second is a graph that has been captured before
        close(gradient(x, y), by_hand(model, x, y, 0.3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_is_larger_nearby_and_a_tiny_radius_changes_nothing(kind):
    model, batch = classifier(kind), prompts(7)
    here, near = cross_entropy(model.scores, batch), Nearby(cross_entropy, 0.05).worst(model.scores, batch, model)
    assert (near > here).all()
    parameters = Parameters.of(model)
    close(Gradient(parameters, Nearby(cross_entropy, 1e-9))(*batch), Gradient(parameters, cross_entropy)(*batch))
    words = model.embedding_module()
    assert not words._forward_hooks


def test_losses_without_a_slope_move_nothing():
    """A head that begins at zero gives every text the same scores: there is no way to make the loss larger."""
    model, batch = classifier("encoder"), prompts(5)
    for each in model.head_module().parameters():
        nn.init.zeros_(each)
    close(Gradient(Parameters.of(model), Nearby(cross_entropy, 0.3))(*batch), by_hand_plain(model, *batch))


def by_hand_plain(model, x, y):
    return Gradient(Parameters.of(model), cross_entropy)(x, y).clone()


@pytest.mark.parametrize("objective", ["plain", "calibrated"])
def test_engines_agree(folder, tasks, objective):
    keys = {"mu": 0.0, "directions": 8, "lr": 0.1}
    near = {**keys, "objective": f"{objective}(radius=0.5)"}
    batched, sequential = (
        second_votes(config_of(folder, engine=engine, **near), tasks["roberta"]) for engine in ("batched", "sequential")
    )
    close(batched, sequential, 1e-3)
    without = second_votes(config_of(folder, objective=objective, **keys), tasks["roberta"])
    assert np.abs(batched - without).max() > 0.01 * np.abs(without).max()


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_a_lower_precision_measures_about_the_same(folder, tasks, precision):
    keys = {"mu": 0.0, "directions": 8, "objective": "plain(radius=0.5)"}
    exact = second_votes(config_of(folder, **keys), tasks["roberta"])
    votes = second_votes(config_of(folder, precision=precision, **keys), tasks["roberta"])
    assert np.corrcoef(votes.ravel(), exact.ravel())[0, 1] > 0.9


def test_a_run_repeats_to_the_bit(folder, tasks):
    config = config_of(folder, mu=0.0, objective="calibrated(radius=0.5)", precision="mixed")
    runs = [Simulation(config, tasks["roberta"]) for _ in range(2)]
    for run in runs:
        for _ in run.play():
            pass
    assert runs[0].parameters.fingerprint() == runs[1].parameters.fingerprint()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"objective": "plain(radius=0)"}, "radius = 0: give a number above 0"),
        ({"objective": "plain(radius=-1.0)"}, "radius = -1.0: give a number above 0"),
        ({"objective": "plain(radius=True)"}, "radius = True: give a number"),
        ({"objective": "calibrated(radius='far')"}, "radius = 'far': give a number"),
        ({"objective": "plain(radius=0.1)"}, "mu = 0.001: a radius needs gradients; use mu = 0"),
        ({"objective": "plain(radius=0.1)", "mu": 0.0, "epsilon": 8.0}, "the slopes of single samples"),
        ({"objective": "plain(radius=0.1)", "mu": 0.0, "algorithm": "fedavg"}, "is for algorithm = 'cyber0'"),
    ],
)
def test_what_is_refused_is_named(keys, sentence):
    with pytest.raises(InvalidConfig, match=sentence.replace("(", r"\(")):
        RunConfig(**keys)


def test_least_noise_is_refused():
    with pytest.raises(InvalidConfig, match=r"least_noise = 1\.0"):
        Agreement(objective="plain(radius=0.1)", mu=0.0, least_noise=1.0)


def test_a_model_without_words_is_refused():
    config = RunConfig(source="embedded", rounds=1, mu=0.0, objective="plain(radius=0.1)")
    with pytest.raises(InvalidConfig, match=r"moves word embeddings, and .* has none"):
        Simulation(config)


def test_a_model_that_looks_up_other_things_is_refused():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 2)

        def embedding_module(self):
            return self.words

        def scores(self, tokens):
            return self.words(torch.zeros(1, dtype=torch.int64)).expand(len(tokens), 2)

        forward = scores

    losses = OutputLoss(lambda outputs, targets: outputs.sum(1))  # noqa: ARG005
    with pytest.raises(InvalidEstimate, match=r"looks up \[\(1, 2\)\] for 3 samples"):
        Gradient(Parameters.of(Shared()), Nearby(losses, 0.1))(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(InvalidEstimate, match="Linear names none"):
        Gradient(Parameters.of(nn.Linear(1, 1)), Nearby(losses, 0.1))(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(InvalidEstimate, match="leave it out"):
        Nearby(losses, 0.1)(nn.Linear(1, 1), (torch.zeros(3, 1), torch.zeros(3)))
