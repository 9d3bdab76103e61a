"""A report on a language model before it is trained: its label words, its size, its zero-shot accuracy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from cyber0.config import RunConfig
from cyber0.tasks import memory
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import Task
from cyber0.tasks.text.checkpoint import get_checkpoint, quiet
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.tokens import PAD, lengths

__all__ = ["describe"]

TIED = "tied to the input's"


def describe(
    task: Task,
    model: nn.Module,
    config: RunConfig,
    device: torch.device | str = "cpu",
    *,
    accuracy: float | None = None,
    tests: int = 256,
) -> dict[str, str]:
    """Return what to know before training, by name; empty for a model that is not a `Classifier`.

    `accuracy` is the accuracy on all test samples; if it is not given, the first `tests` of them are evaluated.

    >>> import tempfile
    >>> from cyber0.tasks.task import make
    >>> from cyber0.tasks.text import tiny
    >>> folder = tiny.data(tempfile.mkdtemp())
    >>> task = make("text-classification(prompt='prompt.toml')", folder, model=str(tiny.model(folder / "model")))
    >>> for name, value in describe(task, task.build(0), RunConfig()).items():
    ...     print(f"{name}: {value}")
    model: RobertaForMaskedLM, 11,586 parameters, all to be trained
    head: masked, output embeddings tied to the input's, ' terrible' (token 275) against ' great' (token 279)
    first prompt: '<s>a dull story It was<mask>.</s>'
    samples: 30 + 30 to train on, 12 to test on, ... tokens on average
    memory: 0.0 GiB for weights and about 0.0 GiB for activations, ... GiB free on cpu
    zero-shot accuracy: ...% of 12 test samples
    """
    if not isinstance(model, Classifier):
        return {}
    data: Any = task.dataset
    shown = len(data.test_labels) if accuracy is not None else min(tests, len(data.test_labels))
    sizes = lengths(data.train_inputs)
    counts = np.bincount(data.train_labels, minlength=data.classes)
    need = memory.of_run(model, config, device, sizes, lengths(data.test_inputs))
    found = _accuracy(task, model, device, tests) if accuracy is None else accuracy
    return {
        "model": f"{type(model.whole).__name__}, {_parameters(model)}",
        **_head(model, data.train_inputs[0]),
        "samples": f"{' + '.join(f'{count:,}' for count in counts)} to train on, {len(data.test_labels):,} to test on, "
        f"{sizes.mean():.1f} tokens on average",
        "memory": _memory(need, memory.available(device), memory.held(model, device), device),
        "zero-shot accuracy": f"{found:.2%} of {shown:,} test samples",
    }


def _accuracy(task: Task, model: Classifier, device: torch.device | str, tests: int) -> float:
    data = task.dataset
    inputs, labels = (torch.as_tensor(part[:tests]) for part in (data.test_inputs, data.test_labels))
    return evaluate(task, model, (inputs, labels), device).accuracy or 0.0


def _parameters(model: Classifier) -> str:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    total, trained = sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)
    return f"{total:,} parameters, {'all' if trained == total else f'{trained:,} of them'} to be trained"


def _head(model: Classifier, prompt: Any) -> dict[str, str]:
    head, decode = model.label_head, _decoder(model)
    if head.kind == "pooled":
        how = f"a linear layer, zero at the start, over {'normalised ' * head.normalise}{head.pooling} hidden states"
        if (model.whole.config.architectures or [""])[0].endswith("ForSequenceClassification"):
            how += "; the head that the model has itself is not used"
    else:
        tied = model.whole.get_output_embeddings().weight is model.whole.get_input_embeddings().weight
        words = " against ".join(f"{decode([token])!r} (token {token})" for token in head.label_ids)
        how = f"output embeddings {TIED if tied else 'of their own'}, {words}"
    return {"head": f"{head.kind}, {how}", "first prompt": repr(decode(prompt[prompt != PAD]))}


def _decoder(model: Classifier) -> Callable[[Any], str]:
    tokenizer = get_checkpoint(model.whole.name_or_path, model.label_head.kind).tokenizer

    def decode(tokens: Any) -> str:
        with quiet():
            return tokenizer.decode(tokens)

    return decode


def _memory(need: memory.Need, free: int | None, held: int, device: torch.device | str) -> str:
    text = f"{memory.readable(need.weights)} for weights and about {memory.readable(need.activations)} for activations"
    if free is None:
        return text
    scarce = need.total - held > free
    short = ": this may not fit; take smaller batches, an adapter, or a smaller model" if scarce else ""
    return f"{text}, {memory.readable(free + held)} free on {device}{short}"
