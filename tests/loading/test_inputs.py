import hashlib
import io
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from layerlab import UserError, builtin
from layerlab.loading.inputs import divide, passage, placeholder, sequences
from layerlab.loading.model import LoadedModel, load_model
from layerlab.loading.text_input import LEAST, TextInput, read_file, sample
from tests.support.refused import refusal, refuses

META = torch.zeros(1, 2, dtype=torch.long, device="meta")


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_model("llama")


@pytest.fixture
def bare(tiny) -> LoadedModel:
    return LoadedModel(name="bare", source="memory", model=tiny("gpt2"), tokenizer=None)


def test_the_built_in_sample_is_cut_into_whole_samples(llama):
    pieces = sequences(sample(samples=3, context=32), llama)
    assert [len(piece) for piece in pieces] == [32, 32, 32]
    text = llama.tokenizer.decode(torch.cat(pieces))
    assert builtin.SAMPLE.read_text("utf-8").startswith(text.strip()[:40])


def test_texts_stay_whole_without_a_context_and_are_cut_with_one(llama):
    texts = ["A short one.", "A longer text that goes on for quite a few more words than that."]
    whole = sequences(passage(texts), llama)
    cut = sequences(passage(texts, context=5), llama)
    assert len(whole) == 2
    assert all(2 <= len(piece) <= 5 for piece in cut) and len(cut) > 2


def test_padding_is_cut_from_either_end(bare):
    ids = torch.tensor([[9, 9, 1, 2, 3], [4, 5, 6, 9, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    pieces = sequences(passage(input_ids=ids, attention_mask=mask), bare)
    assert [piece.tolist() for piece in pieces] == [[1, 2, 3], [4, 5, 6]]


ADDED = [[0.0, 0.0, -1e9]]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            ADDED,
            r"holds -1e\+09; expected 1 for a token and 0 for .* type attention_mask=mask == 0",
        ),
        ([[1, 1, 2]], "attention_mask holds 2; expected 1 for a token and 0 for padding"),
        ([[1.0, 1.0, float("nan")]], "attention_mask holds nan; expected 1"),
        ([[1], [1, 1]], "attention_mask cannot be made into one tensor; give a 1 or a 0 for each"),
    ],
)
def test_a_mask_of_other_numbers_than_0_and_1_is_refused(mask, message):
    refuses(message, passage, input_ids=[[4, 5, 6]], attention_mask=mask)


def test_a_mask_that_was_added_to_the_scores_can_be_turned_as_the_error_says(bare):
    kept = passage(input_ids=[[4, 5, 6]], attention_mask=torch.tensor(ADDED) == 0)
    assert [piece.tolist() for piece in sequences(kept, bare)] == [[4, 5]]


def test_gradients_can_be_taken_behind_ids_that_were_made_in_the_inference_mode():
    with torch.inference_mode():
        ids, mask = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 1]])
    for given in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        (row,) = passage(**given).ids
        assert not row.is_inference() and row.tolist() == [1, 2, 3][-len(row) :]


def test_ids_without_a_row_are_refused():
    refuses(
        "input_ids has no row; expected at least one", passage, input_ids=torch.ones(0, 4).long()
    )


def test_ids_are_cut_into_samples_too(bare):
    pieces = sequences(passage(input_ids=[list(range(9))], context=4), bare)
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_as_many_tokens_as_a_model_has_positions_are_read(bare):
    for sizes in ({}, {"context": 64}):
        (piece,) = sequences(passage(input_ids=[list(range(64))], **sizes), bare)
        assert len(piece) == 64


@drawn(st.integers(1, 12), st.integers(2, 9), st.integers(1, 99))
def test_no_more_samples_are_read_than_hold_the_tokens_that_are_wanted(count, length, tokens):
    found = divide([torch.arange(length)] * count, tokens)
    read = len(found.each) * length + sum(batch.numel() for batch in found.more)
    assert len(found.each) == min(count, 4)
    assert found.short == (count * length < tokens)
    assert read == count * length if found.short else read >= tokens
    assert not found.more or read - length < tokens


def test_measures_of_weights_get_tokens_that_the_model_has(tiny):
    few = LoadedModel(name="few", source="memory", model=tiny("gpt2", vocab_size=9), tokenizer=None)
    (found,) = placeholder(TextInput(source="no text: weights alone"), few)
    assert len(found) == 64 and int(found.max()) == 8


def test_a_shorter_text_is_not_run_beside_longer_ones():
    found = divide([*[torch.arange(4)] * 6, torch.arange(2)], 99)
    assert [len(row) for batch in found.more for row in batch] == [4, 4]


def test_closed_standard_input_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    refuses("standard input is closed; give a file", read_file, "-")


@pytest.mark.parametrize("samples", [0, -1, "many"])
def test_samples_that_cannot_be_are_one_clear_line(samples):
    with pytest.raises(UserError, match=r"samples is .*; expected a whole number, at least 1"):
        TextInput(source="texts", samples=samples)


def test_the_hash_tells_texts_apart():
    assert passage("one").hash == passage(["one"]).hash != passage(["one", ""[:0] or "two"]).hash
    assert passage(["ab", "c"]).hash != passage(["a", "bc"]).hash


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path):
    file = tmp_path / "input.txt"
    file.write_bytes(b"\xef\xbb\xbfTo be, or not to be.\r\n")
    found = read_file(str(file), samples=1, context=4)
    assert found.hash == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert found.hash_source == "the whole text"
    assert sample().hash == f"sha256:{hashlib.sha256(builtin.SAMPLE.read_bytes()).hexdigest()}"


