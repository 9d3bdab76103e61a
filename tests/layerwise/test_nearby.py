"""Losses at the worst place near a text's word embeddings: what is moved, how far, and what is refused."""

import re

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier
from tests.layerwise.test_backward import DEVICES, close, devices, on_cuda, prompts
from tests.layerwise.test_runs import config_of, folder, second_votes, tasks
from torch import nn
from torch.utils.checkpoint import checkpoint

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig, InvalidEstimate
from cyber0.layerwise.backward import Gradient
from cyber0.layerwise.nearby import Nearby, lookups_of
from cyber0.network.local_model import LocalModel
from cyber0.network.private_data import PrivacyOptions
from cyber0.parameters import Parameters
from cyber0.simulation import Simulation
from cyber0.tasks.task import cross_entropy, make
from cyber0.tasks.text import tiny

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
    here, near = cross_entropy(model.scores, batch), Nearby(cross_entropy, 0.05)
    with near.moved(model.scores, batch, model):
        assert (near.losses(model.scores, batch) > here).all()
    parameters = Parameters.of(model)
    close(Gradient(parameters, Nearby(cross_entropy, 1e-9))(*batch), Gradient(parameters, cross_entropy)(*batch))
    words = model.embedding_module()
    assert not words._forward_hooks


def test_losses_without_a_slope_move_nothing():
    """A head that begins at zero gives every text the same scores: there is no way to make the loss larger."""
    model, batch = classifier("encoder"), prompts(5)
    for each in model.head_module().parameters():
        nn.init.zeros_(each)
    parameters = Parameters.of(model)
    close(Gradient(parameters, Nearby(cross_entropy, 0.3))(*batch), Gradient(parameters, cross_entropy)(*batch))


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
        ({"objective": "plain(radius=0)"}, "radius = 0: give a number above 0 and below 1,000,000"),
        ({"objective": "plain(radius=-1.0)"}, "radius = -1.0: give a number above 0"),
        ({"objective": "plain(radius=1e-46)"}, "radius = 1e-46: give a number above 0"),
        ({"objective": "plain(radius=1e999)"}, "radius = inf: give a number above 0 and below"),
        ({"objective": "plain(radius=True)"}, "radius = True: give a number"),
        ({"objective": "calibrated(radius='far')"}, "radius = 'far': give a number"),
        ({"objective": "plain(radius=0.1)"}, "mu = 0.001: a radius needs gradients; use mu = 0"),
        ({"objective": "plain(radius=0.1)", "mu": 0.0, "epsilon": 8.0}, "epsilon = 8.0: private clients measure"),
        ({"objective": "plain(radius=0.1)", "mu": 0.0, "algorithm": "fedavg"}, "is for algorithm = 'cyber0'"),
    ],
)
def test_what_is_refused_is_named(keys, sentence):
    with pytest.raises(InvalidConfig, match=re.escape(sentence)):
        RunConfig(**keys)


def test_least_noise_is_refused():
    with pytest.raises(InvalidConfig, match=r"least_noise = 1\.0"):
        Agreement(objective="plain(radius=0.1)", mu=0.0, least_noise=1.0)


def test_one_radius_has_one_spelling():
    one, other = (RunConfig(mu=0.0, objective=f"plain(radius={text})").agreement for text in ("1", "1.00"))
    assert one == other
    assert one.objective == "plain(radius=1.0)"


def test_a_model_without_words_is_refused():
    config = RunConfig(source="embedded", rounds=1, mu=0.0, objective="plain(radius=0.1)")
    with pytest.raises(InvalidConfig, match="declare it by layerwise=True, or leave the radius out"):
        Simulation(config)


def test_a_private_client_is_refused_before_it_spends(folder, tasks):
    agreement = config_of(folder, mu=0.0, objective="plain(radius=0.5)").agreement
    with pytest.raises(InvalidConfig, match=r"epsilon = 8\.0 in a run with objective = .*: private clients measure"):
        LocalModel(agreement, 0, tasks["roberta"], privacy=PrivacyOptions(epsilon=8.0))


class Own(nn.Module):
    """A model of somebody's own; `read` is what it makes of its embeddings."""

    def __init__(self, read=None):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(0)
            self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)
        self.read = read or (lambda model, tokens: model.out(model.words(tokens).tanh().mean(1)))

    def embedding_module(self):
        return self.words

    def forward(self, tokens):
        return self.read(self, tokens)


TOKENS, LABELS = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([0, 1, 0])


def gradient_of(model, radius=0.3):
    return Gradient(Parameters.of(model), Nearby(cross_entropy, radius))(TOKENS, LABELS)


