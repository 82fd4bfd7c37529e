"""Questions of benchmarks are found in training text, however it is cut."""

import json
import random
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.data.cleaning import benchmark_questions
from layerlab.data.cleaning.benchmark_questions import questions
from layerlab.data.cleaning.contamination import Question, contamination
from layerlab.data.cleaning.ngrams import units
from layerlab.data.places import data_folder
from layerlab.data.sources import TextChunk
from tests.support.refused import refuses

CHINESE = "根据我国反补贴条例以及相关法律法规下列关于此次调查的哪项判断是正确的"
ENGLISH = " ".join(f"word{number}" for number in range(30))
alphabet = st.lists(st.sampled_from([*"abc", "民", "法"]), max_size=60)


def literal(text: list[str], question: list[str], size: int) -> float:
    """The share of a question's units in runs that a text has too, by search."""
    length = min(len(question), size)
    if length < 8:
        return 0.0
    runs = {tuple(text[at : at + length]) for at in range(len(text) - length + 1)}
    covered: set[int] = set()
    for at in range(len(question) - length + 1):
        if tuple(question[at : at + length]) in runs:
            covered.update(range(at, at + length))
    return len(covered) / len(question)


@settings(max_examples=100)
@given(alphabet, st.lists(alphabet, min_size=1, max_size=5, unique_by=tuple), st.integers(8, 13))
def test_it_finds_what_a_search_finds(text, asked, size):
    given_text = " ".join(text)
    given_asked = [("b", str(number), " ".join(one)) for number, one in enumerate(asked)]
    found = contamination([given_text], given_asked, size=size)
    got = {one.id: one.covered for one in found.matches}
    for number, one in enumerate(asked):
        wanted = literal(units(given_text), units(" ".join(one)), size)
        assert got.get(str(number), 0.0) == pytest.approx(wanted)


@given(st.lists(st.integers(1, 200), max_size=8))
def test_how_a_document_is_cut_into_pieces_does_not_matter(cuts):
    document = f"Before. {ENGLISH} after.\n{CHINESE}\nThe end of it"
    pieces, first = [], 0
    for cut in [*sorted({one for one in cuts if one < len(document)}), len(document)]:
        pieces.append(TextChunk(document[first:cut], first == 0))
        first = cut
    asked = [("law", "zh", CHINESE), ("law", "en", ENGLISH), ("law", "no", ENGLISH[::-1])]
    found = contamination([*pieces, TextChunk("another " * 20, True)], asked)
    assert {(one.id, one.covered, one.document) for one in found.matches} == {
        ("zh", 1.0, 1),
        ("en", 1.0, 1),
    }
    assert found.documents == 2


def test_runs_do_not_cross_documents():
    half = len(ENGLISH.split()) // 3
    parts = ENGLISH.split()
    texts = [" ".join(parts[:half]), " ".join(parts[half : 2 * half]), " ".join(parts[2 * half :])]
    assert not contamination(texts, [("law", "1", ENGLISH)]).matches


def test_case_width_and_punctuation_do_not_hide_a_question():
    text = "，".join(CHINESE) + " — " + ENGLISH.upper().replace(" ", ", ")
    found = contamination([text], [("a", "1", CHINESE), ("b", "2", ENGLISH)])
    assert [one.covered for one in found.held] == [1.0, 1.0]
    assert found.benchmarks["a"].held == 1 and found.benchmarks["b"].covered == 1.0


def test_a_part_is_touched_and_not_held():
    asked = ENGLISH + " " + " ".join(f"other{number}" for number in range(30))
    found = contamination([ENGLISH], [("a", "1", asked), ("a", "2", "too short to tell")])
    count = found.benchmarks["a"]
    assert (count.questions, count.short, count.touched, count.held) == (2, 1, 1, 0)
    assert found.matches[0].covered == 0.5 and count.covered == 0.5
    assert found.matches[0].run == " ".join(ENGLISH.split()[:13])
    assert found.table().row_count == 1
    assert json.loads(json.dumps(found.to_dict()))["matches"][0]["document"] == 1


def test_the_wording_that_questions_share_does_not_count():
    frame = "choose the one right answer to this question and write down its letter alone please"
    asked = [("a", str(number), f"{frame} {number} {'x y z ' * 3}{number}") for number in range(12)]
    assert not contamination([frame], asked).matches
    assert len(contamination([frame], asked[:9]).matches) == 9


