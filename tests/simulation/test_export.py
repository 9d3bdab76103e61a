"""A simulated run, exported: with the weights it began with, the small file is the trained model."""

import json

import numpy as np
import pytest
from tests.processes import CONTEXT
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.commit import Commit
from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidExport
from cyber0.parameters import Parameters
from cyber0.plan import SCHEMES
from cyber0.protocol import export
from cyber0.protocol.ledger import Memory
from cyber0.replay import Weights, rebuild
from cyber0.simulation import Simulation
from cyber0.simulation.export import Record, from_folder, recorded
from cyber0.simulation.run import run
from cyber0.study import engines
from cyber0.study.folder import StudyFolder
from cyber0.study.recipe import Recipe
from cyber0.study.study import study
from cyber0.study.work import jobs_of, play
from cyber0.tasks.task import make

SMALL = {"source": "embedded", "clients": 6, "byzantine": 1, "directions": 4, "rounds": 6, "evaluate_every": 4}
TEXT = {"clients": 4, "byzantine": 1, "attack": "sf", "partition": "iid", "family": "gaussian", "directions": 2}
TEXT |= {"task": "text-classification(prompt='prompt.toml')", "rounds": 3, "batch": 8}


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def exported(folder, out, *options):
    done = invoke("ledger", "export", folder, "--out", out, *options)
    assert done.exit_code == 0, done.exception
    return export.read(out)


def replayed(file, base, out):
    done = invoke("replay", file, "--base", base, "--out", out)
    assert done.exit_code == 0, done.exception
    return next(line.split()[1] for line in done.output.splitlines() if line.startswith("fingerprint"))


def adopted(shared):
    memory = Memory()
    memory.adopt(shared)
    return memory


@pytest.fixture
def tiny_texts(tmp_path):
    """A function that writes a tiny model of some kind beside its data; gives the configuration of a run on them."""
    pytest.importorskip("transformers")
    from cyber0.tasks.text import tiny

    def make_one(kind):
        folder = tiny.data(tmp_path / "texts")
        return RunConfig(data=str(folder), model=str(tiny.model(folder / "tiny", kind)), lr=0.01, **TEXT)

    return make_one


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_is_rebuilt_from_its_export(tmp_path, scheme):
    config = RunConfig(**SMALL, attack="sf", scheme=scheme, local_epochs=2, seed=5)
    summary = run(config, tmp_path / "run").summary
    shared = exported(tmp_path / "run", tmp_path / "run.cyber0")
    assert shared.rounds == 6
    out = tmp_path / "model.safetensors"
    assert replayed(tmp_path / "run.cyber0", "task", out) == summary["model_fingerprint"]
    trained, again = (Weights.read(path) for path in (tmp_path / "run" / "model.safetensors", out))
    order = again.order
    assert trained.parameters(order).fingerprint() == again.parameters(order).fingerprint()


