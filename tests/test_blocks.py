"""A round moves one block of a model, the same for everybody, at the cost of that block, and with exact bits."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.network.test_federation import play
from torch import nn

from cyber0.blocks import cut
from cyber0.commit import Commit
from cyber0.config import Agreement, RunConfig
from cyber0.directions import DirectionKey, sample
from cyber0.errors import InvalidConfig
from cyber0.estimate import estimate
from cyber0.network.local_model import LocalModel
from cyber0.network.member import Member
from cyber0.parameters import Parameters
from cyber0.plan import CommitSequence
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import to_wire
from cyber0.protocol.verify import verify
from cyber0.replay import rebuild
from cyber0.simulation import Simulation
from cyber0.simulation.run import run
from cyber0.tasks.convert import task_of
from cyber0.tasks.task import cross_entropy, get_task

VECTORS = json.loads((Path(__file__).parent / "block_vectors.json").read_text())
FAMILIES = ["gaussian", "sphere", "rademacher"]
SMALL = {"clients": 5, "byzantine": 1, "directions": 3, "batch": 8, "rounds": 7, "source": "embedded", "lr": 0.05}
SMALL |= {"task": "mnist-mlp(hidden=4)", "blocks": 3}
TASK = get_task("mnist-mlp(hidden=4)")(None, "embedded")


def weights(seed=3):
    shapes = {"a": (4, 5), "b": (4,), "c": (3, 4), "d": (3,), "e": (2, 2, 2)}
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def peer(tensors, commit):
    """The definition of docs/fine-tune.md, with directions of whole models alone."""
    sizes = [tensor.size for tensor in tensors.values()]
    parts = {}
    for place, name in enumerate(tensors):
        start = sum(sizes[:place])
        parts.setdefault(commit.blocks * (2 * start + sizes[place]) // (2 * sum(sizes)), []).append(name)
    blocks = [parts[number] for number in sorted(parts)]
    moved = blocks[(commit.seed + commit.round) % len(blocks)]
    size = sum(tensors[name].size for name in moved)
    update = np.zeros(size, dtype=np.float32)
    for key, coefficient in zip(commit.keys, commit.coefficients, strict=True):
        update += coefficient * sample(key, size, family=commit.family)
    flat = np.concatenate([tensors[name].ravel() for name in moved]) - update
    out, place = dict(tensors), 0
    for name in moved:
        out[name] = flat[place : place + tensors[name].size].reshape(tensors[name].shape)
        place += tensors[name].size
    return out


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 20))
def test_blocks_are_all_tensors_once_in_their_order(sizes, parts):
    found = cut(sizes, parts)
    assert [place for block in found for place in block] == list(range(len(sizes)))
    assert 1 <= len(found) <= min(parts, len(sizes))
    assert all(len(block) > 0 for block in found)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['family']}, {vector['blocks']} blocks")
def test_vectors(vector):
    tensors = weights()
    parameters = Parameters(tensors)
    for t, scalars in enumerate(vector["scalars"]):
        rows = [[float.fromhex(c) for c in scalars]]
        parameters.apply(Commit(vector["seed"], t, 0.1, rows, vector["family"], blocks=vector["blocks"]))
    assert f"{parameters.fingerprint():016x}" == vector["fingerprint"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("blocks", [2, 3, 9])
def test_commits_do_what_is_defined_one_by_one_or_all_at_once(family, blocks):
    rng = np.random.default_rng(0)
    commits = [Commit(7, t, 0.1, rng.normal(size=(2, 2)), family, blocks=blocks) for t in range(9)]
    expected = weights()
    for commit in commits:
        expected = peer(expected, commit)
    for advance in (lambda p: [p.apply(c) for c in commits], lambda p: p.apply_all(iter(commits)), deferred(commits)):
        found = weights()
        advance(Parameters(found))
        assert all(np.array_equal(found[name], expected[name]) for name in found)


def deferred(commits):
    def advance(parameters):
        for commit in commits:
            parameters.defer(commit)
            parameters.check_settled()

    return advance


def test_a_round_generates_directions_of_its_block_alone(monkeypatch):
    asked = []
    from cyber0 import parameters as module

    prepare = module.prepare
    monkeypatch.setattr(module, "prepare", lambda *a: (asked.append(a[3]), prepare(*a))[1])
    whole = Parameters(weights())
    for t in range(3):
        whole.apply(Commit(0, t, 0.1, [[1.0]], "sphere", blocks=3))
    assert asked == [whole.block(3, 0, t).size for t in range(3)]
    assert sum(asked) == whole.size


def test_a_vote_is_that_of_the_block_as_a_model():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).eval()
    whole = Parameters.of(model)
    batch, keys = (torch.randn(6, 4), torch.arange(6) % 3), [DirectionKey(1, 0, index=r) for r in range(4)]
    for t in range(2):
        block = whole.block(2, seed=0, round=t)
        alone = nn.Sequential(*model).requires_grad_(False)
        for name, parameter in alone.named_parameters():
            parameter.requires_grad_(name in block.tensors)
        found = estimate(block, cross_entropy, batch, keys, family="sphere")
        assert np.array_equal(found, estimate(Parameters.of(alone), cross_entropy, batch, keys, family="sphere"))
        model.requires_grad_(True)
        exact = estimate(block, cross_entropy, batch, keys, family="sphere", mu=0)
        np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-3 * np.abs(exact).max())


@pytest.mark.parametrize("scheme", ["unbiased", "biased", "compressed"])
@pytest.mark.parametrize("family", ["sphere", "gaussian"])
def test_engines_agree(scheme, family):
    def votes(engine):
        config = RunConfig(**SMALL, scheme=scheme, local_epochs=2, family=family, engine=engine, step_rule="normalised")
        return [played.honest for played in Simulation(config, TASK).play()]

    for batched, sequential in zip(votes("batched"), votes("sequential"), strict=True):
        np.testing.assert_allclose(batched, sequential, rtol=0, atol=2e-3 * np.abs(sequential).max())


def test_layers_are_walked_block_by_block():
    x, y = torch.randn(40, 6), torch.arange(40) % 3

    def votes(engine, precision="float32"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        task = task_of(model, (x, y), (x, y), layerwise=True)
        config = RunConfig(
            clients=4, byzantine=0, directions=2, rounds=6, batch=5, lr=0.05, blocks=3, local_epochs=2, task="mine:own",
            engine=engine, precision=precision, partition="iid", mu=0.01, step_rule="normalised",
        )  # fmt: skip
        simulation = Simulation(config, task)
        rounds = list(simulation.play())
        again = Simulation(config, task)
        again.replay(np.stack([played.aggregate for played in rounds]))
        assert again.parameters.fingerprint() == simulation.parameters.fingerprint()
        return [played.honest for played in rounds], simulation

    (walked, simulation), (alone, _) = votes("batched"), votes("sequential")
    for one, other in zip(walked, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-3 * np.abs(other).max())
    walks = simulation.participant.measure._walks.values()
    assert len(walks) == 3
    assert all(walk.layered for walk in walks)
    mixed, _ = votes("batched", "mixed")
    assert np.corrcoef(np.ravel(mixed[-1]), np.ravel(walked[-1]))[0, 1] > 0.9


def test_a_run_is_replayed_resumed_and_rebuilt_to_the_same_bits(tmp_path):
    config = RunConfig(**SMALL)
    whole = run(config, tmp_path / "whole", task=TASK)
    run(config.updated(rounds=4), tmp_path / "half", task=TASK)
    extended = run(config, tmp_path / "half", task=TASK, resume=True)
    assert extended.fingerprint == whole.fingerprint
    simulation = Simulation(config, TASK)
    rounds = list(simulation.play())
    again = Simulation(config, TASK)
    again.replay(np.stack([played.aggregate for played in rounds]))
    assert again.parameters.fingerprint() == simulation.parameters.fingerprint() == int(whole.fingerprint, 16)


def test_a_federation_ends_with_the_bits_of_its_ledger_and_verifies():
    config, ledger = RunConfig(**SMALL | {"byzantine": 1, "clients": 3}), Memory()

    def maker(place):
        name = f"client-{place}"
        return name, lambda settings: Member(settings, name, LocalModel(config.agreement, place, TASK, "cpu", "iid"))

    ended, _ = play(config, ledger, dict(map(maker, range(3))), settings={"deadline": 20.0})
    marks = {member.model.fingerprint() for member in ended.values()}
    base = Parameters.of(TASK.build(config.seed))
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in base.tensors.items()}
    assert marks == {rebuild(ledger, Parameters(arrays))}
    assert verify(ledger).findings == []
    assert ledger.identity.agreement.blocks == 3


def test_a_client_that_starts_again_from_stored_weights_holds_the_same_bits():
    agreement = Agreement(**{key: value for key, value in SMALL.items() if key != "source"})
    scalars = np.random.default_rng(1).normal(size=(7, agreement.plan.scalars)).astype(np.float32)
    one, other = (LocalModel(agreement, 0, TASK, "cpu") for _ in range(2))
    one.advance(0, to_wire(scalars))
    other.advance(0, to_wire(scalars[:4]))
    third = LocalModel(agreement, 1, TASK, "cpu")
    third.load(other.weights())
    for t in range(4, 7):
        third.advance(t, to_wire(scalars[t]))
    assert third.fingerprint() == one.fingerprint()


def test_the_number_of_blocks_belongs_to_the_identity_and_one_is_what_it_was():
    parameters = Parameters(weights())
    plain, one, two = (Identity.of(Agreement(clients=1, byzantine=0, **more), ["ann"], parameters).digest
                       for more in ({}, {"blocks": 1}, {"blocks": 2}))  # fmt: skip
    assert plain == one != two
    assert "blocks" not in Agreement().model_dump()
    commits = CommitSequence(Agreement(blocks=2).plan).commits(0, np.ones((2, 64), dtype=np.float32))
    assert {commit.blocks for commit in commits} == {2}


@pytest.mark.parametrize("others", [{"algorithm": "fedavg"}, {"noise": 1.0}, {"blocks": 0}])
def test_what_cannot_be_is_refused(others):
    with pytest.raises(InvalidConfig, match="blocks = "):
        RunConfig(**{"blocks": 2} | others)
