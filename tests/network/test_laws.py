"""Real processes on one machine: a federation is the simulation over a network, and its ledger is its model."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.network.parties import Parties, deal, local_model, recipe

from cyber0.errors import Refused, Unreachable
from cyber0.network.local_model import LocalModel
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend, run_client
from cyber0.participant import load_task
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import from_wire, to_wire
from cyber0.protocol.settings import Settings
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild
from cyber0.simulation import Simulation


def replayed(ledger):
    _, parameters = base(ledger.identity, None)
    return rebuild(ledger, parameters)


def simulated(config):
    """The votes, the aggregates and the fingerprint of the `sequential` simulator."""
    simulation = Simulation(config.model_copy(update={"engine": "sequential"}))
    votes, aggregates = [], []
    for t in range(config.rounds):
        played = simulation.play_round(t)
        votes.append(played.honest)
        aggregates.append(played.aggregate)
    return votes, aggregates, simulation


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local_epochs": 2, "scheme": "compressed", "task": "mnist-mlp(hidden=4)", "family": "gaussian"},
        {"schedule": "warmup(rounds=3)+cosine(end=0.1)", "horizon": 9, "rule": "centered_clipping_previous"},
        {"step_rule": "normalised(beta=0.9)", "schedule": "linear(end=0.5)", "local_epochs": 2},
    ],
    ids=["plain", "compressed", "schedule and memory", "normalised steps"],
)
def test_a_federation_is_the_sequential_simulation(tmp_path, changes):
    config = recipe(rounds=12, **changes)
    with Parties(tmp_path, config, deadline=60.0, patience=1e6) as parties:  # every vote counts, on a busy machine too
        parties.federator()
        for name in parties.roster:
            parties.client(name)
        parties.wait(*parties.roster, "federator")
        marks = {parties.outcome(name)["fingerprint"] for name in parties.roster}
    votes, aggregates, simulation = simulated(config)
    with File(parties.ledger, read_only=True) as ledger:
        decisions = list(ledger.decisions())
        assert [decision.scalars for decision in decisions] == [to_wire(aggregate) for aggregate in aggregates]
        for decision, told in zip(decisions, votes, strict=True):
            cast = [from_wire(ballot.values, config.plan.rows) for ballot in decision.ballots]
            assert np.stack(cast, axis=1).tobytes() == told.tobytes()
        assert marks == {simulation.parameters.fingerprint()} == {replayed(ledger)}
        assert verify(ledger).findings == []
        assert ledger.seals[-1].fingerprint == simulation.parameters.fingerprint()


# In one process, over real sockets


def member(config, task, **options):
    def make(settings, name):
        return Member(settings, name, local_model(config, settings.place, task), **options)

    return make


async def begin(config, ledger, **options):
    federator = Federator(Settings.of(config, deadline=3.0, **options), ledger)
    port = await federator.start("127.0.0.1:0")
    return federator, f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def task():
    return load_task(recipe().agreement, source="embedded")


@pytest.mark.parametrize("step_rule", ["plain", "normalised"])
def test_one_leaves_and_another_comes_at_half_time_and_all_hold_the_same_bits(task, step_rule):
    config = recipe(rounds=30, clients=5, quorum=3, step_rule=step_rule)  # so that the three that stay are enough
    ledger = Memory()
    make = member(config, task)

    async def play():
        federator, address = await begin(config, ledger)
        half = asyncio.Event()

        def watch(one):
            if one.commits >= config.rounds // 2:
                half.set()

        def come(name, **options):
            return asyncio.ensure_future(attend(address, lambda settings: make(settings, name), name, **options))

        names = list(federator.settings.roster)
        leaver, *others = [come(name, watch=watch) for name in names[:4]]
        await half.wait()
        leaver.cancel()
        others.append(come(names[4]))
        done = await asyncio.gather(*others)
        await federator.over.wait()
        await federator.close()
        return [one.model.fingerprint() for one in done], federator.reason

    marks, reason = asyncio.run(play())
    assert reason == "all 30 rounds are decided"
    assert set(marks) == {replayed(ledger)}
    assert len(list(ledger.decisions())) == 30
    assert verify(ledger).findings == []


def test_only_some_are_invited_to_a_round(task):
    config, ledger = recipe(rounds=10, clients=6, participation=0.5), Memory()
    marks = asyncio.run(play_all(config, ledger, task))
    assert set(marks) == {replayed(ledger)}
    settings, roster = Settings.of(config), ledger.identity.roster
    for decision in ledger.decisions():
        assert tuple(ballot.client for ballot in decision.ballots) == settings.voters(decision.round, roster)
    simulation = Simulation(config.model_copy(update={"engine": "sequential"}))
    assert [len(played.participants) for played in simulation.play()] == [3] * 10
    assert simulation.parameters.fingerprint() == marks[0]


async def play_all(config, ledger, task, **options):
    federator, address = await begin(config, ledger)
    make = member(config, task, **options)
    parties = [
        attend(address, lambda settings, name=name: make(settings, name), name) for name in federator.settings.roster
    ]
    done = await asyncio.gather(*parties)
    await federator.over.wait()
    await federator.close()
    return [one.model.fingerprint() for one in done]


class Old(Member):
    def hello(self):
        return replace(super().hello(), version=9)


def refused(config, make):
    async def play():
        federator, address = await begin(config, Memory())
        try:
            await attend(address, make)
        finally:
            federator.stop("enough")
            await federator.close()

    with pytest.raises(Refused) as caught:
        asyncio.run(play())
    return str(caught.value)


def test_another_version_is_refused_with_a_reason(task):
    config = recipe()
    said = refused(config, lambda settings: Old(settings, "client-0", local_model(config, 0, task)))
    assert said == ("the federator refuses this client: it speaks version 9 of the protocol: this federator speaks 3")


def test_who_is_not_on_the_roster_is_refused_with_a_reason(task):
    config = recipe()
    said = refused(config, lambda settings: Member(settings, "eve", local_model(config, 0, task)))
    assert said == "the federator refuses this client: it is not on the roster"


def test_another_model_is_refused_with_a_reason(task):
    config, ledger = recipe(rounds=2), Memory()
    other = load_task(recipe(task="mnist-mlp(hidden=2)").agreement, source="embedded")

    async def play():
        federator, address = await begin(config, ledger)
        make = member(config, task)
        parties = [
            attend(address, lambda settings, name=name: make(settings, name), name)
            for name in federator.settings.roster[:3]
        ]
        strange = member(config, other)
        parties.append(attend(address, lambda settings: strange(settings, "client-3"), "client-3"))
        *done, refusal = await asyncio.gather(*parties, return_exceptions=True)
        federator.stop("enough")
        await federator.close()
        return done, refusal

    done, refusal = asyncio.run(play())
    assert isinstance(refusal, Refused)
    assert "its manifest is" in str(refusal)
    assert {one.model.fingerprint() for one in done} == {replayed(ledger)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_and_cpus_hold_the_same_bits(task):
    config, ledger = recipe(rounds=20), Memory()

    async def play():
        federator, address = await begin(config, ledger, fingerprint_every=5)
        parties = [
            attend(address, lambda settings, place=place, name=name: Member(
                settings, name, LocalModel(config.agreement, place, task, "cuda" if place == 0 else "cpu", deal(config))
            ))
            for place, name in enumerate(federator.settings.roster)
        ]  # fmt: skip
        done = await asyncio.gather(*parties)
        await federator.over.wait()
        await federator.close()
        return [one.model.fingerprint() for one in done]

    assert set(asyncio.run(play())) == {replayed(ledger)}
    assert all(ballot.verdict == "counted" for decision in ledger.decisions() for ballot in decision.ballots)


def test_nobody_answers(tmp_path):
    with pytest.raises(Unreachable, match="no federator answers at localhost:1: "):
        run_client("localhost:1", "client-0", give_up=0.0, state=tmp_path)
