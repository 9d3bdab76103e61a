"""Prompts and rows: what is in a file, what is kept of it, and what is said when it cannot be used."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tomli_w import dumps

from cyber0.errors import Cyber0Error, InvalidConfig, InvalidData
from cyber0.tasks.task import make
from cyber0.tasks.text import tiny
from cyber0.tasks.text.prompts import Prompt, load, pieces
from cyber0.tasks.text.rows import few, locate, read, split

KEYS = {
    "words": {"bad": "terrible", "good": "great"},
    "labels": {"0": "bad", "1": "good"},
    "prompts": {"masked": "{text} It was{mask}."},
}
PROMPT = Prompt.of(KEYS)


def test_the_shipped_prompts_are_those_of_the_paper():
    row = {"premise": "A man sleeps.", "hypothesis": "He is awake.", "sentence": "fine", "text": "Who ?"}
    expected = {
        "sst2": "fine It was<mask>.",
        "snli": "A man sleeps?<mask>, he is awake.",
        "trec": "<mask>: Who ?",
    }
    for name, text in expected.items():
        prompt = load(name)
        assert "".join(piece for piece, _ in pieces(prompt.template("masked"), row, "<mask>")) == text
        assert set(prompt.prompts) == {"masked", "causal", "pooled"}


def test_labels_are_mapped_by_name():
    assert [load("snli").class_of(label) for label in (0, "1", "contradiction")] == [0, 1, 2]
    assert load("trec").class_of("ABBR") == 2
    assert load("trec").class_of(5) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": {"masked": "{text}"}}, "'masked' must have {mask} once"),
        ({"prompts": {"causal": "{text}{mask}"}}, "'causal' has no {mask}"),
        ({"prompts": {"pooled": "{text"}}, "'pooled': expected '}' before end of string: '{text'"),
        ({"prompts": {"pooled": "always the same"}}, "shows nothing of the data"),
        ({"prompts": {"pooled": "{text:upper}"}}, "unknown filter 'upper' of a prompt"),
        ({"prompts": {"other": "{text}"}}, "prompts.other"),
        ({"labels": {"2": "middling"}}, "label '2' is of class 'middling', which has no word"),
        ({"words": {"bad": "terrible"}}, "words"),
        ({"wrods": {}}, "wrods"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused(change, said):
    with pytest.raises(Cyber0Error, match=r"the prompt|unknown filter") as caught:
        Prompt.of({**KEYS, **change})
    assert said in str(caught.value)


def test_a_class_may_have_a_word_for_each_kind_of_model():
    prompt = Prompt.of({**KEYS, "words": {"bad": "terrible", "good": {"masked": "great"}}})
    assert prompt.words_of("masked") == {"bad": ("terrible",), "good": ("great",)}
    with pytest.raises(InvalidConfig, match="the class 'good' of texts has no word for a causal model: add it"):
        prompt.words_of("causal")


def test_a_prompt_for_another_kind_of_model_is_missed_in_a_sentence():
    with pytest.raises(InvalidConfig, match=r"for a causal model is missing: add causal = .* or use head='masked'"):
        PROMPT.template("causal")


ROWS = [{"text": "a, \"b\"\n", "label": 1}, {"text": "ü", "label": "bad"}]  # fmt: skip


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.csv", "rows.tsv"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    if "jsonl" in name:
        content = "\n".join(map(json.dumps, ROWS))
    else:
        comma = "," if name.endswith("csv") else "\t"
        content = f'label{comma}text\n1{comma}"a, ""b""\n"\nbad{comma}ü\n'
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = read(tmp_path / name, PROMPT, ["text"])
    assert found.texts == [{"text": row["text"]} for row in ROWS]
    assert found.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.jsonl",
            '{"text": "x", "label": 1}\n{"text": "x", "label": 7}',
            "a.jsonl, line 2: the label 7 is not one of",
        ),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"label": 1}', "line 2: there is no column 'text' among label"),
        ("a.jsonl", "[1]", "line 1: a row is an object with the columns label, text"),
        ("a.jsonl", "{", "a.jsonl is damaged"),
        ("a.jsonl", "", "a.jsonl holds no rows"),
        ("a.csv", "label,text\n1,x\n3,y\n", "a.csv, line 3: the label '3' is not one of bad, good (also written 0, 1)"),
        ("a.csv", "text\nx\n", "line 2: there is no column 'label' among text"),
        ("a.jsonl.gz", "no gzip", "cannot be read"),
        ("a.xlsx", "", "rows are read from .jsonl, .csv or .tsv"),
        (
            "a.csv",
            "label,text\n1,x, y\n",
            "line 2 has more fields than the head of the table: put texts with a comma in",
        ),
        ("a.csv", "label,text\n1\n", "line 2: the column 'text' is empty: fill it, or take the row out"),
        ("a.jsonl", '{"text": "x", "label": null}', "line 1: the column 'label' is empty"),
        ("a.json", '[\n{"text": "x", "label": 1}\n]', "no JSON lines (Expecting value: line 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidData) as caught:
        read(tmp_path / name, PROMPT, ["text"])
    assert said in str(caught.value)


def test_a_file_in_another_alphabet_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("label,text\n1,ü\n".encode("latin-1"))
    with pytest.raises(InvalidData, match=r"a.csv is not in UTF-8 \(.*\): save it in UTF-8"):
        read(tmp_path / "a.csv", PROMPT, ["text"])


@pytest.mark.parametrize("head", ["\ufefflabel,text", "label;text", '\ufeff"label";"text"', "label, text"])
def test_tables_of_spreadsheets_are_read(tmp_path, head):
    comma = ";" if ";" in head else ","
    (tmp_path / "a.csv").write_text(f'{head}\r\n1{comma}"a, b; c"\r\n0{comma}d\r\n', encoding="utf-8")
    found = read(tmp_path / "a.csv", PROMPT, ["text"])
    assert [row["text"] for row in found.texts] == ["a, b; c", "d"]
    assert found.labels.tolist() == [1, 0]


def test_a_prompt_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(InvalidConfig, match=r"there is no prompt file .*gone.toml: name one beside the data"):
        load(tmp_path / "gone.toml")


def test_a_prompt_is_looked_for_in_the_folder_then_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    (folder / "sst2").mkdir(parents=True)  # of the data, and named as a prompt that comes with the package
    with pytest.raises(InvalidConfig, match=r"there is no prompt file my.toml"):
        load("my.toml", folder)
    for place in (tmp_path, folder):
        (place / "my.toml").write_text(dumps({**KEYS, "title": place.name}))
        assert load("my.toml", folder).title == place.name
    assert load("my.toml").title == load(tmp_path / "my.toml", folder).title == tmp_path.name
    assert load("sst2", folder) == load("sst2")


def test_a_task_of_the_package_finds_your_prompt_beside_its_data(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "sst2").mkdir()
    for name in ("glue_train.jsonl", "glue_dev.jsonl"):
        (tmp_path / "sst2" / name).write_text('{"text": "a dull film", "label": 0}\n{"text": "a film", "label": 1}\n')
    (tmp_path / "my.toml").write_text(dumps({**KEYS, "title": "mine"}))
    model = str(tiny.model(tmp_path / "model"))
    assert make("sst2(prompt='my.toml')", tmp_path, model=model).dataset.source.startswith("mine, from")


def test_data_are_looked_for_in_the_folder_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    prompt = load("sst2")
    with pytest.raises(InvalidData, match=r"SST-2 is not in .*: put glue_train.jsonl and glue_dev.jsonl"):
        locate("sst2", prompt, None)
    places = {"here": tmp_path / "here" / "sst2", "env": tmp_path / "env", "cache": tmp_path / "cache/cyber0/sst2"}
    for folder in places.values():
        folder.mkdir(parents=True)
        for name in (prompt.data.train, prompt.data.test):
            (folder / f"{name}.gz").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert locate("sst2", prompt, None)[0].parent == places["cache"]
    monkeypatch.setenv("CYBER0_DATA", str(tmp_path / "env"))
    assert locate("sst2", prompt, None)[0].parent == places["env"]
    assert locate("sst2", prompt, tmp_path / "here")[0].parent == places["here"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 12), st.integers(0, 99))
def test_few_keeps_up_to_so_many_of_each_class_by_seed(labels, shots, seed):
    labels = np.array(labels)
    kept = few(labels, shots, seed)
    assert (np.diff(kept) > 0).all()
    for label in np.unique(labels):
        assert (labels[kept] == label).sum() == min(shots, (labels == label).sum())
    assert np.array_equal(kept, few(labels, shots, seed))


def test_other_seeds_keep_other_samples():
    labels = np.zeros(100, dtype=np.int64)
    assert not np.array_equal(few(labels, 10, 0), few(labels, 10, 1))


def test_a_split_gives_every_row_to_one_side(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": str(i), "label": i % 2}) for i in range(30)))
    rows = read(tmp_path / "a.jsonl", PROMPT, ["text"])
    train, test = split(rows, 0.2, seed=3)
    assert sorted(int(row["text"]) for part in (train, test) for row in part.texts) == list(range(30))
    assert len(test.texts) == 6
    with pytest.raises(InvalidData, match=r"holdout = 1.0: it leaves nothing"):
        split(rows, 1.0, seed=3)
