import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.metrics.chinese_numerals import numeral, with_digits

SOME = settings(max_examples=50, deadline=None)

DIGITS = "零一二三四五六七八九"
FORMAL = str.maketrans(f"{DIGITS}十百千", "〇壹贰叁肆伍陆柒捌玖拾佰仟")
SPOKEN = str.maketrans("一二", "幺两")


def written(number: int) -> str:
    """A number up to 9999 as it is written in full."""
    if number == 0:
        return "零"
    text, skipped = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // unit % 10
        if digit:
            text += "零" * (skipped and bool(text)) + DIGITS[digit] + name
        skipped = not digit
    return text


@pytest.mark.parametrize("start", range(0, 10_000, 2500))
def test_every_number_to_9999(start):
    for number in range(start, start + 2500):
        text = written(number)
        for one in (text, text.translate(FORMAL), text.translate(SPOKEN)):
            assert numeral(one) == number, one
        if 10 <= number < 20:  # spoken without its one
            assert numeral(text.removeprefix("一")) == number
        if number > 99 and number % 100 and number % 10 == 0 and "零" not in text:
            assert numeral(text.removesuffix("十")) == number, "the last unit left unsaid"
        assert numeral("".join(DIGITS[int(one)] for one in str(number))) == number
        assert with_digits(f"第{text}条") == f"第{number}条"


@pytest.mark.parametrize(
    "text", ["", "百", "百百", "十百", "二十三十", "三千零", "一百零", "零三百"]
)
def test_what_is_no_numeral(text):
    assert numeral(text) is None
    assert with_digits(text) == text


@SOME
@given(st.text(alphabet="零一二两三十百千廿条年月陆某判", max_size=12))
def test_any_text_is_rewritten_once(text):
    assert with_digits(with_digits(text)) == with_digits(text)


def test_names_and_words_stay():
    assert with_digits("陆某、两人共同") == "陆某、两人共同"
    assert with_digits("两年，陆个月，贰佰元") == "2年，6个月，200元"
    assert with_digits("廿三条") == "23条"
    assert with_digits("２64条") == "２64条"
