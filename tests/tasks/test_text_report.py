"""What is said before training, and what is refused since it cannot fit."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InvalidModel, UnknownName
from cyber0.tasks import memory
from cyber0.tasks.task import make
from cyber0.tasks.text.report import describe

pytest.importorskip("transformers")
CONFIG = RunConfig(clients=4, byzantine=1, batch=8, family="gaussian")


def described(folder, kind, options="", **keys):
    task = make(f"text-classification(prompt='prompt.toml'{options})", folder, model=str(folder / kind))
    return describe(task, task.build(0), CONFIG, **keys)


HEADS = {
    "roberta": "masked, output embeddings tied to the input's, ' terrible' (token 275) against ' great' (token 279)",
    "llama": "causal, output embeddings tied to the input's, ' terrible' (token 275) against ' great' (token 279)",
    "encoder": "pooled, a linear layer, zero at the start, over mean hidden states",
}


@pytest.mark.parametrize("kind", HEADS)
def test_the_head_is_described(folder, kind):
    assert described(folder, kind)["head"] == HEADS[kind]


def test_an_adapter_is_seen_in_the_parameters(folder):
    told = described(folder, "llama", ", adapter='lora(rank=2)', shots=7")
    assert told["model"] == "LlamaForCausalLM, 10,864 parameters, 256 of them to be trained"
    assert told["samples"].startswith("7 + 7 to train on, 12 to test on")
    assert described(folder, "llama", ", adapter='lora(rank=2, bits=4)', shots=7")["model"] == told["model"]


def test_an_accuracy_that_is_known_is_not_measured_again(folder):
    assert described(folder, "bert", accuracy=0.625)["zero-shot accuracy"] == "62.50% of 12 test samples"
    assert described(folder, "bert", tests=5)["zero-shot accuracy"].endswith("% of 5 test samples")


def test_scarce_memory_is_said(folder, monkeypatch):
    task = make("text-classification(prompt='prompt.toml')", folder, model=str(folder / "bert"))
    model = task.build(0)
    assert "may not fit" not in describe(task, model, CONFIG)["memory"]
    monkeypatch.setattr(memory, "available", lambda _: 1000)
    short = "this may not fit; take smaller batches, an adapter, or a smaller model"
    assert describe(task, model, CONFIG)["memory"].endswith(f" free on cpu: {short}")


def test_a_model_of_another_kind_is_not_described(folder):
    task = make("text-classification(prompt='prompt.toml')", folder, model=str(folder / "bert"))
    assert describe(task, torch.nn.Linear(2, 2), CONFIG) == {}


SIZES = st.integers(0, 10**9)


@given(st.integers(1, 10**12), SIZES, SIZES, st.sampled_from(list(memory.BYTES)))
def test_one_layer_at_a_time_needs_less_and_fewer_bits_need_less(parameters, largest, frozen, precision):
    def need(engine, precision):
        return memory.needed(parameters, min(largest, parameters), engine=engine, precision=precision, frozen=frozen)

    assert need("layerwise", precision).weights <= need("plain", precision).weights
    for engine in memory.ENGINES:
        assert 2 * need(engine, "bf16").weights == need(engine, "float32").weights
        assert need(engine, "mixed").weights >= need(engine, "bf16").weights


def test_training_is_refused_where_the_weights_do_not_fit(monkeypatch):
    model = torch.nn.Linear(100, 100)
    monkeypatch.setattr(memory, "available", lambda _: 2 * 4 * 10_100)  # two more copies
    assert memory.check_training(model).weights == 3 * 4 * 10_100
    monkeypatch.setattr(memory, "available", lambda _: 2 * 4 * 10_000)  # its one matrix twice
    said = r"training in float32 needs .* are free on cpu: use a smaller .*, precision = 'bf16', or another machine"
    with pytest.raises(InvalidModel, match=said):
        memory.check_training(model)
    memory.check_training(model, engine="layerwise")


def test_only_rows_of_embeddings_are_made():
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Linear(4, 3))
    assert memory.of_module(model, engine="layerwise").weights == 4 * (4000 + 15 + 2 * 12)


def test_a_cuda_device_makes_two_matrices_at_once(folder):
    model = make("text-classification(prompt='prompt.toml')", folder, model=str(folder / "roberta")).build(0)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    largest = max(size for name, size in sizes.items() if "embeddings" not in name)
    need = {device: memory.of_run(model, CONFIG, device).weights for device in ("cpu", "cuda")}
    assert need == {"cpu": 4 * (sum(sizes.values()) + 2 * largest), "cuda": 4 * (sum(sizes.values()) + 4 * largest)}


def test_all_clients_are_under_way_at_once_unless_they_come_one_by_one(folder):
    model = make("text-classification(prompt='prompt.toml')", folder, model=str(folder / "roberta")).build(0)

    def activations(**keys):
        return memory.of_run(model, CONFIG.model_copy(update=keys), sizes=[8] * 60).activations

    assert activations() == 4 * activations(engine="sequential") == 2 * activations(precision="mixed")


ENGINES = ("batched", "sequential")


def test_exact_slopes_hold_gradients_of_all_clients_and_what_all_layers_held(folder):
    model = make("text-classification(prompt='prompt.toml')", folder, model=str(folder / "roberta")).build(0)
    exact = CONFIG.model_copy(update={"mu": 0.0, "engine": "sequential"})
    size, layers = sum(each.numel() for each in model.parameters()), len(model.base.encoder.layer)
    need, differences = (
        memory.of_run(model, config, sizes=[8] * 60) for config in (exact, exact.model_copy(update={"mu": 1e-3}))
    )
    assert need.weights == 4 * 3 * size
    assert 2 * need.activations == layers * differences.activations
    together = memory.of_run(model, exact.model_copy(update={"engine": "batched"}), sizes=[8] * 60)
    assert together.weights == 4 * (3 + exact.clients) * size
    assert together.activations == need.activations
    local = exact.model_copy(update={"local_epochs": 2})  # either engine then keeps a model for each client
    assert len({memory.of_run(model, local.model_copy(update={"engine": e})).weights for e in ENGINES}) == 1
    assert memory.of_run(model, local).weights > 4 * exact.clients * size


def test_an_evaluation_may_hold_more_than_a_round(folder):
    model = make("text-classification(prompt='prompt.toml')", folder, model=str(folder / "roberta")).build(0)
    a_round, few, many, more = (
        memory.of_run(model, CONFIG, sizes=[8] * 60, tests=[8] * count).activations for count in (0, 64, 640, 10**6)
    )
    assert a_round == few < many < more == memory.of_run(model, CONFIG, tests=[8] * 10**7).activations


def test_local_models_count_where_clients_keep_them(folder, monkeypatch):
    model = make("text-classification(prompt='prompt.toml')", folder, model=str(folder / "llama")).build(0)
    config = CONFIG.model_copy(update={"local_epochs": 2})
    monkeypatch.setattr(memory, "available", lambda _: 3 * 4 * sum(each.numel() for each in model.parameters()))
    memory.check_run(model, config)
    with pytest.raises(InvalidModel, match="engine = 'batched', one local epoch, or another machine"):
        memory.check_run(model, config.model_copy(update={"engine": "sequential"}))


def test_an_engine_or_precision_that_is_none_is_refused():
    with pytest.raises(UnknownName, match="unknown engine 'layers': use one of backward, layerwise, plain"):
        memory.needed(1, engine="layers")
    with pytest.raises(UnknownName, match="unknown precision 'half'"):
        memory.needed(1, precision="half")


OPTIONS = "--clients 4 --byzantine 1 --directions 2 --rounds 1 --batch 8 --family gaussian"


def test_a_run_of_a_language_model_says_what_it_starts_from(folder, tmp_path):
    task = ["--task", "text-classification(prompt='prompt.toml')", "--data", folder, "--model", folder / "roberta"]
    arguments = [*map(str, task), *OPTIONS.split(), "--out", str(tmp_path / "run")]
    output = CliRunner().invoke(app, ["run", *arguments], catch_exceptions=False).output
    names = re.findall(r"(?m)^(.{24}) ", output)
    told = ["model", "head", "first prompt", "samples", "memory", "zero-shot accuracy", "learning rate"]
    assert [name.strip() for name in names][:7] == told
    resumed = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "run")], catch_exceptions=False).output
    assert "zero-shot accuracy" not in resumed
    assert (
        "learning rate            lr = 0.01 is the default, and for digits: begin with 1e-6 to 3e-5, by --lr" in output
    )
    given = CliRunner().invoke(app, ["run", *arguments[:-2], "--lr", "1e-5"], catch_exceptions=False).output
    assert "learning rate" not in given


def test_a_run_without_a_language_model_says_nothing_before():
    options = f"{OPTIONS} --source embedded"
    output = CliRunner().invoke(app, ["run", *options.split()], catch_exceptions=False).output
    assert "best_accuracy_on_test" in output
    assert not any(name in output for name in ("zero-shot accuracy", "first prompt", "learning rate"))


def test_evaluations_are_lines_where_there_is_no_terminal_and_divergence_is_said(folder):
    options = "--clients 4 --byzantine 1 --family gaussian --directions 1 --batch 2 --rounds 6 --evaluate-every 3"
    where = ["--task", "text-classification(prompt='prompt.toml')", "--data", folder, "--model", folder / "roberta"]
    arguments = list(map(str, ["run", *where, *options.split(), "--lr", "1e9"]))
    lines = CliRunner().invoke(app, arguments, catch_exceptions=False).output.splitlines()
    said = [line.partition(",")[0] for line in lines if " of 6 rounds," in line]
    assert (said[0], said[-1]) == ("0 of 6 rounds", "6 of 6 rounds")
    [loss] = [line for line in lines if line.startswith("final_loss")]
    assert loss.endswith("not a number: the model has diverged; try a smaller --lr")
    assert "bytes_up_per_client      24 bytes" in lines


class OddRMSNorm(torch.nn.Module):
    """A norm by its name that takes more than one input."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(6)), 1e-6

    def forward(self, x, gate):
        return self.weight * x * gate


def test_the_need_of_a_module_is_told_whatever_its_code_takes():
    assert memory.of_module(torch.nn.Sequential(torch.nn.Linear(6, 6), OddRMSNorm())).weights == 3 * 4 * 48
    experts = torch.nn.MultiheadAttention(6, 2)  # a block: a parameter of its own beside a child
    beside = torch.nn.Linear(60, 60)
    need = memory.of_module(torch.nn.Sequential(experts, beside), engine="layerwise").weights
    assert need == 4 * (3660 + 168) + 8 * 3600 + 8 * (168 + 108)
