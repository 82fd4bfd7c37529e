"""Guess the encoding of a file that is not UTF-8, and say what to type."""

import codecs
import re
import shlex
from pathlib import PurePath

# Enough to tell, from the line with the first byte that is no UTF-8.
SAMPLE = 1 << 16
UNPACK = {".gz": "gunzip -c", ".zst": "zstd -dc"}
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
_NAMES = {
    **{"gb18030": "GB 18030", "big5": "Big5", "utf-16": "UTF-16", "utf-32": "UTF-32"},
    **{"latin1": "Latin 1", "cp1252": "Windows 1252"},
}
# What no text in Latin 1 has, and what Windows has in the place of some: quotes, dashes, dots.
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_MARKS = b"\x80\x85\x91\x92\x93\x94\x95\x96\x97\x99"
# Share of letters beyond ASCII that no language written in Latin letters has.
FOREIGN = 0.25


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
    unpack = UNPACK.get(PurePath(file.rstrip("'")).suffix)
    given, source = (f"{unpack} {file} | ", "") if unpack else ("", f" {file}")
    if found == "utf-8":
        return (
            "it is UTF-8 with broken bytes, which this leaves out: type: "
            f"{given}iconv -c -f utf-8 -t utf-8{source} > NEW"
        )
    if not found:
        return (
            "it is in another encoding, or no text; if it is one, type, with the name of its "
            f"encoding (iconv -l lists them): {given}iconv -f NAME -t utf-8{source} > NEW"
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
    """Guess the encoding that bytes are probably in; "" where they tell of none.

    UTF-16 begins with its mark, or has a zero in many of its bytes; UTF-32 has them side by side.
    Text whose characters beyond ASCII mostly are UTF-8 is that, with a few broken. GB 18030 and
    Big5 decode nearly anything of two bytes; what tells them is that most of what they decode to
    is in frequent use. Latin 1 decodes everything: its few accents stand among plain letters.
    """
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) or _has_zero_pairs(data):
        return "utf-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _has_zeros(data):
        return "utf-16"
    if _is_broken_utf8(data):
        return "utf-8"
    shares = {name: _share(data, name) for name in _FREQUENT}
    best = max(shares, key=lambda name: shares[name])
    if shares[best] > MOST:
        return best
    plain = data.translate(None, delete=_MARKS)
    beyond = sum(byte > 127 for byte in plain)
    if _CONTROLS.search(plain) or beyond > max(1, FOREIGN * len(plain)):
        return ""
    return "latin1" if len(plain) == len(data) else "cp1252"


def _has_zero_pairs(data: bytes) -> bool:
    """Return whether two bytes side by side of every four are zero, or three."""
    zero = [data[place::4].count(0) > 0.9 * len(data[place::4]) for place in range(4)]
    return len(data) >= LEAST and any(zero[place - 1] and zero[place] for place in range(4))


def _is_broken_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8 but for a few, for lone surrogates, or for a cut end."""
    wide = [one for one in data.decode("utf-8", "replace") if ord(one) > 127]
    if wide and wide.count("\ufffd") < MOST * len(wide) / 2:
        return True
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    try:
        text = decoder.decode(data)
    except UnicodeDecodeError:
        return False
    # One byte that is cut off may be an accent of Latin 1 as well.
    return len(decoder.getstate()[0]) > 1 or any(ord(one) > 127 for one in text)


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
