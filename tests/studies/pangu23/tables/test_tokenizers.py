"""The tokenizer table: vocabularies in the source's proportions, and words for counts by hand."""

import numpy as np
import pytest

from layerlab import UserError
from layerlab.studies.pangu23.tables.tokenizers import (
    BASE,
    EQUAL,
    EXTENDED,
    KINDS,
    LARGER,
    LEARNED,
    READ,
    at_hand,
    code,
    judge_lower,
    judge_monotone,
    judge_of_domain,
    judge_on_par,
    ratio,
    sizes,
    vocabularies,
)
from layerlab.tokenization import published_rates


def test_sizes_stand_to_each_other_as_in_the_table():
    found = sizes(100_883)
    assert found == {BASE: 100_883, EXTENDED: 110_428, EQUAL: 110_428, LARGER: 125_696}
    assert sizes(1024)[EXTENDED] == round(1024 * 1.094614)


@pytest.mark.full
def test_vocabularies_have_their_sizes_and_the_extended_one_begins_as_the_base():
    found = vocabularies(512)
    assert {kind: len(words) for kind, words in found.items()} == sizes(512)
    base, extended = (found[kind].get_vocab() for kind in (BASE, EXTENDED))
    assert base.items() <= extended.items()
    # No text gets longer by the extension.
    text = code("shutil")[:2000]
    assert len(found[EXTENDED](text)["input_ids"]) <= len(found[BASE](text)["input_ids"])


def test_nothing_is_counted_that_was_learned_from():
    assert not {name.partition(".")[0] for name in LEARNED} & set(READ)
    assert len(set(READ)) == len(READ) == 24
    assert "class Event" in code("asyncio") and "def copyfile" in code("shutil")


def test_a_module_without_source_is_told():
    with pytest.raises(UserError, match="no source of sys; expected an installation"):
        code("sys")


def counts(base, extended, equal, larger):
    """Files of different lengths that all have these tokens for each hundred."""
    length = np.arange(1, 13, dtype=float)[:, None]
    return length * np.array([[base, extended, equal, larger]], dtype=float)


def test_words_follow_the_counts():
    tokens = counts(100, 90, 97, 95)
    assert KINDS == (BASE, EXTENDED, EQUAL, LARGER)
    assert [judge(tokens, 0).word for judge in (judge_lower, judge_on_par, judge_of_domain)] == [
        "holds"
    ] * 3
    assert judge_lower(tokens, 0).number == pytest.approx(0.9)
    assert ratio(tokens, EXTENDED, LARGER, 0).value == pytest.approx(90 / 95)
    tokens = counts(100, 99, 97, 95)
    assert [judge(tokens, 0).word for judge in (judge_lower, judge_on_par, judge_of_domain)] == [
        "smaller than asked",
        "fails",
        "fails",
    ]


def test_files_count_by_their_length():
    tokens = np.array([[100.0, 50, 1, 1], [900, 900, 1, 1]])
    assert ratio(tokens, EXTENDED, BASE, 0).value == pytest.approx(950 / 1000)


def test_one_pair_of_the_printed_table_is_out_of_order():
    found = judge_monotone()
    # 0.649 with 100,883 entries stands before 0.657 with 103,168.
    assert found.word == "fails" and found.number == 1 and "1 of 10 pairs" in found.said
    assert "PanGu" in found.said and "InternLM" in found.said


def test_a_measured_rate_stands_beside_the_printed_one(monkeypatch):
    monkeypatch.setattr(published_rates, "questions", lambda: ["a question"])
    monkeypatch.setattr(published_rates, "tokenizers_here", lambda: ({}, {"other": "why"}))
    rows = [
        published_rates.Rate("internlm", 103_168, 0.6570),
        published_rates.Rate("gpt2", 50_257, 2.0),
    ]
    monkeypatch.setattr(published_rates, "measure_rates", lambda words, texts: rows)
    found, told = at_hand()
    assert [one["of"] for one in found] == ["JEC-QA"] * 2
    assert "internlm takes 0.657" in told[0] and "1.000 of it" in told[0]
    assert told[1:] == ["Not read: other."]


def test_without_the_questions_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    assert at_hand() == ([], ["JEC-QA is not at hand: nothing was measured on it."])
