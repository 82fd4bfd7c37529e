"""Tokens as text, where bytes are cut in the middle of a character."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from layerlab import builtin
from layerlab.loading.token_text import PART, alone, join_bytes, token_strings
from layerlab.measures.quantities.features import MEASURES as FEATURES
from layerlab.measures.runner import readings
from tests.adaptation.bpe import spoken
from tests.measures.asked import subject

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=PART), max_size=12)
MIXED = "我爱 café, 😀!"


def byte_level():
    """The tokenizer of the built-in models: bytes, and English pairs of them."""
    return AutoTokenizer.from_pretrained(builtin.path("llama"))


def fallback():
    """Words as SentencePiece marks them, and a byte for what is no known letter."""
    known = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    vocab = {word: number for number, word in enumerate(known)}
    merges = [("\u2581", "a")]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = spoken()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


WORDS = {"bytes": byte_level(), "fallback": fallback()}


class Named:
    """What is needed of a subject."""

    def __init__(self, words):
        self.tokenizer = words


def tokens(words, text):
    ids = words(text, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.int64)


@pytest.mark.parametrize("kind", WORDS)
@settings(max_examples=80, deadline=None)
@given(text=TEXTS)
def test_what_is_shown_joins_to_the_text(kind, text):
    words = WORDS[kind]
    ids = tokens(words, text)
    shown = token_strings(Named(words), ids)
    assert len(shown) == len(ids)
    assert "".join(shown).replace(PART, "") == text


@settings(max_examples=80, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 40)))
def test_bytes_cut_anywhere_join_to_the_text(text, cuts):
    content = text.encode()
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    parts = [content[low:high] for low, high in pairwise(edges)]
    shown = join_bytes(parts)
    assert "".join(shown).replace(PART, "") == text
    # A token has a mark where a character that begins in it ends behind it, and there alone.
    assert all(PART not in one for one, part in zip(shown, parts, strict=True) if part.isascii())


@settings(max_examples=80, deadline=None)
@given(parts=st.lists(st.binary(max_size=5), max_size=6))
def test_bytes_of_no_character_are_told_by_number(parts):
    shown = join_bytes(parts)
    assert len(shown) == len(parts) and not any("\ufffd" in one for one in shown)
    if not b"".join(parts).decode(errors="ignore"):
        assert "".join(shown) == "".join(f"⟨{byte:02X}⟩" for byte in b"".join(parts))


def test_a_character_stands_at_its_last_token():
    shown = token_strings(Named(WORDS["bytes"]), tokens(WORDS["bytes"], "我é"))
    assert shown == [PART, PART, "我", PART, "é"]


def test_a_part_that_stands_alone_is_its_bytes(tiny):
    words = WORDS["bytes"]
    patient, ids = Named(words), tokens(words, "我 the")
    assert alone(patient, ids)[:3] == ["⟨E6⟩", "⟨88⟩", "⟨91⟩"]
    cut = token_strings(patient, ids[:2])
    assert cut == ["⟨E6⟩", "⟨88⟩"]
    assert alone(subject(tiny("gpt2")), ids[:2]) == [str(int(one)) for one in ids[:2]]


def test_frequent_tokens_of_a_picture_are_told_apart(tiny):
    words = WORDS["bytes"]
    patient = subject(tiny("gpt2", vocab_size=512), words)
    ids = tokens(words, "我我我我")
    (measure,) = FEATURES
    seen = readings(patient, [ids], [measure.given(words=3, skip=0)])
    shown = [word["token"] for word in seen.pictures["features"]["words"]]
    assert sorted(shown) == ["⟨88⟩", "⟨91⟩", "⟨E6⟩"]


def test_a_mixed_text_holds_no_sign_of_replacement():
    for words in WORDS.values():
        shown = token_strings(Named(words), tokens(words, MIXED))
        assert "\ufffd" not in "".join(shown) and "😀" in shown
