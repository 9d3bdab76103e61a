"""Clients with files of their own: each trains on all that it has, and all mean the same by a label."""

import csv
import gzip
import json
import os
import re
import signal
from itertools import cycle, islice, product

import pytest
import torch
from tests.network.parties import free_port
from tests.network.test_commands import command, until
from tomli_w import dumps
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.tasks.text import tiny

transformers = pytest.importorskip("transformers")

ROWS = 300


def serve(tmp_path, *options):
    address = f"127.0.0.1:{free_port()}"
    words = ("serve", "--ledger", tmp_path / "run.ledger", "--listen", address, "--byzantine", "1")
    return address, command(*words, *options, fresh=False)


def join(tmp_path, address, name, data, *options):
    state = tmp_path / "state"
    words = ("join", address, "--name", name, "--data", data, "--state", state, "--device", "cpu", "--give-up", "60")
    return command(*words, *options, fresh=False)


def ended(process, status=0):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == status, out
    return out


# A task in code of one's own: which rows a client trains on, it writes down itself

TASK = """
import csv
from pathlib import Path

import numpy as np
import torch

from cyber0.tasks.dataset import Dataset
from cyber0.tasks.losses import cross_entropy
from cyber0.tasks.task import Task


def task(directory, source):
    with open(Path(directory) / "rows.csv") as file:
        rows = np.array(list(csv.reader(file)), dtype=np.float32)

    def losses(model, batch):
        if len(batch[1]) == 300:
            with open(Path(directory) / "used.txt", "a") as used:
                used.writelines(f"{int(number)}\\n" for number in batch[0][:, 0])
        return cross_entropy(model, (batch[0] * 0.001, batch[1]))

    labels = rows[:, 1].astype(np.int64)
    return Task("mine", Dataset(rows[:, :1], labels, rows[:9, :1], labels[:9], 2, "rows.csv"), model, losses)


def model(seed):
    return torch.nn.Linear(1, 2)
"""


def own_rows(tmp_path, name, first):
    folder = tmp_path / name
    folder.mkdir()
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([number, number % 2] for number in range(first, first + ROWS))
    return folder


def used(folder):
    return set(map(int, (folder / "used.txt").read_text().split()))


