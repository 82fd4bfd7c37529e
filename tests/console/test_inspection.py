"""The bar of an inspection: full where all was read, and only there."""

import io
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import count

import pytest
from rich.console import Console

from layerlab.console.inspection import InspectionBar


@pytest.mark.parametrize("broken", [False, True])
def test_a_bar_is_full_at_its_end(broken):
    """What has nothing to read is not stepped through; what is interrupted is not done."""
    bar = InspectionBar(Console(file=io.StringIO()))
    with suppress(KeyboardInterrupt), bar:
        bar.begin("one", 3)
        bar.step("diversity")
        bar.begin("two", 4)
        bar.step("rounding")
        if broken:
            raise KeyboardInterrupt
    one, two = bar.progress.tasks
    assert one.percentage == 100 and two.percentage == (25 if broken else 100)


def test_the_time_left_is_that_of_what_is_read_anew():
    now = [0.0]
    bar = InspectionBar(Console(file=io.StringIO(), force_terminal=True), clock=lambda: now[0])
    bar.begin("model", 1000)
    bar.skip()
    for _ in range(500):
        bar.step("kept")
        bar.skip()
    for _ in range(6):
        now[0] += 10
        bar.step("read")
    assert bar.task is not None
    assert bar.progress.tasks[bar.task].time_remaining == pytest.approx(4940, rel=0.02)


def test_a_bar_of_nothing_leaves_no_empty_line():
    file = io.StringIO()
    with InspectionBar(Console(file=file)):
        pass
    assert file.getvalue() == ""


@pytest.mark.parametrize("kind", ["log", "terminal", "notebook"])
def test_a_log_gets_a_line_a_minute(kind):
    file, seconds = io.StringIO(), count(0, 20.0)
    console = Console(file=file, force_terminal=kind == "terminal", width=80)
    console.is_jupyter = kind == "notebook"
    shown = InspectionBar(console, clock=partial(next, seconds))
    console.is_jupyter = False  # here are no widgets to draw
    with shown as bar:
        bar.begin("one", 100)
        for layer in range(100):
            bar.step(f"layer {layer}")
    lines = [line for line in file.getvalue().splitlines() if "layer" in line and "left" in line]
    times = [line for line in lines if line.startswith("one: ")]
    assert bool(times) == (kind == "log")
    if times:
        shares = [int(line.split()[1].removesuffix("%,")) for line in times]
        assert shares == sorted(set(shares)) and 5 < len(times) < 100
        assert f"one: {shares[-1]}%, layer {shares[-1] - 1}, " in times[-1]


@pytest.mark.skipif(
    find_spec("ipywidgets") is not None, reason="with ipywidgets it draws a live bar"
)
def test_a_notebook_without_widgets_shows_the_bar_at_its_end_and_warns_of_nothing(
    monkeypatch, capsys, recwarn
):
    class ZMQInteractiveShell:
        """Jupyter's, by whose name it is known."""

    monkeypatch.setattr("builtins.get_ipython", ZMQInteractiveShell, raising=False)
    with InspectionBar() as bar:
        bar.begin("one", 1)
        bar.step()
    assert not recwarn.list and "100%" in capsys.readouterr().err
