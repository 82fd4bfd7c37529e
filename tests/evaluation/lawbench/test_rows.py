import json
import tarfile
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.evaluation.lawbench.rows import read_scored_rows
from tests.support.refused import refusal, refuses


def changed(home: Path, number: str, **cells: object) -> Path:
    path = home / "lawbench" / "zero_shot" / f"{number}.json"
    rows = json.loads(path.read_text("utf-8"))
    rows[0].update(cells)
    path.write_text(json.dumps(rows), "utf-8")
    return path


def test_prompts_and_what_is_left_out(home):
    found = read_scored_rows("3-4")
    assert [one["prompt"] for one in found.kept] == ["请回答。\n指控实施清楚。0"]
    assert list(found.left_out.values()) == ["a life sentence has no months"]
    assert list(read_scored_rows("2-2").left_out.values()) == ["its label is not among the sixteen"]
    assert not read_scored_rows("2-9").left_out  # there it is a label like others


def test_one_shot_is_another_file(home):
    zero, one = (read_scored_rows("1-1", shots=shots) for shots in (0, 1))
    assert one.kept[0]["prompt"] == "请回答。例子：甲。\n指控实施清楚。0"
    assert one.kept[0]["answer"] == zero.kept[0]["answer"]


def test_an_archive_will_do(home, tmp_path_factory):
    other = tmp_path_factory.mktemp("packed")
    (other / "lawbench").mkdir()
    with tarfile.open(other / "lawbench" / "zero_shot.tar.gz", "w:gz") as archive:
        archive.add(home / "lawbench" / "zero_shot", "zero_shot")
    assert read_scored_rows("1-2", folder=other).kept == read_scored_rows("1-2").kept


def test_a_byte_order_mark_is_no_part(home):
    path = home / "lawbench" / "zero_shot" / "1-2.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_scored_rows("1-2").kept) == 2


@pytest.mark.parametrize(
    ("number", "cells", "said"),
    [
        (
            "1-2",
            {"answer": "正确答案：Z。"},
            "is not worded as LawBench's 1-2; expected 正确答案：A",
        ),
        ("2-2", {"answer": "争议焦点类别：月亮。"}, "expected 争议焦点类别：诉讼主体。"),
        ("2-3", {"answer": "准予离婚"}, "expected 类别:...、...。"),
        ("2-6", {"answer": "张三"}, "expected 受害人:...;时间:..."),
        ("3-1", {"answer": "刑法第264条"}, "expected 法条:刑法第264、266条"),
        ("3-4", {"answer": "刑期:4年"}, "expected 刑期:12个月"),
        ("3-7", {"answer": "8500"}, "expected 上文涉及到的犯罪金额:2000.0元。"),
        ("3-8", {"answer": " "}, "has no answer; leave that row out"),
        ("3-8", {"question": ""}, "has an empty question; leave that row out"),
    ],
)
def test_rows_of_another_wording(home, number, cells, said):
    path = changed(home, number, **cells)
    caught = refusal(read_scored_rows, number)
    assert said in caught and str(path) in caught


def test_no_row_is_left(home):
    path = home / "lawbench" / "zero_shot" / "3-5.json"
    rows = [one for one in json.loads(path.read_text("utf-8")) if "死刑" in one["answer"]]
    path.write_text(json.dumps(rows), "utf-8")
    refuses(r"LawBench's 3-5 has no row that is scored; copy it anew", read_scored_rows, "3-5")


def test_unknown_tasks_and_numbers_of_examples(home):
    refuses("LawBench has no task '4-1'; expected one of 1-1, 1-2", read_scored_rows, "4-1")
    with pytest.raises(UserError, match=r"prompts with 0 and with 1 example, not with 5; type"):
        read_scored_rows("1-1", shots=5)
