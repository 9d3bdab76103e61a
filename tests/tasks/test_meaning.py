"""What a label means is known by digest: the same for clients who agree, another where they do not."""

import shutil

import numpy as np
import pytest
import torch

from cyber0.tasks.convert import task_of
from cyber0.tasks.meaning import digest
from cyber0.tasks.task import make
from cyber0.tasks.text import tiny
from cyber0.tasks.text.prompts import Prompt
from cyber0.tasks.text.rows import Rows
from cyber0.tasks.text.tasks import Options, assemble

ROWS = Rows([{"text": "a dull film"}, {"text": "a lovely film"}], np.array([0, 1]))
PARTS = {"labels", "words", "prompt", "tokenizer", "preprocessing"}


def meaning(model, rows=ROWS, prompt=None, **options):
    form = Prompt.of({**tiny.PROMPT, **(prompt or {})})
    return dict(assemble("mine", form, rows, rows, str(model), Options(**options), "somewhere").meaning)


def different(one, other):
    return {part for part in PARTS if one[part] != other[part]}


@pytest.fixture(scope="module")
def roberta(folder):
    return folder / "roberta"


def test_every_part_is_a_digest(roberta):
    found = meaning(roberta)
    assert set(found) == PARTS
    assert all(len(bytes.fromhex(part)) == 32 for part in found.values())


def test_it_depends_neither_on_paths_nor_on_data(roberta, tmp_path):
    shutil.copytree(roberta, tmp_path / "elsewhere")
    other = Rows([{"text": "a fine story"}] * 5, np.ones(5, dtype=np.int64))
    assert meaning(roberta) == meaning(tmp_path / "elsewhere", other, shots=1, tests=1, seed=3)


def test_what_differs_is_named(roberta):
    words = tiny.PROMPT["words"]
    one, other = words.values()
    base = meaning(roberta)
    swapped = dict(zip(words, (other, one), strict=True))
    assert different(base, meaning(roberta, prompt={"words": swapped})) == {"words"}
    turned = dict(reversed(words.items()))
    assert different(base, meaning(roberta, prompt={"words": turned})) == {"labels", "words"}
    asked = {**tiny.PROMPT["prompts"], "masked": "{text} So{mask}."}
    assert different(base, meaning(roberta, prompt={"prompts": asked})) == {"prompt"}
    assert different(base, meaning(roberta, length=9)) == {"preprocessing"}


def test_a_pooled_head_reads_no_words(folder):
    base = meaning(folder / "encoder")
    words = dict(zip(tiny.PROMPT["words"], ("great", "terrible"), strict=True))
    assert meaning(folder / "encoder", prompt={"words": words}) == base
    for options in ({"scale": 50.0}, {"pooling": "cls"}, {"normalise": True}):
        assert different(base, meaning(folder / "encoder", **options)) <= {"preprocessing"}
    assert different(base, meaning(folder / "encoder", scale=50.0)) == {"preprocessing"}


def test_another_tokenizer_is_noticed(roberta, folder):
    assert "tokenizer" in different(meaning(roberta), meaning(folder / "bert"))


def test_digits_mean_the_same_in_every_model():
    found = [dict(make(name, source="embedded").meaning) for name in ("mnist", "mnist-mlp", "mnist-cnn")]
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == {"labels", "preprocessing"}


def test_classes_of_users_are_numbered_or_named():
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])

    def labels(**options):
        return task_of(torch.nn.Linear(2, 3), (x, y), (x, y), **options).meaning["labels"]

    assert labels() == labels(classes=3) == digest(3) != labels(classes=4)
    assert labels(classes=["cat", "dog", "fox"]) == digest(["cat", "dog", "fox"])
    assert labels(classes=["cat", "fox", "dog"]) != labels(classes=["cat", "dog", "fox"])
