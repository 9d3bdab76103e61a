"""Language models in simulations and federations: both engines, every precision, and always the same bits."""

from functools import partial

import numpy as np
import pytest
from tests.network.parties import deal
from tests.network.test_federation import play
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidParameters
from cyber0.network.local_model import LocalModel
from cyber0.network.member import Member
from cyber0.participant import load_task
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import to_wire
from cyber0.replay import base, rebuild
from cyber0.replay.weights import Weights
from cyber0.simulation import Simulation
from cyber0.tasks.task import make
from cyber0.tasks.text import tiny

pytest.importorskip("transformers")

TASK = "text-classification(prompt='prompt.toml')"
SMALL = {"clients": 3, "byzantine": 1, "directions": 2, "rounds": 3, "batch": 6, "lr": 0.01, "mu": 0.01}
KINDS = ["roberta", "llama", "mixtral"]
SCHEMES = ["unbiased", "biased", "compressed"]
PRECISIONS = ["float32", "mixed", "bf16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tiny.data(tmp_path_factory.mktemp("layerwise"))
    for kind in KINDS:
        tiny.model(folder / kind, kind)
    return folder


@pytest.fixture(scope="module")
def tasks(folder):
    return {kind: make(TASK, folder, "auto", str(folder / kind)) for kind in KINDS}


def config_of(folder, kind="roberta", **changes):
    where = {"task": TASK, "data": str(folder), "model": str(folder / kind), "partition": "iid", "device": "cpu"}
    return RunConfig(**SMALL | where | {"family": "gaussian"} | changes)


def second_votes(config, task):
    simulation = Simulation(config, task)
    simulation.play_round(0)
    return simulation.votes(1, np.arange(config.clients))


@pytest.mark.parametrize(
    ("kind", "scheme", "local_epochs"),
    [(kind, scheme, 1 + (i + j) % 2) for i, kind in enumerate(KINDS) for j, scheme in enumerate(SCHEMES)],
)
def test_engines_agree(folder, tasks, kind, scheme, local_epochs):
    options = {"scheme": scheme, "local_epochs": local_epochs}
    batched, sequential = (
        second_votes(config_of(folder, kind, engine=engine, **options), tasks[kind])
        for engine in ("batched", "sequential")
    )
    assert batched.shape == (local_epochs if scheme == "unbiased" else 1, 3, 2)
    np.testing.assert_allclose(batched, sequential, rtol=0, atol=1e-3 * np.abs(sequential).max())


@pytest.mark.parametrize("local_epochs", [1, 2])
@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_a_lower_precision_measures_about_the_same_by_both_engines(folder, tasks, precision, local_epochs):
    """A walk in bf16 has other rounding for another batch: the votes are noisy, but of the same thing."""
    options = {"local_epochs": local_epochs, "directions": 8}
    exact = second_votes(config_of(folder, engine="sequential", **options), tasks["roberta"])
    for engine in ("batched", "sequential"):
        votes = second_votes(config_of(folder, engine=engine, precision=precision, **options), tasks["roberta"])
        assert np.corrcoef(votes.ravel(), exact.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("engine", ["batched", "sequential"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_was_aggregated_replays_to_the_same_bits(folder, tasks, precision, engine):
    config = config_of(folder, precision=precision, engine=engine, local_epochs=2, rounds=4)
    played, again, eager = (Simulation(config, tasks["roberta"]) for _ in range(3))
    aggregates = np.stack([result.aggregate for result in played.play()])
    again.replay(aggregates)
    for t, aggregate in enumerate(aggregates):
        eager.parameters.apply(config.plan.commit(t, aggregate))
    begun = Simulation(config, tasks["roberta"]).parameters
    assert played.parameters.fingerprint() == again.parameters.fingerprint() == eager.parameters.fingerprint()
    assert played.parameters.fingerprint() != begun.fingerprint()
    lower = {"bfloat16"} if precision == "bf16" else {"float32"}
    assert {entry.dtype for entry in played.parameters.manifest.entries if len(entry.shape) > 1} == lower


@pytest.mark.parametrize("precision", PRECISIONS)
def test_looking_between_rounds_changes_nothing(folder, tasks, precision):
    """An evaluation needs the commit that the next walk would have applied."""
    config = config_of(folder, precision=precision, rounds=4)
    quiet, watched = (Simulation(config, tasks["roberta"]) for _ in range(2))
    watched.evaluate()
    for _ in watched.play():
        found = watched.evaluate()
        watched.parameters.fingerprint()
        assert 0 <= found.accuracy <= 1
        assert np.isfinite(found.loss)
    for _ in quiet.play():
        pass
    assert quiet.parameters.fingerprint() == watched.parameters.fingerprint()


def test_weights_are_not_read_between_rounds_before_they_are_settled(folder, tasks):
    simulation = Simulation(config_of(folder), tasks["roberta"])
    played = simulation.play()
    aggregate = next(played).aggregate
    with pytest.raises(InvalidParameters, match="the commit of round 0 is pending"):
        simulation.parameters.fingerprint()
    simulation.parameters.settle()
    eager = Simulation(config_of(folder), tasks["roberta"]).parameters
    eager.apply(simulation.config.plan.commit(0, aggregate))
    assert simulation.parameters.fingerprint() == eager.fingerprint()


def zeros(manifest):
    return Weights.of({entry.name: np.zeros(entry.shape, entry.dtype) for entry in manifest.entries})


@pytest.mark.parametrize("options", [{}, {"local_epochs": 2}, {"mu": 0.0}])
@pytest.mark.parametrize(
    "look",
    [
        lambda model: model.vote(1),
        lambda model: model.fingerprint(),
        lambda model: model.evaluate(),
        lambda model: model.weights().data.tobytes(),
        lambda model: (model.reset(), model.fingerprint()),
        lambda model: model.load(zeros(model.parameters.manifest)),
    ],
)
def test_a_client_is_up_to_date_whatever_is_asked_after_a_commit(folder, tasks, look, options):
    config = config_of(folder, **options)
    lazy, eager = (LocalModel(config.agreement, 0, tasks["roberta"], device="cpu") for _ in range(2))
    scalars = to_wire(np.full((config.plan.rows, config.plan.directions), 0.5))
    lazy.advance(0, scalars)
    eager.advance(0, scalars)
    eager.parameters.settle()
    assert look(lazy) == look(eager)
    assert lazy.fingerprint() == eager.fingerprint()


def test_who_is_absent_is_not_counted(folder, tasks):
    simulation = Simulation(config_of(folder, clients=5, dropout=0.2, rounds=12), tasks["roberta"])
    own, seen = simulation.learner.votes, []

    def votes(t, present):
        told = own(t, present)
        seen.append((len(present), told.shape[2]))
        return told

    simulation.learner.votes = votes
    for _ in simulation.play():
        pass
    assert len({present for present, _ in seen}) > 1
    assert all(present == counted for present, counted in seen)


def test_the_command_line_takes_a_precision(folder, tmp_path):
    options = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    where = ["--task", TASK, "--data", str(folder), "--model", str(folder / "llama"), "--device", "cpu"]
    out = tmp_path / "out"
    told = CliRunner().invoke(app, ["run", *where, *options, "--precision", "mixed", "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert 'precision = "mixed"' in next(out.rglob("*.toml")).read_text()


def test_a_precision_is_for_language_models():
    for precision in ("mixed", "bf16"):
        said = rf"precision = '{precision}' is for language models: .* is trained in float32"
        with pytest.raises(InvalidConfig, match=said):
            Simulation(RunConfig(source="embedded", precision=precision))


def test_an_unknown_precision_is_refused_by_name():

    with pytest.raises(InvalidConfig, match=r"precision = 'fp8': input should be 'float32', 'mixed' or 'bf16'"):
        RunConfig(**{"precision": "fp8"})


def test_fedavg_does_not_train_a_language_model(folder, tasks):
    with pytest.raises(InvalidConfig, match=r"algorithm = 'fedavg' cannot train a language model"):
        Simulation(config_of(folder, algorithm="fedavg"), tasks["roberta"])


def _member(name, model, setup):
    return Member(setup, name, model)


def test_a_federation_in_bf16_ends_with_the_bits_of_its_ledger(folder):
    config = config_of(folder, precision="bf16", rounds=3)
    ledger, task = Memory(), load_task(config.agreement, folder, model=config.model)
    models = [LocalModel(config.agreement, place, task, "cpu", deal(config)) for place in range(3)]
    makes = {f"client-{place}": partial(_member, f"client-{place}", model) for place, model in enumerate(models)}
    done, _ = play(config, ledger, makes, settings={"deadline": 30.0})
    _, initial = base(ledger.identity, folder / "roberta" / "model.safetensors")
    assert ledger.head.rounds == 3
    assert {one.model.fingerprint() for one in done.values()} == {rebuild(ledger, initial)}
    assert ledger.identity.agreement.precision == "bf16"
