"""Words of several tokens, models with an encoder and a decoder, numbers, labels of words: all by the same engines."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InputError, InvalidConfig, InvalidData, InvalidModel
from cyber0.layerwise.measure import LayerwiseEstimate
from cyber0.simulation import Simulation
from cyber0.simulation.run import run
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import make
from cyber0.tasks.text import completer, tiny
from cyber0.tasks.text.tokens import PAD

transformers = pytest.importorskip("transformers")

SMALL = {"clients": 3, "byzantine": 0, "directions": 3, "rounds": 2, "batch": 6, "lr": 0.02, "mu": 0.01}
NAMES = ("O", "B-THING", "I-THING")
TAGGING = f"token-classification(labels={NAMES!r})"
REGRESSION = "text-regression(target='label', centre=0.5, spread=0.5, scale=4.0)"
COMPLETION = "completion(length=24)"
WORDS = {"bad": ["terrible", "so dull"], "good": ["great", "a wonderful film"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows for each objective, each in a folder of its own, and tiny models."""
    place = tiny.data(tmp_path_factory.mktemp("objectives"))
    for kind in ("encoder", "llama", "t5", "roberta"):
        tiny.model(place / kind, kind)
    rows = [json.loads(line) for line in (place / "train.jsonl").read_text().splitlines()]
    things = {"film", "story", "plot"}
    (place / "tags").mkdir()
    with (place / "tags" / "train.jsonl").open("w") as file:
        for row in rows:
            words = row["text"].split()
            tags = ["B-THING" if word in things else "O" for word in words]
            file.write(json.dumps({"tokens": words, "tags": tags}) + "\n")
    tiny.chats(place / "chats")
    for name, words in {"long": WORDS, "several": {"bad": ["terrible", "dull"], "good": "great"}}.items():
        (place / name).mkdir()
        for file in ("train.jsonl", "test.jsonl", "prompt.toml"):
            text = (place / file).read_text()
            if file == "prompt.toml":
                begin, end = text.index("[words]"), text.index("[labels]")
                lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items())
                text = f"{text[:begin]}[words]\n{lines}\n{text[end:]}"
            (place / name / file).write_text(text)
    return place


CASES = {
    "words of several tokens": ("text-classification(prompt='prompt.toml')", "long", "llama"),
    "words after an encoder": ("text-classification(prompt='prompt.toml')", "long", "t5"),
    "several words": ("text-classification(prompt='prompt.toml')", "several", "roberta"),
    "completions of T5": (COMPLETION, "chats", "t5"),
    "numbers": (REGRESSION, "", "encoder"),
    "labels of words": (TAGGING, "tags", "encoder"),
}


def config_of(folder, case, **changes):
    task, data, model = CASES[case]
    where = {"task": task, "data": str(folder / data), "model": str(folder / model), "partition": "iid"}
    return RunConfig(**SMALL | where | {"family": "gaussian", "device": "cpu"} | changes)


