import numpy as np
import pytest

from cyber0 import errors
from cyber0.config import RunConfig
from cyber0.plan import participants
from cyber0.simulation import Simulation
from cyber0.simulation.run import run
from cyber0.tasks.task import get_task

MNIST = get_task("mnist")(None, "embedded")


def simulate(**options):
    defaults = {"clients": 10, "byzantine": 2, "directions": 16, "rounds": 30, "alpha": 1.0, "lr": 0.03}
    simulation = Simulation(RunConfig(**{**defaults, **options}), MNIST)
    rounds = list(simulation.play())
    return simulation, rounds


def test_the_same_configuration_gives_the_same_model():
    one, two = (simulate(rounds=5, attack="alie", rule="nnm+cwtm")[0].parameters.fingerprint() for _ in range(2))
    assert one == two
    assert one != simulate(rounds=5, attack="alie", rule="nnm+cwtm", seed=1)[0].parameters.fingerprint()


@pytest.mark.parametrize("algorithm", ["cyber0", "fedavg"])
def test_liars_break_the_mean_and_not_a_robust_rule(algorithm):
    options = {"algorithm": algorithm, "attack": "foe(omega=100)", "rounds": 40}
    broken, robust = (simulate(rule=rule, **options)[0].evaluate().accuracy for rule in ("mean", "nnm+cwtm"))
    honest = simulate(algorithm=algorithm, rounds=40)[0].evaluate().accuracy
    assert broken < 0.3
    assert robust > 0.5
    assert robust > honest - 0.25


@pytest.mark.parametrize("attack", ["alie", "foe", "alie-nnm", "foe-nnm", "sf", "lf", "tma", "min-max", "min-sum",
                                    "mimic", "noise", "zero", "nonfinite", "none"])  # fmt: skip
def test_every_attack_can_be_played(attack):
    simulation, rounds = simulate(attack=attack, rule="nnm+cwtm", rounds=3)
    assert [len(played.admitted) for played in rounds] == [8 if attack == "nonfinite" else 10] * 3
    assert np.isfinite(simulation.evaluate().loss)


def test_label_flipping_changes_the_liars_labels_alone():
    honest, flipped = (simulate(attack=attack, rounds=1)[0].population for attack in ("none", "lf"))
    liars = np.concatenate(honest.shares[-2:])
    changed = (honest.labels != flipped.labels).numpy()
    assert changed[liars].all()  # 9 - y is never y
    assert changed.sum() == len(liars)


def test_a_round_short_of_votes_changes_nothing():
    simulation, rounds = simulate(participation=0.7, dropout=0.3, rounds=40)
    short = [played for played in rounds if played.aggregate is None]
    assert 0 < len(short) < 40
    assert all(len(played.admitted) <= 4 for played in short)
    lonely, rounds = simulate(dropout=0.9, rounds=5)
    assert all(played.aggregate is None for played in rounds)
    assert not any(p.any() for p in lonely.parameters.tensors.values())
    assert simulation.parameters.fingerprint() != lonely.parameters.fingerprint()


def test_a_rule_is_not_asked_for_more_than_it_can_decide():
    """Bulyan needs 4 b + 3 votes: a round with fewer is left out, it does not end the run."""
    _, rounds = simulate(rule="bulyan", clients=12, byzantine=2, dropout=0.15, rounds=30)
    decided = {len(played.admitted) for played in rounds if played.aggregate is not None}
    assert decided == {11, 12}
    assert any(played.aggregate is None for played in rounds)
    _, rounds = simulate(rule="bulyan", clients=11, byzantine=2, attack="nonfinite", rounds=2)
    assert all(played.aggregate is None for played in rounds)


def test_a_model_that_has_diverged_ends_no_run():
    config = RunConfig(clients=10, byzantine=2, directions=4, rounds=3, rule="nnm+krum", attack="foe-nnm")
    simulation = Simulation(config, MNIST)
    simulation.parameters.tensors["weight"].data.fill_(float("nan"))
    assert [(len(played.admitted), played.aggregate) for played in simulation.play()] == [(0, None)] * 3


def along_the_wrong_axis(vectors, byzantine):  # noqa: ARG001
    return vectors.mean(0)


def not_a_number(vectors, byzantine):  # noqa: ARG001
    return vectors[..., 0, :] * (np.nan if vectors.any() else 1)


