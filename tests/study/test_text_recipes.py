"""The studies of language models are the paper's."""

import pytest

from cyber0.errors import InvalidConfig
from cyber0.study.recipe import Recipe, get_recipe

CELLS = {"table2": 15, "table3": 15, "lm-clients": 4, "lm-directions": 4, "lm-local-epochs": 3, "lm-byzantine": 3}


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_is_the_papers_and_has_its_number(name):
    recipe = get_recipe(name)
    assert len(recipe.cells()) == CELLS[name]
    for cell in recipe.cells():
        config = cell.config(seed=0)
        assert recipe.published(cell.labels) is not None
        assert (config.model, config.rule, config.family) == ("roberta-large", "cwtm", "gaussian")
        assert (config.mu, config.lr, config.batch) == (0.001, 1e-6, 64)
        assert (config.engine, config.precision) == ("batched", "float32")
        work = config.rounds * config.directions * config.local_epochs
        assert work == (40_000 if config.task == "trec" else 20_000)


def test_the_tables_differ_in_who_holds_what():
    assert [get_recipe(name).cells()[0].config(0).partition for name in ("table2", "table3")] == [
        "dirichlet(alpha=1)",
        "iid",
    ]


def test_precision_may_be_an_axis():
    recipe = Recipe.of({"base": {"task": "sst2", "model": "m"}, "axes": {"precision": ["float32", "mixed", "bf16"]}})
    assert [cell.config(seed=0).precision for cell in recipe.cells()] == ["float32", "mixed", "bf16"]
    with pytest.raises(InvalidConfig, match="precision = 'half'"):
        Recipe.of({"axes": {"precision": ["half"]}}).cells()[0].config(seed=0)
