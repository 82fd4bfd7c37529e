"""What a person sees of runs: numbers that are right, texts that steer no terminal."""

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from layerlab.console.progress import Progress
from layerlab.console.runs import RunsDisplay
from layerlab.console.throughput import Throughput
from layerlab.console.units import amount, duration

FLOPS = 4e9


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool = False, width: int = 110) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, highlight=False)


def written(display: RunsDisplay) -> str:
    stream = display.console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def bare(text: str) -> str:
    """A text without the colours and movements that rich puts in."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def train(update: int, seconds: float | None = None, **content: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "update": update,
        "tokens": 2048 * update,
        "seconds": 0.1 * update if seconds is None else seconds,
        "flops": FLOPS * update,
        "loss": 5.0 - update / 1000,
        **content,
    }


def evaluation(update: int) -> dict[str, Any]:
    return {**train(update), "kind": "evaluation", "bits_per_byte": 1.9042}


def go(display: RunsDisplay, clock: Clock, name: str, until: int, step: int = 10) -> None:
    """Half of the time goes into evaluations and checkpoints."""
    start = display.pulses[name].update
    for update in range(start, until + 1, step):
        clock.now += 0.2 * step
        display.update(name, train(update))


def test_it_is_a_watch():
    assert isinstance(RunsDisplay({"a": 1}), Progress)


def test_a_file_gets_a_line_per_tenth():
    clock = Clock()
    with RunsDisplay({"llama": 400}, peak=1e11, console=console(), clock=clock) as display:
        go(display, clock, "llama", 200)
        display.update("llama", evaluation(200))
        go(display, clock, "llama", 400)
        display.end("llama", "finished")
    lines = written(display).splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("llama: 10 % (40 of 400), loss 4.96, 20,480 tokens/s")
    assert "40.0 GFLOP/s, MFU 40%" in lines[4]
    assert "1.9042 bits per byte" not in lines[4] and "1.9042 bits per byte" in lines[5]
    assert lines[-1].endswith("0:00 left")


def test_a_file_gets_four_lines_of_each_of_many_runs():
    clock = Clock()
    names = [f"run-{number}" for number in range(4)]
    with RunsDisplay(dict.fromkeys(names, 400), console=console(), clock=clock) as display:
        for name in names:
            go(display, clock, name, 400)
            display.end(name, "finished")
    lines = written(display).splitlines()
    assert len(lines) == 4 * len(names)
    assert lines[4].startswith("run-1: 0 % (0 of 400)")
    assert lines[5].startswith("run-1: 35 % (140 of 400), loss 4.86")
    assert lines[6].startswith("run-1: 67 % (270 of 400)")
    assert lines[7] == "run-1: finished; 2 of 4 runs finished"


@pytest.mark.parametrize("terminal", [False, True])
def test_runs_that_were_finished_before_are_one_line(terminal):
    names = [f"run-{number}" for number in range(5)]
    with RunsDisplay(dict.fromkeys(names, 4), console=console(terminal=terminal)) as display:
        for name in names[:4]:
            display.end(name, "skipped")
        display.note("a note")
        display.end(names[4], "finished")
    text = bare(written(display))
    assert text.count("4 runs of 5 finished before, kept as they are") == 1
    assert text.index("4 runs of 5") < text.index("a note") and text.count("run-") <= 1
    with RunsDisplay({"a": 4}, console=console()) as display:
        display.end("a", "skipped")
    assert written(display) == "1 run of 1 finished before, kept as they are\n"


def test_time_left_counts_what_is_no_training():
    clock = Clock()
    display = RunsDisplay({"llama": 400}, console=console(), clock=clock)
    go(display, clock, "llama", 100)
    assert display.seconds_left() == pytest.approx(300 * 0.2)
    assert display.pulses["llama"].speed("tokens") == pytest.approx(20480)


def drawn(display: RunsDisplay) -> list[str]:
    before = len(written(display))
    display.console.print(display.render())
    return bare(written(display)[before:]).splitlines()


def test_a_terminal_shows_one_run_in_two_lines():
    clock = Clock()
    display = RunsDisplay({"llama": 400}, peak=1e11, console=console(terminal=True), clock=clock)
    go(display, clock, "llama", 100)
    shown = drawn(display)
    assert len(shown) == 2
    assert "update 100 of 400" in shown[0] and "1:00 left, until" in shown[0]
    assert shown[1].startswith("loss 4.9, 20,480 tokens/s, 40.0 GFLOP/s, MFU 40%")


@pytest.mark.parametrize("name", ["llama", "llama-s0-r0.005-be12f0aa", "l" * 90])
def test_one_run_fits_a_terminal_of_80_columns(name):
    clock = Clock()
    narrow = console(terminal=True, width=80)
    display = RunsDisplay({name: 60_000}, peak=1e11, console=narrow, clock=clock)
    go(display, clock, name, 50_000, step=1000)
    shown = drawn(display)
    assert max(map(len, shown)) <= 80 and shown[0].startswith(name[:79])
    (line,) = [one for one in shown if "left, until " in one]
    assert "update 50,000 of 60,000" in line and len(shown) == (2 if name == "llama" else 3)


def test_a_terminal_shows_many_runs_as_a_table():
    clock = Clock()
    names = [f"run-{number}" for number in range(5)]
    display = RunsDisplay(dict.fromkeys(names, 100), console=console(terminal=True), clock=clock)
    display.end("run-0", "finished")
    display.end("run-1", "failed: no space is left")
    for update in range(0, 60, 10):
        clock.now += 2
        display.update("run-2", train(update))
        display.update("run-3", train(update))
    shown = drawn(display)
    assert [line.split()[0] for line in shown] == ["run", "run-2", "run-3", "1"]
    assert "50/100" in shown[1] and "20,480" in shown[1]
    assert shown[-1].startswith("1 of 5 runs finished, 1 diverged or failed, 2 running, 1 waiting")
    # 50 + 50 + 100 updates are left, at five a second each of two.
    assert display.seconds_left() == pytest.approx(20)
    assert "0:20 left" in shown[-1]


def test_live_drawing_leaves_the_terminal_as_it_was():
    clock = Clock()
    with RunsDisplay({"llama": 40}, console=console(terminal=True), clock=clock) as display:
        go(display, clock, "llama", 40)
        display.note("out of memory: micro-batch 8")
        display.end("llama", "finished")
    text = written(display)
    assert "out of memory: micro-batch 8" in text and "update 40 of 40" in bare(text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_failures_are_told_and_counted():
    with RunsDisplay({"a": 4, "b": 4}, console=console()) as display:
        display.end("a", "the loss is nan at update 3")
        display.end("b", "finished")
    lines = written(display).splitlines()
    assert lines == [
        "a: the loss is nan at update 3",
        "b: finished; 1 of 2 runs finished, 1 diverged or failed",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_steer_no_terminal(terminal):
    evil = "x\x1b]0;title\x07\x1b[2J[red]\u202e\n"
    with RunsDisplay({evil: 10, "b": 10}, console=console(terminal=terminal)) as display:
        display.update(evil, train(5))
        display.note(evil)
        display.end(evil, evil)
    text = written(display)
    assert "\x1b]0" not in text and "\x1b[2J" not in text and "\x07" not in text
    assert "\u202e" not in text and "[red]" in text


def test_events_of_strangers_and_of_other_kinds_are_borne():
    display = RunsDisplay({"a": 10}, console=console())
    display.update("b", train(5))
    display.update("a", {"kind": "note", "update": 2, "text": "resumed"})
    display.update("a", {"kind": "monitor", "update": 3, "rows": []})
    assert display.pulses["a"].update == 3 and display.seconds_left() is None


def test_a_run_that_resumes_is_timed_anew():
    clock = Clock()
    pulse = Throughput(100, clock)
    for update in (10, 20, 30):
        clock.now += 1
        pulse.take(train(update))
    clock.now += 1000  # it crashed, and waited
    pulse.take(train(20))
    assert pulse.rate() is None
    clock.now += 1
    pulse.take(train(30))
    assert pulse.rate() == pytest.approx(10)


@given(st.floats(min_value=0, max_value=1e30))
def test_amounts_are_within_half_a_percent(value):
    text = amount(value, "X")
    number, _, unit = text.partition(" ")
    factor = 1000.0 ** " kMGTPEZY".index(unit.removesuffix("X") or " ")
    assert abs(float(number) * factor - value) <= 0.0051 * value + 0.0051
    assert len(number) <= 7 or value >= 1e27


@given(st.floats(min_value=10, max_value=1e8), st.floats(min_value=10, max_value=1e8))
def test_durations_are_read_back(first, second):
    def read(text: str) -> float:
        days, _, clock = text.rpartition(" ")
        total = 0
        for part in clock.split(":"):
            total = 60 * total + int(part)
        return total + 86_400 * int(days.split()[0] if days else 0)

    assert abs(read(duration(first)) - first) <= 0.5
    assert (read(duration(first)) <= read(duration(second))) == (round(first) <= round(second))
