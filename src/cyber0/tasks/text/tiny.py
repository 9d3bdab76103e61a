"""Language models of a few thousand random weights, and a few rows to train them on: for trying things out offline."""

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from string import ascii_letters, punctuation
from typing import Any

import torch

from cyber0.errors import UnknownName
from cyber0.extras import require
from cyber0.tasks.text.checkpoint import quiet

__all__ = ["CHAT", "KINDS", "PROMPT", "SEQ2SEQ", "chats", "data", "model", "tokenizer"]

KINDS = ("roberta", "bert", "llama", "mixtral", "encoder")
SEQ2SEQ = "t5"
CAUSAL = ("llama", "mixtral")
WORDS = (
    *("bad", "good", "terrible", "great", "wonderful", "dull", "awful", "lovely"),
    *("a", "the", "film", "story", "plot", "was", "it", "It", "is", "fine", "Yes", "No", "Maybe"),
)
PROMPT: dict[str, Any] = {
    "title": "tiny reviews",
    "length": 32,
    "words": {"bad": "terrible", "good": "great"},
    "labels": {"0": "bad", "1": "good"},
    "prompts": {"masked": "{text} It was{mask}.", "causal": "{text} It was", "pooled": "{text}"},
}
CHAT = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %} It{% endif %}{{ m['content'] }} .{% endfor %}"
    "{% if add_generation_prompt %} It{% endif %}"
)
SPECIAL = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}


@lru_cache
def tokenizer(kind: str = "roberta") -> Any:
    """Return a tokenizer for a handful of words: byte-level pairs, or whole words for `bert` and `encoder`.

    >>> tokenizer("roberta").tokenize("a great film")
    ['a', 'Ġgreat', 'Ġfilm']
    """
    if kind not in (*KINDS, SEQ2SEQ):
        raise UnknownName("tiny model", kind, (*KINDS, SEQ2SEQ))
    tokenizers = require("tokenizers", extra="text")
    names = {key: token for key, token in SPECIAL.items() if kind not in CAUSAL or key in ("bos_token", "eos_token")}
    if kind not in CAUSAL:
        names["mask_token"] = tokenizers.AddedToken("<mask>", lstrip=True)
    made = _model(tokenizers, kind)
    if kind not in CAUSAL:
        made.post_processor = tokenizers.processors.BertProcessing(("</s>", 2), ("<s>", 0))
    return require("transformers", extra="text").PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=60, **names
    )


def _model(tokenizers: Any, kind: str) -> Any:
    """Return the tokenizer's model, written down instead of trained, as training breaks ties by chance."""
    special = [*dict.fromkeys(SPECIAL.values()), "<mask>"]
    if kind in ("bert", "encoder"):
        letters = [f"{start}{letter}" for letter in ascii_letters for start in ("", "##")]
        vocabulary = [*special, *punctuation, *letters, *(word for word in WORDS if len(word) > 1)]
        made = tokenizers.Tokenizer(tokenizers.models.WordPiece(_numbered(vocabulary), unk_token="<unk>"))  # noqa: S106
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        return made
    spaced = [f"\u0120{word}" for word in WORDS]  # as byte-level tokenizers write a space
    merges = list(dict.fromkeys((word[:end], word[end]) for word in spaced for end in range(1, len(word))))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = _numbered([*special, *alphabet, *(start + letter for start, letter in merges)])
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def _numbered(vocabulary: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(vocabulary)}


def model(folder: Path | str, kind: str = "roberta", seed: int = 0) -> Path:
    """Write a tiny model with random weights.

    `roberta` and `bert` are masked, `llama` and `mixtral` causal, `encoder` is pooled, `t5` has encoder and decoder.

    >>> import tempfile
    >>> folder = model(Path(tempfile.mkdtemp()) / "tiny", "bert")
    >>> sorted(path.name for path in folder.iterdir())
    ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    transformers, known = require("transformers", extra="text"), tokenizer(kind)
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 32, "vocab_size": len(known), "pad_token_id": 1, "max_position_embeddings": 64}
    if kind == "mixtral":
        shape |= {"num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2}
    if kind == SEQ2SEQ:
        shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 1}
        shape |= {"vocab_size": len(known), "pad_token_id": 1}
    name = "Bert" if kind == "encoder" else kind.capitalize()
    ends = {"encoder": "Model", SEQ2SEQ: "ForConditionalGeneration", **dict.fromkeys(CAUSAL, "ForCausalLM")}
    end = ends.get(kind, "ForMaskedLM")
    tie = {"tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 2}
    random: Any = torch.random
    with random.fork_rng(devices=[]):
        random.manual_seed(seed)
        made = getattr(transformers, name + end)(getattr(transformers, f"{name}Config")(**shape, **tie))
    with quiet():
        made.save_pretrained(folder)
        known.save_pretrained(folder)
    return Path(folder)


def data(folder: Path | str) -> Path:
    """Write rows for PROMPT: train.jsonl, test.jsonl, and the prompt itself, prompt.toml.

    >>> import tempfile
    >>> folder = data(tempfile.mkdtemp())
    >>> (folder / "test.jsonl").read_text().splitlines()[0]
    '{"text": "a dull film", "label": 0}'
    """
    from tomli_w import dumps

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(_rows())
    for name, part in (("train", rows[12:]), ("test", rows[:12])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    files = {"label": "label", "train": "train.jsonl", "test": "test.jsonl"}
    (folder / "prompt.toml").write_text(dumps({**PROMPT, "data": files}))
    return folder


def chats(folder: Path | str, *, messages: bool = False) -> Path:
    """Write rows to complete, train.jsonl: prompts and completions, or the same as messages of a chat.

    >>> import tempfile
    >>> (chats(tempfile.mkdtemp()) / "train.jsonl").read_text().splitlines()[0]
    '{"prompt": "a film it is", "completion": " dull"}'
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    answers = {"film": "dull", "story": "lovely", "plot": "awful"}
    rows = [
        (f"{article} {thing} {verb}", f" {answers[thing]}")
        for article, thing, verb, _ in product(("a", "the"), answers, ("it is", "was"), range(4))
    ]
    with (folder / "train.jsonl").open("w") as file:
        for prompt, answer in rows:
            said = ({"role": "user", "content": prompt}, {"role": "assistant", "content": answer})
            row = {"messages": said} if messages else {"prompt": prompt, "completion": answer}
            file.write(json.dumps(row) + "\n")
    return folder


def _rows() -> Iterator[dict[str, Any]]:
    for article, thing, extra in product(("a", "the"), ("film", "story", "plot"), ("", " it is", " the story was it")):
        for label, word in enumerate(("dull", "wonderful", "awful", "lovely")):
            yield {"text": f"{article} {word} {thing}{extra}", "label": label % 2}
