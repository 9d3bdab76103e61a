import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors
from tests.protocol.ledgers import decisions, fill, identity, parameters, sealed
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.commit import Commit
from cyber0.config import Agreement, RunConfig
from cyber0.directions import FAMILIES, Cpu, DirectionKey, sample
from cyber0.directions.elementwise import numpy_backend, torch_backend
from cyber0.directions.native import WHOLE
from cyber0.errors import InvalidConfig, InvalidLedger, InvalidParameters
from cyber0.parameters import Parameters
from cyber0.plan import SCHEMES
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.sqlite import File
from cyber0.replay import Weights, base, rebuild
from cyber0.tasks.task import mnist


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def one_by_one(run, rounds, weights):
    for decision in decisions(run, rounds):
        weights.apply(run.commit(decision))
    return weights.fingerprint()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bf16", [False, True])
def test_a_replayed_model_has_the_bits_of_the_played_one(family, scheme, bf16):
    run, ledger = identity(family=family, scheme=scheme, local_epochs=2, bf16=bf16), Memory()
    fill(ledger, run, 30)
    played, replayed, torches = (parameters(bf16=bf16) for _ in range(3))
    expected = one_by_one(run, 30, played)
    assert rebuild(ledger, replayed) == expected
    for (_, one), (_, other) in zip(played, replayed, strict=True):
        assert one.tobytes() == other.tobytes()
    assert rebuild(ledger, torches, device="cpu:0") == expected  # by way of torch
    assert rebuild(ledger, parameters(bf16=bf16), 0) == parameters(bf16=bf16).fingerprint()
    assert rebuild(ledger, parameters(bf16=bf16), 17) == one_by_one(run, 17, parameters(bf16=bf16))


@settings(max_examples=25)
@given(
    size=st.integers(1, 5000),
    cut=st.integers(0, 5000),
    shapes=st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from(FAMILIES)), min_size=1, max_size=12
    ),
    backend=st.sampled_from(["numpy", "cpu", "torch"]),
    bf16=st.booleans(),
)
def test_many_commits_in_one_pass_are_the_same_as_one_by_one(size, cut, shapes, backend, bf16):
    """Whatever the backend, its chunks and threads, and however commits of different kinds follow one another."""
    rng = np.random.default_rng(size)
    commits = [Commit(3, t, 0.1, rng.normal(size=(rows, k)), family) for t, (rows, k, family) in enumerate(shapes)]
    w = sample(DirectionKey(1, 0), size)
    if bf16:
        w = (w.view(np.uint32) >> 16).astype(np.uint16)
    one, many = ({"a": w[:cut].copy()[None], "b": w[cut:].copy()[None]} for _ in range(2))
    one, many = (Parameters({k: v for k, v in tensors.items() if v.size}) for tensors in (one, many))
    for commit in commits:
        one.apply(commit, "numpy")
    if backend == "torch":
        many = Parameters({k: torch.from_numpy(v.view(np.int16)).view(torch.bfloat16) if bf16 else torch.from_numpy(v)
                           for k, v in many.tensors.items()})  # fmt: skip
    chosen = {"numpy": numpy_backend(chunk=101), "cpu": Cpu(threads=2), "torch": torch_backend(chunk=99)}[backend]
    many.apply_all(commits, chosen)
    assert many.fingerprint() == one.fingerprint()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [WHOLE, WHOLE + 1])
def test_models_on_both_sides_of_what_a_cache_holds(family, size):
    commits = [Commit(3, t, 0.1, [[1.0, -2.0]], family) for t in range(70)]
    one, many = (Parameters({"w": np.ones(size, dtype=np.float32)}) for _ in range(2))
    for commit in commits:
        one.apply(commit)
    many.apply_all(commits)
    assert many.fingerprint() == one.fingerprint()


@pytest.fixture
def files(tmp_path):
    """A ledger and its base, in which other tensors lie between those that are trained."""
    run = identity()
    tensors = {**parameters().tensors, "a.mask": np.arange(9, dtype=np.int64), "frozen": np.ones(3, dtype=np.float32)}
    save_file(tensors, tmp_path / "base.safetensors", metadata={"format": "pt"})
    with File(tmp_path / "run.ledger") as ledger:
        fill(ledger, run, 20)
        sealed(ledger, one_by_one(run, 20, parameters()))
    return tmp_path


def test_a_replayed_file(files):
    played = parameters()
    fingerprint = one_by_one(identity(), 20, played)
    out = files / "out.safetensors"
    result = invoke("replay", files / "run.ledger", "--base", files / "base.safetensors", "--out", out)
    assert result.exit_code == 0, result.output
    assert f"{fingerprint:016x}" in result.output
    before, after = load_file(files / "base.safetensors"), load_file(out)
    for name, array in after.items():
        expected = played.tensors.get(name, before[name])
        assert array.tobytes() == expected.tobytes()
        assert array.shape == before[name].shape