def test_rounds_that_changed_nothing_change_nothing_when_replayed(tmp_path):
    summary = run(RunConfig(**{**SMALL, "byzantine": 2, "rounds": 20}, dropout=0.2), tmp_path / "run").summary
    assert 0 < summary["skipped_rounds"] < 20
    shared = exported(tmp_path / "run", tmp_path / "run.cyber0")
    rounds = np.frombuffer(shared.scalars, dtype="<f4").reshape(20, -1)
    assert (~rounds.any(axis=1)).sum() == summary["skipped_rounds"]
    assert replayed(tmp_path / "run.cyber0", "task", tmp_path / "out") == summary["model_fingerprint"]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("family", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_a_round_of_zeros_leaves_every_bit(bf16, family, backend):
    values = np.array([[0.0, -0.0, 1.5, -1e-40, 3e38, -2.0]], dtype=np.float32)
    weights = (values.view(np.uint32) >> 16).astype(np.uint16) if bf16 else values
    before = weights.tobytes()
    zeros = [Commit(7, t, 0.1, [[0.0, -0.0]], family) for t in range(3)]
    Parameters({"w": weights}).apply_all(zeros, backend)
    for commit in zeros:
        Parameters({"w": weights}).apply(commit, backend)
    assert weights.tobytes() == before


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("kind", ["roberta", "llama", "encoder"])
def test_a_language_model_is_rebuilt_from_its_pretrained_file(tmp_path, tiny_texts, kind, precision):
    config = tiny_texts(kind).model_copy(update={"precision": precision, "mu": 0.01})
    summary = run(config, tmp_path / "run").summary
    exported(tmp_path / "run", tmp_path / "run.cyber0")
    out = tmp_path / "model.safetensors"
    assert replayed(tmp_path / "run.cyber0", config.model, out) == summary["model_fingerprint"]


def test_a_language_model_with_a_layer_on_top_is_rebuilt_by_its_task(tmp_path, tiny_texts, monkeypatch):
    config = tiny_texts("encoder")
    summary = run(config, tmp_path / "run").summary
    exported(tmp_path / "run", tmp_path / "run.cyber0")
    monkeypatch.chdir(config.data)  # where the prompt is, and the model by the name it has in the export
    assert replayed(tmp_path / "run.cyber0", "task", tmp_path / "out") == summary["model_fingerprint"]


def test_bf16_weights_are_rebuilt_bit_for_bit(tmp_path, tiny_texts):
    config = tiny_texts("llama").model_copy(update={"precision": "bf16", "mu": 0.01})
    base = {name: _bits(tensor) for name, tensor in Simulation(config).parameters.tensors.items()}
    assert {array.dtype for array in base.values()} == {np.dtype(np.uint16), np.dtype(np.float32)}
    Weights.of(base).write(tmp_path / "base.safetensors")
    summary = run(config, tmp_path / "run").summary
    exported(tmp_path / "run", tmp_path / "run.cyber0")
    found = replayed(tmp_path / "run.cyber0", tmp_path / "base.safetensors", tmp_path / "out")
    assert found == summary["model_fingerprint"]
    assert found != f"{Parameters(base).fingerprint():016x}"


def _bits(tensor):
    import torch

    tensor = tensor.detach().clone()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def test_runs_played_together_are_each_rebuilt():
    configs = [RunConfig(**SMALL, seed=seed, device="cpu") for seed in (0, 1)]
    task = make("mnist", None, "embedded")
    for config, (lines, shared) in zip(configs, recorded(configs), strict=True):
        found = rebuild(adopted(shared), Parameters.of(task.build(config.seed)))
        assert f"{found:016x}" == lines[-1]["model_fingerprint"]


def test_the_export_says_nothing_of_the_machine(tmp_path, tiny_texts):
    config = tiny_texts("roberta").model_copy(update={"device": "cpu"})
    run(config, tmp_path / "run")
    identity = exported(tmp_path / "run", tmp_path / "run.cyber0").identity
    assert str(tmp_path) not in identity.to_bytes().decode()
    assert identity.agreement == config.agreement
    assert identity.agreement.model == "tiny"


def test_the_fingerprint_is_recorded_and_verified(tmp_path):
    run(RunConfig(**SMALL), tmp_path / "run")
    exported(tmp_path / "run", tmp_path / "run.cyber0")
    done = invoke("verify", tmp_path / "run.cyber0", "--base", "task")
    assert done.exit_code == 0, done.output
    assert "has the fingerprint recorded" in done.output


def test_a_run_that_goes_on_is_exported_up_to_its_last_evaluation(tmp_path):
    run(RunConfig(**SMALL), tmp_path / "run")
    whole = exported(tmp_path / "run", tmp_path / "whole.cyber0")
    part = exported(tmp_path / "run", tmp_path / "part.cyber0", "--round", 3)
    (tmp_path / "run" / "summary.json").unlink()
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:-1]) + lines[-1][:20])
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    begun = exported(tmp_path / "run", tmp_path / "begun.cyber0")
    assert (begun.rounds, begun.seal, part.rounds, part.seal) == (4, None, 3, None)
    assert whole.hashes[:4] == begun.hashes
    assert whole.hashes[:3] == part.hashes
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_what_cannot_be_exported_is_said(tmp_path):
    with pytest.raises(InvalidConfig, match="holds no run"):
        from_folder(tmp_path)
    run(RunConfig(**SMALL, algorithm="fedavg"), tmp_path / "fedavg")
    with pytest.raises(InvalidExport, match="'fedavg' sends weights"):
        from_folder(tmp_path / "fedavg")
    run(RunConfig(**SMALL), tmp_path / "run")
    metrics, scalars = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "scalars.f32"
    scalars.write_bytes(scalars.read_bytes()[:-4])
    with pytest.raises(InvalidConfig, match=r"has 92 bytes, but 96 by metrics.jsonl: it was cut off"):
        from_folder(tmp_path / "run")
    metrics.write_text(metrics.read_text().replace('"model": "', '"model": "f'))
    with pytest.raises(InvalidExport, match="began with a model of fingerprint f"):
        from_folder(tmp_path / "run")
    metrics.write_text("")
    with pytest.raises(InvalidExport, match="no evaluation yet"):
        from_folder(tmp_path / "run")
    simulation = Simulation(RunConfig(**SMALL))
    next(simulation.play())
    with pytest.raises(InvalidExport, match="1 rounds have been played"):
        Record(simulation)


def test_a_study_keeps_its_runs_where_its_recipe_says_so(tmp_path, tiny_texts, monkeypatch):
    monkeypatch.setattr(engines, "get_context", lambda _: CONTEXT)
    config = tiny_texts("roberta")
    base = {**TEXT, "lr": 0.01, "model": "someone/tiny"}
    here = {"data": config.data, "model": config.model, "device": "cpu"}
    keys = {"seeds": 1, "keep": True, "base": base, "axes": {"attack": ["sf"]}}
    results = study(Recipe.of(keys), tmp_path / "study", jobs=1, options=here)
    assert results.failures == []
    assert config.model not in results.about["data"]
    kept = json.loads((tmp_path / "study" / "runs" / "sf_seed0.json").read_text())
    file = tmp_path / "study" / "exports" / "sf_seed0.cyber0"
    assert kept["config"]["model"] == export.read(file).identity.agreement.model == "someone/tiny"
    assert replayed(file, config.model, tmp_path / "out") == kept["summary"]["model_fingerprint"]
    assert str(tmp_path) not in json.dumps(kept)


@pytest.mark.parametrize("keep", [True, False])
def test_only_such_a_study_does(tmp_path, keep):
    recipe = Recipe.of({"seeds": 1, "keep": keep, "base": SMALL, "axes": {"attack": ["sf"]}})
    [job] = jobs_of(recipe, {"device": "cpu"})
    with StudyFolder(tmp_path / "study", recipe) as folder:
        [outcome] = play([job], lambda _: None)
        folder.keep(outcome)
        assert folder.done(job)
    assert (tmp_path / "study" / "exports" / "sf_seed0.cyber0").exists() == keep
