"""What a newcomer writes: an own model, own data, own rules and attacks, and what comes back."""
# ruff: noqa: ARG001, ARG002, ARG005 (rules, attacks and callbacks share their signatures)

import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import cyber0
from cyber0.errors import Cyber0Error, InvalidAggregation, InvalidConfig, InvalidUserCode, UnknownName
from cyber0.parameters import Parameters
from cyber0.protocol import export
from cyber0.protocol.ledger import Memory
from cyber0.replay import rebuild
from cyber0.simulation import Simulation
from cyber0.simulation.folder import RunFolder

NAMES = [
    "Callback",
    "Cyber0Error",
    "Dataset",
    "History",
    "Result",
    "RunConfig",
    "Task",
    "__version__",
    "get_attack",
    "get_rule",
    "get_task",
    "open_run",
    "run",
    "simulate",
]


def points(count=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, (x.sum(1) > 0).long()


TRAIN, TEST = points(300), points(100, seed=1)
FAST = {
    "clients": 6,
    "byzantine": 1,
    "partition": "iid",
    "rounds": 6,
    "directions": 8,
    "batch": 16,
    "evaluate_every": 2,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers(x)


def simulate(**options):
    return cyber0.simulate(**{"model": nn.Linear(3, 2), "train": TRAIN, "test": TEST, **FAST, **options})


# The root


def test_the_root_is_a_dozen_names():
    assert cyber0.__all__ == NAMES
    assert set(NAMES) <= set(dir(cyber0))
    assert all(getattr(cyber0, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="has no attribute 'simulat': it has Callback"):
        _ = cyber0.simulat


def test_to_import_the_root_needs_no_torch():
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import cyber0; print(cyber0.RunConfig().rule, cyber0.get_rule('nnm+cwtm').name)\n"
        "try:\n    cyber0.simulate\n"
        "except ImportError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[0] == "cwtm nnm+cwtm"
    assert "pip install 'cyber0[train]'" in said


# Models and data


def test_tensors_arrays_and_data_sets_are_the_same_run():
    model = Net()
    arrays = tuple(part.numpy() for part in TRAIN), tuple(part.numpy().astype("int32") for part in TEST[1:])
    given = [
        (TRAIN, TEST),
        (arrays[0], (TEST[0].double(), arrays[1][0])),
        (TensorDataset(*TRAIN), TensorDataset(*TEST)),
    ]
    found = {simulate(model=model, train=train, test=test).fingerprint for train, test in given}
    assert len(found) == 1


def test_a_list_has_one_data_set_for_each_client():
    parts = [(TRAIN[0][k::4], TRAIN[1][k::4]) for k in range(4)]
    votes = []

    class Sizes(cyber0.Callback):
        def before_run(self, run):
            votes.extend(len(share) for share in run.population.shares)

    result = cyber0.simulate(Net, parts, TEST, rounds=2, directions=4, callbacks=[Sizes])
    assert votes == [75] * 4
    assert (result.config.clients, result.config.byzantine) == (4, 1)
    with pytest.raises(Cyber0Error, match="clients = 6, and there is a data set for each of 4"):
        cyber0.simulate(Net, parts, TEST, clients=6, rounds=2)


def test_what_is_random_in_a_users_model_follows_the_seed_and_leaves_torch_alone():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    runs = (cyber0.simulate(Net, TRAIN, TEST, **FAST, seed=seed) for seed in (1, 1, 2))
    first, again, other = (result.fingerprint for result in runs)
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), before)


def test_regression_with_a_loss_and_a_metric_of_ones_own():
    x = TRAIN[0]
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    result = simulate(
        model=nn.Linear(3, 1),
        train=(x, y),
        test=(x[:50], y[:50]),
        loss=nn.functional.mse_loss,
        metrics={"mae": lambda outputs, targets: (outputs - targets).abs().mean()},
        rounds=80,
        lr=0.3,
        validation=0.2,
    )
    assert result.accuracy is None
    assert result.loss < result.history.evaluations[0]["loss"] / 10
    assert result.metrics["mae"] == result.history.frame()["mae"].iloc[-1] > 0
    losses = [line["validation_loss"] for line in result.history.evaluations]
    assert result.best_on_validation["validation_loss"] == min(losses)
    assert result.plot().get_ylabel() == "loss on test samples"


# Results


def test_a_result_is_read_back_from_its_folder(tmp_path):
    result = simulate(model=Net, attack="foe", out=tmp_path / "run", keep="votes", validation=0.1)
    task = Simulation(result.config, task=cyber0_task()).task
    again = cyber0.open_run(str(tmp_path / "run"), task=task)
    assert again.summary == result.summary
    assert again.history.frame().equals(result.history.frame())
    assert again.history.votes().equals(result.history.votes())
    for ours, theirs in zip(again.model.parameters(), result.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    result.save(tmp_path / "a.cyber0")
    again.save(tmp_path / "b.cyber0")
    assert (tmp_path / "a.cyber0").read_bytes() == (tmp_path / "b.cyber0").read_bytes()
    with Memory() as ledger:
        ledger.adopt(export.read(tmp_path / "a.cyber0"))
        weights = Parameters.of(Simulation(result.config, task=task).parameters.module)
        assert f"{rebuild(ledger, as_numpy(weights)):016x}" == result.fingerprint


def cyber0_task():
    from cyber0.tasks.convert import task_of

    return task_of(Net, TRAIN, TEST)


def as_numpy(parameters):
    return Parameters({name: tensor.detach().numpy() for name, tensor in parameters.tensors.items()})


def test_a_run_that_has_not_ended_is_not_opened(tmp_path):
    RunFolder.new(tmp_path / "run", cyber0.RunConfig()).close()
    with pytest.raises(InvalidConfig, match="has not ended: continue it with cyber0 run --resume"):
        cyber0.open_run(tmp_path / "run")


def test_a_run_of_ones_own_model_is_opened_with_its_task(tmp_path):
    simulate(model=Net, out=tmp_path / "run")
    opened = cyber0.open_run(tmp_path / "run")
    assert opened.accuracy is not None
    for use in (lambda: opened.model, lambda: opened.save(tmp_path / "run.cyber0")):
        with pytest.raises(
            InvalidConfig, match=r"was played with .*Net', which names no task .*give open_run the task"
        ):
            use()


def test_a_run_with_functions_that_have_no_name_is_opened_and_saved(tmp_path):
    own = {
        "rule": lambda vectors, byzantine: np.median(vectors, axis=-2),
        "attack": lambda vectors, liars, rule, byzantine, rng: -vectors[..., liars, :],
        "partition": lambda labels, clients, seed: np.array_split(np.arange(len(labels)), clients),
    }
    result = simulate(model=Net, out=tmp_path / "run", **own)
    opened = cyber0.open_run(tmp_path / "run", task=cyber0_task())
    saved = [each.save(tmp_path / name).read_bytes() for each, name in ((result, "a"), (opened, "b"))]
    assert saved[0] == saved[1]


def test_a_simulation_is_extended_to_the_same_model(tmp_path):
    simulate(model=Net, attack="foe", out=tmp_path / "run")
    more = simulate(model=Net, attack="foe", out=tmp_path / "run", rounds=8, resume=True)
    assert more.fingerprint == simulate(model=Net, attack="foe", rounds=8).fingerprint


def test_a_simulation_is_not_resumed_by_a_command_that_has_neither_its_model_nor_its_data(tmp_path):
    simulate(model=Net, out=tmp_path / "run")
    command = [sys.executable, "-m", "cyber0", "run", "--resume", str(tmp_path / "run"), "--rounds", "8"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert "continue it in Python, by the same call of cyber0.simulate with out='" in said
    assert "--resume" not in said
    assert cyber0.open_run(tmp_path / "run").summary["rounds"] == 6
    assert simulate(model=Net, out=tmp_path / "run", rounds=8, resume=True).summary["rounds"] == 8


def test_the_weights_can_be_read_by_whom_the_umask_allows(tmp_path):
    (tmp_path / "other").touch()
    simulate(out=tmp_path / "run")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("other", "run/model.safetensors")}
    assert len(modes) == 1
    assert "alpha = 0.1" in cyber0.RunConfig().to_toml()


def test_a_plot_is_shared_by_results(tmp_path):
    axes = None
    for attack in ("none", "foe", "sf"):
        axes = simulate(attack=attack, clients=8, byzantine=2).plot(axes, label=attack)
    axes.figure.savefig(tmp_path / "attacks.svg")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["none", "foe", "sf"]
    assert (tmp_path / "attacks.svg").stat().st_size > 5000


def test_the_best_round_on_validation_is_chosen_without_the_test_samples():
    result = simulate(validation=0.2, rounds=20, evaluate_every=1, lr=3.0)
    lines = result.history.evaluations
    chosen = result.best_on_validation
    assert chosen["validation_accuracy"] == max(line["validation_accuracy"] for line in lines)
    assert result.best_on_test["accuracy"] == max(line["accuracy"] for line in lines) >= chosen["accuracy"]
    assert result.summary["accuracy_at_best_validation"] == chosen["accuracy"]
    with pytest.raises(InvalidConfig, match="no samples were held out"):
        _ = simulate().best_on_validation


# Histories


def test_the_history_has_every_vote_every_lie_and_what_came_of_them():
    result = simulate(clients=8, byzantine=2, attack="foe", rule="nnm+cwtm", keep="votes", local_epochs=2)
    votes = result.history.votes()
    assert len(votes) == 6 * 8 * 16
    honest = votes[~votes.byzantine]
    assert (honest.honest == honest.sent).all()
    rule = cyber0.get_rule("nnm+cwtm")
    for played in result.history.rounds:
        for row, (sent, measured) in enumerate(zip(played.sent, played.honest, strict=True)):
            expected = rule(sent.astype(np.float64), 2).astype(np.float32)
            assert played.aggregate[row].tobytes() == expected.tobytes()
            omega = np.ravel(played.reports["omega"])[row]
            lie = (1 - omega) * measured[:6].astype(np.float64).mean(axis=0)
            np.testing.assert_allclose(sent[6], lie, rtol=1e-5, atol=1e-6)
    assert set(votes.columns) >= {"omega", "admitted", "aggregate"}
    with pytest.raises(InvalidConfig, match="simulate or run it with keep='votes'"):
        simulate().history.votes()


# Rules and attacks with memory


class Drifting:
    """An attack with memory: it pushes against the sum of all it has seen."""

    def __init__(self, *, pull=1.0):
        self.pull, self.total, self.calls = pull, 0.0, 0

    def __call__(self, vectors, liars, rule, byzantine, rng, *, round):
        self.total = self.total + vectors.mean(axis=-2)
        self.calls += 1
        assert round + 1 == self.calls
        lie = -self.pull * self.total + rng.normal(size=self.total.shape)
        return np.repeat(lie[..., None, :], len(liars), axis=-2)

    def state(self):
        return {"total": self.total, "calls": self.calls}

    def restore(self, state):
        self.total, self.calls = np.array(state["total"]), state["calls"]


class Forgetful(Drifting):
    state = restore = None


class Previous:
    """A rule with memory: half of the median, half of the last aggregate."""

    def begin(self):
        return 0.0

    def after(self, memory, scalars):
        return np.array(scalars, dtype=np.float64)

    def __call__(self, vectors, byzantine, memory):
        return np.median(vectors, axis=-2) / 2 + memory / 2


def stopped(tmp_path, name, **options):
    """A run in a folder, cut off after its second evaluation of four, and resumed."""
    whole = simulate(**options, out=tmp_path / "whole")
    path = tmp_path / name

    class Stop(cyber0.Callback):
        def after_evaluation(self, run, evaluation):
            if evaluation["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(**options, out=path, callbacks=[Stop])
    return whole, path


@pytest.mark.parametrize(
    "options",
    [
        {"attack": Drifting},
        {"rule": Previous()},
        {"rule": "centered_clipping_previous", "attack": "foe"},
        {"schedule": "warmup(rounds=2)+cosine"},
        {"validation": 0.2, "attack": "noise"},
    ],
    ids=["attack", "rule", "shipped rule", "schedule", "validation"],
)
def test_a_run_that_was_stopped_ends_in_the_same_bits(tmp_path, options):
    model = Net()
    whole, path = stopped(tmp_path, "stopped", model=model, **options)
    from cyber0.tasks.convert import task_of

    objects = {key: value for key, value in options.items() if key in ("rule", "attack") and not isinstance(value, str)}
    again = cyber0.run(whole.config, path, task=task_of(model, TRAIN, TEST), resume=True, **objects)
    assert again.fingerprint == whole.fingerprint
    assert (path / "scalars.f32").read_bytes() == (tmp_path / "whole" / "scalars.f32").read_bytes()
    assert [line["accuracy"] for line in again.history.evaluations] == [
        line["accuracy"] for line in whole.history.evaluations
    ]


def test_an_attack_that_cannot_be_resumed_says_so(tmp_path):
    model = Net()
    whole, path = stopped(tmp_path, "stopped", model=model, attack=Forgetful)
    from cyber0.tasks.convert import task_of

    with pytest.raises(InvalidConfig, match=r"Forgetful' may remember earlier rounds and has no state\(\)"):
        cyber0.run(whole.config, path, task=task_of(model, TRAIN, TEST), attack=Forgetful, resume=True)


def test_the_state_of_an_attack_belongs_to_one_run():
    model, attack = Net(), Drifting(pull=2.0)
    first, second = (simulate(model=model, attack=attack).fingerprint for _ in range(2))
    assert first == second
    assert attack.calls == 0


def test_an_attack_knows_the_model_only_if_it_is_said_to():
    def push(vectors, liars, rule, byzantine, rng, *, model):
        return np.full((*vectors.shape[:-2], len(liars), vectors.shape[-1]), float(model.weight.detach().sum()))

    with pytest.raises(Cyber0Error, match="asks for the model: grant it by knows = 'model'"):
        simulate(attack=push)
    assert simulate(attack=push, knows="model").summary["rounds"] == 6


# What goes wrong


def test_a_client_with_nan_data_costs_only_its_own_vote_by_either_engine():
    inputs, labels = TRAIN[0].clone(), TRAIN[1]
    inputs[:50] = float("nan")
    shares = np.split(np.arange(300), 6)
    dataset = cyber0.Dataset(inputs.numpy(), labels.numpy(), *(part.numpy() for part in TEST), 2, "mine", shares=shares)
    task = cyber0.Task("mine", dataset, lambda _: nn.Linear(3, 2))
    found = {}
    for engine in ("batched", "sequential"):
        config = cyber0.RunConfig(**{**FAST, "attack": "foe", "rule": "mean", "engine": engine})
        result = cyber0.run(config, task=task, keep="votes")
        votes = result.history.votes()
        assert set(votes[~votes.admitted].client) == {0}
        liar = votes[votes.byzantine & (votes["round"] == 0)]
        assert (liar.sent != liar.honest).all()
        assert result.summary["dropped_votes"] == {
            "client-0": "6: not finite, since the client's data hold values that are not finite"
        }
        found[engine] = result
    first, second = (result.history.rounds[0] for result in found.values())
    np.testing.assert_allclose(first.aggregate, second.aggregate, rtol=1e-3, atol=1e-3)
    assert np.isnan(first.honest[:, 0]).all() == np.isnan(second.honest[:, 0]).all()


def test_a_rule_that_raises_is_an_invalid_aggregation():
    def broken(vectors, byzantine):
        if np.any(vectors):
            raise KeyError("my table")
        return vectors[..., 0, :]

    with pytest.raises(InvalidAggregation, match="broken") as caught:
        simulate(rule=broken)
    assert isinstance(caught.value.__cause__, KeyError)


class Misspelt(cyber0.Callback):
    def after_rounds(self, run, round):
        raise AssertionError


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": float("nan")}, InvalidConfig, "lr = nan: input should be a finite number"),
        ({"rounds": "many"}, InvalidConfig, "rounds = 'many'"),
        ({"leraning_rate": 0.1}, UnknownName, "unknown key 'leraning_rate'"),
        ({"partition": "iid", "alpha": 0.5}, InvalidConfig, "alpha = 0.5 is for partition = 'dirichlet', not 'iid'"),
        ({"partition": "dirichlet(alpha=1)", "alpha": 0.5}, InvalidConfig, "give alpha once"),
        ({"schedule": "cosin"}, InvalidConfig, "unknown schedule 'cosin'"),
        ({"keep": "vote"}, InvalidConfig, "keep = 'vote': use 'votes'"),
        ({"callbacks": [print]}, InvalidUserCode, "callback 'print': give an object of a subclass of cyber0.Callback"),
        ({"validation": 1.5}, InvalidConfig, "validation = 1.5"),
        ({"model": nn.Linear(3, 1)}, InvalidUserCode, "it must give shape"),
        ({"loss": lambda outputs, targets: outputs.mean()}, InvalidUserCode, "one value for each of them"),
        ({"loss": lambda outputs, targets: outputs[:, 0] / 0 * 0}, InvalidUserCode, "gave nan for all of 4 samples"),
        ({"callbacks": [Misspelt()]}, InvalidUserCode, "Misspelt has after_rounds, which nothing calls"),
        ({"test": None}, Cyber0Error, "test = None"),
        ({"batch": 10**11}, InvalidConfig, "GiB for a local step"),
        ({"byzantine": 3}, InvalidConfig, "byzantine = 3 of clients = 6: at most 2 may lie$"),
        ({"metrics": {"f1": lambda outputs, targets: 1 / 0}}, InvalidUserCode, "metric 'f1' .* ZeroDivisionError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_a_sentence(options, error, message):
    with pytest.raises(error, match=message):
        simulate(**options)


def test_data_of_each_client_are_not_dealt_out_and_the_record_says_so():
    generator = np.random.default_rng(0)
    own = [(generator.standard_normal((9, 3)).astype(np.float32), np.arange(9) % 2) for _ in range(4)]
    options = {"byzantine": 1, "rounds": 1, "directions": 2, "batch": 2, "device": "cpu"}
    result = cyber0.simulate(nn.Linear(3, 2), own, own[0], **options)
    assert (result.config.partition, result.config.alpha) == ("natural", None)
    for key, value in {"alpha": 0.5, "partition": "iid"}.items():
        with pytest.raises(InvalidConfig, match=f"{key} = {value!r}: train is a list with the data of each client"):
            cyber0.simulate(nn.Linear(3, 2), own, own[0], **options, **{key: value})
    with pytest.raises(InvalidConfig, match="axes = 'here': give one axes of matplotlib"):
        result.plot("here")


def test_an_error_in_a_callback_names_it():
    class Loud(cyber0.Callback):
        def after_round(self, run, round):
            raise ZeroDivisionError("no")

    with pytest.raises(InvalidUserCode, match="Loud raised ZeroDivisionError: no"):
        simulate(callbacks=[Loud()])


# More rounds


def test_a_finished_run_is_extended_without_rewriting_its_past(tmp_path):
    config = cyber0.RunConfig(
        source="embedded", **{**FAST, "rounds": 4, "schedule": "linear(end=0.5)", "attack": "sf"}, device="cpu"
    )
    assert config.horizon == 4
    short = cyber0.run(config, tmp_path / "run")
    past = (tmp_path / "run" / "scalars.f32").read_bytes(), short.history.evaluations
    more = cyber0.run(config.updated(rounds=10), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "scalars.f32").read_bytes().startswith(past[0])
    assert more.history.evaluations[: len(past[1])] == past[1]
    assert more.summary["rounds"] == 10
    assert cyber0.open_run(tmp_path / "run").fingerprint == more.fingerprint
    assert RunFolder.configuration(tmp_path / "run").horizon == 4
    at_once = cyber0.run(config.updated(rounds=10, horizon=4))
    assert at_once.fingerprint == more.fingerprint
    with pytest.raises(InvalidConfig, match="10 rounds have been played"):
        cyber0.run(config.updated(rounds=5), tmp_path / "run", resume=True)
    with pytest.raises(InvalidConfig, match="only rounds and options of this machine may change"):
        cyber0.run(config.updated(rounds=12, lr=0.5), tmp_path / "run", resume=True)


def test_a_schedule_is_part_of_the_model_that_is_rebuilt(tmp_path):
    config = cyber0.RunConfig(source="embedded", **{**FAST, "schedule": "warmup(rounds=3)+cosine"}, device="cpu")
    result = cyber0.run(config)
    with Memory() as ledger:
        ledger.adopt(export.read(result.save(Path(tmp_path) / "run.cyber0")))
        zeros = Simulation(config).parameters
        assert f"{rebuild(ledger, as_numpy(zeros)):016x}" == result.fingerprint
    assert result.fingerprint != cyber0.run(config.updated(schedule="constant", horizon=None)).fingerprint


def test_a_partition_of_ones_own_is_not_given_the_default_of_another():
    def halves(labels, clients, seed):
        return np.array_split(np.arange(len(labels)), clients)

    config = cyber0.RunConfig(source="embedded", clients=6, byzantine=1, directions=4, rounds=2)
    result = cyber0.run(config, partition=halves)
    assert result.config.alpha is None
    assert result.config.partition.endswith("halves")