def test_an_export_and_a_folder_give_the_same_file(files):
    folder = files / "model"
    folder.mkdir()
    (files / "base.safetensors").rename(folder / "model.safetensors")
    invoke("ledger", "export", files / "run.ledger", "--out", files / "run.cyber0")
    outs = []
    for name in ("run.ledger", "run.cyber0"):
        result = invoke(
            "replay", files / name, "--base", folder, "--out", files / "out", "--round", 11, "--device", "cpu"
        )
        assert result.exit_code == 0, result.output
        outs.append((files / "out").read_bytes())
    assert outs[0] == outs[1]
    (folder / "other.safetensors").touch()
    result = invoke("replay", files / "run.ledger", "--base", folder, "--out", files / "out")
    assert "has 2 safetensors files" in str(result.exception)


def test_verify_rebuilds_the_model(files):
    result = invoke("verify", files / "run.ledger", "--base", files / "base.safetensors")
    assert result.exit_code == 0, result.output
    assert "has the fingerprint recorded" in result.output
    with File(files / "run.ledger") as ledger:
        sealed(ledger, 12345)
    result = invoke("verify", files / "run.ledger", "--base", files / "base.safetensors")
    assert result.exit_code == 1
    assert "0000000000003039 is recorded" in result.output


def test_bf16_files(tmp_path):
    weights = parameters(bf16=True)
    tensors = {"weight": torch.from_numpy(weights.tensors["weight"].view(np.int16)).view(torch.bfloat16)}
    save_tensors({**tensors, "bias": torch.from_numpy(weights.tensors["bias"])}, tmp_path / "base.safetensors")
    run, ledger = identity(bf16=True), Memory()
    fill(ledger, run, 9)
    content, loaded = base(run, tmp_path / "base.safetensors")
    rebuild(ledger, loaded)
    content.write(tmp_path / "out.safetensors")
    one_by_one(run, 9, weights)
    out = load_tensors(tmp_path / "out.safetensors")
    assert out["weight"].view(torch.int16).numpy().tobytes() == weights.tensors["weight"].tobytes()
    assert out["bias"].numpy().tobytes() == weights.tensors["bias"].tobytes()


@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=40),
    kept=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    trained=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_file_of_another_precision_is_converted_as_torch_converts_it(tmp_path_factory, values, kept, trained):
    path = tmp_path_factory.mktemp("base") / "base.safetensors"
    tensor = torch.tensor([values], dtype=torch.float32).nan_to_num().to(kept)
    save_tensors({"w": tensor, "mask": torch.arange(3), "odd": torch.ones(3, dtype=torch.uint8)}, path)
    layout = Parameters({"w": tensor.to(trained), "head": torch.zeros(2)})
    run = Identity.of(Agreement(clients=1, byzantine=0), ["ann"], layout)
    content, loaded = base(run, path)
    assert loaded.fingerprint() == layout.fingerprint()
    content.write(path)
    out = load_tensors(path)
    assert torch.equal(out["w"], tensor.to(trained))
    assert torch.equal(out["head"], torch.zeros(2))
    assert torch.equal(out["mask"], torch.arange(3))


def test_what_a_file_lacks_must_have_begun_at_zero(tmp_path):
    save_tensors({"w": torch.ones(1, 3)}, tmp_path / "base.safetensors")
    run = Identity.of(
        RunConfig(clients=1, byzantine=0), ["ann"], Parameters({"w": torch.ones(1, 3), "head": torch.ones(2)})
    )
    with pytest.raises(InvalidParameters, match="no tensor 'head', which the run trains and did not begin at zero"):
        base(run, tmp_path / "base.safetensors")


def tensors_with(**changes):
    return {**{name: array.copy() for name, array in parameters().tensors.items()}, **changes}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            tensors_with(bias=np.zeros(7, dtype=np.float32)),
            "not the base of the run: its weights have SHA-256 .*began with",
        ),
        (
            tensors_with(bias=np.zeros(8, dtype=np.float32)),
            r"'bias' is float32 \[8\], but the run trains float32 \[7\]",
        ),
        (tensors_with(bias=np.zeros(7, dtype=np.float64)), r"'bias' is F64 \[7\], but the run trains float32"),
        (tensors_with(bias=np.zeros(7, dtype=np.float16)), "not the base of the run"),
        ({"weight": parameters().tensors["weight"]}, "have no tensor 'bias'"),
    ],
)
def test_another_base_is_refused(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "base.safetensors")
    with pytest.raises(InvalidParameters, match=message):
        base(identity(), tmp_path / "base.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, bytes(8), (2**60).to_bytes(8, "little"), b"\x02" + bytes(7) + b"{]"]
)
def test_what_is_not_a_weights_file(tmp_path, content):
    path = tmp_path / "base.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidParameters, match=r"not a safetensors file|have no tensor"):
        base(identity(), path)


