"""Tokens: a mask that survives any text, padding that changes nothing, label words that are one token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyber0.errors import InvalidData, InvalidModel
from cyber0.tasks.text import tiny
from cyber0.tasks.text.prompts import Prompt, load
from cyber0.tasks.text.tokens import PAD, buckets, encode, lengths, padded, trimmed, word_tokens

pytest.importorskip("transformers")

PROMPT = Prompt.of(tiny.PROMPT)
PIECES = st.sampled_from([*"ab .,?é漢\n", "<mask>", "</s>", "<pad>", "film "])
TEXTS = st.lists(PIECES, max_size=80).map("".join)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(["roberta", "bert"]), st.integers(12, 40))
def test_one_mask_survives_any_text_and_any_length(texts, kind, length):
    tokenizer = tiny.tokenizer(kind)
    array = encode(tokenizer, PROMPT, "masked", [{"text": text} for text in texts], length)
    assert ((array == tokenizer.mask_token_id).sum(1) == 1).all()
    assert array.shape[1] <= length
    for row in array:
        end = tokenizer.decode(row[row != PAD]).replace(" ", "")
        assert end.endswith("Itwas<mask>.</s>")


@given(TEXTS)
def test_a_causal_prompt_ends_where_the_model_goes_on(text):
    tokenizer = tiny.tokenizer("llama")
    row = encode(tokenizer, PROMPT, "causal", [{"text": text}], 24)[0]
    assert tokenizer.decode(row[row != PAD]).endswith(" It was")


def test_the_causal_prompt_of_snli_keeps_both_sentences_and_waits_for_a_word():
    prompt, tokenizer = load("snli"), tiny.tokenizer("llama")
    row = {"premise": "A man sleeps. " * 9, "hypothesis": "He is awake."}
    ids = encode(tokenizer, prompt, "causal", [row], 120)[0]
    text = tokenizer.decode(ids[ids != PAD])
    assert text.startswith("A man sleeps. A man")
    assert text.endswith(" Question: He is awake. Yes, Maybe or No? Answer:")
    assert text.count("sleeps") < 9
    words = [tokenizer.decode([token]) for token in word_tokens(tokenizer, prompt.words_of("causal"))]
    assert words == [" Yes", " Maybe", " No"]


def test_the_longest_text_of_a_prompt_is_the_one_cut():
    keys = {**tiny.PROMPT, "prompts": {"masked": "{one}?{mask}, {two}"}}
    row = {"one": "a film", "two": "the story was dull " * 20}
    tokenizer = tiny.tokenizer("roberta")
    cut = encode(tokenizer, Prompt.of(keys), "masked", [row], 16)[0]
    assert tokenizer.decode(cut).startswith("<s>a film?<mask>, the story was dull the")


def test_a_prompt_longer_than_the_length_is_refused():
    with pytest.raises(InvalidData, match="length = 4: the prompt alone, without any text, has"):
        encode(tiny.tokenizer("roberta"), PROMPT, "masked", [{"text": "a film"}], 4)


def test_a_tokenizer_without_a_mask_is_refused():
    with pytest.raises(InvalidModel, match="no mask token: it is no masked model; use head='causal'"):
        encode(tiny.tokenizer("llama"), PROMPT, "masked", [{"text": "a film"}], 20)


@pytest.mark.parametrize("kind", ["roberta", "bert", "llama"])
def test_label_words_are_the_tokens_written_after_a_space(kind):
    tokenizer = tiny.tokenizer(kind)
    for token, word in zip(word_tokens(tokenizer, PROMPT.words_of("masked")), ("terrible", "great"), strict=True):
        assert tokenizer.decode([tokenizer("a", add_special_tokens=False).input_ids[0], token]) == f"a {word}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"bad": ("terrible",), "good": ("greatful",)},
            "the label word 'greatful' of 'good' is 4 tokens of this model",
        ),
        ({"bad": ("great",), "good": (" great",)}, "the label words 'great' and ' great' are the same token"),
    ],
)
def test_label_words_that_are_not_one_token_each_are_refused(words, said):
    with pytest.raises(InvalidModel) as caught:
        word_tokens(tiny.tokenizer("roberta"), words)
    assert said in str(caught.value)


def test_an_unknown_word_is_refused():
    with pytest.raises(InvalidModel, match="is not in the vocabulary of this model"):
        word_tokens(tiny.tokenizer("bert"), {"bad": ("terrible",), "good": ("漢",)})


LISTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=9)


@given(LISTS)
def test_padding_and_trimming_keep_every_token(prompts):
    array = padded(prompts)
    assert [row[row != PAD].tolist() for row in array] == prompts
    wide = np.pad(array, ((0, 0), (0, 3)), constant_values=PAD)
    assert np.array_equal(trimmed(wide), array)
    assert lengths(wide).tolist() == list(map(len, prompts))


@given(st.lists(st.integers(1, 90), min_size=1, max_size=40), st.lists(st.integers(1, 99), max_size=5))
def test_buckets_hold_every_prompt_once_in_the_smallest_width(sizes, edges):
    found = buckets(sizes, edges)
    assert sorted(index for indices in found.values() for index in indices) == list(range(len(sizes)))
    widths = sorted({*edges, max(sizes)})
    for width, indices in found.items():
        assert all(width == min(w for w in widths if w >= sizes[index]) for index in indices)
