"""The task of completing prompts: a model is tuned on pairs of prompt and completion, or on chats.

    completion(directory, source, model=..., train='train.jsonl') -> Task

The model is a causal one, or has an encoder, which reads the prompt, and a decoder, which writes the completion.

A row of the data has `prompt` and `completion`, or `messages`, a list of {"role": ..., "content": ...} whose last one
is the completion; the chat template of the model's tokenizer makes the prompt of the others.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cyber0 import registry
from cyber0.config import sentences
from cyber0.errors import InvalidConfig, InvalidData, UnknownName
from cyber0.tasks.dataset import Dataset
from cyber0.tasks.losses import OutputLoss
from cyber0.tasks.meaning import digest
from cyber0.tasks.task import Metric, Task
from cyber0.tasks.text import adapters, checkpoint, sources
from cyber0.tasks.text.completer import Completer
from cyber0.tasks.text.generation import generated_metric
from cyber0.tasks.text.sources import Row
from cyber0.tasks.text.tokens import describe_tokenizer, lengths, padded

__all__ = ["Options", "completer_of", "completion", "encode_rows"]

Pair = tuple[list[int], list[int]]


class Options(BaseModel):
    """The options of the task.

    Attributes:
        train: The file to train on, in the directory: .jsonl, .csv, .tsv, or one of these with .gz after it, .parquet,
            or a folder of the library `datasets`. Not needed where the directory is itself one of these, or has a file
            of the name train.
        test: The same to test on; without it a share of the rows of `train`.
        holdout: How large that share is; which rows it has is decided by `seed`.
        seed: Decides that.
        tests: How many test rows to use at most.
        length: How many tokens prompt and completion have together at most; a longer prompt loses its beginning.
        adapter: Train an adapter instead of the model, e.g. 'lora(rank=8)'.
        metric: What is measured of generated texts, too: 'rouge-l', 'word-f1', or yours as 'package.module:object', a
            function of all texts and all completions.
        generate: How many tokens are generated at most for that.

    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    train: str | None = None
    test: str | None = None
    holdout: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0)
    tests: int | None = Field(None, ge=1)
    length: int = Field(256, ge=4)
    adapter: str | None = None
    metric: str | None = None
    generate: int = Field(64, ge=1)


def completion(
    directory: Path | str | None = None, source: str = "auto", *, model: str | None = None, **options: Any
) -> Task:
    """Return the task of completing prompts; its loss is the mean over a completion's tokens.

    At an evaluation `perplexity` is measured per token, and `exact_match`, the share of prompts whose completion the
    model gives word for word if it always takes the likeliest token.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> folder = tiny.chats(tempfile.mkdtemp())
    >>> task = completion(folder, model=str(tiny.model(folder / "model", "llama")), train="train.jsonl")
    >>> task.dataset
    Dataset(38 + 10 samples: completions, from ..., tokens of ...)
    >>> sorted(task.metrics)
    ['exact_match', 'perplexity']
    """
    registry.check_options(options, Options, "completion")
    if model is None:
        raise InvalidConfig("the task 'completion' needs a language model that writes texts: name one by --model")
    if source != "auto":
        raise UnknownName("source", source, ["auto"])
    try:
        known = Options(**options)
    except ValidationError as error:
        raise InvalidConfig(f"completion: {sentences(error)}") from None
    found, folder = _writing(model), sources.folder_of(directory)
    length = min(known.length, found.length)
    rows = sources.records(sources.locate(directory, known.train, known.test))
    parts = sources.divide(*rows, share=known.holdout, seed=known.seed, tests=known.tests)
    pairs = [encode_rows(found.tokenizer, part, length, opened=found.kind == "causal") for part in parts]
    inputs = [padded([[len(end), *start, *end] for start, end in part]) for part in pairs]
    counts = [np.array([len(end) for _, end in part]) for part in pairs]
    source = f"completions, from {folder}, tokens of {model}"
    dataset = Dataset(inputs[0], counts[0], inputs[1], counts[1], classes=None, source=source, lengths=lengths)
    meaning = {
        "tokenizer": digest(describe_tokenizer(found.tokenizer)),
        "preprocessing": digest({"kind": "completion", "length": length, "chat": found.tokenizer.chat_template}),
    }
    slots = max(int(part.max()) for part in counts)
    metrics: dict[str, Metric] = {"perplexity": _perplexity, "exact_match": _exact_match}
    if known.metric is not None:
        name, metric = generated_metric(known.metric, found.tokenizer, known.generate)
        metrics[name] = metric
    return Task("completion", dataset, _builder(found, slots, known.adapter), LOSS, metrics, meaning)


