"""Tokenizers that are trained: any text comes back, and the vocabulary is the one asked for."""

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.recipes.training_sections import TrainedTokenizer
from layerlab.tokenization.bpe_file import BYTES
from layerlab.tokenization.load import separator, train_tokenizer
from layerlab.tokenization.train import END, train_bpe, train_fallback_bpe
from layerlab.tokenization.vocabulary.extend import extend
from layerlab.tokenization.vocabulary.verify import verify
from tests.support.refused import refuses

TEXTS = [
    "The cat sat on the mat; the other cat did not.\n" * 20,
    "人民法院应当依照法律规定独立行使审判权。人民法院审理案件。\n" * 20,
    "a <0x41> b ▁ c\u2581d x = [1234, 56]\t\n\n" * 9,
]
MARKS = ("<|user|>", "<|assistant|>")
FALLBACK = train_fallback_bpe(TEXTS, vocab=350, special=MARKS)


@given(st.text())
@example("")
@example(" leading, trailing ")
@example("▁ is no space, ▁▁ neither")
@example("<0x41> is no byte, <0xE2><0x96> neither")
@example("\x00\x07\x1b[31m\r\n\x85\u2028\ufeff\ufffd")
@example("👩‍👩‍👧‍👦 🇨🇳 e\u0301 ﷽ \U0010ffff \uffff")
@example("<|user|> hello<|endoftext|> ")
@example("国" * 5000)
def test_any_text_comes_back_as_it_was(text):
    ids = FALLBACK(text, add_special_tokens=False)["input_ids"]
    assert FALLBACK.decode(ids) == text
    assert all(0 <= one < 350 for one in ids)


def test_its_entries_are_the_separator_the_marks_the_bytes_and_what_was_learned():
    vocab = FALLBACK.get_vocab()
    order = sorted(vocab, key=vocab.__getitem__)
    assert len(FALLBACK) == len(vocab) == 350
    assert order[:259] == [END, *MARKS, *BYTES]
    assert separator(FALLBACK, "it") == FALLBACK.pad_token_id == 0
    assert [FALLBACK.convert_tokens_to_ids(one) for one in MARKS] == [1, 2]
    assert FALLBACK("<|user|>", add_special_tokens=False)["input_ids"] == [1]
    assert len(FALLBACK("人民法院", add_special_tokens=False)["input_ids"]) == 1
    assert max(map(len, order[259:])) <= 16


def test_characters_that_are_rare_are_bytes():
    rare = train_fallback_bpe(["ab" * 20_000 + "ж"], vocab=300)
    assert "ж" not in rare.get_vocab() and "a" in rare.get_vocab()
    ids = rare("ж", add_special_tokens=False)["input_ids"]
    assert rare.convert_ids_to_tokens(ids) == ["<0xD0>", "<0xB6>"]


def test_a_vocabulary_without_room_for_letters_is_bytes():
    bare = train_fallback_bpe(TEXTS, vocab=257)
    assert len(bare) == 257
    assert bare.decode(bare("人 a")["input_ids"]) == "人 a"


def test_transformers_loads_it_as_it_was(tmp_path):
    FALLBACK.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(again, PreTrainedTokenizerFast)
    for text in (*TEXTS, "🙂<|user|>▁ \x00"):
        assert again(text)["input_ids"] == FALLBACK(text)["input_ids"]
        assert again.decode(again(text)["input_ids"]) == text
    assert (again.eos_token, again.pad_token) == (END, END)
    assert set(MARKS) <= set(again.all_special_tokens)


@pytest.mark.full
def test_every_process_trains_the_same():
    code = (
        "from layerlab.tokenization.train import train_fallback_bpe\n"
        f"print(train_fallback_bpe({TEXTS!r}, vocab=340).backend_tokenizer.to_str())"
    )
    own = train_fallback_bpe(TEXTS, vocab=340).backend_tokenizer.to_str()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == own


def test_it_grows_without_making_any_text_longer():
    law = ["上诉人不服一审判决，提起上诉。the plaintiff, the plaintiff\n" * 9]
    grown = extend(FALLBACK, law, 24)
    assert len(grown) == 374
    assert verify(FALLBACK, grown, {"law": law, "general": TEXTS}).holds
    ids = grown(" plaintiff", add_special_tokens=False)["input_ids"]
    assert grown.convert_ids_to_tokens(ids) == [" plaintiff"], "a word takes its space along"


@pytest.mark.parametrize("kind", ["bpe", "bpe-fallback"])
def test_a_recipe_names_the_kind_and_the_special_tokens(kind):
    asked = TrainedTokenizer.model_validate({"train": kind, "special_tokens": MARKS})
    found = train_tokenizer(TEXTS, 340, asked)
    assert len(found) == 340
    assert [found.convert_tokens_to_ids(one) for one in MARKS] == [1, 2]
    assert ("<0x41>" in found.get_vocab()) == (kind == "bpe-fallback")


@pytest.mark.parametrize("train", [train_bpe, train_fallback_bpe])
def test_a_special_token_that_is_a_word_too_keeps_its_place(train):
    found = train(["user\nand\n" * 20], vocab=275, special=("user", "and"))
    assert found.convert_tokens_to_ids(["user", "and"]) == [1, 2]
    assert sorted(found.get_vocab().values()) == list(range(len(found)))


@pytest.mark.parametrize("train", [train_bpe, train_fallback_bpe])
def test_what_finds_no_room_is_one_line(train):
    with pytest.raises(UserError, match=r"no room for 256 bytes .* write data.vocab_size = 259"):
        train(TEXTS, vocab=258, special=MARKS)
    with pytest.raises(UserError, match=r"special_tokens has '<\|user\|>', which is an entry"):
        train(TEXTS, vocab=300, special=(MARKS[0], MARKS[0]))
    refuses("leave it out", train, TEXTS, vocab=300, special=(END,))
