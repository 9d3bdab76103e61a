"""Prompts as arrays of tokens: cut to length, padded at the right, sorted into buckets.

An array of prompts is [samples, length], int32, with PAD after the end of each prompt. PAD is no token of any
vocabulary: a batch can be trimmed to its longest prompt, and attention is masked where there is PAD.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cyber0.errors import InvalidData, InvalidModel
from cyber0.tasks.text.prompts import Kind, Piece, Prompt, pieces

__all__ = [
    "PAD",
    "buckets",
    "describe_tokenizer",
    "encode",
    "encode_texts",
    "lengths",
    "padded",
    "trimmed",
    "word_ids",
    "word_tokens",
]

PAD = -1
Tokens = NDArray[np.int32]
PROBE = "The QUICK brown fox's na\u00efve  caf\u00e9: 3.14 + 2,718 = ?\n\tIt was great... \U0001f98a"
BLOCK = 2048  # prompts that are tokenised in one call


def word_tokens(tokenizer: Any, words: dict[str, tuple[str, ...]]) -> tuple[int, ...]:
    """Return the one token of each label word, class by class, as it is written after a space.

    >>> from cyber0.tasks.text.tiny import tokenizer
    >>> word_tokens(tokenizer("roberta"), {"bad": ("terrible",), "good": ("wonderfulness",)})
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: the label word 'wonderfulness' of 'good' is 5 tokens of this model ('Ġwonderful', \
'n', 'e', 's', 's'): choose a word that is one token, in [words] of the prompt
    """
    found = [(word, _word_token(tokenizer, name, word)) for name, own in words.items() for word in own]
    _check_apart([(word, [token]) for word, token in found])
    return tuple(token for _, token in found)


def word_ids(tokenizer: Any, words: dict[str, tuple[str, ...]]) -> list[list[int]]:
    """Return the tokens of each label word, one or more, class by class, as it is written after a space.

    >>> from cyber0.tasks.text.tiny import tokenizer
    >>> ids = word_ids(tokenizer("llama"), {"bad": ("terrible",), "good": ("great", "lovely film")})
    >>> [tokenizer("llama").decode(word) for word in ids]
    [' terrible', ' great', ' lovely film']
    """
    found = [(word, _word_ids(tokenizer, word)) for own in words.values() for word in own]
    for word, ids in found:
        if not ids or tokenizer.unk_token_id in ids:
            raise InvalidModel(f"the label word {word!r} is not in the vocabulary of this model: choose another")
    _check_apart(found)
    return [ids for _, ids in found]


def _check_apart(found: list[tuple[str, list[int]]]) -> None:
    for index, (word, ids) in enumerate(found):
        for other, known in found[:index]:
            if ids == known:
                same = "token" if len(ids) == 1 else "tokens"
                raise InvalidModel(
                    f"the label words {other!r} and {word!r} are the same {same} of this model: change one"
                )


def _word_ids(tokenizer: Any, word: str) -> list[int]:
    spaced, plain = _ids(tokenizer, f" {word.strip()}"), _ids(tokenizer, word.strip())
    # A SentencePiece tokenizer writes the space before a word by itself.
    own_space = str(tokenizer.convert_ids_to_tokens(plain[:1] or [0])[0]).startswith("\u2581")
    return plain if own_space and len(plain) < len(spaced) else spaced


def _word_token(tokenizer: Any, name: str, word: str) -> int:
    ids = _word_ids(tokenizer, word)
    if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
        return ids[0]
    shown = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(ids)))
    what = "not in the vocabulary" if len(ids) == 1 else f"{len(ids)} tokens"
    raise InvalidModel(
        f"the label word {word.strip()!r} of {name!r} is {what} of this model ({shown}): "
        "choose a word that is one token, in [words] of the prompt"
    )


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False).input_ids


def encode(tokenizer: Any, prompt: Prompt, kind: Kind, rows: Sequence[dict[str, Any]], length: int) -> Tokens:
    """Return the prompts of rows, each of at most `length` tokens: a longer one loses the end of its longest text.

    >>> from cyber0.tasks.text.tiny import PROMPT, tokenizer
    >>> known, rows = tokenizer("roberta"), [{"text": "a fine film"}, {"text": "a dull film " * 20}]
    >>> array = encode(known, Prompt.of(PROMPT), "masked", rows, length=12)
    >>> lengths(array)
    array([ 9, 12])
    >>> known.decode(array[1])
    '<s>a dull film a dull film It was<mask>.</s>'
    """
    return encode_texts(tokenizer, prompt.template(kind), kind, rows, length)


def encode_texts(tokenizer: Any, template: str, kind: Kind, rows: Sequence[dict[str, Any]], length: int) -> Tokens:
    """Return the same of a template, in which columns of the rows stand in braces."""
    if kind == "masked" and tokenizer.mask_token is None:
        raise InvalidModel(
            "this model's tokenizer has no mask token: it is no masked model; use head='causal' or 'pooled'"
        )
    special = [token for token in tokenizer.all_special_tokens if token]
    found: list[list[int]] = []
    for first in range(0, len(rows), BLOCK):
        made = [
            pieces(template, _clean(row, special), tokenizer.mask_token or "") for row in rows[first : first + BLOCK]
        ]
        found += _encode(tokenizer, made, length, open_ended=kind == "causal")
    return padded(found)


def _clean(row: dict[str, Any], special: list[str]) -> dict[str, str]:
    """Return a row without texts that the tokenizer would take for special tokens, such as a second mask."""
    cleaned = {name: str(text) for name, text in row.items()}
    for token in special:
        cleaned = {name: text.replace(token, " ") for name, text in cleaned.items()}
    return cleaned


def _encode(tokenizer: Any, made: list[list[Piece]], length: int, *, open_ended: bool) -> list[list[int]]:
    ids: list[list[int]] = [_opened(tokenizer, each, open_ended) for each in _tokenised(tokenizer, made)]
    for index, parts in enumerate(made):
        while len(ids[index]) > length:
            parts = _shortened(tokenizer, parts, len(ids[index]) - length, length)
            ids[index] = _opened(tokenizer, _tokenised(tokenizer, [parts])[0], open_ended)
    return ids


def _tokenised(tokenizer: Any, made: list[list[Piece]]) -> list[list[int]]:
    return tokenizer(["".join(text for text, _ in parts) for parts in made], verbose=False).input_ids


def _opened(tokenizer: Any, ids: list[int], open_ended: bool) -> list[int]:
    """Return tokens without the one that ends the text, if the model is to continue the text."""
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None, tokenizer.bos_token_id}
    return ids[:-1] if open_ended and len(ids) > 1 and ids[-1] in ends else ids


def _shortened(tokenizer: Any, parts: list[Piece], excess: int, length: int) -> list[Piece]:
    sizes = [len(_ids(tokenizer, text)) if cuttable else 0 for text, cuttable in parts]
    longest = int(np.argmax(sizes))
    if sizes[longest] == 0:
        raise InvalidData(
            f"length = {length}: the prompt alone, without any text, has {excess} tokens more; allow more"
        )
    text = parts[longest][0]
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    offsets = tokenizer(text, **options).offset_mapping
    end = offsets[max(0, sizes[longest] - excess)][0]
    return [(text[: min(end, len(text) - 1)], True) if index == longest else part for index, part in enumerate(parts)]


def padded(prompts: Sequence[Sequence[int]]) -> Tokens:
    """Return prompts of several lengths as one array, as wide as the longest.

    >>> padded([[5, 6, 7], [8]])
    array([[ 5,  6,  7],
           [ 8, -1, -1]], dtype=int32)
    """
    array = np.full((len(prompts), max(map(len, prompts))), PAD, dtype=np.int32)
    for row, ids in zip(array, prompts, strict=True):
        row[: len(ids)] = ids
    return array


def lengths(tokens: Any) -> Any:
    """Return how many tokens each prompt has, of an array of NumPy or torch.

    >>> lengths(padded([[5, 6, 7], [8]]))
    array([3, 1])
    """
    return (tokens != PAD).sum(-1)


def trimmed(tokens: Any) -> Any:
    """Return the array of NumPy or torch cut to the width of its longest prompt.

    >>> trimmed(padded([[5, 6, 7], [8]])[1:])
    array([[8]], dtype=int32)
    """
    return tokens[..., : max(1, int(lengths(tokens).max()))]


def buckets(sizes: ArrayLike, edges: Iterable[int]) -> dict[int, NDArray[np.int64]]:
    """Return which prompts fit into each width, the smallest edge that holds them; widths without prompts are left out.

    >>> buckets([3, 20, 7, 40], edges=[8, 16, 32])
    {8: array([0, 2]), 32: array([1]), 40: array([3])}
    """
    counts = np.asarray(sizes)
    bounds = np.unique([*edges, int(counts.max())])
    place = np.searchsorted(bounds, counts)
    return {int(edge): np.flatnonzero(place == index) for index, edge in enumerate(bounds) if (place == index).any()}


def describe_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Return what a tokenizer does: its vocabulary, its special tokens, and the tokens of a text that tells it apart.

    Its files may be written in several ways for the same tokens.

    >>> from cyber0.tasks.text.tiny import tokenizer
    >>> sorted(describe_tokenizer(tokenizer("llama")))
    ['probe', 'special', 'vocabulary']
    """
    return {
        "vocabulary": tokenizer.get_vocab(),
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "probe": tokenizer(PROBE, verbose=False).input_ids,
    }