@pytest.mark.parametrize("case", CASES)
def test_engines_agree_and_what_was_aggregated_replays_to_the_same_bits(folder, case):
    batched, sequential = (Simulation(config_of(folder, case, engine=engine)) for engine in ("batched", "sequential"))
    rounds, others = list(batched.play()), list(sequential.play())
    for one, other in zip(rounds, others, strict=True):
        np.testing.assert_allclose(one.honest, other.honest, rtol=0, atol=5e-3 * np.abs(other.honest).max())
    assert isinstance(batched.participant.measure, LayerwiseEstimate)
    again = Simulation(config_of(folder, case))
    again.replay(np.stack([played.aggregate for played in rounds]))
    assert again.parameters.fingerprint() == batched.parameters.fingerprint()
    walks = batched.participant.measure._walks.values()
    assert all(walk.layered for walk in walks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("changes", [{}, {"blocks": 2}, {"train": "head"}], ids=["all", "blocks", "head"])
@pytest.mark.parametrize("case", CASES)
def test_a_device_measures_what_the_cpu_does_and_replays_to_its_bits(folder, case, changes):
    here, there = (Simulation(config_of(folder, case, device=device, **changes)) for device in ("cpu", "cuda"))
    rounds = list(here.play())
    for played in rounds:
        votes = torch.as_tensor(there.votes(played.number, played.participants)).cpu()
        np.testing.assert_allclose(votes, played.honest, rtol=0, atol=5e-3 * np.abs(played.honest).max())
        there.replay(played.aggregate[None])
    assert there.parameters.fingerprint() == here.parameters.fingerprint()
    assert there.evaluate().loss == pytest.approx(here.evaluate().loss, rel=1e-3)


@pytest.mark.parametrize("case", ["completions of T5", "numbers", "labels of words"])
def test_it_learns(folder, case):
    changes = {"rounds": 12, "directions": 6, "batch": 16, "step_rule": "normalised", "lr": 0.03}
    changes |= {"train": "head", "rounds": 30, "lr": 0.02} if case == "numbers" else {}
    simulation = Simulation(config_of(folder, case, **changes))
    before = simulation.evaluate().loss
    list(simulation.play())
    assert simulation.evaluate().loss < 0.95 * before


def test_the_score_of_a_class_is_the_mean_log_probability_of_its_words(folder):
    for model, auto in (("llama", "AutoModelForCausalLM"), ("t5", "AutoModelForSeq2SeqLM")):
        task = make(CASES["words of several tokens"][0], folder / "long", "auto", str(folder / model))
        plain = getattr(transformers, auto).from_pretrained(folder / model)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / model)
        row = torch.as_tensor(task.dataset.test_inputs[:1])
        prompt = row[row != PAD].long()
        with torch.no_grad():
            found = task.build(0)(row)[0]
            for label, words in enumerate(WORDS.values()):
                scores = []
                for word in words:
                    ids = torch.tensor(tokenizer(f" {word}", add_special_tokens=False).input_ids)
                    if model == "llama":
                        logits = plain(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
                    else:
                        logits = plain(input_ids=prompt[None], labels=ids[None]).logits[0]
                    scores.append(logits.log_softmax(1).gather(1, ids[:, None]).mean())
                assert found[label].item() == pytest.approx(torch.stack(scores).mean().item(), abs=1e-4)


def test_several_words_of_one_token_need_one_forward_pass_and_no_vocabulary(folder):
    task = make(CASES["several words"][0], folder / "several", "auto", str(folder / "roberta"))
    model, plain = task.build(0), transformers.AutoModelForMaskedLM.from_pretrained(folder / "roberta")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "roberta")
    row = torch.as_tensor(task.dataset.test_inputs[:1])
    tokens = row[row != PAD].long()[None]
    logits = plain(tokens).logits[0, (tokens[0] == tokenizer.mask_token_id).nonzero()[0, 0]]
    ids = [tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in ("terrible", "dull", "great")]
    expected = torch.stack([logits[ids[:2]].mean(), logits[ids[2]]])
    torch.testing.assert_close(model(row)[0], expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidModel, match="'so dull' of 'bad' is 3 tokens"):
        make(CASES["several words"][0], folder / "long", "auto", str(folder / "roberta"))


@pytest.fixture(scope="module")
def others(folder):
    """Models with a decoder whose positions are not those of T5: learned ones, and buckets of another kind."""
    known = tiny.tokenizer("t5")
    tokens = {"vocab_size": len(known), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    bart = transformers.BartConfig(d_model=8, encoder_layers=1, decoder_layers=1, **heads, **tokens)
    umt5 = transformers.UMT5Config(
        d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=1, **tokens
    )
    for model in (transformers.BartForConditionalGeneration(bart), transformers.UMT5ForConditionalGeneration(umt5)):
        model.save_pretrained(folder / type(model).__name__[:4].lower())
        known.save_pretrained(folder / type(model).__name__[:4].lower())
    return folder


@pytest.mark.parametrize("model", ["t5", "bart", "umt5"])
def test_completions_of_a_decoder_have_the_loss_of_transformers(others, model):
    folder = others
    task = make(COMPLETION, folder / "chats", "auto", str(folder / model))
    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / model)
    inputs = torch.as_tensor(task.dataset.test_inputs)
    with torch.no_grad():
        for row, (loss, _) in zip(inputs, task.build(0)(inputs), strict=True):
            count, tokens = int(row[0]), row[1:][row[1:] != PAD].long()
            source, target = tokens[None, :-count], tokens[None, -count:]
            assert plain(input_ids=source, labels=target).loss.item() == pytest.approx(loss.item(), abs=1e-4)