@pytest.mark.parametrize("deal", [None, "iid"])
def test_a_client_trains_on_all_of_its_rows_unless_a_share_is_dealt(tmp_path, monkeypatch, deal):
    (tmp_path / "mine.py").write_text(TASK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    run = ("--clients", "3", "--directions", "2", "--rounds", "3", "--batch", str(ROWS), "--task", "mine:task")
    address, federator = serve(tmp_path, *run)
    folders = [own_rows(tmp_path, f"client-{number}", ROWS * number) for number in range(3)]
    dealt = () if deal is None else ("--deal", deal)
    joined = [join(tmp_path, address, folder.name, folder, "--own-code", *dealt) for folder in folders]
    outs = list(map(ended, joined))
    ended(federator)
    for number, (folder, out) in enumerate(zip(folders, outs, strict=True)):
        own = set(range(ROWS * number, ROWS * (number + 1)))
        if deal is None:
            assert "training on all 300 samples of this client's data\n" in out
            assert used(folder) == own
        else:
            assert "training on 100 of 300 samples, the share that iid deals this client: for trying things out" in out
            assert used(folder) < own
            assert len(used(folder)) <= 100


REGRESSION = """
import torch

from cyber0.tasks.convert import task_of

x = torch.linspace(-1, 1, 300)[:, None]


def task(directory, source):
    return task_of(torch.nn.Linear(1, 1), (x, 3 * x), (x[:50], 3 * x[:50]), loss=torch.nn.functional.mse_loss)
"""


def test_a_task_without_classes_is_evaluated_by_its_loss(tmp_path, monkeypatch):
    (tmp_path / "slope.py").write_text(REGRESSION)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    run = ("--clients", "3", "--directions", "2", "--rounds", "30", "--batch", "16", "--task", "slope:task")
    address, federator = serve(tmp_path, *run, "--lr", "0.1")
    names = [f"client-{number}" for number in range(3)]
    outs = [ended(each) for each in [join(tmp_path, address, name, ".", "--own-code", "--evaluate") for name in names]]
    ended(federator)
    for out in outs:
        assert "accuracy" not in out
        assert 0 <= float(re.search(r"loss +(\S+)", out)[1]) < 1


# Texts


def reviews(first):
    things = product(("a", "the"), ("film", "story", "plot", "it"), ("", " it is", " the story was it", " it was"))
    for number, (article, thing, extra) in enumerate(islice(cycle(things), first, first + ROWS)):
        word = ("dull", "wonderful", "awful", "lovely")[number % 4]
        yield {"text": f"{article} {word} {thing}{extra}", "label": number % 2}


def texts(folder, first=0, file="train.jsonl", **changes):
    """A client's folder: rows in JSONL or CSV, and a prompt file."""
    folder.mkdir()
    rows = list(reviews(first))
    for name, part in ((file, rows), ("test.jsonl", rows[:12])):
        with (folder / name).open("w", newline="") as out:
            if name.endswith(".csv"):
                writer = csv.DictWriter(out, ["text", "label"])
                writer.writeheader()
                writer.writerows(part)
            else:
                out.writelines(json.dumps(row) + "\n" for row in part)
    prompt = {**tiny.PROMPT, **changes, "data": {"label": "label", "train": file, "test": "test.jsonl"}}
    (folder / "prompt.toml").write_text(dumps(prompt))
    return folder


def test_four_companies_tune_one_chat_model_each_on_a_file_of_its_own(tmp_path):
    """As in docs/text.md: real processes, files of other names and kinds, and one of the four lies."""
    model = tiny.model(tmp_path / "tiny", "llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = tiny.CHAT
    tokenizer.save_pretrained(model)
    lines = (tiny.chats(tmp_path / "all", messages=True) / "train.jsonl").read_text().splitlines(keepends=True)
    files = [tmp_path / name for name in ("ours.jsonl", "chats.jsonl", "packed.jsonl.gz", "more.jsonl")]
    for place, file in enumerate(files):
        text = "".join(lines[place::4]).encode()
        file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    address, federator = serve(
        tmp_path, "--clients", "4", "--task", "completion(length=24)", "--model", "tiny",
        "--family", "gaussian", "--directions", "2", "--step-rule", "normalised", "--schedule", "cosine",
        "--lr", "0.05", "--batch", "6", "--rounds", "12",
    )  # fmt: skip
    lies = ((), (), (), ("--attack", "sf"))
    joined = [
        join(tmp_path, address, f"client-{place}", file, "--model", model, "--threads", "1", *lies[place])
        for place, file in enumerate(files)
    ]
    outs = list(map(ended, joined))
    ended(federator)
    assert all("training on all 10 samples of this client's data" in out for out in outs)
    assert len({re.search("fingerprint +([0-9a-f]{16})", out)[1] for out in outs}) == 1
    ledger = tmp_path / "run.ledger"
    with File(ledger, read_only=True) as opened:
        report = verify(opened)
        assert (report.findings, report.aggregates) == ([], 12)
    told = CliRunner().invoke(app, ["export", str(ledger), "--model", str(model), "--out", str(tmp_path / "chat")])
    assert told.exit_code == 0, told.output
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "chat")
    before = transformers.AutoModelForCausalLM.from_pretrained(model)
    assert not torch.equal(plain.get_input_embeddings().weight, before.get_input_embeddings().weight)


def other_tokenizer(tmp_path, model):
    """The same model and the same vocabulary, but texts are read in small letters."""
    folder = tmp_path / "lower"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    return folder


def test_who_means_something_else_by_a_label_is_refused_and_the_others_go_on(tmp_path):
    model = tiny.model(tmp_path / "tiny")
    address, federator = serve(
        tmp_path, "--roster", "ann,bob,cy,dan,eve", "--quorum", "3",
        "--directions", "2", "--rounds", "8", "--batch", "16",
        "--task", "text-classification(prompt='prompt.toml')", "--model", "tiny", "--linger", "600", "--deadline", "5",
    )  # fmt: skip
    until(federator, "listening at")
    words, prompts = tiny.PROMPT["words"], tiny.PROMPT["prompts"]

    def client(name, folder, weights=model):
        return join(tmp_path, address, name, folder, "--model", weights)

    def refused(process, *parts):
        *_, sentence = ended(process, status=3).splitlines()
        assert sentence.startswith("cyber0: the federator refuses this client: ")
        assert set(re.findall(r"(\w+) [0-9a-f]{16} instead of [0-9a-f]{16}", sentence)) == set(parts), sentence

    swapped = dict(zip(words, reversed(words.values()), strict=True))
    first = client("dan", texts(tmp_path / "swapped", words=swapped))
    until(federator, "1 of 5 are here")
    folders = {
        "ann": texts(tmp_path / "ann"),
        "bob": texts(tmp_path / "bob", 300, "rows.csv"),
        "cy": texts(tmp_path / "cy", 600, "mine.jsonl"),
    }
    joined = {name: client(name, folder) for name, folder in folders.items()}
    turned = client("eve", texts(tmp_path / "turned", words=dict(reversed(words.items()))))
    refused(first, "words")
    refused(turned, "labels", "words")
    asked = client("dan", texts(tmp_path / "asked", prompts={**prompts, "masked": "{text} So{mask}."}))
    lower = client("eve", texts(tmp_path / "small"), other_tokenizer(tmp_path, model))
    refused(asked, "prompt")
    refused(lower, "tokenizer")
    refused(client("dan", texts(tmp_path / "short", length=9)), "preprocessing")
    outs = list(map(ended, joined.values()))
    federator.send_signal(signal.SIGTERM)
    ended(federator)
    assert all("training on all 300 samples" in out for out in outs)
    assert len({re.search("fingerprint +([0-9a-f]{16})", out)[1] for out in outs}) == 1
    with File(tmp_path / "run.ledger", read_only=True) as ledger:
        report = verify(ledger)
        assert (report.findings, report.aggregates) == ([], 8)
        voters = {ballot.client for decision in ledger.decisions() for ballot in decision.ballots}
        meaning = ledger.identity.meaning
    assert voters == set(folders)
    assert set(meaning) == {"labels", "preprocessing", "prompt", "tokenizer", "words"}
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "run.ledger")]).output
    for part, digest in meaning.items():
        assert re.search(f"meaning +{part} +{digest}", shown)
