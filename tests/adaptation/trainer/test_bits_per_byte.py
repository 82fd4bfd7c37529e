"""Bits per byte: every byte once, whatever the windows, and what a literal computation finds."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab import UserError, build
from layerlab.adaptation.trainer.bits_per_byte import Bits, bits_per_byte
from layerlab.tokenization.train import train_bpe
from tests.evaluation.candidate import candidate
from tests.families import recipe
from tests.loading.test_batching import LONGROPE
from tests.support.refused import refuses

TEXTS = ["the cat sat", "被告人张×× 不服", "", "a", "the the the dog ran after the cat " * 3]
WORDS = train_bpe(TEXTS, vocab=300)
UNIT = 2.0**-24


def plain() -> PreTrainedTokenizerFast:
    """A token for each byte, and nothing that could stand before a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={one: place for place, one in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def uniform(vocab: int) -> Any:
    """A model that takes every token for equally likely."""
    model = build("llama", vocab=vocab, width=8, layers=1, heads=1, context=64)
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


MODELS = {"bytes": uniform(256), "words": uniform(300)}
BYTES = plain()
one = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
texts = st.lists(one, min_size=1, max_size=4)


def test_a_special_token_that_a_text_spells_is_as_many_tokens_as_its_text():
    text = f"the cat {WORDS.eos_token} sat"
    (found,) = bits_per_byte(MODELS["words"], WORDS, [text]).documents
    assert found.tokens > len(WORDS(text)["input_ids"]) and found.bytes == len(text)


@pytest.mark.full
@settings(deadline=None, max_examples=25)
@given(texts, st.integers(1, 64), st.integers(1, 5))
def test_equally_likely_bytes_cost_eight_bits_in_any_windows(given, context, batch):
    given = [*given, "äb"]
    found = bits_per_byte(MODELS["bytes"], BYTES, given, context=context, batch=batch)
    # A logarithm of a sum of 256 equal numbers, rounded in float32 a few times.
    assert found.bits_per_byte == pytest.approx(8, rel=16 * UNIT)
    assert found.bytes + found.unseen == sum(len(text.encode()) for text in given)
    assert found.tokens == found.bytes
    assert found.unseen == sum(len(text[:1].encode()) for text in given)
    assert found.start == "" and "not predicted and not counted" in found.summary()


@pytest.mark.full
@settings(deadline=None, max_examples=25)
@given(texts, st.integers(1, 64), st.integers(1, 5))
def test_each_byte_counts_once_whatever_its_tokens(given, context, batch):
    given = [*given, "the cat"]
    found = bits_per_byte(MODELS["words"], WORDS, given, context=context, batch=batch)
    tokens = sum(len(ids) for ids in WORDS(given)["input_ids"])
    size = sum(len(text.encode()) for text in given)
    assert (found.tokens, found.bytes, found.unseen) == (tokens, size, 0)
    assert found.bits_per_byte == pytest.approx(tokens * math.log2(300) / size, rel=16 * UNIT)
    assert len(found.documents) == len(given)


def literally(model: Any, ids: list[int], context: int, begin: int = 1) -> float:
    """Token by token, each in a pass of its own, in the model's own precision."""
    nats = 0.0
    for place in range(begin, len(ids)):
        first = (place - 1) // context * context
        with torch.no_grad():
            logits = model(torch.tensor([ids[first:place]])).logits[0, -1]
        nats -= float(logits.log_softmax(-1)[ids[place]])
    return nats


@pytest.mark.parametrize("kind", ["llama", "gpt2", "ours"])
def test_costs_are_those_of_a_literal_computation(kind, tiny):
    if kind == "ours":
        model = build("pangu-pi", vocab=300, width=16, layers=2, heads=2, context=64)
    else:
        model = tiny(kind, vocab_size=300, initializer_range=0.5)
    model = model.double()
    for context, batch in ((7, 3), (64, 8)):
        found = bits_per_byte(model, WORDS, TEXTS, context=context, batch=batch)
        for one, text in zip(found.documents, TEXTS, strict=True):
            ids = [WORDS.eos_token_id, *WORDS(text)["input_ids"]]
            assert one.nats == pytest.approx(literally(model, ids, context), rel=1e-11)
    assert found.start == WORDS.eos_token
    assert found.nats == pytest.approx(sum(one.nats for one in found.documents))


@pytest.mark.parametrize(("text", "begin"), [("abc", 1), ("äb and c", 2), ("被告人", 3)])
def test_without_a_token_before_it_a_text_costs_what_follows_its_first_character(text, begin, tiny):
    model = tiny("llama", vocab_size=256, initializer_range=0.5).double()
    for context in (1, 2, 64):
        found = bits_per_byte(model, BYTES, [text, "a longer text"], context=context)
        nats = literally(model, BYTES(text)["input_ids"], context, begin)
        assert found.documents[0].nats == pytest.approx(nats, rel=1e-11)
        assert found.documents[0].tokens == len(text.encode()) - begin


def test_logits_of_few_digits_are_not_summed_in_as_few(tiny):
    model = tiny("llama", vocab_size=300, initializer_range=0.5).to(torch.bfloat16)
    ids = [WORDS.eos_token_id, *WORDS(TEXTS[4])["input_ids"]]
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].double()
    nats = -logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].sum()
    assert bits_per_byte(model, WORDS, TEXTS[4:]).nats == pytest.approx(float(nats), rel=1e-6)


