"""The task of one's own in docs/evaluation.md gives what the page shows."""

import re
from pathlib import Path

import pytest

import layerlab
from tests.hostile.attack import typed
from tests.report.support.repeated import repeated
from tests.support.reader import ROOT, own_task

pytest.importorskip("lm_eval")


@pytest.mark.full
def test_the_task_of_the_page_gives_the_table_of_the_page(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    own_task(tmp_path)
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
    command = "layerlab evaluate pre-norm --tasks colours.yaml --out colours\n```\n\n```text\n"
    shown = page.partition(command)[2].partition("```")[0]
    found = layerlab.evaluate("pre-norm", tasks="colours.yaml", progress=False)
    lines = (line.rstrip() for line in found.summary(100).splitlines())
    assert "\n".join(lines).strip() == shown.strip()
    (row,) = (row for row in found.frame("tasks").itertuples() if row.metric == "acc")
    assert found.score("colours") == row.value == pytest.approx(4 / 6)
    assert len(re.findall(r"^\{", page, re.M)) == row.n


@pytest.mark.full
def test_the_command_of_the_page_asks_the_same_tasks_again(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    own_task(tmp_path)
    words = ("evaluate", "pre-norm", "--tasks", "colours.yaml", "--limit", "1", "--quiet")
    assert typed(*words).code == 0
    page = Path("layerlab-evaluation", "report.html")
    command = repeated(page.read_text("utf-8"))
    assert command[1:5] == ["evaluate", "pre-norm", "--tasks", str(tmp_path / "colours.yaml")]
    page.unlink()
    again = typed(*command[1:])
    assert again.code == 0, again.err
    assert repeated(page.read_text("utf-8")) == command
