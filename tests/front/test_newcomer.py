"""What newcomers do with models, data and code of their own, and what must not go wrong silently."""
# ruff: noqa: ARG001, ARG002, ARG005 (rules, attacks and callbacks share their signatures)

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

import cyber0
from cyber0.config import load
from cyber0.errors import InvalidAttack, InvalidConfig, InvalidData, InvalidModel, InvalidUserCode
from cyber0.tasks.convert import task_of
from cyber0.tasks.losses import describe_loss, output_loss
from cyber0.tasks.task import build_model

SMALL = {"clients": 6, "byzantine": 1, "alpha": 5.0, "directions": 4, "rounds": 3, "batch": 8, "lr": 0.1}


def points(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def linear():
    return nn.Linear(4, 3)


def simulate(model=linear, train=None, test=None, **options):
    train, test = points(120) if train is None else train, points(40, 1) if test is None else test
    return cyber0.simulate(model, train, test, **SMALL | options)


def honest(vectors, liars, rule, byzantine, rng):
    return vectors[..., liars, :]


def test_an_attack_cannot_change_honest_votes_or_who_lies():
    def in_place(vectors, liars, rule, byzantine, rng):
        own = vectors[..., liars, :].copy()
        vectors[...] = 0
        liars[...] = 0
        return own

    assert simulate(attack=in_place).fingerprint == simulate(attack=honest).fingerprint


def test_a_round_without_liars_reports_nothing():
    rounds = simulate(attack="alie", participation=0.8, dropout=0.3, rounds=12, keep="votes").history.rounds
    voted = [each for each in rounds if each.honest is not None]
    assert {bool(len(each.liars)) for each in voted} == {True, False}
    assert all(("omega" in each.reports) == bool(len(each.liars)) for each in voted)


class Stop(cyber0.Callback):
    def after_round(self, run, round):
        if round.number == 4:
            raise KeyboardInterrupt


def test_votes_of_a_resumed_run_are_those_of_an_unbroken_one(tmp_path):
    asked = {"attack": "alie", "participation": 0.8, "dropout": 0.3, "rounds": 12, "evaluate_every": 2}
    unbroken = simulate(keep="votes", **asked)
    with pytest.raises(KeyboardInterrupt):
        simulate(keep="votes", out=tmp_path / "run", callbacks=[Stop()], **asked)
    config = cyber0.RunConfig(**load(tmp_path / "run" / "config.toml"))
    task = task_of(linear, points(120), points(40, 1))
    resumed = cyber0.run(config, tmp_path / "run", task=task, keep="votes", resume=True)
    assert resumed.history.votes().equals(unbroken.history.votes())
    assert resumed.fingerprint == unbroken.fingerprint


def test_votes_of_a_run_in_which_nobody_voted_are_an_empty_table():
    votes = simulate(dropout=0.99, keep="votes").history.votes()
    assert (len(votes), "sent" in votes.columns) == (0, True)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sent", 1.0, "none of round"),
        (3, 1.0, "give a text"),
        ("kind", {"a": 1}, "as dict"),
        ("kind", None, "NoneType"),
    ],
    ids=["column", "number", "dictionary", "nothing"],
)
def test_a_report_that_no_table_can_hold_is_refused(name, value, said):
    def reporting(vectors, liars, rule, byzantine, rng, *, report):
        report(name, value)
        return vectors[..., liars, :]

    with pytest.raises(InvalidAttack, match=said):
        simulate(attack=reporting)


def test_a_report_of_many_numbers_is_kept_with_its_round_alone():
    def reporting(vectors, liars, rule, byzantine, rng, *, report):
        report("all", torch.ones(7))
        return vectors[..., liars, :]

    history = simulate(attack=reporting, keep="votes").history
    assert len(history.rounds[0].reports["all"]) == 7
    assert "all" not in history.votes().columns


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.look_up, self.cells, self.score = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.score(self.cells(self.look_up(tokens))[0])


def per_token(outputs, targets):
    return nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")


def test_a_model_that_vmap_cannot_run_is_named_with_the_engine_that_can():
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(9, (60, 5), generator=generator), torch.randint(3, (60, 5), generator=generator)
    with pytest.raises(InvalidUserCode, match=r"model .*Recurrent raised .*engine='sequential'"):
        simulate(Recurrent, texts, texts, loss=per_token)
    assert simulate(Recurrent, texts, texts, loss=per_token, engine="sequential").loss > 0


class Noisy(nn.Linear):
    def forward(self, inputs):
        return nn.functional.dropout(super().forward(inputs), 0.5, training=True)


@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_a_model_that_draws_at_random_is_refused(engine):
    with pytest.raises(InvalidUserCode, match="other outputs each time"):
        simulate(lambda: Noisy(4, 3), engine=engine)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32], ids=["bool", "int64", "float32"])
def test_a_binary_cross_entropy_takes_labels_of_any_type(kind):
    inputs, _ = points(120)
    data = inputs, (inputs[:, :1] > 0).to(kind)
    floats = inputs, (inputs[:, :1] > 0).float()
    losses = [
        simulate(lambda: nn.Linear(4, 1), each, each, loss=nn.BCEWithLogitsLoss()).loss for each in (data, floats)
    ]
    assert losses[0] == losses[1]


