"""New tokens are spelled in older ones, byte for byte."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.embeddings.token_mapping import BYTE, spell_tokens, token_strings
from layerlab.tokenization.vocabulary.extend import extend
from tests.adaptation.embeddings.test_resize import BASE, FRESH, MERGES, NEW, OLD, words


def test_a_new_token_is_written_by_its_string():
    """Decoded and encoded anew, the halves of a character and a space inside would go wrong."""
    id_of = BASE.get_vocab()
    wanted = [["abc", "de"], ["Ġ", "ab"], ["Ã", "Ĺ"], ["Ã", "Ĺ", "Ã", "Ĺ"]]
    assert spell_tokens(BASE, NEW, FRESH) == [[id_of[one] for one in part] for part in wanted]


def test_an_added_token_is_written_as_text():
    new = words(MERGES)
    new.add_tokens([AddedToken("<|角色|>", special=True)])
    ids = BASE("<|角色|>", add_special_tokens=False)["input_ids"]
    assert spell_tokens(BASE, new, [OLD]) == [ids]
    assert len(ids) > 6


def test_bytes_that_are_no_character_are_written_as_bytes():
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}, "a": 257}
    bpe = {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    base = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab=vocab, merges=[], **bpe)), unk_token="<unk>"
    )
    more = {**vocab, "a<0xE4><0xBD>": 258, "aé": 259}
    new = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab=more, merges=[], **bpe)), unk_token="<unk>"
    )
    assert spell_tokens(base, new, [258, 259]) == [[257, 0xE5, 0xBE], [257, 0xC4, 0xAA]]


def fallback() -> PreTrainedTokenizerFast:
    """A BPE of characters, in which others are bytes."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    letters = [*"▁abcde", "ab", "▁a"]
    vocab |= {letter: len(vocab) + place for place, letter in enumerate(letters)}
    bpe = models.BPE(
        vocab=vocab,
        merges=[("a", "b"), ("▁", "a")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    made = Tokenizer(bpe)
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<unk>")


def raw(token: str) -> bytes:
    """What a token stands for, whether a character has its name or those of its bytes."""
    parts = BYTE.split(token)
    return b"".join(
        bytes([int(part[3:5], 16)]) if BYTE.fullmatch(part) else part.encode() for part in parts
    )


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_the_parts_of_an_extended_vocabulary_spell_its_tokens(kind):
    base = BASE if kind == "bytes" else fallback()
    texts = ["abcde abab ×× 张×× 张张 abcde", "de ab 被告人 被告人张××"] * 4
    new = extend(base, texts, 12)
    old, now = token_strings(base), token_strings(new)
    ids = range(len(old), len(now))
    assert len(ids) == 12
    for number, part in zip(ids, spell_tokens(base, new, ids), strict=True):
        assert raw("".join(old[one] for one in part)) == raw(now[number])
        assert len(part) > 1
