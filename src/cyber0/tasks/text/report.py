"""A report on a language model before it is trained: its label words, its size, its zero-shot accuracy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from cyber0.config import RunConfig
from cyber0.layerwise.frozen import FrozenLinear
from cyber0.tasks import memory
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import Task
from cyber0.tasks.text.checkpoint import get_checkpoint, quiet
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.completer import Completer, WordScorer, Writer
from cyber0.tasks.text.heads import Head
from cyber0.tasks.text.tagger import Tagger
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
    """Return what to know before training, by name; empty for a model that is no language model.

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
    if not isinstance(model, Classifier | Writer | Tagger):
        return {}
    data: Any = task.dataset
    sizes = lengths(data.train_inputs)
    need = memory.of_run(model, config, device, sizes, lengths(data.test_inputs))
    return {
        "model": f"{type(model.whole).__name__}, {_parameters(model)}",
        **_head(model, data.train_inputs[0]),
        "samples": f"{_samples(data)} to train on, {len(data.test_labels):,} to test on, {sizes.mean():.1f} tokens on "
        "average",
        "memory": _memory(need, memory.available(device), memory.held(model, device), device),
        **({} if data.classes is None else {"zero-shot accuracy": _zero_shot(task, model, device, accuracy, tests)}),
    }


def _samples(data: Any) -> str:
    if data.classes is None:
        return f"{len(data.train_labels):,}"
    return " + ".join(f"{count:,}" for count in np.bincount(data.train_labels, minlength=data.classes))


def _zero_shot(task: Task, model: Any, device: torch.device | str, accuracy: float | None, tests: int) -> str:
    data = task.dataset
    shown = len(data.test_labels) if accuracy is not None else min(tests, len(data.test_labels))
    inputs, labels = (torch.as_tensor(part[:tests]) for part in (data.test_inputs, data.test_labels))
    found = evaluate(task, model, (inputs, labels), device).accuracy or 0.0 if accuracy is None else accuracy
    return f"{found:.2%} of {shown:,} test samples"


def _parameters(model: nn.Module) -> str:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    frozen = sum(each.in_features * each.out_features for each in model.modules() if isinstance(each, FrozenLinear))
    total, trained = sum(size for size, _ in sizes) + frozen, sum(size for size, trains in sizes if trains)
    return f"{total:,} parameters, {'all' if trained == total else f'{trained:,} of them'} to be trained"


def _head(model: Classifier | Writer | Tagger, prompt: Any) -> dict[str, str]:
    decode = _decoder(model)
    begin = 1 if isinstance(model, Completer) else 0  # of a row of it, the first number is a length
    shown = {"first prompt": repr(decode(prompt[prompt != PAD][begin:]))}
    if isinstance(model, Completer):
        return {"head": f"{model.kind}, {_embeddings(model.whole)}", **shown}
    if isinstance(model, WordScorer):
        words = [decode(word[word != PAD]) for word in model.words]
        how = f"the mean log-probability of words, each in a forward pass of its own: {', '.join(map(repr, words))}"
        return {"head": f"{model.kind}, {_embeddings(model.whole)}, {how}", **shown}
    if not isinstance(model, Classifier):
        return {"head": "a linear layer, zero at the start, over the hidden states of words", **shown}
    head: Head = model.label_head
    if head.kind == "pooled":
        how = f"a linear layer, zero at the start, over {'normalised ' * head.normalise}{head.pooling} hidden states"
        if (model.whole.config.architectures or [""])[0].endswith("ForSequenceClassification"):
            how += "; the head that the model has itself is not used"
    else:
        words = iter(f"{decode([token])!r} (token {token})" for token in head.label_ids)
        counts = head.counts or (1,) * head.classes
        classes = [" and ".join(next(words) for _ in range(count)) for count in counts]
        how = f"{_embeddings(model.whole)}, {' against '.join(classes)}"
    return {"head": f"{head.kind}, {how}", **shown}


def _embeddings(whole: Any) -> str:
    tied = whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    return f"output embeddings {TIED if tied else 'of their own'}"


def _decoder(model: Classifier | Writer | Tagger) -> Callable[[Any], str]:
    tokenizer = get_checkpoint(model.whole.name_or_path, model.kind).tokenizer

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
