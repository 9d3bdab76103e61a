"""What `cyber0 export` writes loads in plain transformers and peft, with the same predictions, and names of classes."""

import json
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import RunConfig
from cyber0.simulation.run import open_run, run
from cyber0.tasks.text.tokens import PAD

transformers = pytest.importorskip("transformers")

SMALL = {"clients": 3, "byzantine": 1, "directions": 2, "rounds": 4, "batch": 6, "lr": 0.05, "mu": 0.01}


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})


def played(folder, out, kind, options="", **changes):
    """The run of a tiny model, as a folder and as an exported run."""
    where = {
        "data": str(folder),
        "model": str(folder / kind),
        "partition": "iid",
        "device": "cpu",
        "family": "gaussian",
    }
    task = f"text-classification(prompt='prompt.toml'{options})"
    result = run(RunConfig(**SMALL | where | {"task": task} | changes), out / "run")
    result.save(out / "run.cyber0")
    return result


def scores(result, classifier, count=8):
    """What cyber0 says of some texts, each row alone and without padding."""
    tokens = torch.as_tensor(result_inputs(result))[:count]
    with torch.no_grad():
        return tokens, torch.stack([classifier(row[row != PAD][None])[0] for row in tokens])


def result_inputs(result):
    from cyber0.participant import load_task

    config = result.config
    return load_task(config, config.data, config.source, config.model).dataset.test_inputs


@pytest.mark.parametrize("source", ["run", "run.cyber0"])
def test_a_pipeline_of_plain_transformers_gives_labels(folder, tmp_path, source):
    result = played(folder, tmp_path, "encoder", ", scale=20.0")
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    shutil.copy(folder / "prompt.toml", prompts)  # and no data beside it
    told = invoke(
        "export", tmp_path / source, "--out", tmp_path / "out", "--model", folder / "encoder", "--data", prompts
    )
    assert told.exit_code == 0, told.output
    assert "text-classification" in told.output
    code = (tmp_path / "out" / "pooled_classifier.py").read_text()
    assert "import cyber0" not in code
    assert "from cyber0" not in code
    rows = [json.loads(line)["text"] for line in (folder / "test.jsonl").read_text().splitlines()][:8]
    pipe = transformers.pipeline("text-classification", str(tmp_path / "out"), trust_remote_code=True)
    answers = pipe(rows, top_k=None, batch_size=4)  # padded
    _, expected = scores(result, open_run(tmp_path / "run").model)
    for answer, own in zip(answers, expected.softmax(1), strict=True):
        assert {each["label"] for each in answer} == {"bad", "good"}
        found = {each["label"]: each["score"] for each in answer}
        np.testing.assert_allclose([found["bad"], found["good"]], own.numpy(), atol=1e-4)
    with pytest.raises(ValueError, match="trust_remote_code"):  # and not other predictions
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=False)


def test_an_adapter_loads_in_peft_and_merged_in_transformers(folder, tmp_path):
    peft = pytest.importorskip("peft")
    result = played(folder, tmp_path, "llama", ", adapter='lora(rank=2)'", lr=0.5)
    for name, options in (("adapter", ["--adapter"]), ("merged", [])):
        told = invoke(
            "export",
            tmp_path / "run.cyber0",
            "--out",
            tmp_path / name,
            "--model",
            folder / "llama",
            "--data",
            folder,
            *options,
        )
        assert told.exit_code == 0, told.output
    automatic = transformers.AutoModelForCausalLM
    adapted = peft.PeftModel.from_pretrained(automatic.from_pretrained(folder / "llama"), tmp_path / "adapter").eval()
    merged, plain = automatic.from_pretrained(tmp_path / "merged"), automatic.from_pretrained(folder / "llama")
    classifier = open_run(tmp_path / "run").model
    tokens, expected = scores(result, classifier, 3)
    ids = list(classifier.label_head.label_ids)
    for row, own in zip(tokens, expected, strict=True):
        text = row[row != PAD][None].long()
        with torch.no_grad():
            found = [model(text).logits[0, -1, ids] for model in (adapted, merged, plain)]
        torch.testing.assert_close(found[0], own, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found[1], own, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(found[2], own, atol=1e-4)
    words = json.loads((tmp_path / "merged" / "prompt.json").read_text())
    assert words == {"prompt": "{text} It was", "words": {"bad": "terrible", "good": "great"}}


def test_a_part_of_a_model_in_bf16_is_exported_from_its_folder(folder, tmp_path):
    played(folder, tmp_path, "encoder", train="last+head", precision="bf16")
    for source in ("run", "run.cyber0"):
        told = invoke(
            "export",
            tmp_path / source,
            "--out",
            tmp_path / f"{source}-out",
            "--model",
            folder / "encoder",
            "--data",
            folder,
        )
        assert told.exit_code == 0, told.output
    one, other = ((tmp_path / f"{source}-out" / "model.safetensors").read_bytes() for source in ("run", "run.cyber0"))
    assert one == other


def test_what_cannot_be_exported_is_refused(folder, tmp_path):
    played(folder, tmp_path, "llama")
    known = ("--model", folder / "llama", "--data", folder)
    told = invoke("export", tmp_path / "run", "--out", tmp_path / "out", "--adapter", *known)
    assert "was trained without an adapter" in str(told.exception) + told.output
    told = invoke("export", tmp_path / "run", "--out", folder, *known)
    assert "exists: name a new folder" in str(told.exception) + told.output
    told = invoke(
        "export", tmp_path / "run.cyber0", "--out", tmp_path / "out", "--model", folder / "roberta", "--data", folder
    )
    assert told.exit_code != 0
    run(RunConfig(source="embedded", clients=3, byzantine=0, directions=1, rounds=1), tmp_path / "digits")
    told = invoke("export", tmp_path / "digits", "--out", tmp_path / "out")
    assert "trains no language model" in str(told.exception) + told.output


class Hub(BaseHTTPRequestHandler):
    """A hub that lets nobody in; what it was asked is in `server.asked`."""

    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self.path)
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def test_an_upload_that_fails_is_said_and_the_folder_stays(folder, tmp_path, monkeypatch):
    played(folder, tmp_path, "encoder", rounds=1)

    def pushed(name):
        told = invoke("export", tmp_path / "run", "--out", tmp_path / name, "--push", f"ann/{name}")
        assert (tmp_path / name / "model.safetensors").exists()
        return str(told.exception)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
        assert "--push ann/one: the hub refuses it" in pushed("one")
        assert server.asked == ["/api/repos/create"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    said = pushed("two")
    assert f"{address} does not answer; the model is in {tmp_path / 'two'}: try again by hf upload ann/two" in said