def _in_place(model, tokens):
    found = model.words(tokens)
    found += torch.ones(4)
    return model.out(found.tanh().mean(1))


def _out_of_place(model, tokens):
    return model.out((model.words(tokens) + torch.ones(4)).tanh().mean(1))


def test_a_model_may_change_its_embeddings_in_place_and_look_up_what_it_does_not_use():
    close(gradient_of(Own(_in_place)), gradient_of(Own(_out_of_place)))
    unused = Own(lambda model, tokens: (model.words(tokens), model.out(model.words(tokens).tanh().mean(1)))[1])
    close(gradient_of(unused), gradient_of(Own()))


@pytest.mark.parametrize("margin", [30, 58, 62, 70, 90, 300])
def test_a_text_that_is_known_by_heart_is_moved_by_the_radius_and_no_further(margin):
    model = Own(lambda model, tokens: torch.stack([model.words(tokens).sum((1, 2)), torch.zeros(len(tokens))], 1))
    nn.init.constant_(model.words.weight, margin / 8)
    batch = TOKENS, torch.zeros(3, dtype=torch.int64)
    nearby = Nearby(cross_entropy, 0.5)
    with nearby.moved(model, batch, model):
        moved = model.words(TOKENS) - model.words.weight[TOKENS]
    lengths = moved.flatten(1).norm(dim=1)
    assert ((lengths - 0.5).abs() < 1e-3).logical_or(lengths == 0).all(), lengths


def _never_alike(model, tokens):
    model.calls = getattr(model, "calls", 0) + 1
    found = model.words(tokens)
    return model.out((found if model.calls % 2 else found + model.words(tokens)).tanh().mean(1))


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (lambda model, tokens: checkpoint(_out_of_place, model, tokens, use_reentrant=False), "activation checkpoint"),
        (_never_alike, "in another order where they are moved"),
        (lambda model, tokens: model.out(model.words(tokens).detach().mean(1)), "no way from the losses back to the"),
        (lambda model, tokens: model.out(model.words(tokens[:1]).mean(1)).expand(len(tokens), 2), "looks up (1, 2, 4)"),
        (lambda model, tokens: model.out(torch.zeros(len(tokens), 4)), "looks up nothing for 3 samples"),
    ],
)
def test_models_that_cannot_be_moved_are_refused(read, sentence):
    model = Own(read)
    with pytest.raises(InvalidEstimate, match=re.escape(sentence)):
        gradient_of(model)
    assert not model.words._forward_hooks


@pytest.mark.parametrize("named", [lambda _: None, lambda model: model.words.weight])
def test_embeddings_that_are_no_module_are_refused(named):
    other = type("Other", (Own,), {"embedding_module": named})
    with pytest.raises(InvalidEstimate, match="Other names no word embeddings to move: give it a method"):
        gradient_of(other())
    with pytest.raises(InvalidEstimate, match="Linear names no word embeddings"):
        Gradient(Parameters.of(nn.Linear(1, 1)), Nearby(cross_entropy, 0.1))(torch.zeros(3, 1), LABELS)
    with pytest.raises(InvalidEstimate, match="leave it out"):
        Nearby(cross_entropy, 0.1)(nn.Linear(1, 1), (torch.zeros(3, 1), LABELS))


def test_embeddings_that_are_no_tensor_are_refused():
    class Paired(nn.Embedding):
        def forward(self, tokens):
            return super().forward(tokens), 1.0

    model = Own(lambda model, tokens: model.out(model.words(tokens)[0].mean(1)))
    model.words = Paired(9, 4)
    with pytest.raises(InvalidEstimate, match="the word embeddings of Own are tuple: return a tensor"):
        gradient_of(model)


def test_encoder_and_decoder_are_both_moved(tmp_path):
    folder = tiny.data(tmp_path)
    task = make("text-classification(prompt='prompt.toml')", folder, "auto", str(tiny.model(folder / "t5", "t5")))
    model, x = task.build(0), torch.as_tensor(task.dataset.train_inputs[:4])
    y = torch.as_tensor(task.dataset.train_labels[:4])
    lookups = lookups_of(model)
    assert len(lookups) > 1
    nearby, called, here = Nearby(cross_entropy, 0.3), [], cross_entropy(model.scores, (x, y))
    with nearby.moved(model.scores, (x, y), model):
        for each in lookups:
            each.register_forward_hook(lambda module, _inputs, _output: called.append(module))
        assert (nearby.losses(model.scores, (x, y)) > here).any()
    assert len(set(called)) > 1
