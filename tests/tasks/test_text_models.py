"""Language models as classifiers: the scores are those of plain transformers, before training and after."""

import copy
import json
import shutil
import socket
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cyber0.config import LANGUAGE_TASKS, RunConfig
from cyber0.directions import DirectionKey
from cyber0.errors import InvalidConfig, InvalidModel, MissingExtra, UnknownName
from cyber0.estimate import estimate
from cyber0.parameters import Parameters
from cyber0.simulation import Simulation
from cyber0.simulation.run import run
from cyber0.tasks import TASKS, memory
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import make
from cyber0.tasks.text import checkpoint, tiny
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.export import export, load_weights
from cyber0.tasks.text.heads import Head
from cyber0.tasks.text.hub import reached
from cyber0.tasks.text.tokens import PAD, trimmed

transformers = pytest.importorskip("transformers")

AUTO = {"roberta": "AutoModelForMaskedLM", "bert": "AutoModelForMaskedLM"}
AUTO |= {"llama": "AutoModelForCausalLM", "mixtral": "AutoModelForCausalLM"}
KINDS = [*AUTO, "encoder"]
LORA = dict.fromkeys(KINDS, "lora(rank=2)") | {"mixtral": "lora(rank=2, targets='v_proj')"}  # peft needs to be told


def task_of(folder, kind, **options):
    text = "".join(f", {name}={value!r}" for name, value in options.items())
    return make(f"text-classification(prompt='prompt.toml'{text})", folder, "auto", str(folder / kind))


def config_of(folder, kind, options="", **keys):
    small = {"clients": 4, "byzantine": 1, "directions": 2, "rounds": 4, "lr": 0.01, "batch": 8, "evaluate_every": 4}
    task = f"text-classification(prompt='prompt.toml'{options})"
    where = {"task": task, "data": str(folder), "model": str(folder / kind)}
    return RunConfig(**small | where | {"family": "gaussian", "attack": "tma", "engine": "sequential"} | keys)


def plain_scores(path, kind, tokens, head):
    """By transformers alone, from a folder: one prompt at a time, without padding."""
    with torch.no_grad():
        if kind == "encoder":
            return _pooled_scores(path, tokens)
        model = getattr(transformers, AUTO[kind]).from_pretrained(path).eval()
        found = []
        for row in torch.as_tensor(tokens).long():
            ids = row[row != PAD]
            place = -1 if head.kind == "causal" else int((ids == head.mask_id).nonzero())
            found.append(model(ids[None]).logits[0, place, list(head.label_ids)])
        return torch.stack(found)


def _pooled_scores(path, tokens):
    model = transformers.AutoModel.from_pretrained(path).eval()
    layer = load_file(path / "classifier.safetensors")
    rows = [row[row != PAD][None] for row in torch.as_tensor(tokens).long()]
    pooled = torch.cat([model(ids).last_hidden_state.mean(1) for ids in rows])
    return pooled @ layer["weight"].T + layer["bias"]