def test_a_rule_of_yours_is_checked(monkeypatch):
    import cyber0.aggregation.registry as naming

    monkeypatch.setitem(naming.RULES, "wrong", along_the_wrong_axis)
    monkeypatch.setitem(naming.RULES, "nan", not_a_number)
    with pytest.raises(errors.InvalidAggregation, match=r"rule 'wrong' made \(2, 10, 3\) votes into \(10, 3\)"):
        simulate(rule="wrong")
    with pytest.raises(errors.InvalidAggregation, match=r"rule 'nan' made .* finite numbers"):
        simulate(rule="nan")


def test_participation_is_drawn_by_seed():
    drawn = [participants(seed, t, 20, 10, 0.2) for seed in (0, 1) for t in (0, 1)]
    assert all((np.diff(who) > 0).all() and len(who) <= 10 for who in drawn)
    assert len({tuple(who) for who in drawn}) == 4
    assert (participants(0, 0, 20, 10, 0.2) == drawn[0]).all()
    assert np.mean([len(participants(0, t, 100, 100, 0.3)) for t in range(200)]) == pytest.approx(70, abs=2)


def test_two_clients_never_draw_each_others_samples():
    population = simulate(rounds=1)[0].population
    held = [set(share.tolist()) for share in population.shares]
    for t in (0, 31, 32, 33):
        for client in range(10):
            assert set(population._indices(t)[0, client].tolist()) <= held[client]


def test_clients_draw_what_they_would_draw_alone():
    from cyber0.tasks.batches import batch_indices

    population = simulate(rounds=1, local_epochs=2)[0].population
    for t, epoch, client in ((0, 0, 0), (40, 1, 9), (63, 1, 4)):
        alone = batch_indices(0, client, t, epoch, population.shares[client], 64)
        assert (population._indices(t)[epoch, client] == alone).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rule": "cwmt"}, errors.UnknownName, "did you mean 'cwtm'"),
        ({"attack": "foo"}, errors.UnknownName, "did you mean 'foe'"),
        ({"partition": "dirichlt"}, errors.UnknownName, "dirichlet"),
        ({"task": "mnits"}, errors.UnknownName, "did you mean 'mnist'"),
        ({"rule": "bulyan", "clients": 10, "byzantine": 2}, errors.InputError, "Bulyan needs"),
        ({"device": "cuda:77"}, errors.InvalidConfig, "device = 'cuda:77' cannot be used"),
        ({"device": "gpu"}, errors.InvalidConfig, "device = 'gpu' cannot be used"),
        ({"clients": 5000}, errors.InvalidData, "5000"),
        ({"device": "meta"}, errors.InvalidConfig, "device = 'meta' cannot be used"),
        ({"partition": "iid", "alpha": 2.0}, errors.InvalidConfig, "alpha = 2.0 is for partition = 'dirichlet'"),
        ({"partition": "dirichlet(alpha='x')"}, errors.InputError, "alpha"),
        ({"partition": "shards(per_client=1.5)"}, errors.InputError, "shards"),
        ({"task": "mnist-mlp(hidden='a')"}, errors.InvalidConfig, "task = .*hidden"),
        ({"task": "mnist-mlp(hidden=-1)"}, errors.InvalidConfig, "task = "),
        ({"rule": "krum(power='x')"}, errors.InputError, "krum"),
        ({"rule": "krum(power={[]: 1})"}, errors.InvalidName, "options are written name=value"),
        ({"rule": "krum(**{'power': 1})"}, errors.InvalidName, "options are written name=value"),
        ({"rule": ":foo"}, errors.InvalidName, "names no module"),
        ({"rule": ".x:foo"}, errors.InvalidName, "names no module"),
    ],
)
def test_what_cannot_be_simulated_is_refused_at_once(options, error, message):
    defaults = {"source": "embedded", "clients": 10, "byzantine": 2}
    with pytest.raises(error, match=message):
        Simulation(RunConfig(**{**defaults, **options}))


def test_a_summary_counts_what_was_sent():
    base = {"source": "embedded", "clients": 5, "byzantine": 1, "directions": 4, "rounds": 4, "local_epochs": 3}
    for options, scalars in (({}, 48), ({"scheme": "biased"}, 16), ({"algorithm": "fedavg"}, 4 * 7850)):
        summary = run(RunConfig(**base, **options)).summary
        assert summary["scalars_up_per_client"] == summary["scalars_down_per_client"] == scalars
        assert summary["bytes_up_per_client"] == 4 * scalars
    half = run(RunConfig(**{**base, "clients": 10, "participation": 0.5})).summary
    assert half["scalars_up_per_client"] == 24
    assert half["scalars_down_per_client"] == 48