def test_a_question_that_is_there_whole_is_held_however_much_of_it_others_share():
    frame = " ".join(f"instruction{number}" for number in range(60))
    asked = [
        ("a", str(number), f"{frame} " + " ".join(f"own{number}x{one}" for one in range(15)))
        for number in range(12)
    ]
    found = contamination([asked[3][2], frame], asked)
    assert {one.id: one.covered for one in found.matches} == {"3": 1.0}
    assert found.benchmarks["a"].held == 1
    half = " ".join(asked[3][2].split()[:-13])  # two of its own units, and what leads to them
    assert contamination([half], asked).matches[0].covered == pytest.approx(14 / 27)


def test_a_question_in_many_files_is_no_wording_that_questions_share():
    for copies in (1, 10, 11, 40):
        asked = [(f"b{number}", "1", ENGLISH) for number in range(copies)]
        found = contamination([ENGLISH], asked)
        assert len(found.held) == copies and found.notes == ()
    case = [(f"b{number}", "1", ENGLISH.upper() + "?" * number) for number in range(20)]
    assert len(contamination([ENGLISH], case).held) == 20


def test_what_is_ignored_as_common_is_counted_and_said():
    frame = "choose the one right answer to this question and write down its letter"
    asked = [("a", str(number), f"{frame} {number}") for number in range(11)]
    short = " ".join(frame.split()[:13])
    asked += [("b", "1", short), ("b", "2", ENGLISH)]
    found = contamination([f"{frame} 3 {ENGLISH}"], asked)
    assert [count.common for count in found.benchmarks.values()] == [0, 1]
    assert found.benchmarks["b"].covered == 1.0, "of those that can be told"
    (note,) = found.notes
    assert note.startswith("1 runs stand in more than 10 different questions each")
    assert "12 of 13 questions have some, and 1 have no others and cannot be told" in note
    cells = [[str(cell) for cell in column.cells] for column in found.table().columns]
    assert cells[3] == ["0", "1"]


def test_the_same_question_of_a_benchmark_counts_once_wherever_it_lies(tmp_path):
    """As LawBench's, which keeps each task with an example and without."""
    asked = [" ".join(f"q{n}w{place}" for place in range(12)) for n in range(3)]
    rows = [{"instruction": "Answer.", "question": one} for one in asked]
    for folder, before in (("one_shot", "An example. "), ("zero_shot", "")):
        told = [{**row, "instruction": before + row["instruction"]} for row in rows]
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1-1.json").write_text(json.dumps([*told, told[0]]))
    found = contamination([asked[0]], questions(tmp_path))
    count = found.benchmarks["1-1"]
    assert (count.questions, count.touched, count.held, len(found.matches)) == (3, 1, 1, 1)
    assert count.covered == pytest.approx(1 / 3)


def test_what_jec_qa_feeds_is_always_said():
    for name in ("lawbench/1-2", "3-6", "layerlab_lawbench", "LawBench"):
        found = contamination(["text"], [(name, "1", ENGLISH)])
        assert "LawBench 1-2 and 3-6 are taken from JEC-QA" in found.notes[0]
    assert contamination(["text"], [("financeiq", "1", ENGLISH)]).notes == ()


def test_no_question_is_no_search():
    refuses("there is no question to look for; give benchmarks", contamination, ["text"], [])
    with pytest.raises(UserError, match="size is 5; expected runs of at least 8 units"):
        contamination(["text"], [("a", "1", ENGLISH)], size=5)