def test_of_a_long_file_the_hash_says_how_much_was_read(tmp_path):
    file = tmp_path / "input.txt"
    file.write_bytes(b"words " * 200_000)
    found = read_file(str(file), samples=1, context=4)
    beginning = file.read_bytes()[: 1 << 20]
    assert found.hash == f"sha256:{hashlib.sha256(beginning).hexdigest()}"
    assert found.hash_source == "the first 1,048,576 bytes"


def test_of_a_longer_file_more_is_read_where_its_samples_may_need_it(tmp_path):
    file = tmp_path / "input.txt"
    file.write_bytes(b"words " * 200_000)
    found = read_file(str(file), samples=64, context=512)
    assert not found.cut and len(found.raw) == 1_200_000


def test_what_is_hashed_of_other_input():
    assert passage("one").hash_source == "the texts, with a zero byte behind each"
    assert passage(input_ids=[[1, 2]]).hash_source == "the token ids"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": ""}, "text 0 is empty; expected some words"),
        ({"texts": ["fine", " \n"]}, "text 1 is empty"),
        ({"texts": []}, "texts is empty"),
        ({"texts": [7]}, "text 0 is a int; expected a string"),
        ({"texts": "a", "input_ids": [[1, 2]]}, "both texts and input_ids were given"),
        ({"attention_mask": [[1]]}, "attention_mask was given without input_ids"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids cannot be made into one tensor"),
        ({"input_ids": [[1.0, 2.0]]}, "expected integers, batch x token"),
        ({"input_ids": META}, "input_ids is on the meta device, which holds no numbers"),
        ({"input_ids": [[1, 2]], "attention_mask": META}, "attention_mask is on the meta device"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "attention_mask has shape"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, "row 0 .* has a hole"),
        ({"context": 1}, "context is 1; expected a whole number, at least 2"),
        ({"context": "8"}, "context is '8'; expected a whole number"),
        ({"texts": 5}, "texts is a int; expected a string or a list"),
    ],
)
def test_bad_input_is_one_clear_line(given, message):
    refuses(message, passage, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_ids": [[5]]}, "text 0 has 1 token for bare; two are the least"),
        ({"input_ids": [list(range(64)) * 2]}, "text 0 has 128 tokens, the context of bare is 64"),
        ({"input_ids": [[1, 64]]}, "text 0 holds token 64, the vocabulary of bare has 64"),
        ({"input_ids": [[-1, 1]]}, "text 0 holds token -1, the vocabulary of bare has 64"),
        ({"texts": "words"}, "bare has no tokenizer; put its tokenizer files into the folder"),
        ({"texts": "words", "context": 65}, "--context 65 is longer than the 64 positions of bare"),
    ],
)
def test_what_a_model_cannot_read_is_one_clear_line(bare, given, message):
    refuses(message, sequences, passage(**given), bare)


def test_a_file_or_standard_input_is_read(tmp_path, monkeypatch):
    file = tmp_path / "naïve.txt"
    file.write_text("\ufeffcafé 北京", "utf-8")
    assert read_file(str(file)).texts == ("café 北京",)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("café".encode())))
    assert read_file("-").texts == ("café",)


@pytest.mark.parametrize(
    ("content", "message"), [(b" \n", "the text is empty"), (b"ab\xff", "byte 2 is not UTF-8")]
)
def test_a_file_without_text_is_one_clear_line(tmp_path, content, message):
    file = tmp_path / "text"
    file.write_bytes(content)
    refuses(message, read_file, str(file))
    refuses("no such file or directory; expected a text file", read_file, str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("name", "told"),
    [("a.JSONL", "type: jq -r .text FILE > NEW"), ("a.csv", "headings"), ("a.html", "tags")],
)
def test_markup_that_is_read_as_text_is_remarked_on(tmp_path, caplog, name, told):
    (tmp_path / name).write_text('{"text": "some words"}')
    (tmp_path / "a.txt").write_text("some words")
    assert read_file(str(tmp_path / name)).texts == ('{"text": "some words"}',)
    assert caplog.text.count("it is read as plain text, ") == caplog.text.count(told) == 1
    read_file(str(tmp_path / "a.txt"))
    assert len(caplog.records) == 1


class Endless(io.RawIOBase):
    """Standard input that never ends, of a letter of three bytes."""

    given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        whole = ("的" * (len(buffer) // 3 + 1)).encode()[: len(buffer)]
        start = self.given % 3
        whole = (whole[start:] + "的".encode() * 2)[: len(buffer)]
        buffer[:] = whole
        self.given += len(buffer)
        return len(buffer)


def test_standard_input_without_an_end_is_read_as_far_as_samples_go(monkeypatch):
    endless = Endless()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(endless)))
    passage = read_file("-", samples=2, context=16)
    assert set(passage.texts[0]) == {"的"} and endless.given <= LEAST + 2**20


def test_a_text_that_its_tokenizer_cannot_read_is_one_clear_line():
    broken = load_model("llama")

    def refuse(*args: Any, **options: Any) -> None:
        raise OverflowError("int too big\nto convert")

    assert refusal(sequences, sample(), replace(broken, tokenizer=refuse)) == (
        "the tokenizer of llama cannot read the text: int too big to convert; mend its files"
    )


@pytest.mark.parametrize("length", [10**9, 10**30])
def test_room_is_made_for_what_is_there_and_not_for_all_that_is_asked_for(tmp_path, length):
    (tmp_path / "a.txt").write_text("some words")
    found = read_file(str(tmp_path / "a.txt"), samples=length, context=length)
    assert found.texts == ("some words",) and not found.cut
