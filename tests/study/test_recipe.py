"""Recipes: what they say, and what they are told when they say it wrong."""

import pytest
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import Cyber0Error, InvalidConfig, UnknownName
from cyber0.simulation.ensemble import shape_of
from cyber0.study.recipe import Recipe, get_recipe, shipped
from cyber0.study.work import jobs_of


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_makes_runs_and_survives_its_own_file(name):
    recipe = get_recipe(name)
    assert Recipe.of(get_recipe(name).model_dump()) == recipe
    jobs = jobs_of(recipe, {})
    assert len(jobs) == len(recipe.cells()) * recipe.seeds
    assert len({job.name for job in jobs}) == len(jobs)
    assert recipe.rates
    for config in (job.config for job in jobs):
        assert (shape_of(config) is None) == (config.engine == "sequential" or config.model is not None)


def test_a_recipe_written_to_toml_is_the_same_recipe(tmp_path):
    for name in shipped():
        (tmp_path / "again.toml").write_text(get_recipe(name).to_toml())
        assert get_recipe(str(tmp_path / "again.toml")) == get_recipe(name)
        assert [cell.name for cell in get_recipe(str(tmp_path / "again.toml")).cells()] == [
            cell.name for cell in get_recipe(name).cells()
        ]


def test_table1_is_the_papers():
    recipe = get_recipe("table1")
    cells = recipe.cells()
    grid = [cell for cell in cells if cell.labels["attack"] != "none"]
    assert len(grid) == 40
    assert all(recipe.published(cell.labels) for cell in grid)
    assert sum(map(len, recipe.paper.values())) == 41
    values = [cell.config(seed=0) for cell in grid]
    assert {(c.clients, c.byzantine, c.directions, c.rounds, c.mu, c.lr, c.batch) for c in values} == {
        (40, 10, 64, 400, 0.001, 0.01, 64)
    }


def test_table1_uses_no_seed_that_its_choices_were_made_on():
    recipe = get_recipe("table1")
    assert {job.config.seed for job in jobs_of(recipe, {})} == set(range(10, 20))
    for name in ("table1-choice", "table1-k1", "table1-k2", "table1-k3-unbiased", "table1-k5", "foe-range"):
        assert not set(get_recipe(name).every_seed) & set(recipe.every_seed)


def test_exclusions_labels_and_cells_beside_the_grid():
    recipe = Recipe.of(
        {
            "base": {"rounds": 3},
            "axes": {"rule": ["mean", "cwtm"], "attack": {"A": "sf", "B": {"attack": "none", "byzantine": 0}}},
            "exclude": [{"rule": "cwtm", "attack": ["B"]}],
            "also": [{"labels": {"rule": "x", "attack": "y"}, "values": {"lr": 1.0}}],
        }
    )
    assert [cell.name for cell in recipe.cells()] == ["mean, A", "mean, B", "cwtm, A", "x, y"]
    assert recipe.cells()[1].config(0).byzantine == 0
    assert recipe.cells()[3].config(0).rounds == 3


