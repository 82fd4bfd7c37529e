"""Chinese numerals up to 9999, and texts in which they stand as digits."""

import re

_DIGITS = {
    character: value
    for value, characters in enumerate(
        ("零〇", "一壹幺", "二贰两", "三叁", "四肆", "五伍", "六陆", "七柒", "八捌", "九玖")
    )
    for character in characters
}
_UNITS = {"十": 10, "拾": 10, "百": 100, "佰": 100, "千": 1000, "仟": 1000}
_ANY = "".join({**_DIGITS, **_UNITS})
# A lone one of these is a name or a word, unless something is counted by it.
_LONE = "两壹贰叁肆伍陆柒捌玖"
_COUNTED = "年月日个天条项款元角分名次"
_NUMERAL = re.compile(f"[{_ANY}]+")


def numeral(text: str) -> int | None:
    """Return the value of a Chinese numeral, or None where the text is none.

    Positional ones (一百三十三), those read digit by digit (二〇一六), and spoken ones that
    leave out their last unit (三百五, 350).

    Example:
        >>> numeral("二百六十四"), numeral("十二"), numeral("一千零一"), numeral("百百")
        (264, 12, 1001, None)
    """
    if not text or any(one not in _ANY for one in text):
        return None
    if all(one in _DIGITS for one in text):
        return int("".join(str(_DIGITS[one]) for one in text[:4000]))
    return _positional(text)


def _positional(text: str) -> int | None:
    total, digit, last, skipped = 0, None, 10_000, False
    for one in text:
        if one in _DIGITS and _DIGITS[one] == 0:
            if digit is not None or skipped or last == 10_000:
                return None
            skipped = True
        elif one in _DIGITS:
            if digit is not None:
                return None
            digit = _DIGITS[one]
        else:
            unit = _UNITS[one]
            if unit >= last or (digit is None and unit != 10):
                return None
            total += (1 if digit is None else digit) * unit
            digit, last, skipped = None, unit, False
    if digit is None:
        return None if skipped else total
    return total + digit * (1 if skipped else last // 10)


def with_digits(text: str) -> str:
    """Rewrite the Chinese numerals of a text, up to 9999, in digits.

    What cannot be read as a numeral stays, and so does a lone 两 or formal digit (陆) that counts
    nothing: it is a word, or a name.

    Source: fei23, whose scores of articles and terms are taken after such a rewriting.
    Differs: decimal points, fractions, halves and units from 万 up are left as they are.

    Example:
        >>> with_digits("第二百六十四条，三年六个月，两人")
        '第264条，3年6个月，两人'
    """
    return _NUMERAL.sub(_replace, text.replace("廿", "二十"))


def _replace(found: re.Match[str]) -> str:
    written = found[0]
    after = found.string[found.end() : found.end() + 1]
    if len(written) == 1 and written in _LONE and (not after or after not in _COUNTED):
        return written
    value = numeral(written)
    return written if value is None else str(value)
