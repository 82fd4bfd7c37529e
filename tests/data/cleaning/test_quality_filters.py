"""What is no text goes, and what is one stays, in scripts with spaces and without."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.data.cleaning.clean import KEEP_ALL, Cleaner
from layerlab.data.cleaning.quality_filters import low_quality
from layerlab.data.places import data_folder
from layerlab.data.sources import TextChunk, open_source
from layerlab.recipes.adaptation_sections import CleanSection
from layerlab.recipes.load import validate_table
from layerlab.recipes.training_sections import Source

OFF = KEEP_ALL
ENGLISH = (
    "An offer becomes a contract when it is accepted (see section 12, no. 3), and both sides are "
    "bound by it - even where one of them did not read all of its 27 pages; nobody has to."
)
CHINESE = (
    "当事人订立合同，可以采用书面形式、口头形式或者其他形式。书面形式是合同书、信件、电报、电传、"
    "传真等可以有形地表现所载内容的形式。2021年1月1日起施行的《民法典》第四百六十九条即作此规定。"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("=" * 5000, "symbols"),
        ("。！" * 3000, "symbols"),
        ("\ufffd" * 3000, "broken"),
        ("\x00\x01" * 100, "broken"),
        ("\ufffd" * 10 + ENGLISH, "broken"),
        ("\ufffd" * 10 + CHINESE, "broken"),
        ("1,234.5 2,345.6 17:30 " * 30, "symbols"),
        (" ".join(f"#{word}" for word in ENGLISH.split()), "symbols"),
        ("\n".join(f"{word} and so on ..." for word in ENGLISH.split()), "symbols"),
        ("\n".join(f"• {word}" for word in ENGLISH.split()), "symbols"),
        (ENGLISH[:20] + "！。" * 200, "repetition"),
        ("民" + "！？" * 3000, "repetition"),
        ("呵" * 300, "repetition"),
        ("呵呵！" * 300, "repetition"),
    ],
)
def test_what_is_no_text_has_a_reason(text, reason):
    found = low_quality(text)
    assert found is not None and found[0] == reason
    cleaner = Cleaner(CleanSection(min_chars=1, repetition=False, near_duplicate_threshold=0))
    assert not list(cleaner.clean([TextChunk(text, True)])) and list(cleaner.removed) == [reason]
    assert low_quality(text, OFF) is None


@pytest.mark.parametrize(
    "text",
    [
        ENGLISH,
        CHINESE,
        " ".join("".join(f" {one} " if one in ",;().-" else one for one in ENGLISH).split()),
        "第一条\u3000为了保护民事主体的合法权益……根据宪法，制定本法。",
        "Die Würde des Menschen ist unantastbar. Sie zu achten ist Verpflichtung aller Gewalt.",
        "สัญญาเกิดขึ้นเมื่อคำเสนอและคำสนองตรงกัน ทั้งสองฝ่ายต้องปฏิบัติตาม",
        "# Heading\n\n" + ENGLISH + "\n\n----------------------------------------\n\n" + CHINESE,
    ],
)
def test_what_is_text_stays(text):
    assert low_quality(text) is None


def test_shares_are_counted():
    assert low_quality("a 1 2 3 4 5 6 7", CleanSection(min_word_ratio=0)) is None
    found = low_quality("abc def ghi 4 5 6")
    assert found == ("symbols", "words with a letter 0.50 < 0.80")
    assert low_quality("abc def ghi 4 5 6", CleanSection(min_word_ratio=0.5)) is None
    found = low_quality(f"\ufffd{'ab ' * 60}c")
    assert found == ("broken", "broken or control characters 0.005 > 0.005")
    assert (
        low_quality(
            f"\ufffd{'ab ' * 60}c", CleanSection(max_broken_ratio=0.006, max_repeated_ratio=1)
        )
        is None
    )
    assert low_quality("one\ttwo\r\nthree\f", CleanSection(max_broken_ratio=0)) is None
    words = " ".join(["word"] * 20)
    assert low_quality(f"{words} # … word", CleanSection(max_repeated_ratio=1)) is None
    found = low_quality(f"{words} # … ... word", CleanSection(max_repeated_ratio=1))
    assert found == ("symbols", "# and ellipses to words 0.12 > 0.10")


@given(st.text(max_size=200))
def test_any_text_is_judged_and_no_limit_keeps_it(text):
    found = low_quality(text)
    assert found is None or found[0] in {"broken", "symbols", "repetition"}
    assert low_quality(text, OFF) is None


def test_a_share_that_is_none_is_refused():
    with pytest.raises(UserError, match="min_word_ratio is 80; expected a number from 0 to 1"):
        validate_table(CleanSection, {"min_word_ratio": 80}, "a test")


@pytest.mark.full
@pytest.mark.skipif(
    not (data_folder() / "zh-law-statutes").is_dir(), reason="LAYERLAB_DATA holds no statutes"
)
def test_statutes_and_articles_lose_nothing():
    draw = random.Random(0)
    for name in ("law-zh", "wiki-zh"):
        documents: list[str] = []
        for text, first in open_source(Source(text=name)).pieces():
            documents += [text] if first else []
            documents[-1] += "" if first else text
        chosen = draw.sample(documents, 40)
        assert not [why for one in chosen if len(one) > 50 and (why := low_quality(one))]
