"""Data sets as the library `datasets` keeps them, and what is made of their labels."""

import json

import numpy as np
import pytest

from cyber0.errors import InvalidData, MissingExtra
from cyber0.tasks.task import make
from cyber0.tasks.text import tiny
from cyber0.tasks.text.hub import gather, read
from cyber0.tasks.text.prompts import Prompt

PROMPT = Prompt.of(tiny.PROMPT)


class Part(list):
    """Rows whose labels are numbers with names, as a data set has them."""

    def __init__(self, rows, names):
        super().__init__(rows)
        self.features = {"label": type("ClassLabel", (), {"names": names})()}


def parts_of(names, **labels):
    made = {name: [{"text": "a film", "label": label} for label in each] for name, each in labels.items()}
    return {name: Part(rows, names) if names else rows for name, rows in made.items()}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, [0, 1, 1]),
        (["neg", "pos"], [0, 1, 1]),  # the prompt knows the numbers only
        (["good", "bad"], [1, 0, 0]),  # it knows the names, which say more
    ],
)
def test_labels_are_read_by_name_where_the_prompt_knows_it(names, expected):
    train, test = gather(parts_of(names, train=[0, 1, 1], test=[0]), PROMPT, ["text"], "mine")
    assert train.labels.tolist() == expected
    assert len(test.texts) == 1


@pytest.mark.parametrize("names", [None, ["neg", "pos"]])
def test_samples_without_a_label_are_left_out(names):
    parts = parts_of(names, train=[1, -1, 0], test=[-1, -1], validation=[1, None])
    train, test = gather(parts, PROMPT, ["text"], "mine")
    assert train.labels.tolist() == [1, 0]
    assert test.labels.tolist() == [1]


def test_what_cannot_be_used_is_named():
    with pytest.raises(InvalidData, match="dataset = 'mine' has the parts test: one named train is needed"):
        gather(parts_of(None, test=[0]), PROMPT, ["text"], "mine")
    with pytest.raises(InvalidData, match="mine, train, row 1: the label 'worse' is not one of bad, good"):
        gather(parts_of(["bad", "worse"], train=[0, 1]), Prompt.of({**tiny.PROMPT, "labels": {}}), ["text"], "mine")
    with pytest.raises(InvalidData, match="mine, train, row 0: there is no column 'review' among text, label"):
        gather(parts_of(None, train=[0]), PROMPT, ["review"], "mine")
    with pytest.raises(InvalidData, match="mine, train holds no rows"):
        gather(parts_of(None, train=[-1]), PROMPT, ["text"], "mine")


def test_without_datasets_the_line_that_installs_it_is_said(monkeypatch):
    monkeypatch.setattr("cyber0.tasks.text.hub.find_spec", lambda _: None)
    with pytest.raises(
        MissingExtra, match=r"datasets is not installed: pip install 'cyber0\[data\]', or give the rows as a file"
    ):
        read("ag_news", PROMPT, ["text"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rows as parquet, as JSON lines, and as `save_to_disk` writes them, whole and without a test part."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    tiny.model(tiny.data(tmp_path) / "model", "bert")
    lines = {name: (tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("train", "test")}
    rows = {name: list(map(json.loads, lines[name])) for name in lines}
    named = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    made = datasets.DatasetDict({name: datasets.Dataset.from_list(rows[name], features=named) for name in rows})
    made.save_to_disk(tmp_path / "saved")
    made["train"].save_to_disk(tmp_path / "alone")
    for kind in ("parquet", "json"):
        (tmp_path / kind).mkdir()
        for name, part in made.items():
            getattr(part, f"to_{kind}")(tmp_path / kind / f"{name}.{kind}")
    return tmp_path


def test_every_way_to_keep_a_data_set_gives_the_same_task(folder):
    model, plain = str(folder / "model"), "text-classification(prompt='prompt.toml')"
    expected = make(plain, folder, model=model).dataset
    for kept in ("saved", "parquet", "json"):
        found = make(f"text-classification(prompt='prompt.toml', dataset='{kept}')", folder, model=model).dataset
        assert np.array_equal(found.train_inputs, expected.train_inputs)
        assert np.array_equal(found.test_labels, expected.test_labels)
    alone = make("text-classification(prompt='prompt.toml', dataset='alone')", folder, model=model).dataset
    assert (len(alone.train_labels), len(alone.test_labels)) == (48, 12)


def test_a_folder_without_data_is_refused(folder):
    (folder / "empty").mkdir()
    with pytest.raises(InvalidData, match=r"dataset = .*empty' cannot be read \(.*\): name one as"):
        read(str(folder / "empty"), PROMPT, ["text"])


@pytest.mark.usefixtures("folder")
def test_a_data_set_that_is_nowhere_is_refused(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidData, match=r"dataset = 'no-such/data:of' is no folder here, and cannot be had from"):
        read("no-such/data:of", PROMPT, ["text"])
