"""What a file that is not UTF-8 is probably written in, for the line that says what to type."""

import shlex
from pathlib import PurePath

# Enough to tell, from the line with the first byte that is no UTF-8.
SAMPLE = 1 << 16
# How those that are told apart are called in Python, by iconv, and by people.
_CHARSETS = {
    "utf_16": ("utf-16", "UTF-16"),
    "utf_16_le": ("utf-16", "UTF-16"),
    "utf_16_be": ("utf-16", "UTF-16"),
    "gb18030": ("gb18030", "GB 18030"),
    "big5": ("big5", "Big5"),
    "latin_1": ("latin1", "Latin 1"),
}
_NAMES = dict(_CHARSETS.values())


def advise_conversion(error: UnicodeDecodeError, file: str = "FILE") -> str:
    """Advise on what a file is, and what to type, where it was read as UTF-8 and is none.

    Args:
        error: with the bytes that could not be decoded.
        file: how the file is called on the command line.

    Example:
        >>> try:
        ...     "第一条 为了保护民事主体的合法权益，制定本法。".encode("gb18030").decode()
        ... except UnicodeDecodeError as error:
        ...     print(advise_conversion(error))
        it is probably GB 18030: type: iconv -f gb18030 -t utf-8 FILE > NEW
    """
    data, file = bytes(error.object), shlex.quote(file)
    begin = data.rfind(b"\n", 0, error.start) + 1
    found = guess_charset(data[begin : begin + SAMPLE])
    packed = PurePath(file.rstrip("'")).suffix == ".gz"
    given, source = (f"gunzip -c {file} | ", "") if packed else ("", f" {file}")
    if found == "utf-8":
        return (
            "it is UTF-8 with broken bytes, which this leaves out: type: "
            f"{given}iconv -c -f utf-8 -t utf-8{source} > NEW"
        )
    return f"it is probably {_NAMES[found]}: type: {given}iconv -f {found} -t utf-8{source} > NEW"


def guess_charset(data: bytes) -> str:
    """Guess the encoding that bytes are probably in: utf-8, utf-16, gb18030, big5, or else latin1.

    Text whose characters beyond ASCII mostly are UTF-8 is that, with a few broken; the others are
    told apart by charset-normalizer.
    """
    from charset_normalizer import from_bytes

    wide = [one for one in data.decode("utf-8", "replace") if ord(one) > 127]
    if wide and wide.count("\ufffd") < len(wide) / 4 and 0 not in data:
        return "utf-8"
    for cut in range(4):  # the last character may be cut
        best = from_bytes(data[: len(data) - cut], cp_isolation=[*_CHARSETS]).best()
        if best is not None:
            return _CHARSETS[best.encoding][0]
    return "latin1"
