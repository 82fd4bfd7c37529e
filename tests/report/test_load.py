from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.report.results.report import load_report
from tests.support.refused import refusal, refuses


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is damaged"),
        ('{"schema": 2', "is damaged"),
        ('{"schema": 2, "x": NaN}', "is damaged"),
        ("[" * 100_000 + "]" * 100_000, "is damaged"),
        ("[]", "it holds no table"),
        ("{}", "names no schema"),
        ('{"schema": "1"}', "names no schema"),
        ('{"schema": 3}', "has schema 3, and this layerlab reads 2: upgrade layerlab"),
        ('{"schema": 0}', "inspect the model again"),
        ('{"schema": 2, "models": {}}', "'models' is damaged"),
        ('{"schema": 2, "models": [{}]}', "has no name"),
        ('{"schema": 2, "findings": [{"id": 3}]}', "a finding is damaged"),
        ('{"schema": 2, "findings": 3}', "'findings' is damaged"),
        ('{"schema": 2, "frames": []}', "'frames' is damaged"),
        ('{"schema": 2, "frames": {"a": {}}}', "table 'a' of the report is damaged"),
        ('{"schema": 2, "frames": {"../a": {}}}', "it was not written by layerlab"),
        (
            '{"schema": 2, "frames": {"a": {"columns": ["x", "y"], "data": {"x": [1], "y": []}}}}',
            "table 'a' of the report is damaged",
        ),
        (
            '{"schema": 2, "frames": {"a": {"columns": ["x"], "dtypes": {"x": "object"}, '
            '"data": {"x": [1]}}}}',
            "unknown column type 'object'",
        ),
    ],
)
def test_a_damaged_report_is_one_clear_line(tmp_path, text, line):
    path = write(tmp_path / "report.json", text)
    raised = refusal(load_report, path)
    assert line in raised and str(path) in raised


def test_a_report_that_is_not_there_is_one_clear_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"no report at .*: expected a folder with report\.json"):
        load_report(tmp_path / "nothing")
    refuses("no report at", load_report, tmp_path)
    monkeypatch.chdir(tmp_path)
    refuses(r"no report at \.:", load_report, "")


def test_bytes_that_are_no_text_are_one_clear_line(tmp_path):
    (tmp_path / "report.json").write_bytes(b"\xff\xfe\x00")
    refuses("is damaged", load_report, tmp_path)