def test_extends_replaces_keys_of_base_and_axes_and_all_else_whole(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'extends = "table1"\ntitle = "mine"\n[base]\nrounds = 7\n[axes]\nrule = ["cwtm"]\nexclude = []\n'
    )
    with pytest.raises(Cyber0Error):
        get_recipe(str(tmp_path / "mine.toml"))  # table1's exclusions name rules that are no longer there
    (tmp_path / "mine.toml").write_text(
        'extends = "table1"\nexclude = []\nfigures = []\n[base]\nrounds = 7\n[axes.rule]\nCWTM = "cwtm"\n'
    )
    recipe = get_recipe(str(tmp_path / "mine.toml"))
    assert len(recipe.cells()) == 2 * 6 + 2
    assert recipe.base == {"rounds": 7, "alpha": 0.1, "local_epochs": 3, "scheme": "biased"}
    (tmp_path / "own.toml").write_text(f'extends = "{tmp_path}/own.toml"\n')
    with pytest.raises(InvalidConfig, match="cannot extend itself"):
        get_recipe(str(tmp_path / "own.toml"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"axes": {"ruel": ["mean"]}}, "unknown axis 'ruel'.*did you mean 'rule'"),
        ({"axes": {"speed": {"fast": {"lrr": 1.0}}}}, "unknown key 'lrr' of axis 'speed'"),
        ({"axes": {"rule": []}}, r"axes.rule = \[\]: give it values"),
        ({"axes": {"rule": "krum"}}, "axes.rule.* = 'krum': input should be a valid list"),
        ({"axes": {"seed": [1, 2]}}, "the axis 'seed' sets seed"),
        ({"base": {"seed": 7}}, "base.seed"),
        ({"rule": "krum", "rounds": 3}, "rule, rounds: keys of a run, not of a study; write them below"),
        ({"axes": {"rule": ["mean"]}, "exclude": [{"rule": "mean"}]}, "the grid is empty"),
        ({"axes": {"rule": ["mean"]}, "exclude": [{"rule": "maen"}]}, "unknown label 'maen' of axis 'rule'"),
        ({"axes": {"rule": ["mean"]}, "exclude": [{"rull": "mean"}]}, "unknown axis 'rull'"),
        ({"axes": {"rule": ["mean"]}, "table": {"rows": ["rule"], "columns": ["attack"]}}, "unknown axis 'attack'"),
        ({"axes": {"rule": ["mean"]}, "figures": [{"name": "A b", "title": "", "line": []}]}, "figures.0.name = 'A b'"),
        ({"axes": {"rule": ["mean"]}, "seeds": 0}, "seeds = 0"),
        ({"axes": {"rule": ["mean"]}, "first_seed": -1}, "first_seed = -1"),
        ({"axes": {"rule": ["mean"]}, "also": [{"labels": {}, "values": {}}]}, "has no label on 'rule'"),
        ({"axis": {"rule": ["mean"]}}, "unknown key 'axis' of a study"),
        ({"axes": 3}, "axes = 3"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(keys, message):
    with pytest.raises((InvalidConfig, UnknownName), match=message):
        Recipe.of(keys)


@pytest.mark.parametrize("text", ["", "# later\n", 'title = "Mine"\nseeds = 2\n[axes]\n'])
def test_a_recipe_without_anything_to_play_is_told_what_it_needs(tmp_path, text):
    (tmp_path / "empty.toml").write_text(text)
    with pytest.raises(InvalidConfig, match=r"empty.toml says nothing to play: .* below \[base\].* below \[axes\]"):
        get_recipe(str(tmp_path / "empty.toml"))


def test_a_study_without_axes_has_one_cell_which_is_the_base():
    for keys in ({"base": {"rule": "krum"}}, {"base": {"rule": "krum"}, "axes": {}}):
        recipe = Recipe.of({**keys, "seeds": 3})
        assert Recipe.of(recipe.model_dump()) == recipe
        jobs = jobs_of(recipe, {})
        assert [job.name for job in jobs] == ["base_seed0", "base_seed1", "base_seed2"]
        assert {job.config.rule for job in jobs} == {"krum"}


def test_every_cell_that_no_run_can_be_made_of_is_named():
    with pytest.raises(InvalidConfig) as caught:
        jobs_of(Recipe.of({"base": {"rule": "mean"}, "axes": {"lr": [0.1, -1.0], "rounds": [0, 5]}}), {})
    assert "cell '0.1, 0': rounds = 0" in str(caught.value)
    assert "cell '-1.0, 5': lr = -1.0" in str(caught.value)
    with pytest.raises(InvalidConfig, match="byzantine = 30 of clients = 40"):
        jobs_of(Recipe.of({"base": {"byzantine": 30}, "axes": {"lr": [0.1]}}), {})


def test_two_cells_of_one_name_are_refused():
    twice = {"axes": {"rule": ["mean"]}, "also": [{"labels": {"rule": "mean"}, "values": {"rule": "median"}}]}
    with pytest.raises(InvalidConfig, match="two cells are called 'mean'"):
        jobs_of(Recipe.of(twice), {})


@pytest.mark.parametrize("line", ["[base]\nlr = 0.1", "[choose]\nlr = [0.1, 0.2]"])
def test_how_the_rates_were_chosen_is_not_said_of_others(line, tmp_path):
    heir = tmp_path / "heir.toml"
    heir.write_text(f'extends = "quick"\n{line}\n')
    assert get_recipe(str(heir)).rates == ""
    heir.write_text(f'extends = "quick"\nrates = "By hand."\n{line}\n')
    assert get_recipe(str(heir)).rates == "By hand."
    shown = [
        CliRunner().invoke(app, ["study", "quick", "--print-recipe", *more]).output for more in ((), ("--set", "lr=1"))
    ]
    assert ["rates = " in text for text in shown] == [True, False]


def test_what_a_recipe_lacks_is_named_without_the_value_of_something_else():
    with pytest.raises(InvalidConfig, match=r"^table\.columns is missing: give it a value$"):
        Recipe.of({"axes": {"rule": ["mean"]}, "table": {"rows": ["rule"]}})
