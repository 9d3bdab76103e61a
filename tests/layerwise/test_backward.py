"""Exact slopes of language models: a backward pass gives what two forward passes approach, however it is cut."""

from functools import partial

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier, keys
from tests.layerwise.models import prompts as prompts_of_clients
from tests.layerwise.test_runs import PRECISIONS, config_of, folder, second_votes, tasks  # noqa: F401
from torch import nn

from cyber0.config import RunConfig
from cyber0.directions import project
from cyber0.errors import EmptyBatch, InvalidArray, InvalidEstimate, NonFiniteLoss
from cyber0.estimate import estimate
from cyber0.layerwise.backward import Gradient
from cyber0.layerwise.frozen import PackedLinear, StreamedLinear
from cyber0.layerwise.measure import LayerwiseEstimate
from cyber0.parameters import Parameters, to_bf16
from cyber0.simulation import Simulation
from cyber0.simulation.learners import Differentiated
from cyber0.tasks.task import cross_entropy

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=on_cuda)]
devices = pytest.mark.parametrize("device", DEVICES)


def prompts(samples):
    x, y = prompts_of_clients(1, samples)
    return x[0], y[0]


def close(ours, theirs, share=1e-4):
    ours, theirs = np.asarray(torch.as_tensor(ours).cpu()), np.asarray(torch.as_tensor(theirs).cpu())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=share * np.abs(theirs).max())


def by_hand(model, x, y):
    """The gradient of the mean loss, by torch alone, in one piece."""
    trained = [each for each in model.parameters() if each.requires_grad]
    found = torch.autograd.grad(cross_entropy(model, (x, y)).mean(), trained, allow_unused=True)
    parts = [torch.zeros_like(w) if g is None else g for w, g in zip(trained, found, strict=True)]
    return torch.cat([part.float().flatten() for part in parts])


@devices
@pytest.mark.parametrize("kind", ["roberta", "llama", "encoder", "mixtral"])
@pytest.mark.parametrize("most", [None, 20])
def test_the_gradient_does_not_depend_on_how_a_batch_is_cut(kind, most, device):
    model = classifier(kind).to(device)
    x, y = (part.to(device) for part in prompts(9))
    gradient = Gradient(Parameters.of(model), cross_entropy)
    gradient.cutter.max_tokens = most
    for _ in range(2):  # on CUDA the second is a graph that has been captured before
        close(gradient(x, y), by_hand(model, x, y))


@pytest.mark.parametrize("family", ["gaussian", "sphere", "rademacher"])
def test_exact_slopes_are_what_differences_approach(family):
    parameters, batch = Parameters.of(classifier("roberta")), prompts(6)
    options = {"keys": keys(5), "family": family}
    exact = LayerwiseEstimate()(parameters, cross_entropy, batch, mu=0.0, **options)
    close(exact, estimate(parameters, cross_entropy, batch, mu=0.0, **options))
    close(exact, LayerwiseEstimate()(parameters, cross_entropy, batch, mu=1e-3, **options), 2e-2)


@pytest.mark.parametrize("kind", ["roberta", "llama"])
def test_bf16_is_near(kind):
    model, (x, y) = classifier(kind), prompts(6)
    exact = by_hand(model, x, y)
    close(Gradient(Parameters.of(model), cross_entropy, torch.bfloat16)(x, y), exact, 0.1)
    close(Gradient(Parameters.of(to_bf16(model)), cross_entropy, torch.bfloat16)(x, y), exact, 0.1)


@pytest.mark.parametrize("kind", ["roberta", "llama", "encoder"])
def test_gradients_of_many_tokens_are_not_summed_in_bf16(kind):
    """Equal terms that are added up in bf16 stop counting after 256 of them."""
    low = to_bf16(classifier(kind))
    full = classifier(kind)
    full.load_state_dict(low.state_dict())
    x, y = prompts(4)
    x, y = x.repeat(300, 1), y.repeat(300)
    exact = Gradient(Parameters.of(full), cross_entropy)(x, y)
    for model in (low, full):
        found = Gradient(Parameters.of(model), cross_entropy, torch.bfloat16)(x, y)
        for each in Parameters.of(full).manifest.entries:
            part = slice(each.start, each.start + each.size)
            assert (found[part] - exact[part]).norm() < 0.03 * exact[part].norm() + 1e-3 * exact.norm(), each.name


