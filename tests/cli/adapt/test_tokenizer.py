"""`layerlab adapt vocabulary` that is interrupted: one line, and what was there stays."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adaptation.bpe import LAW, bytewise

COMMAND = (sys.executable, "-m", "layerlab", "adapt", "vocabulary", "--tokenizer", "base")


def read_files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.full
@pytest.mark.parametrize("said", ["reading", "extending it", "proving it"])
def test_ctrl_c_leaves_the_earlier_folder_and_nothing_else(said, tmp_path):
    bytewise().save_pretrained(tmp_path / "base")
    (tmp_path / "law.txt").write_text("\n".join(LAW))
    draw = random.Random(0)
    letters = "abcdefghijklmnop"
    words = ["".join(draw.choices(letters, k=draw.randint(3, 12))) for _ in range(60_000)]
    (tmp_path / "long.txt").write_text("\n".join(words * 4))
    (tmp_path / "scratch").mkdir()
    place = {
        "cwd": tmp_path,
        "text": True,
        "env": {**os.environ, "TMPDIR": str(tmp_path / "scratch")},
    }
    given = (*COMMAND, "--out", "out", "--size", "+20", "--corpus")
    subprocess.run([*given, "law.txt"], check=True, capture_output=True, **place)
    before, scratch = read_files(tmp_path), {*(tmp_path / "scratch").rglob("*")}
    with subprocess.Popen([*given, "long.txt"], stderr=subprocess.PIPE, **place) as process:
        lines = iter(process.stderr.readline, "")
        assert any(line.startswith(said) for line in lines)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert rest.endswith("layerlab: interrupted; nothing was written\n")
    assert process.returncode == 130
    assert read_files(tmp_path) == before
    assert {*(tmp_path / "scratch").rglob("*")} == scratch
