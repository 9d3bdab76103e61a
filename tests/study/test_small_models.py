"""The studies of small language models have Table 2's setting; their searches differ in the learning rate alone."""

import pytest
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.study.recipe import Recipe, get_recipe

SETTING = {"clients": 12, "byzantine": 3, "rule": "cwtm", "partition": "dirichlet(alpha=1)", "directions": 1}
SETTING |= {"mu": 0.001, "family": "gaussian"}


@pytest.mark.parametrize("name", ["minilm", "smollm2", "minilm-search", "smollm2-search"])
def test_every_cell_has_the_setting_of_table_2(name):
    papers = get_recipe("table2").cells()[0].config(0).model_dump()
    for cell in get_recipe(name).cells():
        config = cell.config(seed=0).model_dump()
        assert {key: config[key] for key in SETTING} == {key: papers[key] for key in SETTING} == SETTING
        assert config["engine"] == "batched"
        assert config["precision"] == "mixed"


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_runs_are_kept_and_searches_are_not(name):
    recipe, search = get_recipe(name), get_recipe(f"{name}-search")
    assert (recipe.keep, search.keep) == (True, False)
    searched = {cell.labels["lr"]: cell for cell in search.cells() if _quiet(cell)}
    assert len(searched) >= 4
    quiet = next(cell for cell in recipe.cells() if _quiet(cell)).config(0)
    for label, cell in searched.items():
        config = cell.config(0)
        assert config.lr == float(label)
        assert config.rounds < quiet.rounds
        assert (
            config.model_copy(update={key: getattr(quiet, key) for key in ("lr", "rounds", "evaluate_every")}) == quiet
        )


def test_the_attacks_on_minilm_are_those_of_table_2():
    assert get_recipe("minilm").axes["attack"] == get_recipe("table2").axes["attack"]


def test_where_the_model_lies_is_no_part_of_the_recipe(tmp_path):
    shown = CliRunner().invoke(app, ["study", "minilm", "--model", str(tmp_path), "--print-recipe"])
    assert shown.exit_code == 0
    assert str(tmp_path) not in shown.output
    assert Recipe.of(get_recipe("minilm").model_dump(exclude_defaults=True)) == get_recipe("minilm")


def _quiet(cell):
    return (cell.labels["task"], cell.labels["attack"]) == ("SST-2", "none")
