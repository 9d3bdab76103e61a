"""Bases in less memory: loaded as they are stored, packed in few bits, streamed; the same votes, to the bit."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidModel
from cyber0.layerwise.frozen import PackedLinear, StreamedLinear, is_packed
from cyber0.layerwise.mapped import is_mapped, release
from cyber0.layerwise.packing import BLOCK, pack, unpack
from cyber0.layerwise.stream import Stream
from cyber0.parameters import to_bf16
from cyber0.participant import build_participant
from cyber0.protocol.identity import FROZEN
from cyber0.simulation import Simulation
from cyber0.simulation.run import open_run, run
from cyber0.tasks import memory
from cyber0.tasks.loading import loading
from cyber0.tasks.task import make
from cyber0.tasks.text import checkpoint, tiny
from cyber0.tasks.text.adapters import loader, merged

transformers = pytest.importorskip("transformers")
on_linux = pytest.mark.skipif(not is_mapped.__globals__["MAPS"].exists(), reason="needs /proc/self/maps")
CPU = torch.device("cpu")


@pytest.fixture
def stored(tmp_path):
    """Return a function that writes a tiny model in a type, in several files."""

    def write(kind, dtype, vectors=None):
        source, folder = tiny.model(tmp_path / kind, kind), tmp_path / f"{kind}-{dtype}-{vectors}".replace(".", "-")
        with checkpoint.quiet():
            model = getattr(transformers, checkpoint.CLASSES[checkpoint.get_checkpoint(str(source)).kind])
            model = model.from_pretrained(source).to(dtype)
            for parameter in model.parameters() if vectors else ():
                if parameter.ndim == 1:
                    parameter.data = parameter.data.to(vectors) * 1.001
            model.save_pretrained(folder, max_shard_size="9KB")
            tiny.tokenizer(kind).save_pretrained(folder)
        assert len(list(folder.glob("*.safetensors"))) > 1
        return checkpoint.get_checkpoint(str(folder))

    return write


def bits(model):
    return {name: (each.dtype, each.numpy().tobytes()) for name, each in _words(model.state_dict())}


def _words(tensors):
    return [(name, each.view(torch.int16) if each.itemsize == 2 else each) for name, each in tensors.items()]


@pytest.mark.parametrize("kind", ["llama", "roberta", "t5"])
@pytest.mark.parametrize(
    ("dtype", "vectors"),
    [
        *((dtype, None) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)),
        *((torch.bfloat16, vectors) for vectors in (torch.float32, torch.float64)),
    ],
)
def test_a_model_is_loaded_in_the_precision_asked_for(stored, kind, dtype, vectors):
    found = stored(kind, dtype, vectors)
    plain = getattr(transformers, checkpoint.CLASSES[found.kind]).from_pretrained(found.name, dtype=torch.float32)
    assert bits(found.load()) == bits(plain)
    with loading("bf16"):
        low = found.load()
    assert bits(low) == bits(to_bf16(plain))
    for ours, theirs in zip(low.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@on_linux
def test_weights_that_need_no_conversion_stay_in_their_files(stored):
    with loading("bf16"):
        model = stored("llama", torch.bfloat16).load()
    before = model.lm_head.weight.clone()
    assert all(is_mapped(each) for each in model.parameters() if each.ndim > 1)
    assert not any(is_mapped(each) for each in model.parameters() if each.ndim == 1)
    before[0, :5] = model.lm_head.weight.data[0, :5] = 7
    release(model.lm_head.weight.data)
    assert torch.equal(model.lm_head.weight, before)


@pytest.mark.parametrize("adapter", [None, "lora(rank=2)"])
def test_a_run_in_bf16_does_not_depend_on_how_its_files_are_stored(stored, folder, adapter):
    """bf16 files are what float32 files are rounded to."""
    float32 = stored("llama", torch.bfloat16)
    with checkpoint.quiet():
        transformers.AutoModelForCausalLM.from_pretrained(float32.name, dtype=torch.float32).save_pretrained(
            f"{float32.name}-wide"
        )
        float32.tokenizer.save_pretrained(f"{float32.name}-wide")
    marks = set()
    for name in (float32.name, f"{float32.name}-wide"):
        simulation = Simulation(config_of(folder, name, adapter=adapter, precision="bf16"))
        assert simulation.parameters.manifest.entries[0].dtype == "bfloat16"
        marks.add(played(simulation))
    assert len(marks) == 1


def config_of(folder, model, adapter=None, **keys):
    small = {"clients": 3, "byzantine": 1, "directions": 2, "rounds": 2, "lr": 0.05, "batch": 6, "mu": 0.01}
    task = f"text-classification(prompt='prompt.toml', adapter={adapter!r})"
    where = {"task": task, "data": str(folder), "model": str(model), "device": "cpu", "partition": "iid"}
    return RunConfig(**small | where | {"family": "rademacher"} | keys)


def played(simulation):
    """The fingerprint of the last model, and all votes."""
    votes = [np.asarray(each.honest).tobytes() for each in simulation.play()]
    return simulation.parameters.fingerprint(), tuple(votes)


def test_packed_bits_are_these():
    """Whoever packs these weights must get these bits: they are part of a run's identity."""
    weights = ((torch.arange(1000) * 7919) % 1009 - 504).float().view(40, 25) / 512
    known = {}
    for number in (4, 8):
        codes, scales = pack(weights, number)
        assert codes.nbytes == 1000 * number // 8
        assert scales.shape == (-(-1000 // BLOCK),)
        known[number] = hashlib.sha256(codes.numpy().tobytes() + scales.view(torch.int16).numpy().tobytes()).hexdigest()
    assert {number: digest[:16] for number, digest in known.items()} == {4: "e02fba8d042fcc80", 8: "b16aec892a3eb6ad"}


@pytest.mark.parametrize("shape", [(1, 1), (3, 21), (7, 64), (2, 129), (5, 320)])
@pytest.mark.parametrize("number", [4, 8])
def test_unpacked_weights_are_the_nearest_levels(shape, number):
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codes, scales = pack(weights, number)
    back = unpack(codes, scales, shape, torch.float32)
    largest = scales.float().repeat_interleave(BLOCK)[: weights.numel()].view(shape)
    assert ((back - weights).abs() <= largest * (0.153 if number == 4 else 0.75)).all()
    assert torch.equal(unpack(codes, scales, shape, torch.bfloat16), back.bfloat16())
    again = pack(back, number)
    assert torch.equal(again[0], codes) or number == 8  # a level is its own nearest
    with pytest.raises(InvalidModel, match="bits = 3: weights are packed in 4 or 8 bits"):
        pack(weights, 3)
    with pytest.raises(InvalidModel, match="not finite"):
        pack(torch.full((2,), torch.nan), number)


@pytest.mark.parametrize(("kind", "precision"), [("llama", "bf16"), ("roberta", "float32"), ("t5", "mixed")])
def test_a_packed_base_is_the_base_that_it_unpacks_to(folder, tmp_path, kind, precision):
    """Trained beside it, an adapter sees what it would see beside a plain model with the unpacked weights."""
    source = tiny.model(tmp_path / kind, kind)
    base = merged(loader(checkpoint.get_checkpoint(str(source)), "lora(rank=2, bits=4)")(0))
    with checkpoint.quiet():
        plain = getattr(transformers, checkpoint.CLASSES[checkpoint.get_checkpoint(str(source)).kind])
        plain = plain.from_pretrained(source, dtype=torch.float32)
        missing = plain.load_state_dict(base, strict=False)
        assert not missing.unexpected_keys
        plain.save_pretrained(tmp_path / "unpacked")
        tiny.tokenizer(kind).save_pretrained(tmp_path / "unpacked")
    runs = [
        Simulation(config_of(folder, model, f"lora(rank=2{more})", precision=precision))
        for model, more in ((source, ", bits=4"), (tmp_path / "unpacked", ""))
    ]
    assert is_packed(runs[0].parameters.module)
    assert all(entry.dtype == "float32" for entry in runs[0].parameters.manifest.entries)
    if precision != "bf16":  # in which an adapter beside a plain base is bf16, too
        first, second = (np.array([np.asarray(each.honest) for each in run.play()]) for run in runs)
        np.testing.assert_allclose(first, second, rtol=1e-4 if precision == "float32" else 0.2, atol=1e-2)


@pytest.mark.parametrize(
    ("adapter", "precision"),
    [("lora(rank=2)", "float32"), ("lora(rank=2)", "bf16"), ("lora(rank=2, bits=4)", "mixed")],
)
def test_a_streamed_base_gives_the_same_votes(folder, tmp_path, adapter, precision):
    source = tiny.model(tmp_path / "llama", "llama")
    marks = set()
    for stream in (None, "60KB", "28KB"):
        simulation = Simulation(config_of(folder, source, adapter, precision=precision, stream=stream))
        layers = [each for each in simulation.parameters.module.modules() if isinstance(each, nn.Linear)]
        frozen = [each for each in layers if isinstance(each, StreamedLinear | PackedLinear)]
        assert len(frozen) == (0 if stream is None and "bits" not in adapter else 14)
        marks.add(played(simulation))
    assert len(marks) == 1


@on_linux
def test_pages_of_a_layer_are_given_back_after_it_has_run(stored):
    with loading("bf16"):
        model = stored("llama", torch.bfloat16).load()
    matrices = [(each.weight.data,) for each in model.modules() if isinstance(each, nn.Linear)]
    expected = [each[0].clone() for each in matrices]
    stream = Stream(matrices, CPU, room=0)
    assert all(stream._mapped)
    for _ in range(2):
        for place, own in enumerate(expected):
            assert torch.equal(stream.fetch(place)[0], own)


def test_too_little_memory_to_stream_with_is_told(folder, tmp_path):
    source = tiny.model(tmp_path / "llama", "llama")
    least = r"bytes: this model needs at least [0-9,]+ bytes \(0.02 MiB\) of the device, for two layers"
    with pytest.raises(InvalidConfig, match=least):
        Simulation(config_of(folder, source, "lora(rank=2)", stream="3KB"))
    with pytest.raises(InvalidConfig, match="stream = '1GiB' is for weights that are not trained"):
        Simulation(config_of(folder, source, stream="1GiB"))
    with pytest.raises(InvalidConfig, match="stream = '8': write a number of bytes with its unit, as 8GiB or 500MB"):
        Simulation(config_of(folder, source, "lora(rank=2)", stream="8"))
    with pytest.raises(InvalidModel, match="bits = 5: weights are packed in 4 or 8 bits"):
        make("text-classification(prompt='prompt.toml', adapter='lora(bits=5)')", folder, model=str(source)).build(0)


def test_models_that_are_quantised_already_are_refused_as_before(tmp_path):
    source = tiny.model(tmp_path / "llama", "llama")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidModel, match=r"is quantised \(bitsandbytes\)"):
        checkpoint.get_checkpoint(str(source))


def test_a_participant_streams_alone(folder, tmp_path):
    config = config_of(folder, tiny.model(tmp_path / "llama", "llama"), "lora(rank=2)")
    task = make(config.task, folder, "auto", config.model)
    found = build_participant(task, config.agreement, CPU, stream="60KB")
    assert any(isinstance(each, StreamedLinear) for each in found.parameters.module.modules())


# Identity


def meaning_of(folder, model, adapter="lora(rank=2)", **keys):
    config = config_of(folder, model, adapter, **keys)
    task = make(config.task, folder, "auto", config.model)
    return build_participant(task, config.agreement, CPU, stream=keys.get("stream")).meaning[FROZEN]


def test_what_is_not_trained_is_part_of_the_identity(folder, tmp_path):
    """One bit of a frozen weight, another quantiser, another precision: another identity. Streaming: the same."""
    source, other = (tiny.model(tmp_path / name, "llama") for name in ("llama", "other"))
    weights = load_file(other / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name].view(torch.int32)[0, 0] ^= 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    ways = {
        "plain": {},
        "streamed": {"stream": "28KB"},
        "4 bits": {"adapter": "lora(rank=2, bits=4)"},
        "4 bits, streamed": {"adapter": "lora(rank=2, bits=4)", "stream": "28KB"},
        "8 bits": {"adapter": "lora(rank=2, bits=8)"},
        "bf16": {"precision": "bf16"},
    }
    found = {way: meaning_of(folder, source, **keys) for way, keys in ways.items()}
    assert found["plain"] == found["streamed"]
    assert found["4 bits"] == found["4 bits, streamed"]
    assert len({*found.values(), meaning_of(folder, other)}) == 5
    assert FROZEN not in Simulation(config_of(folder, source)).participant.meaning  # all is trained


def test_an_adapter_of_a_packed_base_loads_in_plain_peft(folder, tmp_path):
    peft = pytest.importorskip("peft")
    source = tiny.model(tmp_path / "llama", "llama")
    result = run(config_of(folder, source, "lora(rank=2, bits=4)", lr=0.5), tmp_path / "run")
    result.save(tmp_path / "run.cyber0")
    for name, more in (("adapter", ["--adapter"]), ("merged", [])):
        words = [
            "export",
            tmp_path / "run.cyber0",
            "--out",
            tmp_path / name,
            "--model",
            source,
            "--data",
            folder,
            *more,
        ]
        told = CliRunner().invoke(app, list(map(str, words)))
        assert told.exit_code == 0, told.output
    trained = open_run(tmp_path / "run").model
    automatic = transformers.AutoModelForCausalLM
    base = automatic.from_pretrained(source)
    unpacked = merged(loader(checkpoint.get_checkpoint(str(source)), "lora(rank=2, bits=4)")(0))
    base.load_state_dict(unpacked, strict=False)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    whole, text, ids = (
        automatic.from_pretrained(tmp_path / "merged"),
        torch.tensor([[9, 12, 30]]),
        list(trained.label_head.label_ids),
    )
    with torch.no_grad():
        own = trained(text)[0]
        for model in (adapted, whole):
            torch.testing.assert_close(model(text).logits[0, -1, ids], own, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(automatic.from_pretrained(source)(text).logits[0, -1, ids], own, atol=1e-3)


@on_linux
def test_a_mapped_base_larger_than_memory_is_streamed(folder, stored, monkeypatch):
    """It is refused without, as it would have to be in memory as a whole."""
    found = stored("llama", torch.bfloat16)
    size = 2 * found.parameters()
    monkeypatch.setattr(memory, "available", lambda _: int(0.9 * size))
    Simulation(config_of(folder, found.name, "lora(rank=2)", precision="bf16", stream=f"{0.8 * size / 1000}KB"))
    with pytest.raises(InvalidModel, match=r"training in bf16 needs .* are free on cpu"):
        Simulation(config_of(folder, found.name, "lora(rank=2)", precision="bf16"))
