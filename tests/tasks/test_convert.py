"""Models, data, losses and metrics of users: taken as they are, or refused in a sentence that names them."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InvalidAttack, InvalidData, InvalidUserCode, UnknownName
from cyber0.parameters import Parameters
from cyber0.simulation import Simulation
from cyber0.tasks.convert import task_of
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.losses import cross_entropy
from cyber0.tasks.task import Task, build_model, make

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=GENERATOR)
Y = torch.arange(60) % 3
VALUES = X.sum(1, keepdim=True)
WORDS = ["cat", "dog", "bird"] * 20


class Net(nn.Module):
    def __init__(self, outputs=3):
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, inputs):
        return self.layer(inputs)


class Sized(Net):
    def __init__(self, hidden, outputs):
        super().__init__(outputs + hidden)


class Samples(TorchDataset):
    def __init__(self, pick=lambda i: (X[i], Y[i].item()), count=60):
        self.pick, self.count = pick, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.pick(index)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def simulate(task, **options):
    small = {"clients": 4, "byzantine": 0, "directions": 8, "rounds": 30, "lr": 0.05, "batch": 8, "partition": "iid"}
    simulation = Simulation(RunConfig(**{**small, **options}), task)
    before = simulation.evaluate()
    for _ in simulation.play():
        pass
    return before, simulation.evaluate()


def fingerprint(task, seed=7):
    return Parameters.of(build_model(task, seed)).fingerprint()


@pytest.mark.parametrize(
    "train",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        (X.double(), Y.int()),
        (X.numpy().tolist(), Y.tolist()),
        TensorDataset(X, Y),
        Samples(),
        Samples(lambda i: (X[i].numpy(), Y[i])),
        Samples(lambda i: [X[i].tolist(), np.int32(Y[i])]),
        [(X[:20], Y[:20]), TensorDataset(X[20:], Y[20:])],
    ],
    ids=["tensors", "arrays", "other types", "lists", "TensorDataset", "Dataset", "of arrays", "of lists", "clients"],
)
def test_the_same_data_in_any_form(train):
    task = task_of(Net, train, (X, Y))
    data = task.dataset
    assert data.train_inputs.dtype == np.float32
    assert data.train_labels.dtype == np.int64
    np.testing.assert_array_equal(data.train_inputs, X.numpy())
    np.testing.assert_array_equal(data.train_labels, Y.numpy())
    assert (task.name, data.classes) == ("Net", 3)
    assert task.losses is cross_entropy


def test_each_client_has_what_it_was_given():
    task = task_of(Net, [(X[:10], Y[:10]), (X[10:15], Y[10:15]), (X[15:], Y[15:])], (X, Y))
    simulation = Simulation(RunConfig(clients=3, byzantine=0), task)
    assert [share.tolist() for share in simulation.population.shares] == [
        list(range(10)),
        list(range(10, 15)),
        list(range(15, 60)),
    ]
    with pytest.raises(InvalidData, match=r"clients = 4, and there is a data set for each of 3: give clients = 3, or"):
        Simulation(RunConfig(clients=4, byzantine=0), task)


def with_seed(*, seed):
    assert seed in (7, 8)
    return Net()


@pytest.mark.parametrize("model", [Net, lambda: Net(3), lambda _: Net(3), with_seed])
def test_a_models_weights_follow_the_seed_and_no_generator_is_touched(model):
    task = task_of(model, (X, Y), (X, Y))
    before = torch.get_rng_state()
    first, again, other = (fingerprint(task, seed) for seed in (7, 7, 8))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_is_copied_for_each_run():
    module = Net()
    task = task_of(module, (X, Y), (X, Y))
    built = build_model(task, 0)
    assert fingerprint(task) == Parameters.of(module).fingerprint()
    with torch.no_grad():
        built.layer.weight.zero_()
    assert fingerprint(task, 8) == Parameters.of(module).fingerprint() != Parameters.of(built).fingerprint()


def test_a_seed_is_handed_over_by_name():
    seen = []

    def build(hidden=5, *, seed=0):
        seen.append((hidden, seed))
        return Net()

    build_model(task_of(build, (X, Y), (X, Y)), 99)
    assert seen == [(5, 99)]


def test_a_lazy_layer_is_initialised_by_the_seed():
    task = task_of(lambda: nn.Sequential(nn.LazyLinear(3)), (X, Y), (X, Y))
    assert fingerprint(task) == fingerprint(task) != fingerprint(task, 8)


def test_classification_learns_and_reports_accuracy_and_metrics():
    def least(outputs, targets):
        assert outputs.device.type == "cpu"
        return (outputs.argmax(1) == targets).float().mean()

    labels = (X[:, 0] > 0).long()
    task = task_of(Net, (X, labels), (X, labels), metrics={"same": least})
    for engine in ("batched", "sequential"):
        before, after = simulate(task, engine=engine)
        assert after.loss < before.loss - 0.05
        assert after.accuracy > 0.7
        assert after.metrics["same"] == pytest.approx(after.accuracy)
        assert after.samples == 60


@pytest.mark.parametrize("engine", ["batched", "sequential"])
@pytest.mark.parametrize("loss", [functional.mse_loss, nn.SmoothL1Loss(), lambda a, b: (a - b).abs()])
def test_regression(loss, engine):
    def mae(outputs, targets):
        return (outputs - targets).abs().mean().item()

    task = task_of(lambda: Net(1), (X, VALUES), (X, VALUES), loss=loss, metrics={"mae": mae})
    before, after = simulate(task, engine=engine, partition="dirichlet", local_epochs=2)
    assert after.accuracy is None
    assert after.loss < before.loss
    assert after.metrics["mae"] < before.metrics["mae"]


@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_token_level_tasks(engine):
    tokens = torch.arange(60 * 5).reshape(60, 5) % 7
    following = (tokens + 1) % 7

    def loss(outputs, targets):
        return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")

    def build():
        return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7))

    task = task_of(build, (tokens, following), (tokens, following), loss=loss)
    assert task.dataset.classes is None
    before, after = simulate(task, engine=engine, lr=0.5)
    assert after.accuracy is None
    assert after.loss < before.loss


def test_the_default_loss_takes_classes_of_pixels():
    images, labels = torch.randn(12, 1, 4, 4), torch.arange(12 * 16).reshape(12, 4, 4) % 3
    task = task_of(lambda: nn.Conv2d(1, 3, 1), (images, labels), (images, labels))
    found = evaluate(task, build_model(task, 0))
    assert 0 <= found.accuracy <= 1
    assert found.samples == 12


def test_a_loss_of_the_model_itself_is_called_as_it_is():
    def losses(model, batch):
        return cross_entropy(model, batch) + sum(p.square().sum() for p in model.parameters())

    data = Dataset(X, Y, X, Y, classes=3, source="mine")
    plain, decayed = (Task("mine", data, lambda _: Net(), each) for each in (cross_entropy, losses))
    model = build_model(plain, 0)
    decay = sum(p.square().sum() for p in model.parameters()).item()
    assert evaluate(decayed, model).loss == pytest.approx(evaluate(plain, model).loss + decay, rel=1e-5)
    assert evaluate(decayed, model).accuracy == evaluate(plain, model).accuracy


def test_a_weighted_loss_keeps_its_weights_and_is_not_changed():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    found = task_of(Net, (X, Y), (X, Y), loss=loss).losses.of(torch.zeros(3, 3), torch.arange(3))
    np.testing.assert_allclose(found, np.log(3) * np.arange(1, 4), rtol=1e-6)
    assert loss.reduction == "mean"


def bad_inputs():
    bad = X.clone()
    bad[17, 2] = bad[17, 3] = bad[40, 0] = float("nan")
    return bad


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ((bad_inputs(), Y), "train inputs hold 3 values that are not finite, the first at sample 17"),
        ((X.double() * 1e300, Y), "train inputs hold .* values that are not finite"),
        ((X[:50], Y), "train has 50 inputs and 60 targets: give a target for each input"),
        ((X[:0], Y[:0]), r"train inputs have shape \(0, 4\): there are no samples in them"),
        ((X, Y - 1), "targets run from -1 to 2: classes are numbered from 0 on$"),
        ((X, Y.float()), "train targets are of type float32.*for a regression give a loss"),
        ((X, functional.one_hot(Y).float()), r"classes are numbered by integers, as by targets.argmax\(1\)"),
        ((X, Y, Y), r"train has 3 parts: give two, \(inputs, targets\)"),
        ([X, Y], "train is a list of 2 arrays: .* give a tuple"),
        ([], "train is an empty list: give one data set for each client"),
        ([(X, Y), (X[:, :3], Y)], r"shape \(4,\) in train\[0\] and \(3,\) in train\[1\]: give inputs of one shape"),
        ((X[:, :3], Y), r"shape \(3,\) in train and \(4,\) in test"),
        (X, r"train is one array of shape \(60, 4\): give two"),
        ({"x": X}, "train is of type dict: give"),
        (DataLoader(TensorDataset(X, Y)), "train is a DataLoader: give its data set, train=loader.dataset"),
        (Stream(), "train is an IterableDataset"),
        (Samples(count=0), "train data set .*Samples is empty"),
        (Samples(lambda i: {"x": i}), r"sample 0 of train is of type dict: a data set gives pairs"),
        (Samples(lambda i: (X[i, : 1 + (i > 5)], 0)), r"sample 0 has \(1,\), sample 6 has \(2,\); crop, pad or resize"),
        (Samples(lambda i: (X[i], "cat")), "targets are texts in train and numbers in test: give one or the other"),
        ([(X, Y), (X, WORDS)], r"targets are texts in train\[1\] and numbers in train\[0\]"),
        ((X, np.array(WORDS, dtype="S4")), "train targets are texts: give numbers from 0 to .* return_inverse=True"),
        ((X, [*WORDS[1:], None]), "train targets are of type object: give numbers"),
        ((WORDS, Y), "train inputs are texts: give numbers"),
    ],
)
def test_data_that_cannot_be_used(train, said):
    with pytest.raises(InvalidData, match=said):
        task_of(Net, train, (X, Y))


@pytest.mark.parametrize("kind", [np.array, list, pd.Series, lambda words: pd.Series(words, dtype="category")])
def test_labels_that_are_texts_are_numbered_as_scikit_learn_does(kind):
    data = task_of(Net, (X, kind(WORDS)), (X[:5], kind(WORDS[:5]))).dataset
    assert data.classes == 3
    assert np.array_equal(data.train_labels, np.unique(WORDS, return_inverse=True)[1])
    assert np.array_equal(data.test_labels, data.train_labels[:5])


def test_labels_that_are_texts_have_the_order_of_the_names_given():
    words = X, WORDS
    named = task_of(Net, words, words, classes=["dog", "cat", "bird", "fish"])
    assert named.dataset.classes == 4
    assert named.dataset.train_labels[:3].tolist() == [1, 0, 2]
    assert named.meaning != task_of(Net, words, words).meaning
    assert task_of(Net, words, words, classes=5).dataset.classes == 5
    assert task_of(Net, Samples(lambda i: (X[i], WORDS[i])), words).dataset.classes == 3
    with pytest.raises(UnknownName, match="unknown class 'bird' of the train targets: use one of cat, dog"):
        task_of(Net, words, words, classes=["dog", "cat"])


def test_labels_from_1():
    with pytest.raises(InvalidData, match=r"targets run from 1 to 3: .* as by targets - 1; .* give classes=4"):
        task_of(Net, (X, Y + 1), (X, Y + 1))
    assert task_of(Net, (X, Y + 1), (X, Y + 1), classes=4).dataset.classes == 4
    with pytest.raises(InvalidData, match="train labels run from 0 to 2, and there are 2 classes"):
        task_of(Net, (X, Y), (X, Y), classes=2)


def test_test_data_are_needed():
    with pytest.raises(InvalidData, match=r"test = None: give \(inputs, targets\) or a torch data set to test on"):
        task_of(Net, (X, Y), None)


def test_an_image_without_a_transform():
    image = pytest.importorskip("PIL.Image")
    with pytest.raises(InvalidData, match="input of sample 0 of train is an image: give the data set a transform"):
        task_of(Net, Samples(lambda _: (image.new("L", (4, 4)), 0)), (X, Y))


def test_an_attack_on_labels_needs_classes():
    task = task_of(lambda: Net(1), (X, VALUES), (X, VALUES), loss=functional.mse_loss)
    with pytest.raises(InvalidAttack, match="labels of this task are not classes"):
        Simulation(RunConfig(clients=4, byzantine=1, attack="lf"), task)


def broken(*_, **__):
    raise KeyError("gone")


def mean_loss(outputs, targets):
    return (outputs - targets).square().mean()


PAIR = (X, Y)
REGRESSION = (X, VALUES)


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((broken, PAIR, PAIR), {}, r"model tests.tasks.test_convert.broken raised KeyError: 'gone'"),
        ((lambda: 3, PAIR, PAIR), {}, r"model .*<lambda> returned int: it must return a torch.nn.Module"),
        (
            (lambda: Net(2), PAIR, PAIR),
            {},
            r"model tests.tasks.test_convert.Net gave outputs of shape \(4, 2\) for 4 samples of 3 ",
        ),
        ((lambda: nn.Linear(5, 3), PAIR, PAIR), {}, r"Linear raised RuntimeError: .* \(on inputs of shape \(4, 4\), "),
        ((Net, PAIR, PAIR), {"loss": broken}, r"loss tests.tasks.test_convert.broken raised KeyError: 'gone'"),
        (
            (lambda: Net(1), REGRESSION, REGRESSION),
            {"loss": mean_loss},
            r"loss tests.tasks.test_convert.mean_loss gave a single number for 4 samples: .* reduction='none'",
        ),
        (
            (lambda: Net(1), (X, VALUES[:, 0]), (X, VALUES[:, 0])),
            {"loss": functional.mse_loss},
            r"outputs of shape \(4, 1\) and targets of shape \(4,\): .*\.squeeze",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_a_user_got_wrong_is_named(arguments, options, said):
    task = task_of(*arguments, **options)
    with pytest.raises(InvalidUserCode, match=said) as caught:
        Simulation(RunConfig(clients=4, byzantine=0), task)
    assert "mnist" not in str(caught.value)
    if "KeyError" in said:
        assert isinstance(caught.value.__cause__, KeyError)


def test_arguments_that_a_model_needs():
    with pytest.raises(InvalidUserCode, match=r"Sized needs hidden, outputs: .* as lambda: Sized\(hidden=\.\.\.\)"):
        task_of(Sized, PAIR, PAIR)
    with pytest.raises(InvalidUserCode, match=r"model = 3: give a torch.nn.Module"):
        task_of(3, PAIR, PAIR)


def test_a_data_set_that_raises_is_named():
    with pytest.raises(InvalidUserCode, match=r"train data set tests.*\.Samples raised KeyError: 'gone'"):
        task_of(Net, Samples(broken), PAIR)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (broken, r"metric 'mine' tests.tasks.test_convert.broken raised KeyError: 'gone'"),
        (lambda *_: [1, 2], "metric 'mine' .* returned list: it must return one number"),
        (lambda outputs, _: outputs, "metric 'mine' .* returned Tensor: it must return one number"),
    ],
)
def test_metrics_of_users(metric, said):
    task = task_of(Net, PAIR, PAIR, metrics={"mine": metric})
    with pytest.raises(InvalidUserCode, match=said):
        Simulation(RunConfig(clients=4, byzantine=0), task).evaluate()


def test_tasks_and_partitions_of_users_are_named():
    with pytest.raises(InvalidUserCode, match=r"task tests.tasks.test_convert.broken raised KeyError: 'gone'"):
        make(broken)
    with pytest.raises(InvalidUserCode, match=r"task .*<lambda> returned int: it must return a Task"):
        make(lambda *_: 3)
    with pytest.raises(InvalidUserCode, match=r"partition tests.tasks.test_convert.broken raised KeyError: 'gone'"):
        Simulation(
            RunConfig(clients=4, byzantine=0, partition="tests.tasks.test_convert:broken"), task_of(Net, PAIR, PAIR)
        )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dataset": (X, Y)}, "dataset = tuple: give a cyber0.tasks.dataset.Dataset"),
        ({"build": Net()}, "build = Net: give a function of the seed"),
        ({"losses": 3}, "losses = 3: give a function"),
        ({"metrics": {"f1": "f1"}}, "f1 = 'f1': give a function"),
    ],
)
def test_a_task_checks_itself(fields, said):
    right = {"name": "mine", "dataset": Dataset(X, Y, X, Y, classes=3, source="mine"), "build": lambda _: Net()}
    with pytest.raises(InvalidUserCode, match=said):
        Task(**{**right, **fields})


def test_losses_of_a_task_are_one_for_each_sample():
    def losses(model, batch):
        return cross_entropy(model, batch).mean()

    task = Task("mine", Dataset(X, Y, X, Y, classes=3, source="mine"), lambda _: Net(), losses)
    with pytest.raises(InvalidUserCode, match=r"losses .*losses gave a single number for 4 samples: it must give one"):
        build_model(task, 0)


def regression(_directory, _source):
    return task_of(nn.Linear(4, 1), REGRESSION, REGRESSION, loss=functional.mse_loss, metrics={"zero": lambda *_: 0})


def test_a_regression_by_the_command_line(tmp_path):
    options = ["--task", f"{__name__}:regression", *["--clients", "4", "--byzantine", "1", "--rounds", "2"]]
    done = CliRunner().invoke(app, ["run", *options, "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert done.exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["metrics"] for line in lines] == [{"zero": 0.0}] * len(lines)
    assert all(line["accuracy"] is None and line["loss"] > 0 for line in lines)
