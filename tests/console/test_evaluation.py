"""The bar of an evaluation."""

import io

import pytest
from rich.console import Console

from layerlab.console.evaluation import EvaluationBar


@pytest.mark.parametrize("width", [80, 100, 140])
def test_nothing_of_the_bar_is_cut(width):
    told = io.StringIO()
    console = Console(file=told, width=width, force_terminal=True, color_system=None)
    bar = EvaluationBar(12_032, console)
    bar.begin("mmlu_high_school_european_history_and_more_words", 12_032)
    bar.step(steps=12_000)
    console.print(bar.progress.get_renderable())
    (line,) = told.getvalue().splitlines()
    assert "mmlu_high_school" in line and "12000/12032" in line
    assert "0:00:00 left" in line and "…" not in line and len(line.rstrip()) <= width
    if width == 140:
        assert "mmlu_high_school_european_history_and_more_w" in line
