"""After the last attention, a classifier of prompts reads one token of each: nothing else is computed there."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier, keys, prompts
from torch import nn

from cyber0.layerwise import Walk
from cyber0.layerwise.reading import tokens_read
from cyber0.parameters import Parameters
from cyber0.tasks.task import cross_entropy

LAST = {
    "roberta": ["attention.output", "intermediate", "output"],
    "llama": ["self_attn.o_proj", "mlp", "post_attention_layernorm"],
}
LAYER = {"roberta": "roberta.encoder.layer.1.", "llama": "model.layers.1."}


def walked(model):
    walk = Walk(Parameters.of(model), cross_entropy)
    walk.slopes(*prompts(), keys()[0], 1e-2)
    assert walk.layered
    return walk


def restricted(walk):
    names = {module: name for name, module in walk.module.named_modules()}
    return [names[module] for module, handler in walk.handlers if isinstance(handler, partial)]


@pytest.mark.parametrize("model", LAST)
def test_what_follows_the_last_attention_is_computed_for_the_tokens_read(model):
    found = restricted(walked(classifier(model)))
    assert [name for name in found if name.startswith(LAYER[model])] == [LAYER[model] + name for name in LAST[model]]
    assert not any("layers.0." in name or "layer.0." in name for name in found)


@pytest.mark.parametrize("model", LAST)
def test_queries_without_influence_are_not_taken_for_unread(model):
    """Fresh models attend to all tokens alike, so that losses hardly depend on the queries of their first layer."""
    own = classifier(model)
    for name, parameter in own.named_parameters():
        if "query" in name or "q_proj" in name:
            parameter.data.mul_(1e-6)
    assert not any("query" in name or "q_proj" in name for name in restricted(walked(own)))


@pytest.mark.parametrize("model", ["encoder", "modernbert", "albert"])
def test_where_all_tokens_are_read_or_layers_share_modules_all_are_computed(model):
    """ModernBERT and the encoder pool; ALBERT has one layer, which is called twice."""
    assert restricted(walked(classifier(model))) == []


class Mixing(nn.Module):
    """The layer norm of hidden states and of their mean over tokens."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, hidden):
        normed = self.norm(hidden)
        return normed + 1e-3 * normed.mean(1, keepdim=True)


def test_a_model_that_mixes_tokens_at_its_end_computes_all_of_them():
    model = classifier("llama")
    model.whole.model.norm = Mixing(model.whole.model.norm)
    assert restricted(walked(model)) == []


@pytest.mark.parametrize("model", ["roberta", "llama", "gpt2", "mixtral"])
def test_slopes_are_those_of_all_tokens(model):
    own = classifier(model)
    walk, every = walked(own), walked(copy.deepcopy(own))
    assert restricted(walk)
    every.handlers = every._handlers()
    for key in keys(3):
        ours, theirs = (each.slopes(*prompts(3, batch=7), key, 1e-2) for each in (walk, every))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_texts_too_short_to_tell_decide_nothing():
    x, y = torch.full((1, 4, 2), 9), torch.zeros(1, 4, dtype=torch.int64)
    walk = Walk(Parameters.of(classifier("llama")), cross_entropy)
    walk.slopes(x, y, keys()[0], 1e-2)
    assert walk.layered
    assert restricted(walk) == []


def test_the_token_read_is_the_mask_or_the_last_one():
    x = prompts()[0][0]
    for model, places in (("bert", torch.ones(len(x))), ("llama", (x >= 0).sum(1) - 1)):
        rows, found = tokens_read(classifier(model), x)
        assert torch.equal(rows, torch.arange(len(x)))
        assert torch.equal(found, places.long())
    assert tokens_read(classifier("encoder"), x) is None


class Observing(nn.Module):
    """A norm that remembers the largest value that it has given."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, hidden):
        normed = self.norm(hidden)
        self.largest = torch.maximum(self.largest, normed.detach().abs().max())
        return normed


def test_the_trial_leaves_nothing_in_the_buffers_of_a_model():
    model = classifier("llama")
    model.whole.model.norm = norm = Observing(model.whole.model.norm)
    assert restricted(walked(model))
    assert 0 < float(norm.largest) < torch.inf


class LateMixing(nn.Module):
    """Adds the hidden states of nine tokens before, which short texts do not have."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, hidden):
        normed = self.norm(hidden)
        return normed + 0.5 * nn.functional.pad(normed, (0, 0, 9, 0))[:, : normed.shape[1]]


def test_tokens_that_are_mixed_in_long_texts_only_are_all_computed():
    model = classifier("llama")
    model.whole.model.norm = LateMixing(model.whole.model.norm)
    short, long = (prompts(1, batch=size, width=width, seed=1)[0][0] for size, width in ((40, 6), (20, 30)))
    x = torch.cat([nn.functional.pad(short, (0, 24), value=-1), long.where(long >= 0, 9)])[None]
    walk = Walk(Parameters.of(model), cross_entropy)
    walk.slopes(x, torch.zeros(1, 60, dtype=torch.int64), keys()[0], 1e-2)
    assert len(walk.batch(x, torch.zeros(1, 60, dtype=torch.int64)).micro_batches) > 1
    assert walk.layered
    assert restricted(walk) == []


def test_a_loss_may_call_the_model_on_other_inputs_than_the_batch():
    def shorter(model, batch):
        return cross_entropy(model, (batch[0][:, :5], batch[1]))

    x, y = prompts(2, batch=7)
    walk, other = Walk(Parameters.of(classifier("llama")), shorter), walked(classifier("llama"))
    ours, theirs = walk.slopes(x, y, keys()[0], 1e-2), other.slopes(x[..., :5], y, keys()[0], 1e-2)
    assert restricted(walk)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_module_that_is_called_on_all_tokens_and_on_those_read_is_walked():
    model = classifier("llama")
    norm, head = model.whole.model.norm, model.top

    class NormedHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = norm, head

        def forward(self, hidden):
            return self.head(self.norm(hidden))

    setattr(model, model.top_name, NormedHead())
    walked(model)
