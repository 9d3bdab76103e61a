"""An attack within a run: its context, its reports, its memory, and votes that are not finite."""
# ruff: noqa: ARG001, ARG002, ARG005 (they share one signature)

import json
from functools import partial

import numpy as np
import pytest
import torch

from cyber0.aggregation import cwtm, get_rule, to_numpy
from cyber0.attacks import ATTACKS, AttackRun, get_attack, label_flip, lf, mount, sf, sign_flip
from cyber0.errors import InputError, InvalidAttack, UnknownName

VOTES = np.random.default_rng(5).normal(1.0, 1.0, (2, 9, 4))  # [rows, n, k]
LIARS = [7, 8]
RULE = get_rule("nnm+cwtm")
CUDA = pytest.param(
    partial(torch.tensor, device="cuda"),
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
)
ON_DATA = ("backdoor", "feature-noise", "lf")  # liars send what they measure
LIBRARIES = [np.asarray, torch.tensor, CUDA]


def played(attack, votes=VOTES, *, round=0, rule=RULE, **options):
    return AttackRun(attack, seed=3, **options).mount(votes, LIARS, rule, 2, round=round)


def same(one, other):
    return np.array_equal(to_numpy(one), to_numpy(other), equal_nan=True)


def in_context(vectors, liars, rule, byzantine, rng, *, volume=1.0, round, seed, report):
    report("volume", volume * round)
    return np.full((*vectors.shape[:-2], len(liars), vectors.shape[-1]), volume * round + seed)


def of_the_model(vectors, liars, rule, byzantine, rng, *, model):
    return np.full((*vectors.shape[:-2], len(liars), vectors.shape[-1]), model.sum())


class Drift:
    """Lies that grow with the number of lies told, and with what was seen."""

    def __init__(self, *, step=1.0):
        self.step, self.seen, self.lies = step, np.zeros(4), 0

    def __call__(self, vectors, liars, rule, byzantine, rng, *, round):
        self.seen = self.seen + vectors.mean(axis=(0, 1)) + rng.normal()
        self.lies += 1
        return np.broadcast_to(self.lies * self.step * self.seen + round, (2, len(liars), 4))

    def state(self):
        return {"seen": self.seen, "lies": np.int64(self.lies)}

    def restore(self, state):
        self.seen, self.lies = np.array(state["seen"]), state["lies"]


class Forgetful:
    def __init__(self):
        self.lies = 0

    def __call__(self, vectors, liars, rule, byzantine, rng):
        self.lies += 1
        return np.full((2, len(liars), 4), float(self.lies))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_run_draws_by_its_seed_and_the_round(attack):
    rng = np.random.default_rng([3, 11, 0x41545441])
    assert same(played(attack, round=11), mount(attack, VOTES, LIARS, RULE, 2, rng))


def test_an_attack_is_supplied_with_what_it_asks_for():
    run = AttackRun(partial(in_context, volume=2.0), seed=3)
    assert run.mount(VOTES, LIARS, RULE, 2, round=10)[:, 7:].tolist() == np.full((2, 2, 4), 23.0).tolist()
    assert run.reports == {"volume": 20.0}
    run.mount(VOTES, [], RULE, 2, round=11)
    assert run.reports == {}


def test_context_is_no_option(monkeypatch):
    monkeypatch.setitem(ATTACKS, "in-context", in_context)
    assert AttackRun("in-context(volume=2)", seed=0).name == "in-context(volume=2)"
    for name in ("round", "seed", "report", "model"):
        with pytest.raises(UnknownName, match=f"unknown option '{name}' of in-context: use one of volume"):
            get_attack(f"in-context({name}=1)")
    with pytest.raises(UnknownName, match=r"unknown option 'report' of foe: use one of omega, range, search, target"):
        get_attack("foe(report=1)")


def test_the_model_is_for_those_who_know_it():
    with pytest.raises(InvalidAttack, match="of_the_model' asks for the model: grant it by knows = 'model'"):
        AttackRun(of_the_model, seed=0)
    run = AttackRun(of_the_model, seed=0, knows="model")
    sent = run.mount(VOTES, LIARS, RULE, 2, round=0, model=np.array([2.0, 3.0]))
    assert (sent[:, LIARS] == 5.0).all()
    assert (mount(of_the_model, VOTES, LIARS, RULE, 2, np.random.default_rng(0), model=np.ones(2))[:, 7:] == 2).all()
    with pytest.raises(InvalidAttack, match="there is none to show"):
        run.mount(VOTES, LIARS, RULE, 2, round=0)
    with pytest.raises(InvalidAttack, match="knows = 'all': an attacker knows 'votes', or the 'model' too"):
        AttackRun("sf", seed=0, knows="all")


