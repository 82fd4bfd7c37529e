"""Whether texts come back: what a tokenizer loses is found, and what is no loss is let be."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from layerlab import builtin
from layerlab.data.sources import data_folder
from layerlab.tokenization.load import engine, load_tokenizer, train_tokenizer
from layerlab.tokenization.round_trip import RoundTrip, describe_loss

TEXT = "The cat sat.\n\n  On the  mat, it ate a käse; </s> and 法律.\n"
SPECIAL = ["<unk>", "</s>"]


def loss(machine: Tokenizer, text: str) -> str:
    ids = machine.encode(text, add_special_tokens=False).ids
    return RoundTrip(machine).loss(text, ids)


def trained(machine: Tokenizer, trainer: type, *texts: str, **options: object) -> Tokenizer:
    made = trainer(special_tokens=SPECIAL, vocab_size=200, **options)
    machine.train_from_iterator(texts or [TEXT], made)
    return machine


def spaced(scheme: str, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    """A tokenizer of pieces as SentencePiece's: spaces are a mark, and one stands in front."""
    machine = Tokenizer(models.Unigram())
    if normalizer is not None:
        machine.normalizer = normalizer
    machine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    machine.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return trained(machine, trainers.UnigramTrainer, TEXT, "ﬁle Ａ é é", unk_token="<unk>")


def pieces(lowercase: bool) -> Tokenizer:
    """A tokenizer of parts of words as BERT's."""
    machine = Tokenizer(models.WordPiece(unk_token="<unk>"))
    machine.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    machine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    machine.decoder = decoders.WordPiece()
    return trained(machine, trainers.WordPieceTrainer)


def words() -> Tokenizer:
    """A tokenizer of few words, the others unknown."""
    machine = Tokenizer(models.WordLevel(unk_token="<unk>"))
    machine.pre_tokenizer = pre_tokenizers.Whitespace()
    return trained(machine, trainers.WordLevelTrainer, "the cat", "the mat")


def bytewise() -> Tokenizer:
    return engine(train_tokenizer([TEXT], 300))


KEPT = {
    "bytes": (bytewise, TEXT),
    "a space in front is added": (lambda: spaced("always"), "The cat sat"),
    "a space in front is dropped": (lambda: spaced("always"), " The cat sat"),
    "one of two in front is dropped": (lambda: spaced("first"), "  The cat"),
    "spaces beside special tokens": (lambda: spaced("always"), "The </s>cat </s> sat"),
    "canonical forms": (lambda: spaced("always", normalizers.NFC()), "cat e\u0301 ate"),
    "special tokens": (bytewise, "The cat<|endoftext|>sat <|endoftext|> on"),
}
LOST = {
    "unknown words": (words, "the dog", "'the dog' comes back as 'the <unk>'"),
    "capitals": (lambda: pieces(True), "The cat", "'The cat' comes back as 'the cat'"),
    "accents": (lambda: pieces(True), "käse", "'käse' comes back as 'kase'"),
    "ends of lines": (lambda: pieces(False), "The\ncat", r"'The\ncat' comes back as 'The cat'"),
    "more than one space": (
        lambda: pieces(False),
        "cat  sat",
        "'cat  sat' comes back as 'cat sat'",
    ),
    "widths": (lambda: spaced("always", normalizers.NFKC()), "Ａ cat", "'Ａ cat' comes back as 'A"),
    "all of it": (lambda: pieces(False), "\n\n", r"'\n\n' comes back as ''"),
    "a special token": (words, "the </s> mat </s> mat x", "x' comes back as"),
}


@pytest.mark.parametrize(("made", "text"), KEPT.values(), ids=KEPT)
def test_what_comes_back_is_no_loss(made, text):
    assert loss(made(), text) == ""


@pytest.mark.parametrize(("made", "text", "said"), LOST.values(), ids=LOST)
def test_what_does_not_come_back_is_shown(made, text, said):
    assert said in loss(made(), text)


@pytest.mark.parametrize("name", builtin.NAMES)
def test_built_in_tokenizers_lose_nothing(name):
    assert loss(engine(load_tokenizer(name)), TEXT) == ""


def test_pieces_with_bytes_beside_them_lose_nothing():
    """SentencePiece as Llama's, which puts a space in front and writes rare characters as bytes."""
    folder = data_folder() / "model-stories260K" / "hf"
    if not Path(folder).is_dir():
        pytest.skip(f"the model of 260,000 parameters is not in {data_folder()}")
    machine = engine(load_tokenizer(str(folder)))
    for text in (TEXT, f" {TEXT}", "<s>struck</s> out", "\t\x00 \n"):
        assert loss(machine, text) == ""


def test_a_long_text_is_shown_where_it_differs_first():
    text = "the cat sat " * 500 + "On the mat"
    found = loss(pieces(True), text)
    assert found == "'cat sat On the mat' comes back as 'cat sat on the mat'"
    told = describe_loss("law.jsonl", found)
    assert told.startswith("bits per byte of law.jsonl are not given") and "sat On the" in told


def test_what_is_added_to_a_text_is_a_loss_where_it_is_no_space():
    unfinished = PreTrainedTokenizerFast(tokenizer_object=bytewise()).backend_tokenizer
    unfinished.decoder = decoders.Fuse()  # of bytes, and without what turns them into text
    assert "comes back as 'TheĠcat'" in loss(unfinished, "The cat")
