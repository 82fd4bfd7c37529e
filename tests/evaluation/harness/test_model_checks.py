"""What the engine needs of a tokenizer: an end of text; a model without one is told so."""

import copy

import pytest
import torch

from layerlab.evaluation.harness.model_checks import (
    NEVER,
    UNBOUNDED,
    list_appended,
    max_length,
    prepare_tokenizer,
    record_logits,
)
from layerlab.loading.model import LoadedModel
from tests.evaluation.candidate import candidate, tokenizer, with_begin
from tests.support.refused import refusal


def subject_with(**changes: str | None) -> LoadedModel:
    given = copy.deepcopy(tokenizer())
    for name, value in changes.items():
        setattr(given, name, value)
    found = candidate()
    found.tokenizer = given
    return found


@pytest.mark.parametrize(
    ("template", "count"), [("{name} $A", 0), ("$A {name}", 1), ("{name} $A {name} {name}", 2)]
)
def test_what_a_tokenizer_puts_behind_a_text_is_found(template, count):
    words = with_begin(template)
    assert list_appended(words) == [words.eos_token_id] * count
    assert list_appended(tokenizer()) == list_appended(None) == []


def test_what_is_missing_is_taken_from_what_is_there():
    found = prepare_tokenizer(subject_with(eos_token=None, pad_token=None))
    assert found.eos_token == found.pad_token == tokenizer().bos_token


def test_the_callers_tokenizer_stays_as_it_was():
    subject = subject_with(pad_token=None)
    prepare_tokenizer(subject)
    assert subject.tokenizer is not None and subject.tokenizer.pad_token is None


def test_no_tokenizer():
    subject = candidate()
    subject.tokenizer = None
    assert refusal(prepare_tokenizer, subject) == (
        "tiny has no tokenizer, which questions have to be read with; "
        "save one beside it with tokenizer.save_pretrained(FOLDER)"
    )


def test_no_end_of_text():
    assert refusal(
        prepare_tokenizer, subject_with(eos_token=None, bos_token=None, pad_token=None)
    ) == (
        "the tokenizer of tiny has no token for the end or the beginning of a text; "
        "set its eos_token, and save it again"
    )


def test_an_end_of_text_has_an_entry_in_the_model():
    subject = candidate(vocab_size=297)
    subject.tokenizer = copy.deepcopy(tokenizer())
    subject.tokenizer.add_special_tokens({"eos_token": "[END]"})
    assert refusal(prepare_tokenizer, subject) == (
        "the end of a text holds token 297, the vocabulary of tiny has 297 entries "
        "from 0; is it the right tokenizer?"
    )


def test_room_is_that_of_the_model_else_of_the_tokenizer(monkeypatch):
    subject = candidate(77)
    assert max_length(subject) == 77
    endless = subject_with()
    monkeypatch.setattr(type(endless), "context", None)
    assert max_length(endless) == UNBOUNDED
    assert endless.tokenizer is not None
    endless.tokenizer.model_max_length = 99
    assert max_length(endless) == 99


@pytest.mark.parametrize(
    ("value", "noted"), [(float("nan"), True), (float("inf"), True), (-float("inf"), False)]
)
def test_a_row_is_noted_once_one_of_its_next_logits_is_no_number(value, noted):
    model = candidate().model
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])

    def spoil(module: object, given: object, found: torch.Tensor) -> torch.Tensor:
        spoilt = found.clone()
        spoilt[1, -1, 0] = value
        return spoilt

    handle = model.lm_head.register_forward_hook(spoil)
    with record_logits(model, 0.0) as (broken, _):
        model(ids)
        handle.remove()
        model(ids)  # what was noted once stays
    assert broken[0].tolist() == [NEVER, 0 if noted else NEVER]
    model(ids)
    assert len(broken) == 1
