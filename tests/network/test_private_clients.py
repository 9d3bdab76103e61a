"""Private clients of a real federation: each with a budget of its own, against everybody who reads the ledger."""

import json
from dataclasses import replace

import pytest
import torch
from tests.network.parties import Parties, free_port, recipe
from tests.network.test_commands import command
from tests.network.two_faces import TwoFaces
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import Agreement
from cyber0.errors import InvalidConfig, Refused
from cyber0.estimate import estimate
from cyber0.layerwise.fixed_shapes import FixedShapes
from cyber0.network.local_model import LocalModel
from cyber0.network.private_data import PrivacyOptions, check_rounding, check_terms
from cyber0.network.session import run_client
from cyber0.network.store import Store
from cyber0.privacy.accounting import Step, epsilon_of
from cyber0.protocol.messages import RoundOpen
from cyber0.protocol.promise import Promise, broken
from cyber0.protocol.records import from_wire
from cyber0.protocol.signing import encoded, new_key
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.tasks.task import mnist

ROUNDS = 12
OPTIONS = {"rounds": ROUNDS, "partition": "iid", "clip": 5.0}


def budget_lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def charged(folder, name):
    return [line for line in budget_lines(folder, name) if "run" in line]


def test_clients_of_different_budgets_share_a_run(tmp_path):
    config, folder = recipe(**OPTIONS), tmp_path / "budgets"
    names = ["client-0", "client-1", "client-2"]  # 3 of 4 decide a round
    with Parties(tmp_path, config) as parties:
        parties.federator()
        for name, epsilon in zip(names, (2.0, 8.0, 8.0), strict=True):
            parties.client(name, privacy=PrivacyOptions(epsilon, folder, dataset=name))
        parties.client("client-3", privacy=PrivacyOptions(4.0, folder, dataset="client-3"))
        parties.wait(*names, "client-3", "federator")
    outcomes = {parties.outcome(name)["fingerprint"] for name in [*names, "client-3"]}
    assert len(outcomes) == 1
    with File(parties.ledger, read_only=True) as file:
        report = verify(file)
        assert report.findings == []
        assert any("4 clients have signed promises of privacy" in note for note in report.notes)
        noises = {each.client: Promise.from_bytes(each.promise).noise for each in file.promises}
        assert noises["client-0"] > noises["client-3"] > noises["client-1"] == noises["client-2"]
        voted = [ballot.client for decision in file.decisions() for ballot in decision.ballots]
    for name in [*names, "client-3"]:
        lines = charged(folder, name)
        assert len(lines) >= voted.count(name) > 0
        assert {line["noise"] for line in lines} == {noises[name]}
        spent = epsilon_of([(Step(lines[0]["noise"], lines[0]["rate"]), len(lines))], 1e-5)
        assert spent <= budget_lines(folder, name)[0]["opened"]["epsilon"]
    shown = CliRunner().invoke(app, ["ledger", "show", str(parties.ledger)])
    assert "client-1, from round 0 on: each sample clipped to 5, rounded gaussian noise of" in shown.output
    with File(parties.ledger) as file:  # a promise that somebody else wrote
        forged = replace(file.promises[0], round=1, promise=Promise(5.0, 99.0).to_bytes())
        file.promise(forged)
        assert verify(file).findings == [
            f"the promise of {forged.client} before round 1: its promise of privacy is not signed with its key"
        ]


def test_a_killed_client_votes_the_same_again_and_does_not_pay_twice(tmp_path):
    config, folder = recipe(**OPTIONS, clients=3), tmp_path / "budgets"
    names = ["client-0", "client-1", "client-2"]
    with Parties(tmp_path, config) as parties:
        parties.federator()
        for name in names:
            private = {"privacy": PrivacyOptions(50.0, folder, dataset=name)} if name == "client-0" else {}
            parties.client(name, **private)
        parties.listening()
        while not (folder / "client-0.jsonl").exists() or len(charged(folder, "client-0")) < 3:
            parties.pause(0.02)
        parties.kill("client-0")
        parties.again("client-0")
        parties.wait(*names, "federator")
    with File(parties.ledger, read_only=True) as file:
        assert verify(file).findings == []
        counted = [b.verdict for d in file.decisions() for b in d.ballots if b.client == "client-0"]
        assert counted.count("counted") == ROUNDS
        assert "equivocation" not in counted
    lines = charged(folder, "client-0")
    assert {line["round"] for line in lines} == set(range(ROUNDS))
    assert len(lines) <= ROUNDS + 1  # one more if it was killed between the charge and the stored vote