def test_an_end_comes_before_a_begin_that_the_tokenizer_does_not_put(tiny):
    made = train_bpe(TEXTS, vocab=299)
    made.add_special_tokens({"bos_token": "<s>"})
    model = tiny("llama", vocab_size=len(made), max_position_embeddings=4096)
    found = bits_per_byte(model, made, ["the cat"])
    assert (found.start, found.context) == (made.eos_token, 1024)


def test_a_begin_token_that_the_tokenizer_puts_stands_first(tiny):
    from tokenizers.processors import TemplateProcessing

    made = train_bpe(TEXTS, vocab=299)
    made.add_special_tokens({"bos_token": "<s>"})
    pair = [("<s>", made.bos_token_id)]
    made.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=pair)
    model = tiny("llama", vocab_size=len(made))
    assert bits_per_byte(model, made, ["the cat"]).start == "<s>"
    assert bits_per_byte(model, made, ["the cat"]).tokens == len(made("the cat")["input_ids"]) - 1


@pytest.mark.full
def test_the_model_stays_in_its_mode_and_texts_are_read_as_they_come(tiny):
    model = tiny("llama", vocab_size=300).train()
    asked: list[int] = []

    def stream() -> Any:
        for number in range(400):
            asked.append(number)
            yield "the cat sat"

    reads: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: reads.append(len(asked)))
    bits_per_byte(model, WORDS, stream(), batch=2)
    handle.remove()
    assert model.training
    assert reads[0] <= 40 and reads[-1] == 400


def test_the_error_is_that_of_the_ratio_over_documents():
    from layerlab.adaptation.trainer.bits_per_byte import Document

    two = (Document(6 * math.log(2), 1, 1), Document(2 * math.log(2), 1, 3))
    found = Bits(documents=two, start="", context=4, unseen=0)
    assert found.bits_per_byte == 2
    # Residuals are 6 - 2 and 2 - 6; sqrt(2 / 1 * (16 + 16)) / 4.
    assert found.error == pytest.approx(2)
    empty = Document(0.0, 0, 0)
    assert Bits(documents=(*two, empty), start="", context=4, unseen=0).error == found.error
    for one in (two[:1], (two[0], empty)):
        assert Bits(documents=one, start="", context=4, unseen=0).error is None
    assert found.to_dict()["bytes"] == 4


def test_a_loss_that_is_no_number_is_refused():
    model = uniform(300)
    torch.nn.init.constant_(model.lm_head.weight, 3.4e38)
    with pytest.raises(UserError, match="loss on these texts is not finite, so that nothing can"):
        bits_per_byte(model, WORDS, TEXTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"context": 0}, "context is 0; expected from 1 to the 64 positions of the model"),
        ({"context": 65}, "type context=64"),
        ({"batch": 0}, "batch is 0; expected at least one window"),
        ({"texts": []}, "the 0 texts hold no token to predict"),
        ({"texts": [""]}, "the 1 texts hold no token to predict"),
        (
            {"model": MODELS["bytes"]},
            f"the tokenizer has {len(WORDS)} entries and the model 256 rows",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(change, said):
    given = {"model": MODELS["words"], "texts": TEXTS, **change}
    refuses(said, bits_per_byte, given.pop("model"), WORDS, given.pop("texts"), **given)


def test_a_text_that_does_not_come_back_has_nats_and_no_bits_per_byte():
    made = Tokenizer(models.WordLevel({"w": 0, "the": 1, "cat": 2}, unk_token="w"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    few = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w")
    lost = bits_per_byte(MODELS["bytes"], few, ["the dog the", "the cat"])
    assert lost.bits_per_byte is lost.error is lost.to_dict()["bits_per_byte"] is None
    # The first token of a text has none before it.
    assert lost.nats == pytest.approx(3 * math.log(256), rel=16 * UNIT)
    assert "'the dog the' comes back as 'the w the'" in lost.summary()
    whole = bits_per_byte(MODELS["bytes"], few, ["the cat", "cat the cat"])
    assert whole.loss == "" and whole.bits_per_byte is not None
    assert whole.error is not None and "comes back" not in whole.summary()


def test_frequencies_that_change_with_the_longest_window_change_no_other():
    model = candidate(rope_parameters=LONGROPE).model
    given = ["the cat sat", "the the the dog ran after the cat " * 9, "被告人张×× 不服"]
    alone, together = (bits_per_byte(model, WORDS, given, batch=batch) for batch in (1, 4))
    for one, other in zip(alone.documents, together.documents, strict=True):
        assert one.nats == pytest.approx(other.nats, rel=1e-5)


def test_a_context_of_no_positions_is_no_limit():
    """XLNet writes -1 for its positions, and there are as many as are asked for."""
    found = bits_per_byte(recipe.build("xlnet"), BYTES, ["the dog ran after the cat " * 3])
    assert found.context == 1024 and found.nats > 0


def test_positions_behind_that_of_padding_are_all_that_are_read():
    """RoBERTa counts from the position behind that of padding: 63 of its 64 are of tokens."""
    model = recipe.build("roberta")
    found = bits_per_byte(model, BYTES, ["the dog ran after the cat " * 5])
    assert found.context == 63 and math.isfinite(found.nats)
    with pytest.raises(UserError, match="context is 64; expected from 1 to the 63 positions of"):
        bits_per_byte(model, BYTES, ["the dog"], context=64)