def test_only_completions_meet_the_output_matrix_and_few_at_a_time(folder, monkeypatch):
    """However many rows and however long their prompts, no more logits exist at once than LOGITS."""
    shapes = []
    linear = torch.nn.functional.linear

    def watched(rows, weight, bias=None):
        out = linear(rows, weight, bias)
        if len(weight) > 100:  # only the vocabulary is that large here
            shapes.append(tuple(out.shape))
        return out

    task = make("completion(length=40)", folder / "chats", "auto", str(folder / "llama"))
    model, inputs = task.build(0), torch.as_tensor(task.dataset.train_inputs)
    vocabulary = len(model.head_module().weight)
    monkeypatch.setattr(completer, "LOGITS", 5 * vocabulary + 7)
    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    with torch.no_grad():
        model(inputs)
    assert max(shape[0] for shape in shapes) == 5
    assert sum(shape[0] for shape in shapes) == len(inputs) * int(task.dataset.train_labels.max())
    assert int(task.dataset.train_labels.max()) < inputs.shape[1] - 1


def test_numbers_are_measured_in_the_units_of_the_data(folder):
    task = make(REGRESSION, folder, "auto", str(folder / "encoder"))
    found = evaluate(task, task.build(0))
    assert found.accuracy is None
    assert found.loss == pytest.approx(1.0)  # targets 0 and 1 are -1 and 1
    assert found.metrics == pytest.approx({"rmse": 0.5, "mae": 0.5, "pearson": 0.0, "spearman": 0.0})
    metrics = task.metrics
    outputs, targets = torch.tensor([[1.0], [2.0], [2.0], [9.0]]), torch.tensor([0.0, 1.0, 1.0, 2.0])
    assert metrics["spearman"](outputs, targets) == pytest.approx(1.0)
    expected = float(np.corrcoef(outputs[:, 0], targets)[0, 1])
    assert metrics["pearson"](outputs, targets) == pytest.approx(expected)