def test_a_model_that_torch_cannot_differentiate_is_refused():
    class Detached(nn.Linear):
        @torch.no_grad()
        def forward(self, input):
            return super().forward(input)

    with pytest.raises(InvalidEstimate, match="use mu > 0, or let Detached compute its outputs without"):
        Gradient(Parameters.of(Detached(3, 2)), cross_entropy)(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("batch", [0, 6])
def test_engines_agree(folder, tasks, precision, batch):  # noqa: F811
    options = {"mu": 0.0, "precision": precision, "batch": batch}
    batched, sequential = (
        second_votes(config_of(folder, engine=engine, **options), tasks["roberta"])
        for engine in ("batched", "sequential")
    )
    assert batched.shape == (1, 3, 2)
    close(batched, sequential, 1e-3)


def test_calibrated_clients_and_blocks(folder, tasks):  # noqa: F811
    options = {"mu": 0.0, "objective": "calibrated", "blocks": 2, "directions": 3}
    votes = [
        second_votes(config_of(folder, engine=engine, **options), tasks["roberta"])
        for engine in ("batched", "sequential")
    ]
    close(*votes, 1e-3)


@pytest.mark.parametrize("changes", [{"local_epochs": 2}, {"scheme": "compressed"}])
def test_what_needs_local_models_is_measured_one_client_after_the_other(folder, tasks, changes):  # noqa: F811
    config: RunConfig = config_of(folder, mu=0.0, **changes)
    assert not isinstance(Simulation(config, tasks["roberta"]).learner, Differentiated)


def test_a_loss_that_is_not_finite_costs_its_client_alone(folder, tasks):  # noqa: F811
    simulation = Simulation(config_of(folder, mu=0.0, rounds=1, byzantine=0, rule="mean"), tasks["roberta"])
    assert isinstance(simulation.learner, Differentiated)
    owner, population = 1, simulation.population
    votes = simulation.votes(0, np.arange(3))
    population.labels = population.labels.double()
    losses = simulation.learner._task.losses
    mine = {tuple(row.tolist()) for row in population.inputs[population.shares[owner]]}

    def broken(model, batch):
        spoiled = [
            0.0 if tuple(row.tolist()) not in {each[: len(row)] for each in mine} else torch.nan for row in batch[0]
        ]
        return losses(model, (batch[0], batch[1].long())) + torch.tensor(spoiled)

    learner = Differentiated(simulation.task, [simulation.world])
    object.__setattr__(learner, "_task", type("Task", (), {"losses": staticmethod(broken)}))
    found = learner.votes(0, np.arange(3))[0].numpy()
    assert np.isnan(found[:, owner]).all()
    np.testing.assert_array_equal(found[:, [0, 2]], votes[:, [0, 2]])


def test_a_client_says_that_a_loss_is_not_finite():
    model, batch = classifier("roberta"), prompts(4)
    with pytest.raises(NonFiniteLoss, match="not finite"):
        LayerwiseEstimate()(
            Parameters.of(model),
            lambda m, b: cross_entropy(m, b) * torch.inf,
            batch,
            keys(1),
            mu=0.0,
            family="gaussian",
        )
    with pytest.raises(InvalidEstimate, match="one loss for each"):
        Gradient(Parameters.of(model), lambda m, b: cross_entropy(m, b).mean())(*batch)
    with pytest.raises(EmptyBatch, match="no samples"):
        Gradient(Parameters.of(model), cross_entropy)(batch[0][:0], batch[1][:0])


def test_memory_that_runs_out_makes_the_parts_smaller():
    model, (x, y) = classifier("roberta"), prompts(8)
    expected, parts = by_hand(model, x, y), []

    def scarce(model, batch):
        parts.append(len(batch[1]))
        if len(batch[1]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return cross_entropy(model, batch)

    with pytest.warns(UserWarning, match="out of memory on cpu: micro-batches"):
        close(Gradient(Parameters.of(model), scarce)(x, y), expected)
    assert max(parts) == 8
    assert max(parts[-3:]) <= 3


class Numbers(nn.Module):
    """Gives a number for each token."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.last(self.table(inputs.clamp(min=0)))[..., 0]

    scores = forward

    def sizes(self, inputs):
        return (inputs >= 0).sum(1)


@pytest.mark.parametrize("mu", [0.0, 1e-3])
def test_texts_are_not_cut_shorter_than_numbers_of_their_tokens(mu):
    def losses(model, batch):
        return ((model(batch[0]) - batch[1]).square() * (batch[0] >= 0)).mean(1)

    inputs = torch.randint(0, 20, (6, 9))
    inputs[:, 6:] = -1
    given = Parameters.of(Numbers()), losses, (inputs, torch.randn(6, 9)), keys(3)
    options = {"mu": mu, "family": "gaussian"}
    close(LayerwiseEstimate()(*given, **options), estimate(*given, **options), 1e-2)


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_private_clients_need_float32(folder, tasks, precision, engine):  # noqa: F811
    options = {"mu": 0.0, "epsilon": 3.0, "clip": 1.0, "precision": precision, "engine": engine}
    with pytest.raises(InvalidEstimate, match="mu = 0 with privacy needs precision = 'float32'"):
        Simulation(config_of(folder, **options), tasks["roberta"]).play_round(0)


class OneBuffer:
    """A supply with room for one layer: what it gave is overwritten when another layer is fetched."""

    def __init__(self, layers):
        self.layers, self.memory = layers, torch.empty(2**16, dtype=torch.uint8)

    def tensors(self, place):
        return self.layers[place]

    def fetch(self, place):
        found, begin = [], 0
        for each in self.layers[place]:
            found.append(self.memory[begin : begin + each.nbytes].view(each.dtype).view(each.shape))
            found[-1].copy_(each)
            begin += each.nbytes
        return tuple(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [StreamedLinear, partial(PackedLinear, bits=8)])
def test_weights_that_are_streamed_are_fetched_again(make, dtype):
    full = [to_bf16(nn.Linear(64, 64)) if dtype == torch.bfloat16 else nn.Linear(64, 64) for _ in range(3)]
    frozen = [make(each.requires_grad_(False)) for each in full]
    model = nn.Sequential(nn.Linear(8, 64), *(part for each in frozen for part in (each, nn.Tanh())), nn.Linear(64, 3))
    batch = torch.randn(9, 8), torch.randint(3, (9,))
    gradient = Gradient(Parameters.of(model), cross_entropy, dtype)
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.shape) or each, lambda each: each):
        expected = gradient(*batch).clone()
    assert (64, 64) not in kept
    supply = OneBuffer([tuple(each.stored().values()) for each in frozen])
    for place, each in enumerate(frozen):
        each.attach(supply, place)
    assert torch.equal(gradient(*batch), expected)
    trained = [part for part in model.parameters() if part.requires_grad]
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = model[0](batch[0])
        for each in frozen:
            hidden = torch.tanh(nn.functional.linear(hidden, each.weight.to(hidden.dtype), each.bias.to(hidden.dtype)))
        loss = nn.functional.cross_entropy(model[-1](hidden).float(), batch[1])
    close(expected, torch.cat([each.flatten() for each in torch.autograd.grad(loss, trained)]), 1e-6)


def test_many_vectors_are_projected_as_each_is():
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(4, 5000, generator=generator)
    together = project(vectors, keys(7), family="rademacher")
    assert together.shape == (4, 7)
    for row, alone in zip(vectors, together, strict=True):
        close(alone, project(row, keys(7), family="rademacher"), 1e-5)
    assert project(vectors.numpy()[None], keys(2)).shape == (1, 4, 2)
    with pytest.raises(InvalidArray, match="at least one"):
        project(vectors[:0], keys(2))


@on_cuda
@pytest.mark.parametrize("kind", ["roberta", "llama", "encoder"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_give_the_same_bits_again(kind, dtype):
    model = classifier(kind).to("cuda")
    gradient = Gradient(Parameters.of(model), cross_entropy, dtype)
    assert gradient._graphs is not None
    batches = [tuple(part.cuda() for part in prompts(size)) for size in (7, 12, 7)]
    first = [gradient(*batch).clone() for batch in batches]
    again = [gradient(*batch).clone() for batch in batches]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    gradient._graphs = None
    for batch, captured in zip(batches, first, strict=True):
        close(gradient(*batch), captured, 1e-5 if dtype == torch.float32 else 0.05)
