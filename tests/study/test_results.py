"""What is published in results/: made by the recipes as they are, and every table what its data give."""

import json
from pathlib import Path

import pandas as pd
import pytest

from cyber0.protocol import export
from cyber0.protocol.ledger import Memory
from cyber0.protocol.verify import verify
from cyber0.study.claims import judge
from cyber0.study.recipe import get_recipe
from cyber0.study.results import Results
from cyber0.study.statistics import measure
from cyber0.study.study import jobs_of
from cyber0.study.tables import grid, to_markdown

PUBLISHED = sorted(path.parent for path in Path(__file__).parents[2].glob("results/*/study.toml"))
EXPORTS = [path for folder in PUBLISHED for path in sorted(folder.glob("exports/*.cyber0"))]
studies = pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)


def _frame(folder):
    """The evaluations of a published study."""
    [data] = folder.glob("results.csv*")
    labels = dict.fromkeys(get_recipe(folder.name).axes, str)  # "none" is no missing value, and 1e-4 no number
    return pd.read_csv(data, dtype=labels, keep_default_na=False, na_values={"loss": [""], "attack_success": [""]})


def _cells(folder):
    """The numbers of its cells."""
    return measure(Results(get_recipe(folder.name), _frame(folder)))


def test_there_are_results():
    named = {"table1", "minilm-line", "smollm2-line", "minilm-families", "minilm-privacy"}
    assert named <= {folder.name for folder in PUBLISHED}
    assert len(EXPORTS) >= 16


@studies
def test_the_recipe_that_ships_is_the_one_that_was_played(folder):
    assert get_recipe(folder.name).to_toml() == (folder / "study.toml").read_text()


@studies
def test_the_table_is_what_the_data_give(folder):
    recipe, frame = get_recipe(folder.name), _frame(folder)
    jobs = jobs_of(recipe, {})
    assert len(frame.groupby([*recipe.axes, "seed"])) == len(jobs)
    assert set(frame["seed"]) == set(recipe.every_seed)
    assert to_markdown(grid(recipe, measure(Results(recipe, frame)))) == (folder / "table.md").read_text()


def test_the_claims_are_what_the_tables_give():
    for folder in (folder for folder in PUBLISHED if get_recipe(folder.name).claims):
        verdicts = judge(get_recipe(folder.name), _cells(folder))
        published = json.loads((folder / "claims.json").read_text())
        assert [each["ours"]["numbers"] for each in published] == [verdict.ours.sentence for verdict in verdicts]


def test_the_first_pages_say_what_the_claims_of_table_1_give():
    root = Path(__file__).parents[2]
    ours = [each["ours"] for each in json.loads((root / "results/table1/claims.json").read_text())]
    held, lead = sum(each["holds"] for each in ours), f"lead of {ours[0]['margin']:.1f} points"
    counted = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")
    for name in ("README.md", "docs/index.md"):
        page = " ".join((root / name).read_text().split())
        assert lead in page
        assert f"{counted[held]} hold" in page
        assert page.split("logistic regression on MNIST, `cwtm`")[1].split("|")[0].endswith("attacks by `line` ")


@studies
def test_a_language_model_s_study_that_searches_with_line_says_so(folder):
    recipe = get_recipe(folder.name)
    if "model" in recipe.base and "search='line'" in recipe.to_toml():
        assert folder.name.endswith("-line") or "`line`" in recipe.note


def test_table_1_has_the_k_that_the_rule_chooses():
    [folder] = [folder for folder in PUBLISHED if folder.name == "table1-choice"]
    rows: dict[str, list[float]] = {}
    for cell in _cells(folder):
        rows.setdefault(cell.labels["local_epochs"], []).append(cell.difference.value)
    chosen = min(rows, key=lambda k: sum(far**2 for far in rows[k]))
    assert get_recipe("table1").base["local_epochs"] == int(chosen)
    assert get_recipe("table1").base["scheme"] == get_recipe("table1-choice").base["scheme"]


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_an_export_is_whole_and_says_where_it_leads(path):
    recipe, run = get_recipe(path.parts[-3]), export.read(path)
    [config] = [job.config for job in jobs_of(recipe, {}) if job.name == path.stem]
    assert run.identity.agreement == config.agreement
    with Memory() as ledger:
        ledger.adopt(run)
        assert ledger.head.rounds == config.rounds
        assert ledger.seals[-1].fingerprint is not None
        assert verify(ledger).sound