@pytest.mark.parametrize("attack", ["alie", "alie-nnm", "foe", "foe-nnm", "foe(search='line')"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_search_reports_the_omega_of_each_scene(attack, library):
    run = AttackRun(attack, seed=0)
    votes = np.stack([VOTES, 3 - VOTES, VOTES**3])  # [runs, rows, n, k]
    sent = run.mount(library(votes), LIARS, RULE, 2, round=0)
    omega = to_numpy(run.reports["omega"])
    assert omega.shape == (3, 2)
    honest = votes[:, :, :7]
    mean = honest.mean(axis=-2)
    along = -mean if "foe" in attack else honest.std(axis=-2, ddof=1)
    np.testing.assert_allclose(to_numpy(sent)[:, :, 8], mean + omega[..., None] * along, rtol=1e-9, atol=1e-12)


def test_a_given_omega_is_reported_too():
    run = AttackRun("alie-nnm(omega=1.5)", seed=0)
    run.mount(VOTES, LIARS, RULE, 2, round=0)
    assert run.reports["omega"].tolist() == [1.5, 1.5]


def test_a_class_is_instantiated_once_per_run():
    first, second = (AttackRun(partial(Drift, step=2.0), seed=3) for _ in range(2))
    ours = [first.mount(VOTES, LIARS, RULE, 2, round=t) for t in range(3)]
    again = [second.mount(VOTES, LIARS, RULE, 2, round=t) for t in range(3)]
    assert all(map(same, ours, again))
    assert not same(ours[1], ours[2] - 1)
    assert first.has_memory
    assert not first.searches
    assert first.name == f"{Drift.__module__}:Drift(step=2.0)"


def test_a_class_is_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "drifting.py").write_text(
        "class Drift:\n"
        "    def __init__(self, *, step=1.0):\n        self.lie = 0.0\n        self.step = step\n"
        "    def __call__(self, vectors, liars, rule, byzantine, rng):\n        self.lie += self.step\n"
        "        return [[[self.lie] * 4] * 2] * 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = AttackRun("drifting:Drift(step=4)", seed=0)
    assert [float(run.mount(VOTES, LIARS, RULE, 2, round=t)[0, 8, 0]) for t in range(3)] == [4.0, 8.0, 12.0]
    assert run.name == "drifting:Drift(step=4)"
    with pytest.raises(UnknownName, match=r"unknown option 'stop' of drifting:Drift: use one of step"):
        AttackRun("drifting:Drift(stop=4)", seed=0)


def test_a_resumed_run_has_the_same_bits():
    whole, begun = AttackRun(Drift, seed=3), AttackRun(Drift, seed=3)
    wanted = [whole.mount(VOTES, LIARS, RULE, 2, round=t) for t in range(6)]
    for t in range(3):
        begun.mount(VOTES, LIARS, RULE, 2, round=t)
    resumed = AttackRun(Drift, seed=3)
    assert resumed.resumable
    resumed.restore(json.loads(json.dumps(begun.state())))
    assert all(same(resumed.mount(VOTES, LIARS, RULE, 2, round=t), wanted[t]) for t in range(3, 6))


def test_an_attack_that_cannot_be_resumed_says_so():
    run = AttackRun(Forgetful, seed=0)
    assert not run.resumable
    for call in (run.state, lambda: run.restore({})):
        with pytest.raises(InvalidAttack, match=r"Forgetful' may keep state and cannot be resumed: give it state\(\)"):
            call()
    plain = AttackRun("foe", seed=0)
    plain.restore(plain.state())
    assert (plain.resumable, plain.has_memory, plain.searches, plain.state()) == (True, False, True, {})


@pytest.mark.parametrize(
    ("state", "words"), [([1], "must return a dictionary"), ({"a": [object()]}, r"\['a'\]\[0\] is")]
)
def test_state_that_cannot_be_stored_is_refused(state, words):
    attack = Drift()
    attack.state = lambda: state
    with pytest.raises(InvalidAttack, match=words):
        AttackRun(attack, seed=0).state()


def test_an_instance_keeps_its_state_to_a_run():
    attack = Forgetful()
    for _ in range(2):
        run = AttackRun(attack, seed=0)
        assert [float(run.mount(VOTES, LIARS, RULE, 2, round=t)[0, 8, 0]) for t in range(2)] == [1.0, 2.0]
    assert attack.lies == 0
    assert run.has_memory


def test_every_attack_has_a_name():
    def local(*_):
        return VOTES[:, LIARS]

    names = [AttackRun(attack, seed=0).name for attack in (local, lambda *_: 0, Forgetful(), Forgetful().__call__)]
    assert [name.rpartition(":")[2].rpartition(".")[2] for name in names] == [
        "local",
        "<lambda>",
        "Forgetful",
        "__call__",
    ]
    assert AttackRun(partial(sf), seed=0).name == "sf"


@pytest.mark.parametrize(
    "lies",
    [
        lambda lies: lies.astype(np.float32),
        lambda lies: lies.round().astype(np.int64),
        lambda lies: lies.tolist(),
        lambda lies: torch.tensor(lies, requires_grad=True),
        lambda lies: torch.tensor(lies).bfloat16(),
    ],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_lies_are_converted(lies, library):
    given = -np.ones((2, 2, 4))
    votes = library(VOTES)
    sent = played(lambda *_: lies(given), votes)
    assert type(sent) is type(votes)
    assert sent.dtype == votes.dtype
    assert same(sent[:, LIARS], given)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (lambda *_: 1 / 0, "<lambda>' cannot be used: ZeroDivisionError"),
        (lambda *_: None, "<lambda>' cannot be used: TypeError: it returned object values"),
        (lambda *_: "lie", "<lambda>' cannot be used"),
        (lambda *_: [[1.0], [1.0, 2.0]], "<lambda>' cannot be used: ValueError"),
        (lambda *_: np.ones((2, 4)) * 1j, "it returned complex128 values, not numbers"),
        (lambda vectors, liars: vectors, "<lambda>' cannot be used: TypeError"),
        (lambda *_: np.ones((2, 4)), r"gave an array of shape \(2, 4\): 2 liars send \(2, 2, 4\)"),
        (Drift.__init__, "cannot be used: TypeError"),
        (type("Numb", (), {}), "Numb': its instances must be callable"),
        (type("Needy", (), {"__init__": lambda self, needed: None}), "Needy' cannot be used: TypeError: .*needed"),
    ],
)
def test_what_a_users_attack_does_wrong_is_named(attack, words):
    with pytest.raises(InvalidAttack, match=words) as caught:
        played(attack)
    assert "cannot be used" not in words or caught.value.__cause__ is not None


def test_what_is_no_attack_is_refused():
    with pytest.raises(InputError, match="attack = 5 is a int: give a name or a callable"):
        AttackRun(5, seed=0)


def test_labels_are_corrupted_by_those_who_declare_it():
    labels = np.array([0, 3, 9])
    assert AttackRun("label-flip", seed=0).corrupt_labels(labels, 10).tolist() == [9, 6, 0]
    assert AttackRun("foe", seed=0).corrupt_labels is None

    def shifted(vectors, liars, *_, by=1):
        return vectors[..., liars, :]

    shifted.corrupt_labels = lambda labels, classes: [(label + 1) % classes for label in labels]
    corrupt = AttackRun(partial(shifted, by=2), seed=0).corrupt_labels
    assert corrupt(labels, 10).tolist() == [1, 4, 0]
    assert corrupt(labels, 10).dtype == labels.dtype
    shifted.corrupt_labels = lambda labels, classes: labels + classes
    with pytest.raises(InvalidAttack, match="shifted': corrupt_labels must return as many labels, from 0 to 9"):
        AttackRun(shifted, seed=0).corrupt_labels(labels, 10)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in (*ON_DATA, "none", "zero", "nonfinite")])
