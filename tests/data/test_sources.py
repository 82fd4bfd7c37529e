"""Sources: their documents come out as they are, and whatever is wrong is said in one line."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.data import text_files
from layerlab.data.sources import open_source, rows, to_source
from layerlab.data.text_files import READ
from layerlab.data.text_files import read_lines as split
from layerlab.recipes.training_sections import Source
from tests.support.refused import refusal, refuses


def documents(given: Source) -> list[str]:
    found: list[str] = []
    for text, first in open_source(given).pieces():
        if first:
            found.append(text)
        else:
            found[-1] += text
    return found


def lines(path: Path, *rows: object) -> Source:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(text=str(path))


def refused(given: Source, *said: str) -> None:
    line = refusal(documents, given)
    assert all(one in line for one in said), line


def test_the_documentation_of_python_is_on_every_machine():
    found = documents(Source())
    assert len(found) > 50 and sum(map(len, found)) > 300_000
    assert any("compound statement" in text for text in found)


def test_brown_is_read_where_it_is(data):
    found = documents(Source(text="brown"))
    assert len(found) == 500 and found[0].startswith("The Fulton County Grand Jury")
    assert open_source(Source(text="brown")).notes == ()


def test_where_brown_is_absent_another_text_is_read_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    found = open_source(Source(text="brown"))
    assert found.name == "python-docs" and found.identity == open_source(Source()).identity
    assert "brown is not here" in found.notes[0] and "python-docs is read" in found.notes[0]


def test_a_brown_of_ones_own_is_found_through_the_environment(tmp_path, monkeypatch):
    (tmp_path / "brown").mkdir()
    with gzip.open(tmp_path / "brown" / "brown.txt.gz", "wt") as file:
        file.write("\n\nOne .\nTwo .\n\n\nThree .")
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    assert documents(Source(text="brown")) == ["One .\nTwo .\n", "Three ."]


def test_a_file_is_one_document_whatever_ends_its_lines(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffä\r\nb\rc\n\nd".encode())
    assert documents(Source(text=str(file))) == ["ä\nb\nc\n\nd"]


def test_a_long_file_comes_in_pieces_and_no_character_is_lost(tmp_path):
    file, text = tmp_path / "a.md", ("€\r\n" * READ)[: READ + 5] + "end"
    file.write_text(text, newline="")
    pieces = list(open_source(Source(text=str(file))).pieces())
    assert len(pieces) >= 2 and [piece.first for piece in pieces] == [True] + [False] * (
        len(pieces) - 1
    )
    assert "".join(piece.text for piece in pieces) == text.replace("\r\n", "\n").replace("\r", "\n")


def test_a_folder_is_all_its_texts_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.txt").write_text("first")
    with gzip.open(tmp_path / "c.md.gz", "wt") as file:
        file.write("second")
    lines(tmp_path / "d.jsonl", {"text": "third"}, {"text": "fourth"})
    (tmp_path / "e.png").write_bytes(b"\x89")
    assert documents(Source(text=str(tmp_path))) == ["first", "second", "third", "fourth"]


def pack(text: str, file: Path) -> str:
    with pyarrow.CompressedOutputStream(str(file), "zstd") as stream:
        stream.write(text.encode())
    return str(file)


def test_large_collections_are_read_as_they_are_packed(tmp_path, monkeypatch):
    both = '{"text": "一"}\n{"text": "two"}\n'
    (tmp_path / "c4.json.gz").write_bytes(gzip.compress(both.encode()))
    named = pack(both, tmp_path / "pile.jsonl.zst")
    (tmp_path / "pile.jsonl.gz").write_bytes(gzip.compress(both.encode()))
    # Files of several frames are made by joining others.
    frame = Path(pack("a b\n", tmp_path / "z.txt.zst"))
    frame.write_bytes(frame.read_bytes() * 2)
    found = open_source(Source(text=str(tmp_path)))
    assert [one.text for one in found.pieces()] == ["一", "two", "一", "two", "a b\na b\n"]
    assert found.notes[0].startswith(f"not read in {tmp_path.name}: pile.jsonl.zst; read are")
    assert documents(Source(text=named)) == [row["text"] for _, row in rows(named)] == ["一", "two"]
    whole = Path(named).read_bytes()
    Path(named).write_bytes(whole[:-4])
    refused(Source(text=named), "pile.jsonl.zst is not a whole zstd file (", "copy it anew")
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", "1000")
    refused(Source(text=pack("a" * 2000, tmp_path / "b.txt.zst")), "unpacks to more than 1,000 by")


def test_what_lies_packed_beside_itself_is_read_once_and_named(tmp_path, caplog):
    for number, name in enumerate(("a.jsonl", "b.jsonl")):
        lines(tmp_path / name, {"text": str(number)})
        with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
            file.write((tmp_path / name).read_text())
    (tmp_path / "b.jsonl").unlink()
    found = open_source(Source(text=str(tmp_path)))
    assert [piece.text for piece in found.pieces()] == ["0", "1"]
    (said,) = found.notes
    assert said.startswith(f"not read in {tmp_path.name}: a.jsonl.gz; read are")
    assert [row["text"] for _, row in rows(str(tmp_path))] == ["0", "1"]
    assert ": a.jsonl.gz; read are" in caplog.text


def test_hidden_copies_of_a_text_or_of_rows_are_not_read(tmp_path):
    folder = tmp_path / ".texts"  # what is given is meant, whatever it is called
    for place in (folder, folder / ".ipynb_checkpoints", folder / "a" / ".cache" / "b"):
        place.mkdir(parents=True)
        (place / "one.txt").write_text("one")
        (place / "rows.jsonl").write_text('{"text": "row"}')
    (folder / ".two.txt").write_text("two")
    assert [piece.text for piece in open_source(Source(text=str(folder))).pieces()] == [
        "one",
        "row",
    ]
    assert [row for _, row in rows(str(folder))] == [{"text": "row"}]


def test_tables_give_a_document_a_row(tmp_path):
    rows = {"body": ["one", "zwölf", "", None], "n": [1, 2, 3, 4]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    given = Source(text=str(tmp_path / "a.parquet"), field="body")
    assert documents(given) == ["one", "zwölf", "", ""]
    assert documents(lines(tmp_path / "a.jsonl", {"text": None}, {"text": "b"})) == ["", "b"]
    with gzip.open(tmp_path / "A.JSONL.GZ", "wt") as file:
        file.write('{"text": "a\\r\\nb"}\n\n{"text": "c"}\n')
    assert documents(Source(text=str(tmp_path / "A.JSONL.GZ"))) == ["a\r\nb", "c"]


def test_a_data_set_of_the_hub_is_streamed(tmp_path):
    lines(tmp_path / "train.jsonl", {"text": "one"}, {"text": "two"})
    assert documents(Source(text=f"hf:{tmp_path}")) == ["one", "two"]
    refused(Source(text=f"hf:{tmp_path}", field="body"), "row 1 has no field 'body'", "has text")


def test_a_folder_takes_no_rows_from_outside_of_it(tmp_path):
    (tmp_path / "secret.txt").write_text("a secret")
    place = tmp_path / "leads-outside"
    place.mkdir()
    files = 'configs: [{config_name: default, data_files: [{split: train, path: "../secret.txt"}]}]'
    (place / "README.md").write_text(f"---\n{files}\n---\n")
    refused(Source(text=f"hf:{place}"), "takes its rows from '", "secret.txt', outside of it")


def test_without_a_network_the_hub_is_named_in_one_line():
    said = ("cannot read hf:nobody/nothing from the Hub:", "or give a local file")
    refused(Source(text="hf:nobody/nothing"), *said)


def test_what_is_not_there_is_named(tmp_path):
    refused(Source(text="a/b.txt"), f"nothing lies at {Path.cwd() / 'a' / 'b.txt'}; expected")
    refused(Source(text="~/no.txt"), f"'~/no.txt': nothing lies at {Path.home() / 'no.txt'}; ")
    refused(Source(text="python-doc"), "there is no text 'python-doc'", "did you mean 'python-docs")
    refused(Source(text=str(tmp_path / "a.txt")), "a file, a folder or hf:NAME")
    refused(Source(text=str(tmp_path)), "holds no text; expected files in .txt")
    (tmp_path / "a.pdf").write_text("")
    refused(Source(text=str(tmp_path / "a.pdf")), "is no text that can be read here", ".parquet")


def test_a_missing_field_names_those_there_are(tmp_path):
    given = lines(tmp_path / "a.jsonl", {"text": "a"}, {"body": "b", "id": 1})
    refused(given, "line 2 has no field 'text'; it has body, id; write field = \"body\"")
    pyarrow.parquet.write_table(pyarrow.table({"body": ["b"]}), tmp_path / "a.parquet")
    refused(Source(text=str(tmp_path / "a.parquet")), "has no field 'text'; it has body")


def test_two_columns_of_one_name_are_refused_whichever_a_reader_would_take(tmp_path):
    arrays = [pyarrow.array([name]) for name in ("one", "two", "three")]
    table = pyarrow.Table.from_arrays(arrays, names=["text", "text", "body"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    refused(Source(text=str(tmp_path / "a.parquet")), "a.parquet has two columns called 'text'")
    refuses("has two columns called 'text'; leave one out", list, rows(str(tmp_path / "a.parquet")))
    assert documents(Source(text=str(tmp_path / "a.parquet"), field="body")) == ["three"]


def test_what_a_folder_holds_beside_its_texts_is_named(tmp_path, caplog, monkeypatch):
    home = tmp_path / "texts"
    for name in ("a.txt", "inner/b.json", "c.docx", "d.csv", "README.rst", ".git/x", "LICENSE"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text('[{"text": "one"}]')
    (tmp_path / "more").mkdir()
    (home / "more").symlink_to(tmp_path / "more")
    monkeypatch.chdir(home)
    for name in (str(home), "."):
        (said,) = open_source(Source(text=name)).notes
        assert ": c.docx, d.csv, inner/b.json and 1 more; read are .txt, .md" in said
    assert [row for _, row in rows(str(home))] == [{"text": "one"}]
    (warned,) = caplog.messages
    assert warned.startswith("not read in texts: a.txt, c.docx, d.csv and 1 more; read are .json")
    assert open_source(Source(text=str(home / "a.txt"))).notes == ()


def test_rows_that_hold_no_text_are_named(tmp_path):
    given = lines(tmp_path / "a.jsonl", {"text": 5})
    refused(given, "line 1: the field 'text' is 5; expected a text")
    refused(lines(tmp_path / "a.jsonl", [1]), "line 1 is [1]; expected an object with a field")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": \n')
    refused(given, "line 2 is not JSON", "mend that line")


def test_a_byte_that_is_not_utf8_is_counted(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"x" * (READ - 1) + "€".encode() + b"\r\nab\xff")
    refused(
        Source(text=str(file)),
        f"byte {READ + 6} is not UTF-8 text; it is probably Latin 1",
    )


def test_damaged_files_are_named(tmp_path):
    whole = gzip.compress(b"some text" * 99)
    (tmp_path / "a.txt.gz").write_bytes(whole[:-9])
    refused(Source(text=str(tmp_path / "a.txt.gz")), "is not a whole gzip file; copy it anew")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    refused(Source(text=str(tmp_path / "a.parquet")), "is no Parquet that can be read", "copy it")


def test_rows_are_whole_and_know_their_lines(tmp_path):
    found = [{"a": number, "b": ["x", None]} for number in range(3)]
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps(found, indent=1))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(one) for one in found))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), tmp_path / "c.parquet")
    (tmp_path / "notes.txt").write_text("no rows")
    read = list(rows(str(tmp_path)))
    assert [row for _, row in read] == found * 3
    places = [place.rpartition("/")[2] for place, _ in read]
    assert places[1] == "a.json, line 9" and places[5] == "b.jsonl, line 3"
    assert places[8] == "c.parquet, row 3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1}\n{"a": 2}]', "after the row of line 1 comes neither , nor ]; mend it"),
        ('[{"a": 1}', "after the row of line 1 comes neither , nor ]; mend it"),
        ('[\n{"a": 1},\n{"a" 2}]', "line 3 is not JSON"),
        ("[1]", "line 1 is 1; expected an object"),
        ('[{"a": 1},\n{"a": 2, "a": 3}]', "line 2 is not JSON: it names the key 'a' twice"),
        ('[{"a": 1},', "line 1 is not JSON"),
        ('[{"a": 1},]', "after the row of line 1 comes , and no row"),
        ('[{"a": 1}]\n\n[{"a": 2}]', "more comes in line 3, behind the ] that ends its rows"),
        ('[{"a": 1}]{"a": 2}', "more comes in line 1, behind the ]"),
    ],
)
def test_an_array_that_is_broken_is_named_with_its_line(tmp_path, text, said):
    file = tmp_path / "rows.json"
    file.write_text(text)
    assert said in refusal(list, rows(str(file)))


def test_rows_that_are_not_there_are_asked_for(tmp_path):
    with pytest.raises(UserError, match=r"there is no file or folder .*; expected .json, .jsonl"):
        list(rows(str(tmp_path / "absent")))
    refuses(r"holds no rows that can be read; expected .json", list, rows(str(tmp_path)))


@given(st.text("a\n€", max_size=40), st.integers(1, 9))
def test_lines_are_whole_wherever_a_block_ends(text, block):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerlab.data.text_files.READ", block)
        file = Path(folder) / "a.txt"
        file.write_text(text, "utf-8")
        assert list(split(file)) == text.splitlines(keepends=True)


def test_half_of_a_character_is_no_text_of_a_row(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "\\ud83d"}\n')
    refuses("line 1: it holds half of a surrogate pair", list, rows(str(file)))
    # Of a corpus it is told when it is read in, or removed by `layerlab adapt clean`.
    assert documents(Source(text=str(file))) == ["\ud83d"]


@pytest.mark.parametrize(
    "options",
    [
        {"row_group_size": 70},
        {"dictionary_pagesize_limit": 100, "data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "n": "PLAIN"}},
        {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}},
    ],
)
def test_rows_come_back_as_they_were_written(options, tmp_path):
    """Of conversations in several groups too, as data sets of the Hub have them."""
    texts = [f"number {one}" if one % 3 else None for one in range(200)]
    turns = [[{"role": "user", "content": text}, {"role": "assistant"}] for text in texts]
    table = pyarrow.table({"text": texts, "messages": turns, "n": range(200)})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", **options)
    assert [row for _, row in rows(str(tmp_path / "x.parquet"))] == table.to_pylist()


@pytest.mark.parametrize("name", ["64.parquet", "50000.parquet", "x.jsonl.gz"])
def test_rows_count_however_little_is_written_of_each(name, tmp_path, monkeypatch):
    """Two bits for a word that stands once, or a line feed in gzip, make a row."""
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", "1000000")
    for count, word in ((64, "a" * 100_000), (50_000, "")):
        words = pyarrow.DictionaryArray.from_arrays([0] * count, [word])
        pyarrow.parquet.write_table(pyarrow.table({"text": words}), tmp_path / f"{count}.parquet")
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b"\n" * 50_000))
    with pytest.raises(UserError, match="unpacks to more than 1,000,000 bytes"):
        list(open_source(Source(text=str(tmp_path / name))).pieces())


def test_a_row_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST", 100)
    monkeypatch.setattr(text_files, "READ", 64)
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "a"}\n{"text": "' + "a" * 500 + "\xff" * 9, "latin1")
    # What comes behind, which is no text, is not read any more.
    refused(Source(text=str(file)), "line 2 has more than 100 characters, the most of a row; cut")
    file.write_text('{"text": "' + "a" * 100 + '"}\n')
    refused(Source(text=str(file)), "line 1 has more than 100 characters")


def test_a_folder_read_as_a_data_set_is_known_by_its_files(tmp_path, monkeypatch):
    found = []
    for name, word in (("a", "apple"), ("b", "steel"), ("c", "apple")):
        folder = tmp_path / name / "data"
        folder.mkdir(parents=True)
        (folder / "train.jsonl").write_text(json.dumps({"text": word}))
        monkeypatch.chdir(tmp_path / name)
        found.append(open_source(to_source("hf:data")).identity)
    assert found[0] == found[2] != found[1]


def test_a_data_set_of_the_hub_is_known_and_read_by_its_commit(tmp_path, monkeypatch):
    commits, read = iter(("a" * 40, "b" * 40)), []
    kept: dict[str, str] = {}

    def download(name: str, file: str, repo_type: str) -> str:
        assert repo_type == "dataset"
        if file == "README.md" and name == "own/none":
            raise OSError("no such name")
        if file == ".gitattributes":  # deleted, or never there
            raise OSError("no such file")
        return str(tmp_path / kept.setdefault(name, next(commits)) / file)

    def load(name: str, subset: str | None, **options: Any) -> list[dict[str, str]]:
        read.append((name, options["revision"]))
        return [{"text": "one"}]

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("datasets.load_dataset", load)
    found = [open_source(to_source(f"hf:own/{name}")) for name in ("rows", "others", "none")]
    assert [one.identity for one in found] == [
        f"hf:own/rows@{'a' * 40} [None, 'train', 'text']",
        f"hf:own/others@{'b' * 40} [None, 'train', 'text']",
        "hf:own/none [None, 'train', 'text']",  # as 0.1 knew all
    ]
    assert [[one.text for one in text.pieces()] for text in found] == [["one"]] * 3
    assert read == [("own/rows", "a" * 40), ("own/others", "b" * 40), ("own/none", None)]
    # Shards, which are written over days, name their runs by it.
    assert open_source(to_source("hf:own/rows"), full=False).identity.startswith("hf:own/rows [")


@pytest.mark.parametrize("name", ["text", "pandas", "json"])
def test_a_reader_of_files_is_no_data_set(name):
    assert "give the file or folder itself" in refuses(
        "names a reader of files", list, open_source(to_source(f"hf:{name}")).pieces()
    )