def _writing(model: str) -> checkpoint.Checkpoint:
    """Return a model as one that writes texts: causal, unless it has an encoder and a decoder."""
    found = checkpoint.get_checkpoint(model)
    return found if found.kind in ("causal", "seq2seq") else checkpoint.get_checkpoint(model, "causal")


def completer_of(task: str, model: str, seed: int) -> Completer:
    """Build the untrained model of a task by its name, without data.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> completer_of("completion(train='a.jsonl')", str(tiny.model(tempfile.mkdtemp(), "llama")), seed=0).kind
    'causal'
    """
    _, given = registry.check("task", task, ["completion"])
    return _builder(_writing(model), 1, given.get("adapter"))(seed)


def encode_rows(tokenizer: Any, part: Iterable[Row], length: int, *, opened: bool = True) -> list[Pair]:
    """Return the tokens of prompt and completion of each row; each comes with words that say where it is.

    The completion ends with the tokenizer's token for the end of a text, so that the model learns to stop; the prompt
    does not if it is `opened`, as for causal models, which go on with it. A prompt that is too long loses its
    beginning, and a completion that is too long by itself its end.

    >>> from cyber0.tasks.text.tiny import tokenizer
    >>> [(prompt, end)] = encode_rows(tokenizer("llama"), [("row 1", {"prompt": "a", "completion": " film"})], 8)
    >>> tokenizer("llama").decode(prompt), tokenizer("llama").decode(end)
    ('a', ' film</s>')
    """
    return [_cut(*_pair(tokenizer, where, row, opened), length) for where, row in part]


def _pair(tokenizer: Any, where: str, row: Any, opened: bool) -> Pair:
    given = cast("dict[str, Any]", row if isinstance(row, dict) else {})
    if "messages" in given:
        return _chat(tokenizer, where, given["messages"])
    texts = [given.get(name) for name in ("prompt", "completion")]
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidData(f"{where}: give prompt and completion as texts, or messages as a list of role and content")
    start = list(tokenizer(texts[0], verbose=False).input_ids)
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None, tokenizer.bos_token_id}
    start = start[:-1] if opened and len(start) > 1 and start[-1] in ends else start
    end = list(tokenizer(texts[1], add_special_tokens=False, verbose=False).input_ids)
    return start, end + ([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])


def _chat(tokenizer: Any, where: str, messages: Any) -> Pair:
    if tokenizer.chat_template is None:
        raise InvalidData(f"{where}: the tokenizer of this model has no chat template: give prompt and completion")
    if not isinstance(messages, list) or len(cast("list[Any]", messages)) < 2:
        raise InvalidData(f"{where}: messages must be a list of two or more, the last of which is the answer")
    try:
        start = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:
        raise InvalidData(f"{where}: the chat template does not take these messages: {error}") from error
    if not whole.startswith(start) or whole == start:
        raise InvalidData(f"{where}: by the chat template the last message is no continuation of the others")
    ids: list[list[int]] = [
        list(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
        for text in (start, whole[len(start) :])
    ]
    return ids[0], ids[1]


def _cut(start: list[int], end: list[int], length: int) -> Pair:
    end = end[: length - 1]
    return start[-(length - len(end)) :], end


def _first(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return outputs[:, 0]


LOSS = OutputLoss(_first)


def _perplexity(outputs: torch.Tensor, counts: torch.Tensor) -> float:
    weights: NDArray[Any] = counts.double().numpy()
    return float(np.exp((outputs[:, 0].double().numpy() * weights).sum() / weights.sum()))


def _exact_match(outputs: torch.Tensor, counts: torch.Tensor) -> float:  # noqa: ARG001
    return float(outputs[:, 1].double().mean())


def _builder(found: checkpoint.Checkpoint, slots: int, adapter: str | None) -> Callable[[int], Completer]:
    load = adapters.loader(found, adapter)
    return lambda seed: Completer(load(seed), slots).eval()