def private_model(folder, **options):
    agreement = Agreement(clients=3, byzantine=1, directions=4, batch=64, rounds=400, **options.pop("agreement", {}))
    privacy = PrivacyOptions(**{"epsilon": 8.0, "folder": folder, **options})
    said = []
    model = LocalModel(agreement, 0, mnist(source="embedded"), "cpu", "iid", privacy, said.append)
    return model, said


def test_votes_are_noised_with_secrets_and_cost_what_is_written(tmp_path):
    model, said = private_model(tmp_path)
    promise = model.promise(bytes(32))
    assert "epsilon 8 at delta 1e-05 for the data 'data', 0 of it spent" in said[0]
    votes = [from_wire(model.vote(0), 1) for _ in range(2)]
    assert (votes[0] != votes[1]).all()
    assert len(charged(tmp_path, "data")) == 2
    assert promise.noise > 0
    model.close()


def test_a_lying_federator_gets_no_second_noise_for_a_round(tmp_path):
    """Rounds that it opens again, rewinds or forks: a private client sends what it has stored, or nothing."""
    name, budgets, store = "client-0", tmp_path / "budgets", tmp_path / "state"
    local, _ = private_model(budgets)
    local.promise(bytes(32))
    world = TwoFaces(3, 1, rounds=20, scalars=4)
    world.root.votes.pop(name)

    def rounds():
        return [line["round"] for line in charged(budgets, "data")]

    def start():
        world.members[name] = member = world.member(name, 0, store=Store(store))
        member.model.vote = local.vote
        return member

    member = start()
    for _ in range(2):  # a new stream each; a vote on one link that differs from an earlier one fails `world.cast`
        member.hello()
        world.deliver(name, [world.welcome(), RoundOpen(0), RoundOpen(0)])
        world.deliver(name, [RoundOpen(0)])
    assert rounds() == [0]
    node = world.decide(world.root, world.settings.roster)
    for each in world.members:
        world.show(each, node)
    world.deliver(name, [RoundOpen(1), RoundOpen(0)])
    assert rounds() == [0, 1]
    world.replay(name, node)  # from the beginning: it votes as before
    assert (member.commits, world.stopped, rounds()) == (1, {}, [0, 1])
    world.replay(name, world.root)  # back to a round that it has voted in
    other = world.decide(world.root, ["client-0", "client-1", "client-3"], {"client-3": -9.0})
    assert other.decision.scalars != node.decision.scalars
    world.replay(name, other)  # another history
    assert "it shows two histories of one run" in str(world.stopped.pop(name))
    member.store.close()
    start()
    world.replay(name, other)  # and after a restart
    assert world.stopped.pop(name)
    assert (name in other.votes, rounds()) == (False, [0, 1])
    world.members[name].store.close()
    local.close()


def test_a_spent_budget_ends_votes_and_not_the_client(tmp_path):
    model, said = private_model(tmp_path, epsilon=0.5)
    model.promise(bytes(32))
    private = model.private
    private.budget.charge("another run", 0, private.step, private.budget.left(private.step, 10**4) - 1)
    assert model.vote(0) is not None
    assert model.vote(1) is None
    assert model.vote(2) is None
    assert sum("is spent, epsilon 0." in text and "stops voting at round 1" in text for text in said) == 1
    model.advance(0, bytes(16))  # it stays, and takes commits
    model.close()
    again, _ = private_model(tmp_path, epsilon=0.5)
    with pytest.raises(InvalidConfig, match="and one round costs more than is left; nothing is sent"):
        again.promise(bytes(32))
    again.close()


