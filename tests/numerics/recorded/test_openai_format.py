"""Tokens that a server gives as texts are those that the model's tokenizer makes of them."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from layerlab import UserError, builtin
from layerlab.numerics.recorded.read_records import read_records
from tests.numerics.recorded.recording import write
from tests.support.refused import refuses


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(builtin.path("llama"))


def test_tokens_as_texts_become_those_of_the_tokenizer(tmp_path, tokenizer):
    text = "A small house stands here."
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    spelled = [tokenizer.decode([token]) for token in ids]
    logprobs = [None, *[-1.0] * (len(ids) - 1)]
    chat = [
        {"token": one, "logprob": logprob, "bytes": None}
        for one, logprob in zip(spelled, logprobs, strict=True)
    ]
    assert "".join(spelled) == text and len(ids) > 4
    rows: list[Any] = [
        {"logprobs": {"tokens": spelled, "token_logprobs": logprobs}},
        {"choices": [{"logprobs": {"content": chat}}]},
    ]
    for found in read_records(write(tmp_path, *rows), len(tokenizer), tokenizer):
        assert list(found.token_ids) == ids
    answer = {
        "prompt_token_ids": [5, 7],
        "logprobs": {"content": [{"token": "A", "logprob": -1.0}]},
    }
    (found,) = read_records(write(tmp_path, answer), len(tokenizer), tokenizer)
    assert found.token_ids == (5, 7, tokenizer.convert_tokens_to_ids("A"))
    assert found.logprobs == (None, None, -1.0)


def test_bytes_say_which_token_ends_within_a_character(tmp_path, tokenizer):
    ids = tokenizer("日", add_special_tokens=False)["input_ids"]
    content = [
        {"token": f"\\x{byte:02x}", "bytes": [byte], "logprob": -1.0} for byte in "日".encode()
    ]
    assert len(ids) == len(content) == 3
    # Without bytes, some servers write the whole character with its last token.
    whole = {"tokens": ["", "", "日"], "token_logprobs": [-1.0] * 3}
    rows = [{"prompt_token_ids": [5], "logprobs": one} for one in ({"content": content}, whole)]
    for found in read_records(write(tmp_path, *rows), len(tokenizer), tokenizer):
        assert found.token_ids == (5, *ids)


@pytest.mark.parametrize("named", ["token_id:x", "5", "token_id:" + "7" * 5000], ids=len)
def test_what_spells_no_id_is_a_text(tmp_path, named):
    path = write(tmp_path, {"logprobs": {"tokens": ["token_id:5", named], "token_logprobs": []}})
    refuses("tokens as texts, and the model no tokenizer", read_records, path, 9)


def test_any_byte_is_one(tmp_path):
    content = [{"token": "?", "bytes": [0, 255], "logprob": -1.0}]
    path = write(tmp_path, {"prompt_token_ids": [5], "logprobs": {"content": content}})
    refuses("tokens as texts, and the model no tokenizer", read_records, path, 9)


def test_a_blank_that_a_token_loses_alone_makes_it_no_other(tmp_path):
    # As with SentencePiece; and no token of the beginning is put in front.
    engine = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "<s>": 2}, unk_token="<s>"))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 2)]
    )
    cutting = PreTrainedTokenizerFast(tokenizer_object=engine)
    assert cutting("a b")["input_ids"] == [2, 0, 1] and cutting.decode([1]) == "b"
    row = {"logprobs": {"tokens": ["a", " b"], "token_logprobs": [None, -1.0]}}
    (found,) = read_records(write(tmp_path, row), 3, cutting)
    assert found.token_ids == (0, 1)


def test_half_of_a_character_is_no_token(tmp_path, tokenizer):
    row = {"logprobs": {"tokens": ["a", "\ud83d"], "token_logprobs": [None, -1.0]}}
    refuses("ask the engine for token ids", read_records, write(tmp_path, row), 512, tokenizer)


def test_other_tokens_than_the_tokenizer_makes_are_refused(tmp_path, tokenizer):
    row = {"logprobs": {"tokens": list("house"), "token_logprobs": [None, *[-1.0] * 4]}}
    with pytest.raises(UserError, match="5 tokens whose text the model's tokenizer cuts into"):
        read_records(write(tmp_path, row), len(tokenizer), tokenizer)


def test_as_many_other_tokens_are_refused_too(tmp_path):
    """A model may write "ab" and "c" where its tokenizer cuts "a" and "bc"."""
    words = {"a": 0, "b": 1, "c": 2, "bc": 3, "ab": 4}
    engine = Tokenizer(models.BPE(vocab=words, merges=[("b", "c"), ("a", "b")]))
    engine.decoder = decoders.Fuse()
    cutting = PreTrainedTokenizerFast(tokenizer_object=engine)

    def path(*pieces: str) -> Path:
        named = {"tokens": ["a", *pieces], "token_logprobs": [None, -1.0, -1.0]}
        return write(tmp_path, {"logprobs": named})

    (found,) = read_records(path("a", "bc"), 5, cutting)
    assert found.token_ids == (0, 0, 3)
    refuses("cuts into 3 others; ask the engine", read_records, path("ab", "c"), 5, cutting)
    # A blank that it does not know is lost; and a token without a text is none of its own.
    refuses("cuts into 3 others; ask the engine", read_records, path("a ", "bc"), 5, cutting)
    refuses("cuts into 2 others; ask the engine", read_records, path("bc", ""), 5, cutting)
