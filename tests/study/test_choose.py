"""Hyper-parameters are chosen on validation samples, and test samples have no part in it."""

import tomllib

import pandas as pd
import pytest
from tests.study.synthetic import small
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import Cyber0Error, InvalidConfig
from cyber0.study.choose import choose, played
from cyber0.study.recipe import Recipe
from cyber0.study.results import Results
from cyber0.study.statistics import measure
from cyber0.study.study import study
from cyber0.study.work import jobs_of

AXES = {"rule": ["cwtm", "krum"], "attack": ["sf", "foe"]}
RECIPE = small(axes=AXES, choose={"lr": [0.1, 0.3]}, seeds=2)
VALIDATION = {  # by rule, attack and lr: 0.3 is better under sf, and ruins krum under foe
    ("cwtm", "sf", "0.1"): 0.6, ("cwtm", "foe", "0.1"): 0.5, ("cwtm", "sf", "0.3"): 0.7, ("cwtm", "foe", "0.3"): 0.55,
    ("krum", "sf", "0.1"): 0.6, ("krum", "foe", "0.1"): 0.5, ("krum", "sf", "0.3"): 0.9, ("krum", "foe", "0.3"): 0.2,
}  # fmt: skip


def invented(recipe=RECIPE, test=lambda validation: validation, without=()):
    rows = []
    for (rule, attack, lr), top in VALIDATION.items():
        if (rule, attack, lr) in without:
            continue
        for seed in range(2):
            for at in (0, 10, 20):  # the best on validation is round 10
                validation = top - 0.1 * (at != 10) + 0.01 * seed
                numbers = {"accuracy": test(validation), "validation_accuracy": validation, "loss": 1.0}
                sent = dict.fromkeys(("bytes_up_per_client", "bytes_down_per_client"), 4.0 * at)
                rows.append({"rule": rule, "attack": attack, "lr": lr, "seed": seed, "round": at, **numbers, **sent})
    return Results(recipe, pd.DataFrame(rows))


def values(results):
    return {tuple(choice.labels.values()): choice.candidates[0].values["lr"] for choice in results.choices}


def test_the_candidate_with_the_best_worst_cell_is_chosen_for_each_rule():
    found = choose(invented())
    assert values(found) == {("cwtm",): "0.3", ("krum",): "0.1"}
    assert found.choices[1].text == "krum: lr = 0.1 (50.5 % on validation samples; lr = 0.3: 20.5 %)"
    assert set(found.frame["lr"][found.frame["rule"] == "krum"]) == {"0.1"}
    assert [cell.best.n for cell in measure(found)] == [2] * 4


def test_test_samples_have_no_part_in_the_choice():
    turned = choose(invented(test=lambda validation: 1 - validation))
    assert values(turned) == values(choose(invented()))
    best = measure(turned)[0].best.mean  # the test accuracy in the round that is best on validation: the lowest here
    assert best == pytest.approx(100 * (1 - 0.7 - 0.005))


def test_each_cell_may_have_its_own():
    recipe = small(axes=AXES, choose={"lr": [0.1, 0.3]}, choose_for=["rule", "attack"], seeds=2)
    assert values(choose(invented(recipe)))[("krum", "sf")] == "0.3"


def test_a_candidate_with_runs_missing_is_not_chosen():
    assert values(choose(invented(without=[("cwtm", "foe", "0.3")])))[("cwtm",)] == "0.1"


def test_every_candidate_is_played_with_samples_held_out():
    jobs = jobs_of(played(RECIPE), {})
    assert len(jobs) == 2 * 2 * 2 * 2
    assert {job.config.validation for job in jobs} == {0.1}
    assert {job.config.lr for job in jobs} == {0.1, 0.3}
    beside = {"labels": {"rule": "mean", "attack": "none"}, "values": {"rule": "mean"}}
    assert len(played(small(axes=AXES, choose={"lr": [0.1, 0.3]}, also=[beside])).cells()) == 10


def test_a_study_chooses_and_says_so(tmp_path):
    base = {"source": "embedded", "clients": 5, "byzantine": 1, "directions": 8, "batch": 16, "alpha": 9.0}
    keys = {"seeds": 1, "base": base, "axes": {"rule": ["cwtm"]}, "choose": {"rounds": [1, 20]}}
    results = study(Recipe.of(keys), tmp_path / "study", jobs=1)
    assert [choice.candidates[0].values for choice in results.choices] == [{"rounds": "20"}]
    page = (tmp_path / "study" / "report.html").read_text()
    assert "rounds = 20 (" in page
    assert "Test accuracy in the round that validation chose" in page
    again = study(Recipe.of(keys), tmp_path / "study", jobs=1)  # nothing is played again
    assert again.frame.equals(results.frame)


@pytest.mark.parametrize(("keys", "message"), [
    ({"choose": {"rate": [1, 2]}}, "unknown key 'rate': use one of"),
    ({"choose": {"lr": []}}, r"choose.lr = \[\]: give different values to choose from"),
    ({"choose": {"lr": [0.1, 0.1]}}, "give different values"),
    ({"choose": {"rule": ["mean"]}}, "choose.rule: the axis 'rule' sets it in every run"),
    ({"choose": {"lr": [0.1]}, "choose_for": ["rules"]}, "unknown axis 'rules'"),
])  # fmt: skip
def test_what_cannot_be_chosen_is_refused(keys, message):
    with pytest.raises(Cyber0Error, match=message):
        small(**keys)


def test_a_choice_needs_samples_to_choose_by():
    with pytest.raises(InvalidConfig, match=r"base.validation = 0: choose needs samples"):
        played(small(base={"validation": 0.0}, choose={"lr": [0.1]}))


def test_the_command_takes_candidates():
    shown = CliRunner().invoke(app, ["study", "quick", "--choose", "lr=[0.01, 0.1]", "--print-recipe"]).output
    assert Recipe.of(tomllib.loads(shown)).choose == {"lr": [0.01, 0.1]}
    with pytest.raises(InvalidConfig, match=r"--choose 'lr=0.1': write key=\[value, value\]"):
        CliRunner().invoke(app, ["study", "quick", "--choose", "lr=0.1"], catch_exceptions=False)
