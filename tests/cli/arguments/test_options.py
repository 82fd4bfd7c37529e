"""What several commands share is declared once."""

import ast
import re
from collections import Counter
from pathlib import Path

from typer.main import get_command

import layerlab
import layerlab.cli
from layerlab.cli.app import app

CALLS = {"typer.Option", "typer.Argument"}


def test_no_help_text_is_written_twice():
    files = Path(layerlab.cli.__file__).parent.rglob("*.py")
    texts = Counter(
        word.value.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS
        for word in node.keywords
        if word.arg == "help" and isinstance(word.value, ast.Constant)
    )
    assert len(texts) > 100
    assert [text for text, count in texts.items() if count > 1] == []


def test_what_may_be_left_out_stands_in_one_pair_of_brackets(capsys):
    command = get_command(app)
    for words in (
        ["compare"],
        ["inspect"],
        ["evaluate"],
        ["bench", "latency"],
        ["ledger", "judge"],
    ):
        command([*words, "--help"], standalone_mode=False)
        usage = capsys.readouterr().out.splitlines()[0]
        assert "[[" not in usage and "......" not in usage and "...}" not in usage, usage


def test_the_expressions_that_help_shows_read_logs_as_they_stand(tmp_path):
    options = {one.name: one for one in get_command(app).commands["judge"].params}
    line, name = (re.search(r"'(.+?)'", options[one].help)[1] for one in ("line", "name"))
    for arm, loss in (("plain", 3.2), ("tied", 3.1)):
        for seed in (1, 2, 3):
            log = tmp_path / f"{arm}-seed{seed}" / "log.txt"
            log.parent.mkdir()
            log.write_text("".join(f"step {n}: loss {loss + seed / 100 - n}\n" for n in (1, 2)))
    rows = layerlab.judge(tmp_path, line=line, name=name).content["rows"]
    assert [(row["arm"], row["n"]) for row in rows] == [("plain", 3), ("tied", 3)]
