"""Rows of texts are read from whatever people keep them in, named by one option."""

import csv
import gzip
import json

import numpy as np
import pytest

from cyber0.errors import InvalidData, MissingExtra
from cyber0.tasks.task import make
from cyber0.tasks.text import rows, tiny

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tiny.chats(tmp_path_factory.mktemp("sources"))
    tiny.model(place / "model", "llama")
    return place


def read(folder):
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def task_of(folder, data, options=""):
    return make(f"completion({options})", data, "auto", str(folder / "model")).dataset


def same(one, other):
    return np.array_equal(one.train_inputs, other.train_inputs) and np.array_equal(one.test_inputs, other.test_inputs)


def written(folder, name, found):
    """The same rows in a file of another kind."""
    path = folder / name
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, ["prompt", "completion"], delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(found)
    elif path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(found), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in found).encode()))
    else:
        pytest.importorskip("datasets").Dataset.from_list(found).save_to_disk(path)
    return path


@pytest.mark.parametrize("name", ["ours.csv", "ours.tsv", "ours.jsonl.gz", "ours.parquet", "ours"])
def test_a_file_or_folder_of_any_kind_is_the_data(folder, tmp_path, name):
    if name == "ours.tsv":
        rows_of = [{**row, "completion": row["completion"].strip()} for row in read(folder)]
    else:
        rows_of = read(folder)
    path = written(tmp_path, name, rows_of)
    if name.endswith((".csv", ".tsv")):  # tables lose the space before a word
        expected = [{**row, "completion": row["completion"].strip()} for row in rows_of]
        (tmp_path / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in expected))
        known = task_of(folder, tmp_path / "plain.jsonl")
    else:
        known = task_of(folder, folder)
    assert same(task_of(folder, path), known)
    assert same(task_of(folder, tmp_path, f"train={name!r}"), known)
    assert same(task_of(folder, path, "train='what-the-run-calls-it.jsonl'"), known)


def test_a_file_of_the_name_train_is_found_and_one_to_test_on_beside_it(folder, tmp_path):
    (tmp_path / "train.jsonl").write_text((folder / "train.jsonl").read_text())
    assert same(task_of(folder, tmp_path), task_of(folder, folder))
    (tmp_path / "test.csv").write_text("prompt,completion\na film was,dull\n")
    assert len(task_of(folder, tmp_path).test_labels) == 1
    assert len(task_of(folder, tmp_path / "train.jsonl", "test='test.csv'").train_labels) == len(read(folder))


def test_parts_of_a_data_set_are_used_by_their_names(folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    found = read(folder)
    made = {"train": datasets.Dataset.from_list(found[5:]), "validation": datasets.Dataset.from_list(found[:5])}
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    data = task_of(folder, tmp_path / "saved")
    assert (len(data.train_labels), len(data.test_labels)) == (len(found) - 5, 5)
    datasets.DatasetDict({"all": made["train"]}).save_to_disk(tmp_path / "other")
    with pytest.raises(InvalidData, match="has the parts all: one named train is needed"):
        task_of(folder, tmp_path / "other")


def test_a_classification_reads_the_same_files(tmp_path):
    tiny.data(tmp_path)
    model = str(tiny.model(tmp_path / "model", "bert"))
    known = make("text-classification(prompt='prompt.toml')", tmp_path, model=model).dataset
    (tmp_path / "mine.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    assert same(make("text-classification(prompt='prompt.toml')", tmp_path / "mine.jsonl", model=model).dataset, known)


def test_what_is_not_there_or_cannot_be_read_is_said(folder, tmp_path, monkeypatch):
    with pytest.raises(InvalidData, match=r"there is no .*nowhere: name a file, or the folder of the data, by --data"):
        task_of(folder, tmp_path / "nowhere")
    with pytest.raises(InvalidData, match=r"there is no file train.jsonl, train.json, train.csv, .* in .*: name the"):
        task_of(folder, tmp_path)
    with pytest.raises(InvalidData, match=r"there is no file .*mine.csv: name its folder, or a file, by --data"):
        task_of(folder, tmp_path, "train='mine.csv'")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InvalidData, match=r"empty.jsonl has no rows"):
        task_of(folder, tmp_path / "empty.jsonl")
    (tmp_path / "broken.parquet").write_text("PAR")
    monkeypatch.setitem(rows.__dict__, "require", refuse)
    with pytest.raises(MissingExtra, match=r"pip install 'cyber0\[data\]'"):
        task_of(folder, tmp_path / "broken.parquet")


def refuse(module, extra):
    raise MissingExtra(f"{module} is not installed: pip install 'cyber0[{extra}]'")


def test_a_damaged_parquet_file_is_named(folder, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "broken.parquet").write_text("PAR")
    with pytest.raises(InvalidData, match=r"broken.parquet is no Parquet file, or damaged"):
        task_of(folder, tmp_path / "broken.parquet")
