"""Language models loaded by several threads at once: each is the one that a single thread loads."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from cyber0.parameters import Parameters
from cyber0.tasks.task import make
from cyber0.tasks.text import checkpoint, tiny
from cyber0.tasks.text.hub import reached

transformers = pytest.importorskip("transformers")

THREADS = 8


def at_once(work):
    """What each of several threads finds that set out together."""
    start = Barrier(THREADS)

    def together(number):
        start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(together, range(THREADS)))


def state():
    """What loading changes for a while, and all threads share."""
    logging = transformers.utils.logging
    patched = transformers.PreTrainedModel.tie_weights, transformers.PreTrainedModel.init_weights, torch.linspace
    noted = torch.get_default_dtype(), logging.get_verbosity(), logging.is_progress_bar_enabled()
    return *patched, *noted, torch.nn.init.normal_, transformers.utils.hub.is_offline_mode()


@pytest.mark.parametrize("adapter", [None, "lora(rank=2, targets=('query', 'q_proj'))"])
def test_threads_build_the_models_that_one_thread_builds(folder, adapter, capfd):
    def build(number):
        kind = tiny.KINDS[number % len(tiny.KINDS)]
        task = make(f"text-classification(prompt='prompt.toml', adapter={adapter!r})", folder, model=str(folder / kind))
        return Parameters.of(task.build(seed=3)).fingerprint()

    alone = [build(number) for number in range(THREADS)]
    before, generator = state(), torch.get_rng_state()
    for _ in range(3):
        assert at_once(build) == alone
    assert state() == before
    assert torch.equal(torch.get_rng_state(), generator)
    assert capfd.readouterr() == ("", "")


def test_threads_load_one_checkpoint(folder):
    found = checkpoint.get_checkpoint(str(folder / "roberta"))
    models = at_once(lambda _: found.load())
    assert len({Parameters.of(model).fingerprint() for model in models}) == 1
    assert len({id(model) for model in models}) == THREADS
    assert {model.get_output_embeddings().weight is model.get_input_embeddings().weight for model in models} == {True}
    assert {found.parameters()} == set(at_once(lambda _: found.parameters()))


def test_a_thread_that_finds_no_hub_does_not_tell_others_so(folder, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:  # closed again: nobody answers there
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")

    def offline():
        with reached(str(folder)):
            return transformers.utils.hub.is_offline_mode()

    before = state()
    with ThreadPoolExecutor(THREADS) as threads:
        with reached("no-such/model"):
            others = [threads.submit(offline) for _ in range(THREADS)]
            transformers.AutoTokenizer.from_pretrained(folder / "llama")  # while the others set out
            assert transformers.utils.hub.is_offline_mode()
        assert not any(other.result() for other in others)
    assert state() == before


COLD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
start = Barrier(len(sys.argv) - 1)
def load(path):
    start.wait()
    from cyber0.tasks.text import checkpoint
    return type(checkpoint.get_checkpoint(path).load()).__name__
with ThreadPoolExecutor(len(sys.argv) - 1) as threads:
    print(*threads.map(load, sys.argv[1:]))
"""


def test_threads_are_the_first_to_import_transformers(folder):
    paths = [str(folder / kind) for kind in tiny.KINDS]
    told = subprocess.run([sys.executable, "-c", COLD, *paths], capture_output=True, text=True, check=True)
    loaded = ["RobertaForMaskedLM", "BertForMaskedLM", "LlamaForCausalLM", "MixtralForCausalLM", "BertModel"]
    assert told.stdout.split() == loaded
