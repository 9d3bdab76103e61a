"""Tasks: the model of a seed, its losses, and that it can be trained."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from cyber0.directions import DirectionKey
from cyber0.estimate import estimate
from cyber0.parameters import Parameters
from cyber0.tasks import NAMES, mnist
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.models import cnn, mlp
from cyber0.tasks.task import Task, cross_entropy, get_task

SIZES = {"mnist": 7850, "mnist-mlp": 50890, "mnist-cnn": 11274}


@pytest.fixture(scope="module")
def digits():
    return mnist.load(source="embedded")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """So small a product is slower on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=SIZES)
def task(request, digits, monkeypatch):
    monkeypatch.setattr("cyber0.tasks.task.load", lambda *_, **__: digits)
    return get_task(request.param)(None, "embedded")


def test_a_seed_is_a_model_and_no_generator_is_touched(task):
    before = torch.get_rng_state()
    first, again, other = (Parameters.of(task.build(seed)) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.size == SIZES[task.name]
    assert first.fingerprint() == again.fingerprint()
    assert (first.fingerprint() == other.fingerprint()) == (task.name == "mnist")  # which starts from zero


def test_initial_weights_for_good():
    assert [f"{Parameters.of(make(7)).fingerprint():016x}" for make in (mlp, cnn)] == [
        "0a8c069f63257f3b",
        "4a6e09091d629b90",
    ]


def test_losses_are_per_sample_and_about_log_10_at_the_start(task, digits):
    batch = torch.as_tensor(digits.train_inputs[::40]), torch.as_tensor(digits.train_labels[::40])
    losses = task.losses(task.build(0), batch)
    assert losses.shape == (100,)
    assert losses.mean().item() == pytest.approx(np.log(10), abs=0.8)


@pytest.mark.parametrize("mu", [1e-3, 0.0])
def test_an_estimate_can_be_made(task, digits, mu):
    batch = torch.as_tensor(digits.train_inputs[::200]), torch.as_tensor(digits.train_labels[::200])
    vote = estimate(Parameters.of(task.build(0)), task.losses, batch, [DirectionKey(1, 0)], mu=mu)
    assert np.isfinite(vote).all()


def test_gradient_descent_learns(task, digits):
    model = task.build(0)
    inputs, labels = torch.as_tensor(digits.train_inputs), torch.as_tensor(digits.train_labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        rows = torch.randint(len(labels), (64,), generator=generator)
        optimizer.zero_grad()
        task.losses(model, (inputs[rows], labels[rows])).mean().backward()
        optimizer.step()
    found = evaluate(task, model)
    assert found.accuracy > 0.8
    assert found.loss < 0.7


def test_evaluation_does_not_depend_on_the_size_of_its_batches(digits):
    task = get_task("mnist-mlp(hidden=8)")(None, "embedded")
    model = task.build(3)
    whole, parts = evaluate(task, model), evaluate(task, model, device="cpu", size=77)
    assert (whole.accuracy, whole.loss) == pytest.approx((parts.accuracy, parts.loss), rel=1e-6)
    pair = torch.as_tensor(digits.test_inputs), torch.as_tensor(digits.test_labels)
    assert evaluate(task, model, pair) == whole


def my_task(_directory, source, *, classes=2):
    x, y = np.zeros((4, 3), dtype=np.float32), np.zeros(4, dtype=np.int64)
    return Task("mine", Dataset(x, y, x, y, classes, source), lambda _: torch.nn.Linear(3, classes), cross_entropy)


def test_a_task_of_ones_own():
    task = get_task(my_task)(None, "my data")
    assert task.dataset.source == "my data"
    assert evaluate(task, task.build(0)).loss > 0


def test_data_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from cyber0.tasks import batches, mnist, partition\n"
        "import cyber0.cli.data\n"
        "labels = mnist.load(source='embedded').train_labels\n"
        "parts = partition.split('dirichlet', labels, 4, 0)\n"
        "print(batches.batches(0, range(4), 0, 0, parts, 8).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(4, 8)\n", done.stderr


def test_a_federator_without_torch_knows_the_names():
    code = "import sys; sys.modules['torch'] = None; from cyber0.tasks import NAMES; print(*NAMES)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == list(NAMES), done.stderr


def test_a_named_task_is_imported_when_it_is_asked_for():
    code = (
        "import sys, cyber0.simulation.simulation, cyber0.network.local_model\n"
        "from cyber0.tasks.task import get_task\n"
        "loaded = [any(name.startswith('cyber0.tasks.text') for name in sys.modules)]\n"
        "get_task('sst2')\n"
        "print(*loaded, 'cyber0.tasks.text.tasks' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n", done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_every_named_task_is_there(name):
    assert callable(get_task(name))
