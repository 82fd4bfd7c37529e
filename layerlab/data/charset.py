"""What a file that is not UTF-8 is probably written in, for the line that says what to type."""

import codecs
import re
import shlex
from pathlib import PurePath

# Enough to tell, from the line with the first byte that is no UTF-8.
SAMPLE = 1 << 16
LEAST = 16  # bytes of a part that is looked at
# Share of bytes that are zero in what was never written.
EMPTY = 0.75
# Share of the characters beyond ASCII that have to be frequent ones of the encoding that is tried.
MOST = 0.5
# Of the two encodings of Chinese, the bytes of their marks and of their frequent characters, the
# first levels of GB 2312 and Big5; other bytes decode too, to what is hardly ever written.
_FREQUENT = {
    "gb18030": re.compile(rb"[\xa1-\xa3\xb0-\xd7][\xa1-\xfe]"),
    "big5": re.compile(rb"[\xa1-\xa3\xa4-\xc6][\x40-\x7e\xa1-\xfe]"),
}
_NAMES = {"gb18030": "GB 18030", "big5": "Big5", "utf-16": "UTF-16", "latin1": "Latin 1"}


def advise_conversion(error: UnicodeDecodeError, file: str = "FILE") -> str:
    """Say what encoding a file has, and what to type, where it cannot be read as UTF-8.

    Args:
        error: with the bytes that could not be decoded.
        file: how the file is called on the command line.

    Example:
        >>> try:
        ...     "民法典".encode("gb18030").decode()
        ... except UnicodeDecodeError as error:
        ...     print(advise_conversion(error))
        it is probably GB 18030: type: iconv -f gb18030 -t utf-8 FILE > NEW
    """
    data, file = bytes(error.object), shlex.quote(file)
    begin = data.rfind(b"\n", 0, error.start) + 1
    rest = data[error.start : error.start + SAMPLE]
    if rest.count(0) > EMPTY * len(rest):
        return "from there on its bytes are zero: the file is damaged; copy it again"
    found = guess_charset(data[begin : begin + SAMPLE])
    packed = PurePath(file.rstrip("'")).suffix == ".gz"
    given, source = (f"gunzip -c {file} | ", "") if packed else ("", f" {file}")
    if found == "utf-8":
        return (
            "it is UTF-8 with broken bytes, which this leaves out: type: "
            f"{given}iconv -c -f utf-8 -t utf-8{source} > NEW"
        )
    return f"it is probably {_NAMES[found]}: type: {given}iconv -f {found} -t utf-8{source} > NEW"


def refuse_zeros(data: bytes) -> bytes:
    r"""Return bytes of a text, unless so many of a part are zero that it is no UTF-8.

    UTF-16 without a mark is, of letters of English, UTF-8 that is full of zeros; so is the end of a
    file whose copying was cut off on some file systems.

    Raises:
        UnicodeDecodeError: they are; it names the first byte.

    Example:
        >>> refuse_zeros(b"to be") == b"to be"
        True
    """
    for start in range(0, len(data) if 0 in data else 0, SAMPLE):
        part = data[start : start + SAMPLE]
        if len(part) >= LEAST and _has_zeros(part):
            written = len(part.rstrip(b"\0"))
            first = start + (written if written < len(part) - LEAST else 0)
            raise UnicodeDecodeError("utf-8", data, first, first + 1, "many bytes are zero")
    return data


def _has_zeros(data: bytes) -> bool:
    return data.count(0) > len(data) / 4


def guess_charset(data: bytes) -> str:
    """Guess the encoding that bytes are probably in: utf-8, utf-16, gb18030, big5, or else latin1.

    UTF-16 begins with its mark, or has a zero in many of its bytes. Text whose characters beyond
    ASCII mostly are UTF-8 is that, with a few broken. GB 18030 and Big5 decode nearly anything of
    two bytes; what tells them is that most of what they decode to is in frequent use.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or _has_zeros(data):
        return "utf-16"
    wide = [one for one in data.decode("utf-8", "replace") if ord(one) > 127]
    if wide and wide.count("\ufffd") < MOST * len(wide) / 2:
        return "utf-8"
    shares = {name: _share(data, name) for name in _FREQUENT}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > MOST else "latin1"


def _share(data: bytes, name: str) -> float:
    """Return the share of frequent ones among the characters beyond ASCII.

    It is 0 where the bytes do not decode.
    """
    try:  # the last character may be cut
        text = codecs.getincrementaldecoder(name)().decode(data)
    except UnicodeDecodeError:
        return 0.0
    wide = [one.encode(name) for one in text if ord(one) > 127]
    return sum(bool(_FREQUENT[name].fullmatch(one)) for one in wide) / max(1, len(wide))