@pytest.mark.parametrize("library", LIBRARIES)
def test_liars_go_on_when_an_honest_vote_is_not_finite(attack, library):
    votes = VOTES.copy()
    votes[1, 2, 3] = np.nan  # an honest client's
    votes[0, 8] = np.inf  # a liar's
    sent = to_numpy(played(attack, library(votes)))
    assert same(sent[:, :7], votes[:, :7])
    assert np.isfinite(sent[:, LIARS]).all()
    left = np.delete(votes, 2, axis=1)
    left[:, 7] = np.delete(left, [6, 7], axis=1).mean(axis=1)
    alone = AttackRun(attack, seed=3).mount(library(left), [6, 7], RULE, 2, round=0)
    assert same(sent[:, LIARS], to_numpy(alone)[:, 6:])


def test_each_run_of_a_batch_leaves_out_its_own():
    votes = np.stack([VOTES, VOTES + 1, VOTES])
    votes[1, :, 4] = np.nan
    votes[2, :, :7] = np.nan
    run = AttackRun("foe", seed=3)
    sent = run.mount(votes, LIARS, RULE, 2, round=0)
    alone = [run.mount(own, LIARS, RULE, 2, round=0) for own in votes]
    assert all(map(same, sent, alone))
    assert same(sent[0], played("foe"))
    assert same(sent[2], votes[2])
    run.mount(votes, LIARS, RULE, 2, round=0)
    assert [None if omega is None else omega.shape for omega in run.reports["omega"]] == [(2,), (2,), None]


def test_votes_stay_as_they_are_where_nothing_can_be_built_on():
    votes = VOTES.copy()
    votes[0, :7] = np.nan
    assert same(played("foe", votes), votes)
    few = VOTES[:, 4:].copy()
    few[0, 1] = np.nan
    sent = AttackRun("foe", seed=3).mount(few, [3, 4], cwtm, 2, round=0)  # four votes: too few for b = 2
    assert same(sent, few)


def test_names_may_be_spelled_out():
    assert get_attack("sign_flip") is get_attack("sign-flip") is sign_flip is sf
    assert get_attack("label_flip") is label_flip is lf
    assert get_attack("foe_nnm") is ATTACKS["foe-nnm"]
    assert [AttackRun(name, seed=0).name for name in ("sign_flip", "min_max(deviation='unit')")] == [
        "sf",
        "min-max(deviation='unit')",
    ]
