"""One run on Ray actors: the sequential engine's bits, whoever is killed, and scalars alone between them."""

import os
import signal
import sys
import threading
import warnings

import numpy as np
import pytest
from torch import nn

import cyber0
from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidUserCode
from cyber0.simulation import Simulation

pytest.importorskip("ray")

SMALL = {"source": "embedded", "clients": 5, "byzantine": 1, "attack": "foe", "directions": 4, "rounds": 8, "batch": 8}
SMALL |= {"device": "cpu", "local_epochs": 2, "step_rule": "normalised(beta=0.9)"}


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    """A cluster of two, which all runs share."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def spread(**changes):
    return RunConfig(**SMALL | {"engine": "ray", "actors": 2} | changes)


@pytest.fixture(scope="module")
def alone():
    simulation = Simulation(RunConfig(**SMALL, engine="sequential"))
    return list(simulation.play()), simulation.parameters.fingerprint()


def test_a_run_on_actors_is_the_sequential_one_also_after_one_is_killed(alone):
    rounds, mark = alone
    simulation = Simulation(spread())
    for played, expected in zip(simulation.play(), rounds, strict=True):
        assert played.honest.tobytes() == expected.honest.tobytes()
        if played.number == 3:
            first, second = simulation.learner.pids
            os.kill(second, signal.SIGKILL)
        if played.number == 7:
            assert simulation.learner.pids[0] == first
            assert simulation.learner.pids[1] != second
    assert simulation.parameters.fingerprint() == mark


def test_an_actor_that_hangs_is_named_and_can_be_killed(alone, monkeypatch):
    _, mark = alone
    monkeypatch.setattr(sys.modules["cyber0.simulation.spread"], "PATIENCE", 0.5)
    simulation, said, stopped = Simulation(spread()), [], []

    def operator(message, *_):
        said.append(str(message))
        if stopped and f"process {stopped[0]} on " in str(message):
            os.kill(stopped.pop(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = operator
        for played in simulation.play():
            if played.number == 2:
                stopped.append(simulation.learner.pids[1])
                os.kill(stopped[0], signal.SIGSTOP)
    assert any("round 3 has waited" in text and "the actor of clients 3 to 4" in text for text in said)
    assert simulation.parameters.fingerprint() == mark


def test_what_cannot_be_sent_to_actors_is_refused_in_a_sentence():
    lock = threading.Lock()

    def model():
        with lock:
            return nn.Linear(3, 2)

    def loss(outputs, labels):
        with lock:
            return nn.functional.cross_entropy(outputs, labels, reduction="none")

    x, y = np.ones((40, 3), dtype=np.float32), np.arange(40) % 2
    options = {"clients": 3, "byzantine": 0, "rounds": 1, "partition": "iid", "device": "cpu", "actors": 1}
    for given in ({"model": model}, {"model": nn.Linear(3, 2), "loss": loss}):
        with pytest.raises(
            InvalidUserCode, match=r"cannot be sent to other processes \(cannot pickle .*lock.*\): give"
        ):
            cyber0.simulate(train=(x, y), test=(x, y), engine="ray", **given, **options)


def test_a_resumed_run_tells_its_actors_what_came_before_and_shares_at_once_are_batches_to_rounding(alone):
    aggregates = np.stack([played.aggregate for played in alone[0][:5]])
    aggregates[2] = np.nan  # a round without a commit
    plain, shared = Simulation(RunConfig(**SMALL)), Simulation(spread(engine="ray-batched", actors=1))
    for simulation in (plain, shared):
        simulation.replay(aggregates)
    assert shared.parameters.fingerprint() == plain.parameters.fingerprint()
    ours, theirs = (simulation.votes(5, np.arange(5)) for simulation in (shared, plain))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def test_code_of_yours_that_fails_in_an_actor_is_named_as_by_any_engine():
    here = os.getpid()

    def loss(outputs, labels):
        if os.getpid() != here:
            raise ValueError("out of order")
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    x, y = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32), np.arange(40) % 2
    options = {"clients": 3, "byzantine": 0, "rounds": 1, "directions": 2, "batch": 4, "partition": "iid"}
    with pytest.raises(InvalidUserCode, match="out of order"):
        cyber0.simulate(nn.Linear(3, 2), (x, y), (x, y), loss=loss, device="cpu", engine="ray", actors=1, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "batched"}, "actors = 2 are for engine = 'ray'"),
        ({"algorithm": "fedavg", "step_rule": "plain"}, "FedAvg sends weights"),
        ({"actors": 0}, "actors"),
    ],
)
def test_what_cannot_be_spread_is_said(changes, message):
    with pytest.raises(InvalidConfig, match=message):
        spread(**changes)


def test_a_cluster_without_room_is_named(monkeypatch):
    monkeypatch.setattr("cyber0.simulation.spread.WAIT", 0.0)
    free = {"CPU": 1.0}
    monkeypatch.setattr("ray.available_resources", lambda: free)
    with pytest.raises(InvalidConfig, match="2 actors need 2 CPUs, and 1 of the cluster are free: give fewer actors"):
        Simulation(spread())
