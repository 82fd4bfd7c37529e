"""User-defined symbols of SentencePiece are found where its own reader finds them."""

import random

import pytest

from layerlab.tokenization.convert import convert_sentencepiece
from layerlab.tokenization.load import engine
from layerlab.tokenization.vocabulary.extend import extend
from layerlab.tokenization.vocabulary.verify import verify
from tests.adaptation.bpe import GENERAL, LAW
from tests.support.refused import refuses
from tests.tokenization.spm.protos import change, needed, train

pytestmark = needed
SYMBOLS = ["the", "at", "<sep>", "被告", "a.b*", "(?:", "\\", "&&["]
PARTS = [*SYMBOLS, *GENERAL[:4], " ", "  ", "<0x41>", "é", "hat", "天气", "😀", "\t"]
PLAIN = {
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "normalization_rule_name": "identity",
}
SPACES = [{}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}, PLAIN]


def texts() -> list[str]:
    """Return the texts, and others in which symbols meet each other and spaces."""
    lots = random.Random(3)
    return [*GENERAL, *LAW, *("".join(lots.choices(PARTS, k=5)) for _ in range(200))]


@pytest.mark.few(3)
@pytest.mark.parametrize("spaces", SPACES)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_symbols_are_found_as_sentencepiece_finds_them(kind, spaces, tmp_path):
    """Also inside a word, at the start of a text, and where spaces change around them."""
    path = tmp_path / "own.model"
    reader = train(path, kind, user_defined_symbols=SYMBOLS, **spaces)
    words = convert_sentencepiece(path)
    for text in texts():
        # "<0x41>" as a text costs a unigram, and a BPE that looks up, a merge with its "<".
        if "<0x41>" not in text:
            ids = words.backend_tokenizer.encode(text, add_special_tokens=False).ids
            assert ids == reader.encode(text), text


@pytest.mark.parametrize("spaces", SPACES)
def test_a_space_as_it_is_written_is_no_space_that_is_left_out(spaces, tmp_path):
    path = tmp_path / "own.model"
    reader = train(path, "bpe", **{**spaces, "normalization_rule_name": "identity"})
    words, lots = convert_sentencepiece(path), random.Random(5)
    for _ in range(300):
        text = "".join(lots.choices(["▁", " ", "  ", "the", "a", "\n"], k=lots.randrange(7)))
        ids = words.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reader.encode(text), text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_name_of_a_byte_is_a_text_like_any_other(kind, tmp_path):
    path = tmp_path / "own.model"
    train(path, kind, user_defined_symbols=["the"], normalization_rule_name="identity")
    words = convert_sentencepiece(path)
    for text in ("<0x41>", "the<0x41>the", "a <0xFF>"):
        assert words.decode(words(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize("spaces", SPACES)
def test_a_model_with_symbols_is_extended(spaces, tmp_path):
    path = tmp_path / "own.model"
    train(path, "bpe", user_defined_symbols=["the", "被告"], **spaces)
    base = convert_sentencepiece(path)
    new = extend(base, LAW, 30)
    assert verify(base, new, {"law": LAW, "general": GENERAL}).holds
    assert "the" in new.tokenize("other") and "被告" in new.tokenize("被告人")


def test_a_piece_that_only_a_lookup_gives_is_refused(tmp_path):
    path = tmp_path / "own.model"
    train(path, "bpe", user_defined_symbols=["the"])
    change(path, lambda proto: proto.pieces.add(piece="qqxq", score=-1.0))
    refuses("has user-defined symbols, which have to be looked up", convert_sentencepiece, path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_what_is_unknown_is_found_by_its_kind(kind, tmp_path):
    """A number that leads nowhere is not what SentencePiece goes by."""
    path = tmp_path / "own.model"
    reader = train(path, kind, byte_fallback=False, vocab_size=100)
    change(path, lambda proto: setattr(proto.trainer_spec, "unk_id", 10**6))
    words = convert_sentencepiece(path)
    ids = words.backend_tokenizer.encode("the ÿ cat", add_special_tokens=False).ids
    assert ids == reader.encode("the ÿ cat") and reader.unk_id() in ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_control_token_that_a_text_spells_is_read_as_sentencepiece_reads_it(kind, tmp_path):
    path = tmp_path / "own.model"
    reader = train(path, kind, user_defined_symbols=SYMBOLS)
    machine = engine(convert_sentencepiece(path), special=False)
    for text in ("</s>", "a</s>b", "the <s> <sep></s> cat <unk>", "<s></s>被告</s>"):
        assert machine.encode(text).ids == reader.encode(text)
