"""What several commands share is declared once."""

import ast
from collections import Counter
from pathlib import Path

import layerlab.cli

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
