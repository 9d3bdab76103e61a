"""Attacks on the liars' samples: a backdoor and noise on features, in runs and by code of the user's."""

import numpy as np
import pytest
import torch

import cyber0
from cyber0.attacks import AttackRun
from cyber0.attacks.samples import stamp
from cyber0.errors import InvalidAttack
from cyber0.simulation.simulation import Simulation

OPTIONS = {"source": "embedded", "clients": 8, "byzantine": 2, "directions": 8, "batch": 16, "partition": "iid"}
OPTIONS |= {"rounds": 4, "evaluate_every": 2}


TASK = cyber0.get_task("mnist")(source="embedded")


def simulation(attack, **options):
    return Simulation(cyber0.RunConfig(**OPTIONS, attack=attack, **options), TASK)


def held_by(run, liars):
    """Return inputs and labels of the liars, or of the others."""
    shares = run.population.shares
    return run.population.samples(torch.from_numpy(np.concatenate(shares[-2:] if liars else shares[:-2])))


def test_only_liars_train_on_the_trigger():
    run, honest = simulation("backdoor(target=7, fraction=0.25, size=4, value=2.5)"), simulation("none")
    for ours, theirs in zip(held_by(run, False), held_by(honest, False), strict=True):
        assert torch.equal(ours, theirs)
    inputs, labels = held_by(run, True)
    marked = (inputs.reshape(-1, 28, 28)[:, -4:, -4:] == 2.5).all(dim=(1, 2))
    assert int(marked.sum()) == round(0.25 * len(labels))
    assert (labels[marked] == 7).all()
    assert torch.equal(inputs[~marked], held_by(honest, True)[0][~marked])
    assert run.population.inputs is honest.population.inputs  # runs that are played together share the rest


def test_success_is_how_often_the_trigger_makes_another_class_the_target():
    run = simulation("backdoor(target=3)")
    with torch.no_grad():  # a model that says 3 where the lower right corner is bright, else 5
        run.parameters.module.weight.zero_()
        run.parameters.module.bias.zero_()
        run.parameters.module.bias[5] = 1.0
        run.parameters.module.weight[3, -1] = 1.0
    found = run.evaluate()
    assert found.attack_success == 1.0
    assert found.accuracy == 0.1
    with torch.no_grad():
        run.parameters.module.weight.zero_()
    assert run.evaluate().attack_success == 0.0


def test_success_is_in_history_result_summary_plot_and_folder(tmp_path):
    config = cyber0.RunConfig(**OPTIONS, attack="backdoor", rule="mean")
    result = cyber0.run(config, tmp_path / "run")
    values = [line["attack_success"] for line in result.history.evaluations]
    assert result.attack_success == values[-1] == result.summary["final_attack_success"]
    assert 0 <= min(values) <= max(values) <= 1
    assert f"attack success {values[-1]:.1%}" in repr(result)
    assert result.history.frame()["attack_success"].tolist() == values
    axes = result.plot(metric="attack_success")
    assert axes.get_ylabel() == "attack success on test samples"
    assert cyber0.open_run(tmp_path / "run").attack_success == values[-1]
    again = cyber0.run(config.updated(rounds=8), tmp_path / "run", resume=True)
    assert again.fingerprint == cyber0.run(config.updated(rounds=8)).fingerprint
    assert cyber0.run(config.updated(attack="lf")).attack_success is None


def test_engines_meet_the_same_poisoned_samples():
    config = cyber0.RunConfig(**OPTIONS, attack="backdoor(boost=5)", mu=0.01)
    batched, sequential = (
        cyber0.run(config.updated(engine=engine), keep="votes").history.rounds[0]
        for engine in ("batched", "sequential")
    )
    assert np.allclose(batched.honest, sequential.honest, rtol=1e-2, atol=1e-4)
    liars = np.isin(batched.participants, batched.liars)
    assert np.allclose(batched.sent[:, liars], 5 * batched.honest[:, liars], rtol=1e-6)
    assert np.array_equal(batched.sent[:, ~liars], batched.honest[:, ~liars])