def test_words_have_the_label_of_their_first_token_and_the_loss_of_transformers(folder):
    task = make(TAGGING, folder / "tags", "auto", str(folder / "encoder"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "encoder")
    for tokens, labels in zip(task.dataset.test_inputs, task.dataset.test_labels, strict=True):
        ids = tokens[tokens != PAD]
        words = tokenizer.decode(ids, skip_special_tokens=True).split()
        firsts = [tokenizer.decode([token]) for token, label in zip(ids, labels, strict=False) if label >= 0]
        assert len(words) == (labels >= 0).sum()
        assert all(word.startswith(first) for word, first in zip(words, firsts, strict=True))
    model, inputs = task.build(0), torch.as_tensor(task.dataset.test_inputs)
    torch.nn.init.normal_(model.classifier.weight)
    targets = torch.as_tensor(task.dataset.test_labels)
    losses = task.losses(model, (inputs, targets))
    flat = torch.nn.functional.cross_entropy(model(inputs[:1])[0], targets[0], ignore_index=-100)
    assert losses[0].item() == pytest.approx(flat.item(), abs=1e-5)
    assert 0 <= evaluate(task, model).metrics["entity_f1"] <= 1


@pytest.mark.parametrize("case", ["numbers", "labels of words", "completions of T5", "words after an encoder"])
def test_what_is_exported_is_the_same_model_in_plain_transformers(folder, case, tmp_path):
    config = config_of(folder, case, rounds=3)
    result = run(config, tmp_path / "run")
    told = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    data = make(config.task, config.data, "auto", config.model).dataset
    row = torch.as_tensor(data.test_inputs[:1])
    tokens = row[row != PAD].long()[None]
    out = tmp_path / "out"
    with torch.no_grad():
        own = result.model(row)
        if case == "numbers":
            plain = transformers.AutoModelForSequenceClassification.from_pretrained(out, trust_remote_code=True)
            assert plain(tokens).logits.item() == pytest.approx(0.5 + 0.5 * own.item(), abs=1e-5)
            answer = transformers.pipeline("text-classification", str(out), trust_remote_code=True)("a dull film")
            assert answer[0]["label"] == "number"
        elif case == "labels of words":
            plain = transformers.AutoModelForTokenClassification.from_pretrained(out)
            torch.testing.assert_close(plain(tokens).logits, own[:, : tokens.shape[1]], atol=1e-5, rtol=1e-4)
            assert tuple(plain.config.id2label.values()) == NAMES
        else:
            plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
            trained = dict(result.model.named_parameters())
            for name, tensor in plain.named_parameters():
                assert torch.equal(trained[name], tensor)
            assert (out / "prompt.json").exists() == (case == "words after an encoder")


def lengthy(texts, references):
    return float(np.mean([len(text) == len(reference) for text, reference in zip(texts, references, strict=True)]))


@pytest.mark.parametrize("model", ["llama", "t5"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_metric_of_ones_own_sees_generated_texts(folder, model, precision, monkeypatch):
    seen = []

    def metric(texts, references):
        seen.append((list(texts), list(references)))
        return 0.25

    monkeypatch.setattr("tests.tasks.test_objectives.lengthy", metric)
    task = "completion(length=24, metric='tests.tasks.test_objectives:lengthy', generate=3)"
    config = config_of(folder, "completions of T5", task=task, model=str(folder / model), precision=precision)
    simulation = Simulation(config)
    list(simulation.play())
    assert simulation.evaluate().metrics["metric"] == 0.25
    texts, references = seen[-1]
    assert set(references) <= {"dull", "lovely", "awful"}
    if precision == "float32":
        trained, tokenizer = simulation.parameters.module, transformers.AutoTokenizer.from_pretrained(folder / model)
        row = torch.as_tensor(simulation.task.dataset.test_inputs[:1])
        wanted = trained.generate(row, limit=3)[0]
        assert texts[0] == tokenizer.decode(wanted, skip_special_tokens=True).strip()


@pytest.mark.parametrize("model", ["llama", "t5"])
def test_what_is_generated_is_what_transformers_generates(folder, model):
    task = make(COMPLETION, folder / "chats", "auto", str(folder / model))
    auto = transformers.AutoModelForCausalLM if model == "llama" else transformers.AutoModelForSeq2SeqLM
    plain, rows = auto.from_pretrained(folder / model), torch.as_tensor(task.dataset.test_inputs)
    for row, found in zip(rows, task.build(0).generate(rows, limit=4), strict=True):
        prompt = row[1 : int((row != PAD).sum() - row[0])].long()[None]
        said = plain.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=2)[0].tolist()
        said = said[1:] if model == "t5" else said[prompt.shape[1] :]
        assert found == (said[: said.index(2)] if 2 in said else said)


def test_bad_rows_and_options_are_named(folder, tmp_path):
    def of(task, rows):
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return make(task, tmp_path, "auto", str(folder / "encoder"))

    for task, row, sentence in (
        (REGRESSION, {"text": "a film"}, r"line 1: there is no column 'label', or it is empty, in text"),
        (REGRESSION, {"text": "a film", "label": "many"}, "label = 'many' must be a finite number"),
        (TAGGING, {"tokens": ["a", "film"], "tags": ["O"]}, "as two lists of one length"),
        (TAGGING, {"tokens": ["film"], "tags": ["B-PER"]}, "the label 'B-PER' is not one of O, B-THING"),
    ):
        with pytest.raises(InvalidData, match=sentence):
            of(task, [row, row])
    for task, sentence in (
        ("text-regression(text='a', target='b')", "shows nothing of the data"),
        ("text-regression(spread=0.0)", "spread = 0.0"),
        ("token-classification()", "labels"),
        ("token-classification(labels=('O',))", "labels"),
        ("text-regression(lenght=3)", "unknown option 'lenght'"),
        ("completion(metric='rogue')", "unknown metric 'rogue'"),
    ):
        with pytest.raises(InputError, match=sentence):
            make(task, folder / "chats", "auto", str(folder / ("llama" if "completion" in task else "encoder")))
    with pytest.raises(InvalidConfig, match="needs a language model"):
        make(REGRESSION, folder)
