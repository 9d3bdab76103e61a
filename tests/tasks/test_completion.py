"""Causal models are tuned to complete prompts: the loss is that of transformers, and all parties hold the same bits."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InputError, InvalidData
from cyber0.simulation import Simulation
from cyber0.simulation.run import run
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import make
from cyber0.tasks.text import completer, tiny
from cyber0.tasks.text.tokens import PAD

transformers = pytest.importorskip("transformers")

TASK = "completion(train='train.jsonl', length=24)"
SMALL = {"clients": 4, "byzantine": 1, "directions": 2, "rounds": 3, "batch": 5, "lr": 0.02, "mu": 0.01}


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Prompts, the same as chats, and a tiny model whose tokenizer has a chat template."""
    folder = tiny.chats(tmp_path_factory.mktemp("chats"))
    tiny.chats(folder / "chat", messages=True)
    model = tiny.model(folder / "model", "llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = tiny.CHAT
    tokenizer.save_pretrained(model)
    return folder


def config_of(folder, **changes):
    where = {"task": TASK, "data": str(folder), "model": str(folder / "model"), "partition": "iid", "device": "cpu"}
    return RunConfig(**SMALL | where | {"family": "gaussian"} | changes)


def test_the_loss_is_that_of_transformers_over_the_completion(chats):
    task = make(TASK, chats, "auto", str(chats / "model"))
    plain = transformers.AutoModelForCausalLM.from_pretrained(chats / "model")
    inputs = torch.as_tensor(task.dataset.test_inputs)
    with torch.no_grad():
        found = task.build(0)(inputs)
        for row, (loss, exact) in zip(inputs, found, strict=True):
            count, tokens = int(row[0]), row[1:][row[1:] != PAD].long()
            labels = tokens.clone()
            labels[:-count] = -100
            assert plain(tokens[None], labels=labels[None]).loss.item() == pytest.approx(loss.item(), abs=1e-4)
            said = plain.generate(tokens[None, :-count], max_new_tokens=count, do_sample=False, pad_token_id=0)
            assert bool(exact) == torch.equal(said[0], tokens)
    evaluated = evaluate(task, task.build(0))
    assert evaluated.accuracy is None
    assert evaluated.metrics["perplexity"] > 1


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("train", ["all", "all-embeddings"])
def test_engines_agree(chats, monkeypatch, train, precision):
    monkeypatch.setattr(completer, "LOGITS", 2000)  # so that a batch takes several chunks

    def votes(engine):
        config = config_of(chats, engine=engine, train=train, precision=precision, directions=6)
        simulation = Simulation(config, make(TASK, chats, "auto", config.model))
        simulation.play_round(0)
        return simulation.votes(1, np.arange(4))

    batched, sequential = votes("batched"), votes("sequential")
    if precision == "float32":
        np.testing.assert_allclose(batched, sequential, rtol=0, atol=2e-3 * np.abs(sequential).max())
    assert np.corrcoef(batched.ravel(), sequential.ravel())[0, 1] > 0.9


def test_chunks_of_logits_change_nothing(chats, monkeypatch):
    task = make(TASK, chats, "auto", str(chats / "model"))
    inputs = torch.as_tensor(task.dataset.train_inputs)
    with torch.no_grad():
        whole = task.build(0)(inputs)
        monkeypatch.setattr(completer, "LOGITS", 1)
        torch.testing.assert_close(task.build(0)(inputs), whole, atol=1e-5, rtol=1e-5)


def test_a_model_learns_to_complete_and_is_exported(chats, tmp_path):
    config = config_of(
        chats, rounds=30, lr=0.02, directions=4, step_rule="normalised", schedule="cosine", evaluate_every=15
    )
    result = run(config, tmp_path / "run")
    first, *_, last = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert last["loss"] < 0.8 * first["loss"]
    assert last["metrics"]["perplexity"] < first["metrics"]["perplexity"]
    told = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    row = torch.as_tensor(make(TASK, chats, "auto", config.model).dataset.test_inputs)[:1]
    count, tokens = int(row[0, 0]), row[0, 1:][row[0, 1:] != PAD].long()
    labels = torch.where(torch.arange(len(tokens)) < len(tokens) - count, -100, tokens)
    with torch.no_grad():
        assert plain(tokens[None], labels=labels[None]).loss.item() == pytest.approx(
            result.model(row)[0, 0].item(), abs=1e-3
        )


def test_long_prompts_lose_their_beginning_and_bad_rows_are_named(chats, tmp_path):
    def task(text, options="", name="train.jsonl"):
        (tmp_path / name).write_text(text)
        return make(f"completion(train={name!r}{options})", tmp_path, "auto", str(chats / "model"))

    row = json.dumps({"prompt": "a film " * 30 + "was", "completion": " dull"})
    found = task(f"{row}\n{row}\n", ", length=8").dataset
    tokenizer = transformers.AutoTokenizer.from_pretrained(chats / "model")
    assert found.train_inputs.shape == (1, 9)
    assert tokenizer.decode(found.train_inputs[0, 1:]).endswith("film was dull</s>")
    assert task(
        "prompt,completion\na film was, dull\nthe plot was, awful\n", name="t.csv"
    ).dataset.train_labels.shape == (1,)
    for text, sentence in (
        ('{"prompt": "a"}\n', r"line 1: give prompt and completion as texts"),
        ('{"messages": [{"role": "user", "content": "a"}]}\n', "two or more"),
        ("3\n", "give prompt and completion"),
        ("\n", "has no rows"),
        (f"{row}\n", "some to train and some to test on are needed"),
    ):
        with pytest.raises(InvalidData, match=sentence):
            task(text if "to train" in sentence else 2 * text)
    with pytest.raises(InputError, match="unknown option 'trian'"):
        make("completion(trian='a')", tmp_path, "auto", str(chats / "model"))
    with pytest.raises(InputError, match="needs a language model that writes texts"):
        make("completion(train='a')", tmp_path)
    plain = str(tiny.model(tmp_path / "plain", "llama"))
    with pytest.raises(InvalidData, match="has no chat template"):
        make(TASK, chats / "chat", "auto", plain)
