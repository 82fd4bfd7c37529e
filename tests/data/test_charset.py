"""The encoding of a file that is not UTF-8 is guessed from what its bytes decode to."""

import gzip

import pytest

from layerlab import UserError
from layerlab.data.charset import advise_conversion, guess_charset
from layerlab.data.text_files import read_text_blocks
from layerlab.evaluation.benchmarks.files import BenchmarkFile
from layerlab.evaluation.benchmarks.readers import decode_text
from layerlab.loading.text_input import read_file
from tests.support.refused import refuses

SIMPLE = "第一条　为了保护民事主体的合法权益，调整民事关系，维护社会和经济秩序，制定本法。"
FULL = "天文學是一門自然科學，它運用數學、物理和化學等方法來解釋宇宙間的天體。"
GERMAN = "Die Würde des Menschen ist unantastbar; sie zu schützen ist Verpflichtung für alle: ß, é."
FRENCH = "Le présent code a été approuvé; l'été dernier, à côté, où naître était déjà réglé."


@pytest.mark.parametrize(
    ("text", "written", "found"),
    [
        (SIMPLE, "gb18030", "gb18030"),
        (f"id,Question\n0,{SIMPLE},A", "gbk", "gb18030"),
        (f"Article 1 of the Civil Code: {SIMPLE[:3]}", "gb2312", "gb18030"),
        (FULL, "big5", "big5"),
        (SIMPLE, "utf-16", "utf-16"),
        (GERMAN, "utf-16", "utf-16"),
        (GERMAN, "utf-16-le", "utf-16"),
        (GERMAN, "latin1", "latin1"),
        (FRENCH, "latin1", "latin1"),
        (SIMPLE, "utf-32", "utf-32"),
        (SIMPLE, "utf-32-le", "utf-32"),
        (GERMAN, "utf-32-be", "utf-32"),
        ("Angeklagte Müller", "latin1", "latin1"),
        ("« L’été – déjà… », dit-elle.", "cp1252", "cp1252"),
    ],
)
def test_what_was_written_is_guessed(text, written, found):
    data = text.encode(written)
    assert guess_charset(data) == found
    assert guess_charset(data * 9 + data[:-1]) == found
    with pytest.raises(UnicodeDecodeError) as error:
        data.decode()
    said = advise_conversion(error.value, "law.txt")
    assert said.startswith("it is probably ")
    assert said.endswith(f": type: iconv -f {found} -t utf-8 law.txt > NEW")


def test_a_broken_byte_does_not_make_another_encoding():
    data = SIMPLE.encode() + b"\xff" + SIMPLE.encode()
    with pytest.raises(UnicodeDecodeError) as error:
        data.decode()
    assert "it is UTF-8 with broken bytes" in advise_conversion(error.value)
    assert "iconv -c -f utf-8 -t utf-8 FILE" in advise_conversion(error.value)


@pytest.mark.parametrize("data", [FULL.encode()[:-1], FULL.encode()[-6:-1], b"to be \xed\xa0\x80."])
def test_a_cut_end_or_a_lone_surrogate_does_not_either(data):
    assert guess_charset(data) == "utf-8"


JAPANESE = "メロスは激怒した。必ず、かの邪智暴虐の王を除かなければならぬと決意した。"


@pytest.mark.parametrize(
    "data",
    [
        JAPANESE.encode("shift_jis"),
        SIMPLE.encode("utf-16-le"),
        "Все счастливые семьи похожи друг на друга".encode("cp1251"),
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3,
    ],
)
def test_what_bytes_do_not_tell_is_not_guessed(data):
    """Latin 1 would decode them, to what nobody has written."""
    assert guess_charset(data) == ""
    with pytest.raises(UnicodeDecodeError) as error:
        data.decode()
    said = advise_conversion(error.value, "law.txt")
    assert said.startswith("it is in another encoding, or no text; ")
    assert said.endswith(": iconv -f NAME -t utf-8 law.txt > NEW")


def test_the_line_of_the_first_byte_decides_and_a_packed_file_is_unpacked():
    """What stood before may cut a character of two bytes in halves."""
    data = b"\xc4\xa3\n" * 3 + SIMPLE.encode("gb18030")
    with pytest.raises(UnicodeDecodeError) as error:
        data.decode()
    said = advise_conversion(error.value, "law.txt.gz")
    assert said.endswith("gunzip -c law.txt.gz | iconv -f gb18030 -t utf-8 > NEW")
    said = advise_conversion(error.value, "law.txt.zst")
    assert said.endswith("zstd -dc law.txt.zst | iconv -f gb18030 -t utf-8 > NEW")


@pytest.mark.parametrize("mark", [b"", b"\xff\xfe"])
def test_utf_16_is_refused_with_its_mark_and_without(tmp_path, mark):
    """Without a mark its English is UTF-8 that is full of zeros, which nobody has written."""
    data = mark + "To be, or not to be: that is the question.\n".encode("utf-16-le") * 9
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    for path in (plain, packed):
        refuses("is not UTF-8 text; it is probably UTF-16: type: ", list, read_text_blocks(path))
    with pytest.raises(UserError, match="is not UTF-8 text; it is probably UTF-16: type: "):
        decode_text(BenchmarkFile("a.jsonl", data))
    refuses("byte 0 is not UTF-8 text", read_file, str(plain))


def test_a_text_whose_end_was_never_written_is_refused(tmp_path):
    """Its zeros would be read as characters, which are learned in no time."""
    path = tmp_path / "half.txt"
    for lines in (5, 2000, 9000):
        path.write_bytes(b"A text of some words.\n" * lines + bytes(150_000))
        said = f"byte {22 * lines} is not UTF-8 text; from there on its bytes are zero: the file is"
        refuses(said, list, read_text_blocks(path))
    path.write_bytes(b"A text of some words, and \0 one.\n" * 9000)
    assert "".join(read_text_blocks(path)).count("\0") == 9000
