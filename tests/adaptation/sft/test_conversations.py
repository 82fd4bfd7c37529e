"""Rows of three forms are read as they are meant, and bad ones are named with file and line."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from layerlab.adaptation.sft.conversations import (
    ASSISTANT,
    SYSTEM,
    USER,
    Conversation,
    Turn,
    conversation,
    conversations,
)
from tests.support.refused import refusal, refuses

MESSAGES = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def written(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def refused(row: dict[str, object], *said: str) -> None:
    line = refusal(conversation, row, "rows.jsonl, line 3")
    assert line.startswith("rows.jsonl, line 3") and all(one in line for one in said), line


def test_messages_are_turns():
    found = conversation(MESSAGES)
    assert found.turns == (Turn(USER, "a"), Turn(ASSISTANT, "b"))
    assert found.messages() == MESSAGES["messages"]


def test_sharegpt_names_the_roles_otherwise():
    said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    found = conversation({"system": "s", "conversations": said, "id": None})
    assert [turn.role for turn in found.turns] == [SYSTEM, USER, ASSISTANT]


def test_alpaca_joins_instruction_and_input():
    row = {"instruction": "翻译", "input": "合同", "output": "contract", "history": [["q", "a"]]}
    texts = [turn.text for turn in conversation(row).turns]
    assert texts == ["q", "a", "翻译\n合同", "contract"]
    assert conversation({"input": "x", "output": "y"}).turns[0] == Turn(USER, "x")


@pytest.mark.parametrize("history", ["[['q', 'a']]", '[["q", "a"]]', [["q", "a"]]])
def test_history_may_be_written_as_a_text(history):
    found = conversation({"instruction": "i", "output": "o", "history": history})
    assert [turn.text for turn in found.turns] == ["q", "a", "i", "o"]
    for none in ("[]", "", None, []):
        row = {"instruction": "i", "output": "o", "history": none}
        assert len(conversation(row).turns) == 2


@pytest.mark.parametrize("form", ["jsonl", "json", "lines in json", "parquet", "folder"])
def test_all_files_of_rows_give_the_same(tmp_path, form):
    rows = [{"instruction": f"第{number}问", "output": "答"} for number in range(3)]
    path = tmp_path / f"rows.{form.split()[-1]}"
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif form == "json":
        path.write_text(json.dumps(rows, indent=2, ensure_ascii=False))
    elif form == "folder":
        path.mkdir()
        written(path / "a.jsonl", *rows)
        (path / "notes.txt").write_text("no row")
    else:
        written(path, *rows)
    found = list(conversations(str(path)))
    assert [one.turns[0].text for one in found] == ["第0问", "第1问", "第2问"]
    assert len({one.location for one in found}) == 3


def test_a_bad_row_of_an_array_is_named_with_its_line(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('\ufeff[\n {"instruction": "a",\n  "output": "b"},\n {"output": ""}\n]')
    refuses(r"rows.json, line 4: turn 1 \(user\) is empty", list, conversations(str(path)))


@pytest.mark.parametrize("text", ["", "[]", "\n\n"])
def test_an_empty_file_holds_no_row(tmp_path, text):
    path = tmp_path / "rows.json"
    path.write_text(text)
    refuses("holds no row; expected conversations", list, conversations(str(path)))


def test_columns_about_a_row_are_left_out_and_others_can_be(tmp_path):
    row = {**MESSAGES, "id": 7, "source": "exam", "grade": 3}
    path = written(tmp_path / "rows.jsonl", row)
    assert len(list(conversations(path, ignore=["grade"]))) == 1
    refuses("unknown key 'grade' beside messages; remove it", list, conversations(path))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a"}, "has the keys ['text']; expected messages, or conversations"),
        ({"messages": []}, "messages is []; expected a list of turns"),
        ({"messages": ["a"]}, "turn 1 is 'a'; expected role and content"),
        (
            {"messages": [{"role": "user", "content": "a", "tool": "b"}]},
            "has the keys ['content', 'role', 'tool']; expected role and content alone",
        ),
        (
            {"messages": [{"role": "user", "content": ["a"]}]},
            "content is ['a']; expected a text",
        ),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            "turn 1 has the role 'tool'; expected system, user, assistant",
        ),
        ({"messages": [{"role": "user", "content": "a"}]}, "has no turn of the assistant"),
        ({"instruction": "a", "output": " "}, "turn 2 (assistant) is empty; leave that row out"),
        (
            {"messages": [MESSAGES["messages"][0], {"role": "system", "content": "s"}]},
            "turn 2 is the system's; only the first turn can be",
        ),
        (
            {"instruction": "a", "output": "b", "history": "[1, 2]"},
            "history is [1, 2]; expected a list of pairs of question and answer",
        ),
    ],
)
def test_a_bad_row_is_named(row, said):
    refused(row, said)


def test_rows_of_finance_and_law_are_conversations(data):
    found: dict[str, list[Conversation]] = {}
    for path in sorted((data / "zh-sft").rglob("*.json")):
        if path.stem != "retriever_eval":  # questions without an answer
            found[path.stem] = list(conversations(str(path)))
    assert {len(rows) for rows in found.values()} == {100, 300}
    assert any(len(one.turns) > 2 for one in found["consulting_part"])
