"""What a walk refuses, and what it does not take for a batch."""

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier, keys, prompts
from torch import nn

from cyber0.commit import Commit
from cyber0.errors import EmptyBatch, InvalidEstimate, InvalidParameters
from cyber0.estimate import estimate
from cyber0.layerwise import LayerwiseEstimate, Walk
from cyber0.parameters import Parameters
from cyber0.tasks.task import cross_entropy


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x, table):
        return x * self.w + table.mean(0)


class Tabled(nn.Module):
    """A table of 16 rows that all samples share."""

    def __init__(self):
        super().__init__()
        self.leaf, self.out = Leaf(), nn.Linear(8, 3)
        self.table = nn.Buffer(torch.linspace(-3, 3, 128).view(16, 8).sin())

    def forward(self, x):
        return self.out(torch.tanh(self.leaf(x, self.table)))


def samples(count, width=8):
    rng = np.random.default_rng(count)
    x = torch.tensor(rng.normal(size=(1, count, width)), dtype=torch.float32)
    return x, torch.tensor(rng.integers(0, 3, (1, count)))


def test_a_table_as_long_as_the_batch_is_not_cut():
    parameters = Parameters.of(Tabled().eval())
    walk = Walk(parameters, cross_entropy)
    for count in (7, 8, 4, 2):
        x, y = samples(count)
        own = estimate(parameters, cross_entropy, (x[0], y[0]), keys()[:1], mu=1e-2)
        np.testing.assert_allclose(walk.slopes(x, y, keys()[0], 1e-2), own, rtol=1e-3, atol=1e-4)
    assert walk.layered


def test_random_models_are_refused_each_time():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    walk = Walk(Parameters.of(model), cross_entropy)
    for _ in range(2):
        with pytest.raises(InvalidEstimate, match=r"Dropout '1' is in training mode"):
            walk.slopes(*samples(4), keys()[0], 1e-2)
    model.eval()
    assert walk.slopes(*samples(4), keys()[0], 1e-2).isfinite().all()
    model.train()
    with pytest.raises(InvalidEstimate, match="is in training mode"):
        walk.slopes(*samples(4), keys()[0], 1e-2)


def test_an_interrupted_proof_is_made_again(monkeypatch):
    walk = Walk(Parameters.of(classifier("roberta")), cross_entropy)
    run, calls = Walk.run, []

    def interrupted(self, *inputs, **options):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return run(self, *inputs, **options)

    monkeypatch.setattr(Walk, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        walk.slopes(*prompts(), keys()[0], 1e-2)
    walk.slopes(*prompts(), keys()[0], 1e-2)
    assert len(calls) == 4  # the one cut short, two of a proof, and the walk


@pytest.mark.parametrize("mu", [0.0, -1e-3, 1e-60, float("nan")])
def test_mu_must_be_a_step(mu):
    with pytest.raises(InvalidEstimate, match="must be a positive number that float32 can hold"):
        Walk(Parameters.of(nn.Linear(8, 3)), cross_entropy).slopes(*samples(4), keys()[0], mu)


def test_a_batch_has_samples():
    with pytest.raises(EmptyBatch, match=r"x has shape \(1, 0, 8\): there are no samples in it"):
        Walk(Parameters.of(nn.Linear(8, 3)), cross_entropy).slopes(*samples(0), keys()[0], 1e-2)


def test_there_is_a_loss_for_each_sample():
    def mean(model, batch):
        return cross_entropy(model, batch).mean()

    with (
        pytest.warns(UserWarning, match="cannot be walked"),
        pytest.raises(InvalidEstimate, match=r"losses\(\) gave shape"),
    ):
        Walk(Parameters.of(nn.Linear(8, 3)), mean).slopes(*samples(4), keys()[0], 1e-2)


def test_each_loss_has_its_own_walk():
    def tenfold(model, batch):
        return 10 * cross_entropy(model, batch)

    parameters, walking, (x, y) = Parameters.of(nn.Linear(8, 3)), LayerwiseEstimate(), samples(4)
    once, more = (
        walking(parameters, losses, (x[0], y[0]), keys(), mu=1e-2, family="gaussian")
        for losses in (cross_entropy, tenfold)
    )
    np.testing.assert_allclose(more, 10 * once, rtol=1e-2)


def test_sizes_are_for_modules_that_have_them():
    parameters = Parameters.of(Tabled().eval())
    walk, (x, y) = Walk(parameters, cross_entropy), samples(6)
    own = walk.slopes(x, y, keys()[0], 1e-2)
    given = walk.along(walk.batch(x, y, sizes=np.array([[1, 2, 3, 4, 5, 6]])), keys()[0], 1e-2)
    assert torch.equal(own, given)


def test_weights_that_were_moved_are_noticed():
    model = nn.Linear(8, 3)
    walk = Walk(Parameters.of(model), cross_entropy)
    model.weight.data = model.weight.data.clone()
    with pytest.raises(InvalidParameters, match="'weight' has been moved"):
        walk.slopes(*samples(4), keys()[0], 1e-2)


@pytest.mark.filterwarnings("ignore:out of memory")
def test_a_commit_is_not_applied_again_if_memory_ends_after_it(monkeypatch):
    x, y = prompts(2, batch=20, width=31)
    parameters, twin = (Parameters.of(classifier("roberta")) for _ in range(2))
    walk, commit, failures = Walk(parameters, cross_entropy), Commit(5, 0, 0.1, [[0.3]]), [1]
    walk.slopes(x, y, keys()[0], 1e-2)
    own = walk._measure

    def part(part):
        if walk.source._perturbation.applies_commit:
            Parameters.of(walk.module).apply(commit)
        return own(part)

    set_perturbation = walk.source.set_perturbation

    def short(target):
        if failures and not target.applies_commit:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        set_perturbation(target)

    monkeypatch.setattr(walk, "_measure", part)
    monkeypatch.setattr(walk.source, "set_perturbation", short)
    monkeypatch.setattr(Walk, "_writes", True)
    parameters.defer(commit)
    twin.apply(commit)
    walk.slopes(x, y, keys()[0], 1e-2)
    assert not failures
    assert parameters.fingerprint() == twin.fingerprint()