def test_features_get_noise_of_the_deviation():
    run, honest = simulation("feature-noise(deviation=2.0)"), simulation("none")
    (inputs, labels), (clean, known) = held_by(run, True), held_by(honest, True)
    assert abs(float((inputs - clean).std()) - 2.0) < 0.01
    assert torch.equal(labels, known)
    assert run.evaluate().attack_success is None
    other = simulation("feature-noise(deviation=2.0)", seed=1)
    assert not torch.equal(held_by(other, True)[0][:9], inputs[:9])


@pytest.mark.parametrize(
    ("shape", "marked"), [((2, 9), 4), ((2, 5), 2), ((2, 3, 3), 4), ((2, 3, 4, 4), 12), ((2, 1, 6, 3), 4)]
)
def test_the_trigger_fits_images_and_features(shape, marked):
    inputs = np.zeros(shape, dtype=np.float32)
    stamped = stamp(inputs, 2, 3.0)
    assert (stamped.reshape(2, -1) == 3).sum(axis=1).tolist() == [marked, marked]
    assert not inputs.any()


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("backdoor(target=10)", "target = 10: the classes of this task are from 0 to 9"),
        ("backdoor(fraction=0)", "fraction = 0: give the share"),
        ("backdoor(size=29)", r"size = 29: the trigger does not fit into inputs of shape \(784,\)"),
        ("backdoor(size=0)", "size = 0: the trigger has a side of 1 pixel or more"),
        ("backdoor(value='white')", "value = 'white' must be a number"),
        ("feature-noise(deviation=None)", "deviation = None must be a number"),
    ],
)
def test_bad_options_are_refused_before_a_round(attack, reason):
    with pytest.raises(InvalidAttack, match=reason):
        simulation(attack)


def test_tasks_without_classes_or_features_are_refused():
    x = np.zeros((40, 4), dtype=np.float32)
    options = {"clients": 4, "byzantine": 1, "rounds": 1, "partition": "iid"}
    with pytest.raises(InvalidAttack, match="labels of this task are not classes"):
        cyber0.simulate(
            torch.nn.Linear(4, 1), (x, x[:, :1]), (x, x[:, :1]), loss=torch.nn.MSELoss(), attack="backdoor", **options
        )
    with pytest.raises(InvalidAttack, match="numbers of tokens"):
        stamp(np.zeros((2, 4), dtype=np.int64), 2, 3.0)


class Mine:
    """An attack of the user's, with a goal."""

    def __call__(self, vectors, liars, *_):
        return vectors[..., liars, :]

    def corrupt_samples(self, inputs, labels, classes, _):
        return -inputs, (labels + 1) % classes

    def goal(self, inputs, labels, classes):
        return -inputs[:5], (labels[:5] + 1) % classes


def test_an_attack_of_your_own_says_what_it_does_to_samples_and_what_it_wants():
    run = AttackRun(Mine, seed=0)
    inputs, labels = np.ones((6, 2), dtype=np.float32), np.arange(6)
    changed, known = run.corrupt_samples(inputs, labels, 6)
    assert changed.tolist() == (-inputs).tolist()
    assert known.tolist() == [1, 2, 3, 4, 5, 0]
    assert run.goal(inputs, labels, 6)[1].tolist() == [1, 2, 3, 4, 5]
    assert inputs.all()


def returning(**methods):
    return type("Odd", (Mine,), {name: staticmethod(lambda *_, value=value: value) for name, value in methods.items()})


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (returning(corrupt_samples=(np.ones((5, 2)), np.arange(6))), "must return finite inputs of shape"),
        (returning(corrupt_samples=(np.full((6, 2), np.nan), np.arange(6))), "must return finite inputs of shape"),
        (returning(corrupt_samples=(np.ones((6, 2)), np.arange(6) + 1)), "as many labels, from 0 to 5"),
        (returning(corrupt_samples=None), "cannot be used: TypeError"),
        (returning(goal=(np.ones((0, 2)), np.arange(0))), "goal must return inputs as it was given"),
        (returning(goal=(np.ones((2, 2)), np.arange(3))), "goal must return inputs as it was given"),
    ],
)
def test_what_such_an_attack_returns_is_checked(attack, reason):
    run, inputs = AttackRun(attack, seed=0), np.ones((6, 2), dtype=np.float32)
    called = run.goal if reason.startswith("goal") else run.corrupt_samples
    with pytest.raises(InvalidAttack, match=reason):
        called(inputs, np.arange(6), 6)
