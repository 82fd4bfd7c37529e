"""Bytes of tokens: they add up to the text, whatever the tokenizer makes of it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from layerlab.corpus.tokenize import byte_ends
from layerlab.tokenization.load import engine, train_tokenizer

BYTES = engine(train_tokenizer(["the cat and the hat", "zwei Käse", "今天 今天"] * 5, 300))


def _normalizing() -> Tokenizer:
    """One that changes the text before it cuts it, and knows few characters."""
    found = Tokenizer(models.Unigram())
    found.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=40, special_tokens=["?"], unk_token="?", show_progress=False
    )
    found.train_from_iterator(["the cat and the hat and a bat"] * 9, trainer)
    return found


@given(st.text(min_size=1))
@settings(max_examples=150, deadline=None)
def test_ends_rise_to_the_length_of_the_text(text):
    for machine in (BYTES, NORMALIzING):
        found = machine.encode(text, add_special_tokens=False)
        ends = byte_ends(text, found)
        assert len(ends) == len(found.ids)
        if len(ends):
            assert ends[-1] == len(text.encode()) and (np.diff(ends) >= 0).all() and ends[0] >= 0


NORMALIzING = _normalizing()


def test_tokens_end_where_their_characters_do():
    found = BYTES.encode("the Käse")
    spans = np.diff(byte_ends("the Käse", found), prepend=0)
    texts = [BYTES.decode([token]) for token in found.ids]
    assert "".join(texts) == "the Käse" and spans.tolist() == [len(text.encode()) for text in texts]


def test_a_character_of_several_tokens_counts_once():
    found = BYTES.encode("😀a")
    assert byte_ends("😀a", found).tolist() == [4, 4, 4, 4, 5]
