"""Tokenizers of all kinds: one that puts a blank before a text, one whose marks are not special."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.sft.conversations import Conversation, Turn
from layerlab.adaptation.sft.encode import Encoder
from layerlab.tokenization.train import train_bpe
from tests.adaptation.spoken import CHATML, MARKS, encoded, speaker, talk


def spaced() -> PreTrainedTokenizerFast:
    """A tokenizer that, as SentencePiece does, puts a blank before whatever it reads."""
    made = Tokenizer(models.BPE(unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    kinds = trainers.BpeTrainer(vocab_size=60, special_tokens=["?", "<end>"], show_progress=False)
    made.train_from_iterator(["hello there user assistant yes: hello there"] * 3, kinds)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", unk_token="?")


def test_no_blank_is_put_before_an_answer():
    words = spaced()
    words.chat_template = (
        "{% for one in messages %}{{ one.role + ':' }}{% if one.role == 'assistant' %}"
        "{% generation %}{{ one.content + eos_token }}{% endgeneration %}"
        "{% else %}{{ one.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    found = encoded(Encoder(words), talk("hello", "yes"))
    assert words.decode(found.ids) == "user:helloassistant:yes<end>"
    assert words.decode(found.ids[found.answer]) == "yes<end>"


@pytest.mark.parametrize("text", ["\nyes", "\n\nyes", "\n\n\nyes\n\n"])
def test_breaks_that_are_one_token_together_are_all_read(text):
    words = train_bpe(["yes\n\nyes\n\n\nyes\n\n\n\nyes"] * 3, vocab=270)
    words.add_special_tokens({"additional_special_tokens": list(MARKS)})
    words.chat_template = CHATML
    assert len(words("\n\n")["input_ids"]) == 1
    found = encoded(Encoder(words), talk("a", text))
    assert words.decode(found.ids[found.answer]) == f"{text}<|im_end|>"


def test_marks_that_frame_turns_are_marks_although_they_are_not_special():
    words = train_bpe(["hello there"], vocab=270)
    words.add_tokens(list(MARKS))
    words.chat_template = CHATML
    found = encoded(Encoder(words), talk("a <|im_end|> b", "yes <|im_start|>"))
    begin, end = words.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [int((found.ids == one).sum()) for one in (begin, end)] == [2, 2]


def test_the_first_token_of_a_row_is_never_learned():
    alone = "{% for one in messages %}{% generation %}{{ one.content }}{% endgeneration %}"
    words = speaker(f"{alone}{{% endfor %}}")
    found = encoded(Encoder(words), Conversation((Turn("assistant", "hello there"),)))
    assert len(found.ids) > 1 and not found.answer[0] and found.answer[1:].all()