@pytest.mark.parametrize("kind", AUTO)
def test_scores_are_the_label_words_logits_where_they_belong(folder, kind):
    task = task_of(folder, kind)
    model = task.build(0)
    with torch.no_grad():
        scores = model(torch.as_tensor(task.dataset.test_inputs))
    torch.testing.assert_close(scores, plain_scores(folder / kind, kind, task.dataset.test_inputs, model.label_head))
    assert model.top is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_of_a_run_are_the_same_model_in_plain_transformers(folder, kind, tmp_path):
    for options in ("", f", adapter={LORA[kind]!r}"):
        out = tmp_path / f"run{bool(options)}"
        run(config_of(folder, kind, options), out)
        task = make(f"text-classification(prompt='prompt.toml'{options})", folder, "auto", str(folder / kind))
        before, model = task.build(0), load_weights(task.build(0), out / "model.safetensors")
        plain = export(model, out / "plain")
        tokens = torch.as_tensor(task.dataset.test_inputs)
        with torch.no_grad():
            scores = model(tokens)
            assert not torch.allclose(scores, before(tokens))
        torch.testing.assert_close(plain_scores(plain, kind, tokens, model.label_head), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", AUTO)
def test_the_file_a_run_writes_is_a_checkpoint_of_transformers(folder, kind, tmp_path):
    """As it is: beside a configuration, without any export."""
    run(config_of(folder, kind), tmp_path / "run")
    for path in (folder / kind).glob("*.json"):
        (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
    task = task_of(folder, kind)
    model = load_weights(task.build(0), tmp_path / "run" / "model.safetensors")
    with torch.no_grad():
        scores = model(torch.as_tensor(task.dataset.test_inputs))
    torch.testing.assert_close(plain_scores(tmp_path / "run", kind, task.dataset.test_inputs, model.label_head), scores)


def test_a_model_whose_head_is_in_parts_takes_its_own_way(tmp_path):
    known = tiny.tokenizer("bert")
    shape = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": len(known)}
    transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**shape)).save_pretrained(tmp_path)
    known.save_pretrained(tmp_path)
    found = checkpoint.get_checkpoint(str(tmp_path))
    head = Head("masked", 2, (9, 11), known.mask_token_id)
    model = Classifier(found.load(), head)
    assert model.top is None
    tokens = torch.tensor([[0, 7, known.mask_token_id, 2], [known.mask_token_id, 8, 2, PAD]])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), plain_scores(tmp_path, "bert", tokens, head))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_company_and_order_do_not_matter(folder, kind, monkeypatch):
    task = task_of(folder, kind)
    model, tokens = task.build(0), torch.as_tensor(task.dataset.test_inputs)
    wide = torch.nn.functional.pad(tokens, (0, 5), value=PAD)
    with torch.no_grad():
        whole = model(wide)
        monkeypatch.setattr("cyber0.tasks.text.classifier.AT_ONCE", 30)
        torch.testing.assert_close(model(wide), whole)
        torch.testing.assert_close(torch.cat([model(trimmed(row[None])) for row in wide]), whole)
        if kind != "encoder":
            torch.testing.assert_close(model.scores(wide), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_model_and_no_generator_is_touched(folder, kind):
    state = torch.get_rng_state()
    task = task_of(folder, kind, adapter=LORA[kind])
    one, same, other = (Parameters.of(task.build(seed)) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert all(".lora_" in name or name.startswith("classifier.") for name in one.tensors)


def test_all_parameters_are_trained_but_those_no_score_depends_on(folder):
    names = Parameters.of(task_of(folder, "encoder").build(0)).tensors
    assert "classifier.weight" in names
    assert not any(name.startswith("pooler.") for name in names)
    pretrained = load_file(folder / "roberta" / "model.safetensors")
    assert Parameters.of(task_of(folder, "roberta").build(0)).tensors.keys() == pretrained.keys()


def test_a_copy_is_a_model_of_its_own(folder):
    task = task_of(folder, "roberta")
    model, tokens = task.build(0), torch.as_tensor(task.dataset.test_inputs)
    other = copy.deepcopy(model)
    with torch.no_grad():
        before = model(tokens)
        for parameter in other.parameters():
            parameter.mul_(1.5)
        assert torch.equal(model(tokens), before)
        assert not torch.allclose(other(tokens), before)


def test_pooling_is_as_the_folder_says(folder, tmp_path):
    for path in (folder / "encoder").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert checkpoint.get_checkpoint(str(tmp_path)).pooling() == ("mean", False)
    (tmp_path / "1_Pooling").mkdir()
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"path": f"{i}_{kind}" * (i > 0), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert checkpoint.get_checkpoint(str(tmp_path)).pooling() == ("cls", True)
    hidden, mask = torch.randn(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    pooled = Head("pooled", 2, pooling="cls", normalise=True).pool(hidden, mask)
    torch.testing.assert_close(pooled, hidden[:, 0] / hidden[:, 0].norm(dim=1, keepdim=True))


def test_a_missing_decoder_is_tied_and_a_missing_head_refused(folder, tmp_path):
    config = json.loads((folder / "llama" / "config.json").read_text()) | {"tie_word_embeddings": False}
    for path in (folder / "llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = checkpoint.get_checkpoint(str(tmp_path)).load()
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    with pytest.raises(InvalidModel, match=r"has no trained head as a masked model \(it lacks cls.predictions"):
        checkpoint.get_checkpoint(str(folder / "encoder"), "masked").load()


def test_models_that_cannot_be_used_are_refused_in_a_sentence(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "bert" / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InvalidModel, match=r"has no safetensors, only pytorch_model.bin: convert it"):
        checkpoint.get_checkpoint(str(tmp_path))
    with pytest.raises(InvalidModel, match=r"by BertForMaskedLM.from_pretrained"):  # AutoModel would lose the head
        checkpoint.get_checkpoint(str(tmp_path))
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(InvalidModel, match=r"has a configuration, but no weights: put its model.safetensors there"):
        checkpoint.get_checkpoint(str(tmp_path))
    with pytest.raises(InvalidModel, match=r"'.*config.json' is a file: name the folder it lies in"):
        checkpoint.get_checkpoint(str(tmp_path / "config.json"))
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "clever", "architectures": ["CleverModel"]}')
    with pytest.raises(InvalidModel, match=r"cannot be used so by this transformers \(.*not recognize"):
        checkpoint.get_checkpoint(str(tmp_path))
    with pytest.raises(InvalidModel, match=r"cannot be used so by this transformers \(Unrecognized"):
        checkpoint.get_checkpoint(str(folder / "llama"), "masked").load()
    with pytest.raises(UnknownName, match="unknown head 'maskd'"):
        checkpoint.get_checkpoint(str(folder / "bert"), "maskd")
    with pytest.raises(InvalidModel, match=r"2 float32 copies of .* need .* GiB are free on cpu: use a smaller model"):
        memory.check(2**50, copies=2)


def test_a_model_that_is_nowhere_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidModel, match="model = 'no-such/model' is no folder here, and cannot be had from the hub"):
        checkpoint.get_checkpoint("no-such/model")


@pytest.fixture
def silent_hub(monkeypatch):
    """A hub that takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr("cyber0.tasks.text.hub.PATIENCE", 0.01)
        yield


@pytest.mark.usefixtures("silent_hub")
def test_a_hub_that_does_not_answer_is_asked_once(capfd):
    with pytest.raises(
        InvalidModel, match=r"model = 'no-such/model' is no folder here, and cannot be had from the hub"
    ):
        checkpoint.get_checkpoint("no-such/model")
    assert capfd.readouterr() == ("", "")
    with reached("no-such/model"):
        assert transformers.utils.hub.is_offline_mode()
    assert not transformers.utils.hub.is_offline_mode()


BROKEN = {
    "model.safetensors": [
        (b"", r"the safetensors of .* are damaged or not whole \(.*header too small\): fetch them again"),
        (b"version https://git-lfs.github.com/spec/v1", r"are damaged or not whole .* run git lfs pull"),
    ],
    "config.json": [(b"{", r"cannot be used \(.*config.json' is not a valid JSON file\): name a folder with")],
    "tokenizer.json": [
        (b"{", r"a JSON file of .* is damaged \(.*\): fetch the model again"),
        (None, r"has no tokenizer: put its tokenizer.json and tokenizer_config.json beside the model"),
    ],
}


@pytest.mark.parametrize(("file", "content", "said"), [(file, *case) for file in BROKEN for case in BROKEN[file]])
def test_a_damaged_file_of_a_model_is_named(folder, tmp_path, file, content, said):
    copied = shutil.copytree(folder / "roberta", tmp_path / "model")
    (copied / file).unlink() if content is None else (copied / file).write_bytes(content)
    if content is None:
        (copied / "tokenizer_config.json").unlink()
    with pytest.raises(InvalidModel, match=said):
        checkpoint.get_checkpoint(str(copied)).load()


def test_weights_of_another_shape_are_refused(folder, tmp_path):
    copied = shutil.copytree(folder / "roberta", tmp_path / "model")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(InvalidModel, match=r"its weights have other shapes than its config.json says"):
        checkpoint.get_checkpoint(str(copied)).load()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shots": "many"}, "shots = 'many': input should be a valid integer"),
        ({"shots": 0}, "shots = 0: input should be greater than or equal to 1"),
        ({"seed": -1, "length": 2}, "seed = -1: .*; length = 2: "),
        ({"holdout": 1.0}, "holdout = 1.0: input should be less than 1"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(folder, options, said):
    with pytest.raises(InvalidConfig, match=f"text-classification: {said}"):
        task_of(folder, "bert", **options)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidModel, match=r"there is no folder .*gone: --model takes a folder, or an id of the hub"):
        checkpoint.get_checkpoint(str(tmp_path / "gone"))


def test_without_transformers_the_line_that_installs_it_is_said(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"transformers is not installed: pip install 'cyber0\[text\]'"):
        task_of(folder, "bert")


def test_a_head_that_reads_past_its_output_embeddings_is_refused():
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.MobileBertConfig(vocab_size=40, embedding_size=8, intra_bottleneck_size=16, **shape)
    with pytest.raises(InvalidModel, match="MobileBertForMaskedLM reads its output embeddings beside their module"):
        Classifier(transformers.MobileBertForMaskedLM(config), Head("masked", 2, (7, 30), 4))


def test_tasks_are_listed_without_transformers():
    """Its import takes seconds: only those who fine-tune a language model wait for it."""
    code = "import sys; from cyber0.tasks.task import get_task; get_task('sst2'); print('transformers' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False"]


def test_tasks_ask_for_a_model_or_refuse_one(folder):
    with pytest.raises(InvalidConfig, match="the task 'trec' needs a language model: name one by --model"):
        make("trec")
    with pytest.raises(InvalidConfig, match="the task 'mnist' takes no language model: leave it out"):
        make("mnist", source="embedded", model="roberta-large")
    with pytest.raises(UnknownName, match="unknown option 'shot' of text-classification"):
        task_of(folder, "bert", shot=3)
    for rank in (0, 2.5, True):
        with pytest.raises(InvalidModel, match=rf"lora\(rank={rank}\): the rank of an adapter is a whole number, at"):
            task_of(folder, "bert", adapter=f"lora(rank={rank})").build(0)
    where = str(folder / "bert")
    for alpha in ("0", "-1", "True", "'x'", "1e400", "1e-60", "1e60", str(10**400)):
        with pytest.raises(InvalidModel, match=r"lora\(alpha=.*\): alpha is a number above 0"):
            make(
                f"text-classification(prompt='prompt.toml', adapter=\"lora(alpha={alpha})\")", folder, "auto", where
            ).build(0)
    for bits in ("", ", bits=4"):
        with pytest.raises(InvalidModel, match="lm_head, the output embeddings, can have no adapter"):
            task_of(folder, "llama", adapter=f"lora(targets='lm_head'{bits})").build(0)


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"weight_map": {}}', "{", '{"weight_map": 7}', "[" * 200_000])
def test_an_index_that_names_no_files_is_named(tmp_path, text):
    source = tiny.model(tmp_path / "llama", "llama")
    (source / "model.safetensors.index.json").write_text(text)
    checkpoint.get_checkpoint(str(source)).load()  # of a whole file, nobody reads an index
    (source / "model.safetensors").rename(source / "model-00001-of-00001.safetensors")
    with pytest.raises(InvalidModel, match=r"model.safetensors.index.json is damaged: it names no files of weights"):
        checkpoint.get_checkpoint(str(source))


def test_an_adapter_may_name_one_layer(folder):
    one, listed = (task_of(folder, "bert", adapter=f"lora(targets={text})").build(0) for text in ("'key'", "('key',)"))
    names = [[name for name, each in model.named_parameters() if each.requires_grad] for model in (one, listed)]
    assert names[0] == names[1]
    assert all(".key." in name or name.startswith("classifier") for name in names[0])


def test_weights_of_another_task_are_refused_in_a_sentence(folder, tmp_path):
    model = task_of(folder, "encoder").build(0)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(tensors | {"classifier.bias": torch.zeros(6)}, tmp_path / "other.safetensors")
    with pytest.raises(
        InvalidModel, match=r"another model or task: its classifier.bias is \[6\], and this one's \[2\]"
    ):
        load_weights(model, tmp_path / "other.safetensors")


def test_a_run_goes_the_same_way_twice(folder):
    first, again = (run(config_of(folder, "roberta", ", shots=20")) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    assert first.summary["bytes_up_per_client"] == 4 * 2 * 4


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixtral"])  # it jumps from expert to expert
def test_two_forward_passes_measure_the_derivative(folder, kind):
    task = task_of(folder, kind)
    data, parameters = task.dataset, Parameters.of(task.build(0))
    batch = torch.as_tensor(data.train_inputs), torch.as_tensor(data.train_labels)
    keys = [DirectionKey(seed=1, round=0, index=r) for r in range(3)]
    two_point, exact = (estimate(parameters, task.losses, batch, keys, mu=mu) for mu in (1e-3, 0.0))
    np.testing.assert_allclose(two_point, exact, atol=0.02 * np.abs(exact).max())


def test_clients_learn_though_one_lies(folder):
    keys = {"mu": 0.0, "directions": 256, "rounds": 12, "lr": 0.3, "partition": "iid", "attack": "sf"}
    task = task_of(folder, "encoder")
    loss = evaluate(task, task.build(0)).loss
    summary = run(config_of(folder, "encoder", ", adapter='lora(rank=2)'", **keys)).summary
    assert summary["final_loss"] < loss - 0.01


def test_local_epochs_and_exact_derivatives_work_too(folder):
    for keys in ({"local_epochs": 2, "scheme": "compressed"}, {"mu": 0.0}):
        assert np.isfinite(run(config_of(folder, "llama", rounds=1, **keys)).loss)


def test_exact_derivatives_of_both_engines_agree(folder):
    both = [run(config_of(folder, "bert", engine=engine, rounds=2, mu=0.0)) for engine in ("batched", "sequential")]
    assert both[0].loss == pytest.approx(both[1].loss, rel=1e-5)


def test_the_baseline_trains_no_language_model(folder):
    with pytest.raises(InvalidConfig, match="'fedavg' cannot train a language model"):
        run(config_of(folder, "bert", algorithm="fedavg"))


# Models that people try


def saved(folder, name, model, **changes):
    """A tiny model of any class, with the tokenizer of a language model beside it."""
    model.save_pretrained(folder / name)
    tiny.tokenizer("roberta").save_pretrained(folder / name)
    path = folder / name / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder / name)


def test_models_that_cannot_be_tuned_are_refused_in_a_sentence(tmp_path):
    t5 = transformers.T5Config(vocab_size=400, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    bert = transformers.BertConfig(
        vocab_size=400, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    small = transformers.BertConfig(**bert.to_dict() | {"vocab_size": 20})
    four_bits = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    for model, changes, sentence in (
        (transformers.T5Model(t5), {}, "with an encoder and a decoder but without output embeddings"),
        (transformers.ViTForImageClassification(vit), {}, "which reads no tokens"),
        (transformers.BertModel(bert), four_bits, r"is quantised \(bitsandbytes\): its weights cannot be moved"),
        (transformers.BertModel(small), {}, "has embeddings of 20 tokens, but its tokenizer"),
    ):
        with pytest.raises(InvalidModel, match=sentence):
            checkpoint.get_checkpoint(saved(tmp_path, type(model).__name__, model, **changes))


def test_an_encoder_of_a_model_with_a_decoder_is_tuned(folder, tmp_path):
    config = transformers.T5Config(vocab_size=400, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    model = saved(tmp_path, "encoder", transformers.T5EncoderModel(config))
    task = make(f"text-classification(prompt={str(folder / 'prompt.toml')!r})", folder, "auto", model)
    simulation = Simulation(RunConfig(task=task.name, clients=3, byzantine=0, directions=1, rounds=1, batch=4), task)
    assert [len(played.admitted) for played in simulation.play()] == [3]
    assert simulation.participant.measure.walk(simulation.parameters, task.losses).layered


def test_a_language_model_is_perturbed_by_signs_unless_told_otherwise():
    """Tasks that train one are known by name, so that a federator without torch agrees with its clients."""
    assert {name for name, place in TASKS.items() if place.startswith("cyber0.tasks.text.")} == LANGUAGE_TASKS
    assert RunConfig(task="sst2(scale=50)").agreement.plan.family == "rademacher"
    assert RunConfig(task="my_package:my_task", model="gpt2").family == "rademacher"
    assert RunConfig(task="trec", family="sphere").family == "sphere"
    assert RunConfig(task=TASKS["sst2"]).family == "rademacher"
    assert RunConfig(task="mnist").family == "sphere"
    assert RunConfig(task="trec").updated(task="mnist").family == "sphere"
    assert RunConfig().updated(task="trec").family == "rademacher"
    assert RunConfig(family="sphere").updated(task="trec").family == "sphere"
    explicit = RunConfig(task="trec", family="sphere")
    for left_out in ("exclude_unset", "exclude_defaults", "exclude_none"):
        assert RunConfig(**explicit.model_dump(**{left_out: True})).family == "sphere"
    written = tomllib.loads(RunConfig(task="trec", family="sphere").to_toml())
    assert RunConfig(**written).family == "sphere"