def test_questions_are_read_from_files_of_all_kinds(tmp_path):
    row = {"instruction": "Choose.", "question": "Why?", "options": ["(A)one", "(B)two"]}
    (tmp_path / "1-2.json").write_text(json.dumps([row, {"question": None}], ensure_ascii=False))
    (tmp_path / "jec.jsonl").write_text(json.dumps(row) + "\n\n" + json.dumps({"id": "x7", **row}))
    (tmp_path / "eval.csv").write_text('\ufeffid,question,A,B\n3,"So,\nwhat?",01,NA\n', "utf-8")
    (tmp_path / "plain.csv").write_text("Is it?,yes,no,B\n")
    (tmp_path / "mapping.json").write_text(json.dumps({"law": ["Law", "法学"]}, indent=1))
    (tmp_path / "boolq.jsonl").write_text('{"question": "is it", "passage": "it is", "idx": 0}')
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("val/law_val.csv", "id,question,A\n0,Who?,me\n")
        archive.writestr("__MACOSX/._law_val.csv", b"\xff\xfe")
    with tarfile.open(tmp_path / "z.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "1-2.json", "zero_shot/3-6.json")
    found = list(questions(tmp_path))
    assert Question("1-2", "1", "Why?\n(A)one\n(B)two") in found
    assert Question("jec", "x7", "Why?\n(A)one\n(B)two") in found
    assert Question("eval", "3", "So,\nwhat?\n01\nNA") in found
    assert Question("plain", "1", "Is it?\nyes\nno") in found
    assert Question("boolq", "1", "it is\nis it") in found
    assert Question("law_val", "0", "Who?\nme") in found
    assert Question("3-6", "1", "Why?\n(A)one\n(B)two") in found
    assert len(found) == 8


def test_options_belong_to_a_question_however_they_are_held(tmp_path):
    for number, options in enumerate(
        [
            {"options": "A. one B. two"},
            {"options": {"A": "one", "B": "two"}},
            {"choices": {"text": ["one", "two"]}},
            {"choices": {"text": ["one", "two"], "label": ["A", "B"]}},
            {"choices": [{"label": "A", "text": "one"}, {"label": "B", "text": "two"}]},
            {"sol1": "one", "sol2": "two", "choices": None},
        ]
    ):
        row = {"id": number, "goal": "Why?", **options}
        (tmp_path / f"{number}.json").write_text(json.dumps(row))
    found = [(one.id, one.text) for one in questions(tmp_path)]
    assert found == [("0", "Why?\nA. one B. two"), *((id, "Why?\none\ntwo") for id in "12345")]


def test_every_general_benchmark_has_questions(tmp_path):
    """Summaries and keywords too, whose questions stand in columns and files of their own."""
    (tmp_path / "csl.json").write_text('{"id": 1, "abst": "In this paper", "keyword": ["a"]}\n')
    (tmp_path / "xsum.jsonl").write_text('{"dialogue": "Rain fell.", "summary": "Rain."}\n')
    (tmp_path / "test.src.txt").write_text("央行降准\n\n股市上涨\n")
    (tmp_path / "test.tgt.txt").write_text("降准\n\n上涨\n")
    assert [(one.benchmark, one.id, one.text) for one in questions(tmp_path)] == [
        ("csl", "1", "In this paper"),
        ("test.src", "1", "央行降准"),
        ("test.src", "3", "股市上涨"),
        ("xsum", "1", "Rain fell."),
    ]


def test_a_cell_of_a_table_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_text("question,A\n" + "x" * 200_000 + ",y\n")
    (found,) = questions(tmp_path)
    assert "x" * 200_000 in found.text


def test_files_that_break_on_the_way_are_one_line(tmp_path):
    text = "".join(random.Random(0).choices("abcdefghij klmno", k=200_000))
    (tmp_path / "1.json").write_text(json.dumps({"question": text}))
    packed = tmp_path / "a.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "1.json", "1.json")
    whole = packed.read_bytes()
    for place in (0, 5000):  # when it is opened, and when a file of it is read
        packed.write_bytes(whole[:place] + random.Random(1).randbytes(len(whole) - place))
        refuses(r"^cannot read .*a.tar.gz: .*; copy it anew, ", list, questions(packed))


def test_what_holds_no_questions_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no benchmark .*; give a folder or a file"):
        list(questions(tmp_path / "none"))
    refuses(r"holds no questions; expected \.json, \.jsonl, \.csv", list, questions(tmp_path))
    (tmp_path / "a.json").write_text("[{")
    refuses(r"a.json, line 1 is not JSON: .*; mend that line", list, questions(tmp_path))
    (tmp_path / "a.json").write_bytes(b'{"question": "\xe4"}')
    refuses("byte 14 is not UTF-8 text; it is probably Latin 1", list, questions(tmp_path))
    (tmp_path / "a.json").rename(tmp_path / "a.zip")
    refuses(r"cannot read .*a.zip: .*; copy it anew", list, questions(tmp_path))


@pytest.mark.full
def test_jec_qa_holds_two_tasks_of_lawbench(tmp_path):
    held = data_folder() / "agieval" / "agieval-v1.tar.gz"
    bench = data_folder() / "lawbench" / "zero_shot.tar.gz"
    if not (held.is_file() and bench.is_file()):
        pytest.skip("LAYERLAB_DATA names no folder with AGIEval and LawBench")
    trained = [one.text for one in questions(held) if one.benchmark.startswith("jec-qa")]
    tasks = ("1-2", "3-6", "2-1", "3-8")
    every = [one for one in questions(bench) if one.benchmark in tasks]
    assert len(trained) == 2000 and len(every) == 2000
    asked = [one for one in every if int(one.id) <= 100]
    found = contamination(trained, asked).benchmarks
    assert all(found[task].questions == 100 for task in tasks)
    assert found["1-2"].held > 90 and found["3-6"].held == 100
    assert found["2-1"].held == found["3-8"].held == 0


def test_a_large_benchmark_is_read_line_by_line_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_questions, "LARGEST", 40)
    rows = [{"question": f"number {one}"} for one in range(5)]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, rows)))
    assert [one.text for one in questions(tmp_path)] == [row["question"] for row in rows]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    refuses("more than 40 characters; write an object on every line", list, questions(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("open.csv", 'question,a\n"one" two,b\nthree,c\n', "is no table"),
        ("wide.csv", "question,a\none,b,c\n", "row 2 has 3 cells, and the first 2"),
        (
            "other.jsonl",
            '{"question": "one"}\n' + '{"problem": "two"}\n' * 9,
            "9 of 10 rows have no question; expected one of question, sentence",
        ),
        ("words.json", '[{"question": "one"}, "two", "three"]', "2 of 3 rows have no question"),
        ("other.json", '[{"problem": "one"}, {"problem": "two"}]', "2 of 2 rows have no question"),
        ("nested.json", '{"data": [{"question": "one"}]}', "1 of 1 rows have no question"),
        ("two.csv", "id,question,question\n1,one,two\n", "two columns are called 'question'"),
        ("two.json", '[{"question": "one", "question": "two"}]', "names the key 'question' twice"),
        (
            "two.jsonl",
            '{"question": "one"}\n{"question": "one", "question": "two"}\n',
            "two.jsonl, line 2 is not JSON: it names the key 'question' twice",
        ),
        ("large.json", '[{"question": "one", "Question": "two"}]', "row 1 has 'question' twice"),
    ],
)
def test_a_file_whose_questions_are_not_seen_is_refused(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    (tmp_path / "whole.jsonl").write_text('{"question": "one"}\n')
    refuses(said, list, questions(tmp_path))


def test_endings_may_be_written_large(tmp_path):
    (tmp_path / "A.SRC.TXT").write_text("one\n\ntwo\n")
    assert [one.text for one in questions(tmp_path)] == ["one", "two"]


def test_what_is_passed_over_is_named(tmp_path, caplog):
    (tmp_path / "A.JSONL").write_text('{"question": "one"}\n' * 40 + '{"problem": "two"}\n')
    (tmp_path / "names.json").write_text('{"law": ["Law"]}')
    (tmp_path / "README.md").write_text("of others")
    for name in ("a.jsonl.gz", "b.tsv", "c.parquet", "d.yaml"):
        (tmp_path / name).write_bytes(b"")
    assert len(list(questions(tmp_path))) == 40
    assert "A.JSONL: 1 of 41 rows have no question and are passed over" in caplog.text
    assert "names.json has no question in any row and is passed over" in caplog.text
    (said,) = [one.message for one in caplog.records if "are not looked for" in one.message]
    assert "a.jsonl.gz" in said and "c.parquet and 1 more: passed over" in said
    assert "README" not in said


def test_files_of_one_name_are_told_where_they_count_together(tmp_path, caplog):
    for name in ("a/val.jsonl", "b/val.jsonl", "other.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"question": "one"}\n')
    assert [one.benchmark for one in questions(tmp_path)] == ["val", "val", "other"]
    (said,) = caplog.messages
    assert said.endswith(
        f"with one name are counted together: val ({tmp_path.name}/a/val.jsonl, "
        f"{tmp_path.name}/b/val.jsonl)"
    )
    caplog.clear()
    assert len(list(questions(tmp_path / "a", tmp_path / "b" / "val.jsonl"))) == 2
    assert caplog.messages[0].endswith("counted together: val (a/val.jsonl, val.jsonl)")
    caplog.clear()
    assert len(list(questions(tmp_path / "a", tmp_path / "other.jsonl"))) == 2
    assert not caplog.messages
