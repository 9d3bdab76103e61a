"""What is trained is what was agreed on: the rest of the model keeps its bits, everywhere."""

import numpy as np
import pytest
import torch
from torch import nn

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InputError, InvalidConfig
from cyber0.participant import build_participant
from cyber0.protocol.ledger import Memory
from cyber0.replay import base, rebuild
from cyber0.simulation import Simulation
from cyber0.simulation.export import Record
from cyber0.tasks.task import make
from cyber0.tasks.text import tiny
from cyber0.tasks.trained import choose

pytest.importorskip("transformers")

TASK = "text-classification(prompt='prompt.toml')"
SMALL = {"clients": 3, "byzantine": 1, "directions": 2, "rounds": 4, "batch": 6, "lr": 0.05, "mu": 0.01}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tiny.data(tmp_path_factory.mktemp("trained"))
    for kind in ("roberta", "llama", "encoder"):
        tiny.model(folder / kind, kind)
    return folder


def config_of(folder, kind, **changes):
    where = {"task": TASK, "data": str(folder), "model": str(folder / kind), "partition": "iid", "device": "cpu"}
    return RunConfig(**SMALL | where | {"family": "gaussian"} | changes)


def trained(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("kind", "pattern", "some"),
    [
        ("encoder", "head", {"classifier.weight", "classifier.bias"}),
        ("encoder", "last(layers=1)+head", {"encoder.layer.1.output.dense.weight", "classifier.bias"}),
        ("roberta", "biases+norms", {"roberta.encoder.layer.0.output.LayerNorm.weight", "lm_head.bias"}),
        ("llama", "all-embeddings", {"model.layers.0.self_attn.q_proj.weight", "model.norm.weight"}),
        ("llama", "*.q_proj.*", {"model.layers.1.self_attn.q_proj.weight"}),
    ],
)
def test_only_what_was_agreed_on_moves(folder, kind, pattern, some):
    config = config_of(folder, kind, train=pattern)
    task = make(TASK, folder, "auto", config.model)
    before = dict(task.build(0).named_parameters())
    simulation = Simulation(config, task)
    record = Record(simulation)
    for played in simulation.play():
        record.add(played)
    names = {entry.name for entry, _ in simulation.parameters}
    assert some <= names
    assert not any("embed" in name for name in names) or pattern == "biases+norms"
    after = dict(simulation.parameters.module.named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved <= names
    assert moved
    ledger = Memory()
    ledger.adopt(record.exported())
    _, parameters = base(ledger.identity, folder / kind / "model.safetensors")
    assert rebuild(ledger, parameters) == simulation.parameters.fingerprint()


def test_engines_agree_on_a_part_of_a_model(folder):
    def votes(engine):
        config = config_of(folder, "encoder", train="last+head", engine=engine)
        simulation = Simulation(config, make(TASK, folder, "auto", config.model))
        simulation.play_round(0)
        return simulation.votes(1, np.arange(3))

    batched, sequential = votes("batched"), votes("sequential")
    np.testing.assert_allclose(batched, sequential, rtol=0, atol=1e-3 * np.abs(sequential).max())


def test_any_model_has_a_head_and_tied_weights_go_by_either_name():
    task = make("mnist-mlp(hidden=4)", None, "embedded")
    whole = build_participant(task, Agreement(), torch.device("cpu")).parameters
    head = build_participant(task, Agreement(train="head"), torch.device("cpu")).parameters
    assert head.size == 4 * 10 + 10 < whole.size
    assert Agreement(train="all") == Agreement()
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    choose(tied, "1.*")
    assert trained(tied) == ["0.weight"]


@pytest.mark.parametrize(
    "pattern", ["", "+head", "head+", "head layers", "last(layers=9)", "last(depth=1)", "all-all", "x"]
)
def test_what_names_nothing_is_refused(pattern):
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    with pytest.raises(InputError, match=r"train = |unknown option 'depth'"):
        choose(model, pattern)


def test_a_part_that_a_model_has_not_is_refused():
    with pytest.raises(InputError, match="has no list of layers"):
        choose(nn.Linear(2, 2), "last")
    with pytest.raises(InvalidConfig, match="write parts"):
        choose(nn.Linear(2, 2), "head++")
