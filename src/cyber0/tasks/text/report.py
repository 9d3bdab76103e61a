"""What to know of a language model before it is trained: its words, its size, its zero-shot accuracy."""

from typing import Any

import numpy as np
import torch

from cyber0.tasks.task import Task, evaluate
from cyber0.tasks.text import memory
from cyber0.tasks.text.checkpoint import find
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.tokens import PAD, lengths

__all__ = ["describe"]

COPIES = 3  # w, w + mu z and w - mu z


def describe(task: Task, seed: int = 0, device: torch.device | str = "cpu", tests: int = 256) -> dict[str, str]:
    """What to know before training, name by name; the accuracy is of the first `tests` test samples.

    >>> import tempfile
    >>> from cyber0.tasks.task import make
    >>> from cyber0.tasks.text import tiny
    >>> folder = tiny.data(tempfile.mkdtemp())
    >>> task = make("text-classification(prompt='prompt.toml')", folder, model=str(tiny.model(folder / "model")))
    >>> for name, value in describe(task).items():
    ...     print(f"{name}: {value}")
    model: RobertaForMaskedLM, 11,586 parameters to train
    head: masked; logits of ' terrible', ' great'
    first prompt: '<s>a dull story It was<mask>.</s>'
    samples: 60 + 12, ... tokens on average
    memory: 0.0 GiB for 3 copies, ... GiB free on cpu
    zero-shot: ...% of 12 test samples, loss 0.6...
    """
    model: Any = task.build(seed).to(device)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    data: Any = task.dataset
    free = memory.available(device)
    first = tuple(torch.as_tensor(part[:tests]) for part in (data.test_inputs, data.test_labels))
    accuracy, loss = evaluate(model, (first[0], first[1]), device, losses=task.losses)
    return {
        "model": f"{type(model.whole).__name__}, {trained:,} parameters to train",
        **_words(model, data.train_inputs[0]),
        "samples": f"{len(data.train_labels):,} + {len(data.test_labels):,}, "
        f"{np.mean(lengths(data.train_inputs)):.1f} tokens on average",
        "memory": f"{memory.readable(4 * trained * COPIES)} for {COPIES} copies, "
        f"{'?' if free is None else memory.readable(free)} free on {device}",
        "zero-shot": f"{accuracy:.1%} of {len(first[1]):,} test samples, loss {loss:.3f}",
    }


def _words(model: Classifier, prompt: Any) -> dict[str, str]:
    tokenizer, head = find(model.whole.name_or_path, model.head.kind).tokenizer, model.head
    words = ", ".join(repr(tokenizer.decode([token])) for token in head.label_ids)
    how = f"{'normalised ' * head.normalise}{head.pooling} of hidden states" if not words else f"logits of {words}"
    return {"head": f"{head.kind}; {how}", "first prompt": repr(tokenizer.decode(prompt[prompt != PAD]))}
