"""Rows of benchmark files: every cell a string, every fault one line with its place."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.benchmarks.files import BenchmarkFile, is_here
from layerlab.evaluation.benchmarks.readers import (
    of_headless_table,
    of_labelled_lines,
    of_lines,
    of_list,
    of_parallel_lines,
    of_table,
    read_rows,
)
from tests.support.refused import refusal, refuses

HEAD = ["id", "Question", "A", "B", "C", "D", " Answer "]


def file(text: str | bytes, name: str = "x.csv") -> BenchmarkFile:
    return BenchmarkFile(name, text if isinstance(text, bytes) else text.encode())


def written(*records: list[str], ending: str = "\r\n") -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator=ending).writerows(records)
    return stream.getvalue()


# csv reads a lone carriage return as the end of a line; an empty line is no record.
cell = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=12)


@given(st.lists(st.lists(cell, min_size=7, max_size=7), min_size=1, max_size=4), st.booleans())
def test_every_cell_comes_back_as_it_was_written(records, bom):
    text = written(HEAD, *records)
    found = list(of_table(file(("\ufeff" if bom else "") + text)))
    assert [list(row.cells.values()) for row in found] == records
    names = [name.strip().lower() for name in HEAD]
    assert [list(row.cells) for row in found] == [names] * len(records)


@pytest.mark.parametrize(
    "value",
    [
        "01",
        "1.50",
        "NA",
        "None",
        "null",
        "",
        "1e5",
        "真",
        '"',
        "a\nb",
        pytest.param("长" * 140_000, id="long"),
    ],
)
def test_nothing_is_guessed(value):
    (row,) = of_table(file(written(HEAD, ["0", "q", value, "b", "c", "d", "A"])))
    assert row.cells["a"] == value
    (row,) = of_headless_table(file(written(["q", value, "b", "c", "d", "A"])))
    assert row.cells["a"] == value


def test_numbers_of_json_stay_as_they_are_written():
    text = '{"a": 1.50, "b": 10, "c": true, "d": null, "e": ["x", 2.0], "f": {"g": 1}, "H": "01"}'
    (row,) = of_lines(file(text))
    assert row.cells == {
        **{"a": "1.50", "b": "10", "c": "true", "d": "", "e": ["x", "2.0"]},
        **{"f": {"g": "1"}, "h": "01"},
    }


def test_a_place_is_the_line_where_a_row_begins():
    table = written(HEAD, ["0", "two\nlines", *"abcdA"], ["1", "q", *"abcdB"], ending="\n")
    assert [row.location for row in of_table(file(table))] == ["x.csv, line 2", "x.csv, line 4"]
    assert [row.location for row in of_lines(file('{"a": 1}\n\n{"a": 2}\n'))] == [
        *("x.csv, line 1", "x.csv, line 3")
    ]
    assert [row.location for row in of_list(file('[{"a": 1}]'))] == ["x.csv, item 1"]


def test_labels_and_summaries_stand_in_a_second_file():
    found = list(of_labelled_lines(file('{"goal": "g"}\n'), file("1\n", "y.lst")))
    assert found[0].cells == {"goal": "g", "label": "1"}
    found = list(of_parallel_lines(file("长文\n又一\n"), file("短\n二\n", "y.txt")))
    assert [row.cells["summary"] for row in found] == ["短", "二"]


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (
            of_table,
            written(["id", "question", "A", "B"], ["0", "q", "a", "b"]),
            "x.csv, line 1: the columns are 'id, question, A, B'; "
            "expected question, A, B, C, D and answer",
        ),
        (
            of_table,
            written(HEAD, ["0", "q", *"abcd"]),
            "x.csv, line 2 has 6 cells; expected 7: mend that line",
        ),
        (of_headless_table, "q,a,b,c,d\n", "x.csv, line 1 has 5 cells; expected 6: mend that line"),
        (
            of_table,
            ",".join(HEAD) + '\n0,"never closed,a,b,c,d,A\n',
            "x.csv, line 2 is no row of a table: unexpected end of data; mend its quotes",
        ),
        (
            of_table,
            "问题,A".encode("gb18030"),
            "x.csv, line 1 is not UTF-8 text; it is probably GB 18030: type: iconv -f gb18030",
        ),
        (
            of_lines,
            '{"a": 1}\n{"a": \n',
            "x.csv, line 2 is not JSON: Expecting value; mend that line",
        ),
        (
            of_table,
            written([*HEAD, "A"], ["0", "q", *"abcdAx"]),
            "x.csv, line 1 has two columns called 'a'; leave one out",
        ),
        (of_lines, '{"a": 1, "A": 2}', "x.csv, line 1 has two columns called 'a'"),
        (of_lines, '{"a": 1, "a": 2}', "x.csv, line 1 is not JSON: it names the key 'a' twice"),
        (of_lines, "[1]\n", "x.csv, line 1 is ['1']; expected an object"),
        (of_list, '{"a": 1}', "x.csv is {'a': '1'}; expected a list of objects"),
        (of_list, "[" * 100_000 + "]" * 100_000, "x.csv is not JSON: it is nested too deeply"),
        (of_list, "[{]", "x.csv is not JSON: Expecting property name enclosed in double quotes"),
    ],
)
def test_a_fault_is_one_line_with_its_place(read, text, said):
    assert refusal(list, read(file(text))).startswith(said)


def test_two_files_must_have_as_many_rows():
    with pytest.raises(
        UserError, match=r"x.csv has 1 rows and y.lst has 2; expected as many: copy"
    ):
        list(of_labelled_lines(file('{"a": 1}\n'), file("0\n1\n", "y.lst")))


def test_a_row_says_what_it_lacks():
    (row,) = of_lines(file('{"a": "x", "b": ["y"]}'))
    assert row.text("z", "a") == "x"
    assert row.texts("a") == ["x"]
    refuses(r"x.csv, line 1 has no 'z' or 'w'; it has a, b: mend that", row.text, "z", "w")
    refuses(r"x.csv, line 1: 'b' is \['y'\]; expected a text", row.text, "b")


def test_a_file_without_rows_is_told(tmp_path):
    path = tmp_path / "superglue" / "BoolQ" / "val.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n")
    boolq = find_benchmark("boolq")
    with pytest.raises(UserError, match=r"val.jsonl holds no rows; copy it anew"):
        read_rows(boolq, boolq.subjects[0], "val", tmp_path)


COUNTS = {
    **{("ceval", "dev"): 260, ("ceval", "val"): 1346, ("ceval", "test"): 12342},
    **{("cmmlu", "dev"): 335, ("cmmlu", "test"): 11582},
    **{("mmlu", "dev"): 285, ("mmlu", "val"): 1531, ("mmlu", "test"): 14042},
    **{("agieval", "test"): 8269, ("boolq", "val"): 3270, ("ax-b", "test"): 1104},
    **{("piqa", "valid"): 1838, ("financeiq", "dev"): 50, ("financeiq", "test"): 7123},
    **{("fineval", "dev"): 170, ("fineval", "val"): 1151, ("fineval", "test"): 3340},
    **{("lawbench", "zero_shot"): 10000, ("lawbench", "one_shot"): 10000},
}


@pytest.mark.few(6)
@pytest.mark.parametrize(("name", "split"), COUNTS)
def test_published_files_have_the_published_number_of_rows(data, name, split):
    benchmark = BENCHMARKS[name]
    if not is_here(benchmark, data):
        pytest.skip(f"no shared data: {benchmark.title} is not among them")
    found = [read_rows(benchmark, subject, split, data) for subject in benchmark.subjects]
    assert sum(map(len, found)) == COUNTS[name, split]
    every = [value for part in found for row in part for value in row.cells.values()]
    assert all(isinstance(one, str | list | dict) for one in every)


def test_a_published_option_that_looks_like_a_number_stays_text(data):
    benchmark = find_benchmark("financeiq")
    if not is_here(benchmark, data):
        pytest.skip("no shared data: FinanceIQ is not among them")
    found = [row for part in benchmark.subjects for row in read_rows(benchmark, part, "test", data)]
    options = {row.text(letter) for row in found for letter in "abcd"}
    numbers = {one for one in options if re.fullmatch(r"[0-9]+(\.[0-9]+)?", one)}
    assert any(one not in {str(float(one)), str(int(float(one)))} for one in numbers)