class Broken(TorchDataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 17:
            raise OSError("the file is cut off")
        return torch.zeros(4), 0


def refuse_metrics():
    simulate(metrics={"loss": lambda outputs, targets: 1.0})


INPUTS, LABELS = points(60)
ONE_HOT = nn.functional.one_hot(LABELS, 3)
REFUSED = {
    "broken data set": (lambda: simulate(train=Broken()), InvalidUserCode, r"cut off \(at sample 17\)"),
    "float64": (lambda: simulate(lambda: linear().double()), InvalidUserCode, r"model\.float\(\)"),
    "one-hot": (lambda: simulate(train=(INPUTS, ONE_HOT), test=(INPUTS, ONE_HOT)), InvalidUserCode, r"argmax\(1\)"),
    "column of labels": (
        lambda: simulate(train=(INPUTS, LABELS[:, None]), test=(INPUTS, LABELS[:, None])),
        InvalidUserCode,
        r"squeeze\(1\)",
    ),
    "class of a loss": (lambda: simulate(loss=nn.CrossEntropyLoss), InvalidUserCode, r"CrossEntropyLoss\(\)"),
    "metric as the loss": (refuse_metrics, InvalidUserCode, "metric 'loss'"),
    "metrics in a list": (lambda: simulate(metrics=[len]), InvalidUserCode, "functions by name"),
    "no list of callbacks": (lambda: simulate(callbacks=cyber0.Callback()), InvalidUserCode, "list of callbacks"),
    "callbacks as a text": (lambda: simulate(callbacks="a:b"), InvalidUserCode, "list of callbacks"),
    "task by name": (lambda: simulate(task="mnist"), InvalidConfig, "task = 'mnist'"),
    "no folder": (lambda: simulate(out=""), InvalidConfig, "out = ''"),
    "number for a folder": (lambda: simulate(out=3), InvalidConfig, "out = 3"),
    "zero byte": (lambda: simulate(out="a\0b"), InvalidConfig, "name a folder"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_a_mistake_is_named_with_what_would_be_right(case):
    attempt, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        attempt()


def dealt(labels, clients, seed):
    return [range(client, len(labels), clients) for client in range(clients)]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (None, "returned NoneType"),
        ({0: [1]}, "returned dict"),
        (np.zeros(120, dtype=int), "client 0"),
        ([np.arange(120) < 9] * 6, "indices"),
        ([[0.5]] * 6, "indices"),
    ],
    ids=["nothing", "dictionary", "owners", "masks", "halves"],
)
def test_what_is_no_partition_is_named(parts, said):
    with pytest.raises(InvalidData, match=said):
        simulate(partition=lambda labels, clients, seed: parts, alpha=None)


def test_a_partition_cannot_change_the_labels():
    def in_place(labels, clients, seed):
        labels[...] = 0
        return dealt(labels, clients, seed)

    assert simulate(partition=in_place, alpha=None).fingerprint == simulate(partition=dealt, alpha=None).fingerprint


class Meddler(cyber0.Callback):
    def after_evaluation(self, run, evaluation):
        evaluation["accuracy"], evaluation["round"] = 2.0, 99


class Eraser(cyber0.Callback):
    def after_round(self, run, round):
        round.aggregate[...] = 0


def test_a_callback_cannot_change_what_is_kept():
    result = simulate(callbacks=[Meddler()])
    assert result.history.evaluations[-1]["round"] == 3
    assert result.accuracy == simulate().accuracy
    with pytest.raises(InvalidUserCode, match="read-only"):
        simulate(callbacks=[Eraser()])


def test_a_metric_that_is_not_finite_is_kept_and_read_back(tmp_path):
    result = simulate(metrics={"ratio": lambda outputs, targets: float("inf")}, out=tmp_path / "run")
    assert np.isnan(result.metrics["ratio"])
    opened = cyber0.open_run(tmp_path / "run", task=task_of(linear, points(120), points(40, 1)))
    assert np.isnan(opened.metrics["ratio"])


def test_numbers_of_numpy_are_numbers():
    assert simulate(seed=np.int64(2), rounds=np.int32(2)).fingerprint == simulate(seed=2, rounds=2).fingerprint


def test_a_result_goes_through_pickle(tmp_path):
    result = simulate(keep="votes")
    copy = pickle.loads(pickle.dumps(result))  # noqa: S301
    assert copy.fingerprint == result.fingerprint
    assert torch.equal(copy.model.weight, result.model.weight)
    assert copy.save(tmp_path / "copy").read_bytes() == result.save(tmp_path / "own").read_bytes()


@pytest.fixture
def played(tmp_path) -> Path:
    simulate(out=tmp_path / "run", keep="votes")
    return tmp_path / "run"


def test_a_run_is_not_opened_with_the_model_of_another(played):
    other = task_of(lambda: nn.Linear(4, 5), points(120), points(40, 1), classes=5)
    with pytest.raises(InvalidData, match="the task that was trained"):
        _ = cyber0.open_run(played, task=other).model


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "votes"])
def test_a_damaged_folder_is_named(played, name):
    path = next((played / "votes").iterdir()) if name == "votes" else played / name
    path.write_bytes(path.read_bytes()[:100] if name == "votes" else b"")
    with pytest.raises(InvalidConfig, match=path.name):
        _ = cyber0.open_run(played, task=task_of(linear, points(120), points(40, 1))).model