def test_a_second_name_for_the_same_data_is_refused_and_no_privacy_for_them_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = PrivacyOptions(8.0).folder
    private_model(folder, dataset="scans")[0].close()
    with pytest.raises(InvalidConfig, match="dataset = 'fresh': these data are those of 'scans'"):
        private_model(folder, dataset="fresh")
    for place, warned in ((0, ["these data have a privacy budget, as 'scans'"]), (1, [])):
        said = []
        LocalModel(Agreement(clients=3, byzantine=1), place, mnist(source="embedded"), "cpu", "iid", None, said.append)
        assert [text[:44] for text in said] == warned


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delta": 0.01}, "delta = 0.01: it must be above 0 and below 1 / samples"),
        ({"clip": 0.0}, "clip = 0"),
        ({"clip": 2.0, "agreement": {"clip": 3.0}}, "clip = 2: this run's terms say 3"),
        ({"epsilon": -1.0}, "epsilon = -1.0: it must be a number above 0"),
        ({"dataset": "../x"}, "dataset = '../x'"),
    ],
)
def test_bad_budgets_are_sentences(tmp_path, options, text):
    with pytest.raises(InvalidConfig, match=text):
        private_model(tmp_path, **options)


def test_terms_by_which_slopes_are_rounding_are_refused(tmp_path):
    with pytest.raises(Refused, match=r"mu = 1e-14, .* needs a mu of at least 1e-13"):
        private_model(tmp_path, agreement={"mu": 1e-14})
    assert list(tmp_path.iterdir()) == []
    check_rounding(Agreement(mu=1e-3, family="gaussian"), 10**9, double=False)
    check_rounding(Agreement(mu=0.0), 10**9, double=False)
    check_rounding(Agreement(precision="mixed", family="gaussian"), 10**9, double=False)
    for terms in ({"mu": 1e-4}, {"mu": 1e-7, "family": "gaussian"}):
        with pytest.raises(Refused, match="slopes would be nothing but rounding"):
            check_rounding(Agreement(**terms), 10**9, double=False)


def test_a_client_measures_many_samples_at_once_and_each_as_if_it_were_alone(tmp_path):
    """By the batches, the model and the slopes that it votes with."""
    model, _ = private_model(tmp_path)
    model.promise(bytes(32))
    steps, data = model.private.steps, model.private
    slopes = FixedShapes(estimate, steps.mechanism.batch, steps.probes)
    given = {"mu": 1e-3, "family": "sphere"}
    keys = model.plan.keys(0, 0)
    x, y = data.batch(0, 0)
    found = slopes(model.parameters, model.task.losses, (x, y), keys, **given)
    assert set(slopes.parts.values()) == {80}
    for place in (0, len(y) - 1):
        alone = slopes(model.parameters, model.task.losses, (x[place : place + 1], y[place : place + 1]), keys, **given)
        assert torch.equal(alone[0], found[place])
    model.close()


def test_terms_may_ask_for_a_minimum(tmp_path):
    agreement = {"least_noise": 7.5}
    with pytest.raises(Refused, match=r"at least 7.5: join with --epsilon"):
        check_terms(Agreement(**agreement), None)
    model, _ = private_model(tmp_path, agreement=agreement)
    assert model.promise(bytes(32)).noise == 7.5
    model.close()
    low = Promise(10.0, 7.0).to_bytes()
    assert "noise multiplier of 7: this run asks for at least 7.5" in broken(
        Agreement(**agreement), "ann", low, b"", b"", b""
    )
    key = encoded(new_key().public_key())
    enough = Promise(10.0, 8.0).to_bytes()
    assert "not signed" in broken(Agreement(**agreement), "ann", enough, bytes(64), key, b"")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--epsilon", "8", "--evaluate"), "which --epsilon does not cover"),
        (("--clip", "2"), "--clip 2 is for private votes: give --epsilon with it"),
        (("--epsilon", "8", "--clip", "0"), "clip = 0: it must be a length above 0"),
        (("--epsilon", "0"), "epsilon = 0.0: it must be a number above 0"),
        (("--epsilon", "8", "--delta", "2"), "delta = 2: it must be above 0"),
    ],
)
def test_bad_options_of_join_are_sentences(options, text):
    process = command("join", f"127.0.0.1:{free_port()}", "--name", "ann", *options, fresh=False)
    out, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert text in " ".join(out.split())


def test_evaluations_are_not_private(tmp_path):
    with pytest.raises(InvalidConfig, match="evaluates = True tells what the privacy budget does not cover"):
        run_client("127.0.0.1:1", "ann", evaluates=True, privacy=PrivacyOptions(1.0, tmp_path), give_up=0.1)