def test_a_layout_that_is_known_by_its_digest_alone(tmp_path):
    """A federator has no model: then the file's own order must be the run's."""
    run = replace(identity(), layout=None)
    Weights.of(parameters().tensors).write(tmp_path / "right.safetensors")
    Weights.of(dict(reversed(parameters().tensors.items()))).write(tmp_path / "wrong.safetensors")
    assert base(run, tmp_path / "right.safetensors")[1].fingerprint() == parameters().fingerprint()
    with pytest.raises(InvalidParameters, match=r"another layout: their manifest is \w+, the run's"):
        base(run, tmp_path / "wrong.safetensors")


def test_the_base_of_a_task(tmp_path):
    config = RunConfig(source="embedded", clients=5, byzantine=1, directions=3)
    module = mnist(source="embedded").build(0)
    run = Identity.of(config.agreement, identity().roster.names, Parameters.of(module))
    with File(tmp_path / "run.ledger") as ledger:
        fill(ledger, run, 4)
    for known in (run, replace(run, layout=None)):
        assert base(known, None)[1].fingerprint() == Parameters.of(module).fingerprint()
    result = invoke("replay", tmp_path / "run.ledger", "--base", "task", "--out", tmp_path / "out.safetensors")
    assert result.exit_code == 0, result.output
    weights = Parameters.of(module)
    assert f"{one_by_one(run, 4, weights):016x}" in result.output
    out = load_tensors(tmp_path / "out.safetensors")
    assert torch.equal(out["weight"], module.weight)


def test_code_of_others_is_not_run():
    with pytest.raises(InvalidConfig, match="would run code from outside the library"):
        base(identity(task="os:system"), None)


def test_a_ledger_whose_scalars_do_not_fit_is_not_replayed(files):
    import sqlite3

    connection = sqlite3.connect(files / "run.ledger")
    with connection:
        connection.execute("UPDATE rounds SET scalars = zeroblob(12) WHERE round = 3")
    connection.close()
    result = invoke("replay", files / "run.ledger", "--base", files / "base.safetensors", "--out", files / "out")
    assert isinstance(result.exception, InvalidLedger)
    assert not (files / "out").exists()


def test_rounds_and_devices_that_are_not_there(files):
    options = ["replay", files / "run.ledger", "--base", files / "base.safetensors", "--out", files / "out"]
    assert "the ledger has 20 rounds" in str(invoke(*options, "--round", 21).exception)
    assert "device = 'quantum' cannot be used" in str(invoke(*options, "--device", "quantum").exception)


def test_a_base_in_several_files_is_read_as_one(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"layer.{n}": rng.normal(size=(n, 3)).astype(np.float32) for n in range(1, 5)}
    tensors["odd"] = np.arange(3, dtype=np.float16)  # what comes after it is aligned nevertheless
    names = list(tensors)
    parts = {"model-1.safetensors": [*names[:2], "odd"], "model-2.safetensors": names[2:4]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, tmp_path / file)
    places = {name: file for file, own in parts.items() for name in own}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    found = Weights.read(tmp_path)
    for entry in found.order.entries:
        array = dict(zip([e.name for e in found.order.entries], found.parameters(found.order), strict=True))[entry.name]
        assert array[1].tobytes() == tensors[entry.name].tobytes()
    assert {entry.name for entry in found.order.entries} == set(names) - {"odd"}
    index.write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(InvalidParameters, match="names files outside its folder"):
        Weights.read(tmp_path)
    index.write_text("[]")
    with pytest.raises(InvalidParameters, match="is no index of safetensors files"):
        Weights.read(tmp_path)


def test_a_long_replay_says_how_far_it_is(monkeypatch):
    run, ledger = identity(), Memory()
    fill(ledger, run, 30)
    weights = parameters()
    monkeypatch.setattr(sys.modules["cyber0.replay.rebuild"], "AT_ONCE", 7 * run.plan.scalars * weights.size)
    monkeypatch.setattr(sys.modules["cyber0.replay.rebuild"], "LEAST", 1)
    said = []
    mark = rebuild(ledger, weights, watch=said.append)
    assert said == [7, 14, 21, 28, 30]
    assert mark == one_by_one(run, 30, parameters())


def test_verify_keeps_the_model_that_it_rebuilds(tmp_path):
    run = identity()
    save_file({entry.name: flat.reshape(entry.shape) for entry, flat in parameters()}, tmp_path / "base.safetensors")
    with File(tmp_path / "run.ledger") as ledger:
        fill(ledger, run, 5)
    options = ("--base", tmp_path / "base.safetensors", "--device", "cpu", "--out", tmp_path / "model.safetensors")
    told = invoke("verify", tmp_path / "run.ledger", *options)
    assert "the model is written to" in told.output.replace("\n", " ")
    again = Weights.read(tmp_path / "model.safetensors")
    assert again.parameters(run.layout).fingerprint() == one_by_one(run, 5, parameters())
    refused = invoke("verify", tmp_path / "run.ledger", "--out", tmp_path / "other.safetensors")
    assert "give --base, too" in str(refused.output) + str(refused.exception)