def test_votes_that_were_cut_off_do_not_keep_a_run_from_going_on(played):
    (played / "votes" / "draft.tmp").write_bytes(b"PK half of a file")
    task = task_of(linear, points(120), points(40, 1))
    config = cyber0.RunConfig(**load(played / "config.toml")).updated(rounds=5)
    assert len(cyber0.run(config, played, task=task, keep="votes", resume=True).history.rounds) == 5


def test_a_run_is_not_continued_with_another_attack(tmp_path):
    task, config = task_of(linear, points(120), points(40, 1)), cyber0.RunConfig(**SMALL)
    result = cyber0.run(config, tmp_path / "run", task=task, attack=honest)
    assert result.config.attack.endswith(":honest")
    more = config.updated(rounds=5)
    with pytest.raises(InvalidConfig, match="holds another run"):
        cyber0.run(more, tmp_path / "run", task=task, resume=True)
    assert cyber0.run(more, tmp_path / "run", task=task, attack=honest, resume=True).summary["rounds"] == 5
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 5


def squares(outputs, targets):
    return (outputs - nn.functional.one_hot(targets, 3)).square().sum(1)


def fourths(outputs, targets):
    return (outputs - nn.functional.one_hot(targets, 3)).pow(4).sum(1)


@pytest.mark.parametrize(
    ("loss", "other", "said"),
    [
        (squares, fourths, "loss .*squares, and is to be resumed with loss .*fourths"),
        (squares, None, "with loss .*squares, and is to be resumed with the loss of the task"),
        (None, nn.CrossEntropyLoss(), "with the loss of the task, and is to be resumed with loss .*CrossEntropyLoss"),
        (lambda o, t: o.sum(1) - t, lambda o, t: o.sum(1) + t, "<lambda> with other code: give it the same loss"),
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss with other settings"),
        (nn.CrossEntropyLoss(torch.ones(3)), nn.CrossEntropyLoss(torch.arange(3.0)), "with other settings"),
    ],
)
def test_a_run_is_not_continued_with_another_loss(tmp_path, loss, other, said):
    simulate(loss=loss, classes=3, out=tmp_path / "run")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(InvalidConfig, match=said):
        simulate(loss=other, classes=3, rounds=5, out=tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == kept
    again = simulate(loss=loss, classes=3, rounds=5, out=tmp_path / "run", resume=True)
    assert again.fingerprint == simulate(loss=loss, classes=3, rounds=5).fingerprint
    assert "loss_function" not in again.history.frame().columns


def test_the_code_of_a_loss_goes_by_what_it_does():
    here = output_loss(lambda outputs, targets: (outputs - targets).abs())
    there = output_loss(lambda outputs, targets: (outputs - targets).abs())  # on another line
    other = output_loss(lambda outputs, targets: (outputs + targets).abs())
    assert describe_loss(here) == describe_loss(there) != describe_loss(other)


def test_a_model_that_mixes_the_samples_of_a_batch_is_refused():
    """Clients that are measured together would be one batch, and the engines would differ."""

    def normed(**options):
        return lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, **options), nn.ReLU(), nn.Linear(8, 3))

    class Centred(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs - inputs.mean(0))

    for model in (normed(track_running_stats=False), lambda: Centred(4, 3)):
        with pytest.raises(InvalidUserCode, match="other outputs for a sample when the rest of its batch is another"):
            build_model(task_of(model, points(120), points(40, 1)), seed=0)
    found = [simulate(normed(), engine=engine).loss for engine in ("batched", "sequential")]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_no_clients_are_not_the_default_number_of_them():
    with pytest.raises(InvalidConfig, match="clients = 0: "):
        simulate(clients=0)


def test_a_model_that_cannot_be_trained_is_refused_by_name():
    with pytest.raises(InvalidModel, match="model Softmax has no parameters"):
        simulate(nn.Softmax(1))
    broken = linear()
    nn.init.constant_(broken.bias, float("nan"))
    with pytest.raises(InvalidUserCode, match=r"parameter 'bias' of model .*Linear holds values that are not finite"):
        simulate(broken)
    simulate(lambda: nn.LazyLinear(3))


def test_sparse_inputs_are_converted_and_masked_ones_refused():
    inputs, labels = points(120)
    assert simulate(train=(inputs.to_sparse(), labels)).fingerprint == simulate().fingerprint
    with pytest.raises(InvalidData, match=r"train inputs are a masked array: .*filled"):
        simulate(train=(np.ma.masked_greater(inputs.numpy(), 1), labels))


def test_the_command_that_resumes_a_folder_can_be_pasted(tmp_path):
    simulate(out=tmp_path / "my run")
    with pytest.raises(InvalidConfig, match=r"--resume '.*/my run'"):
        simulate(out=tmp_path / "my run", lr=0.2)
