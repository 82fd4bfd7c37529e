"""All stages at a glance: lines without a terminal, the running stage on one."""

import io

import pytest
from rich.console import Console

from layerlab.adaptation.pipeline.stage import Stage
from layerlab.console.progress import NullProgress, Progress
from layerlab.console.stages import StagesDisplay
from tests.console.test_runs import Clock

STAGES = [
    Stage(kind="pretrain", settings={"seed": seed}, seed=seed, arms=("a",)) for seed in range(30)
]


def titles(stages: list[Stage]) -> dict[str, str]:
    return {one.key: one.title(1) for one in stages}


def lines(board: StagesDisplay) -> list[str]:
    """What is drawn now, as text."""
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as caught:
        console.print(board.render())
    return caught.get().splitlines()


def test_without_a_terminal_a_stage_is_a_few_plain_lines():
    said, clock = io.StringIO(), Clock()
    first, second = STAGES[:2]
    with StagesDisplay(
        titles(STAGES[:2]), console=Console(file=said, width=80), clock=clock
    ) as board:
        board.begin(first.key)
        for update in range(101):
            board.tell(first.key, f"update {update}\x1b[31m", update / 100)
        clock.now = 65.0
        board.end(first.key, "finished")
        board.end(second.key, "kept")
    assert said.getvalue().splitlines() == [
        "pretrain, seed 0: begins",
        "pretrain, seed 0: 25%, update 25 [31m",
        "pretrain, seed 0: 50%, update 50 [31m",
        "pretrain, seed 0: 75%, update 75 [31m",
        "pretrain, seed 0: finished in 1:05",
        "pretrain, seed 1: finished before, kept as it is",
    ]


@pytest.mark.parametrize("running", [0, 12, 29])
def test_a_terminal_shows_the_stage_that_runs_however_many_there_are(running):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=10)
    board = StagesDisplay(titles(STAGES), console=console)
    for stage in STAGES[:running]:
        board.end(stage.key, "kept")
    board.begin(STAGES[running].key)
    board.tell(STAGES[running].key, "update 3 of 9", 1 / 3)
    shown = lines(board)
    assert len(shown) == 9
    assert [f"seed {running} " in line and "update 3 of 9" in line for line in shown].count(True)


def test_a_terminal_is_left_as_it_was_where_a_stage_fails():
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=80, height=10)
    with pytest.raises(ValueError), StagesDisplay(titles(STAGES[:1]), console=console) as board:
        board.begin(STAGES[0].key)
        raise ValueError
    assert said.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


def test_both_are_watches():
    for one in (NullProgress(), StagesDisplay(titles(STAGES[:1]), console=Console(quiet=True))):
        assert isinstance(one, Progress)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_note_stands_above_the_stages(terminal):
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, width=80, height=10)
    with StagesDisplay(titles(STAGES[:1]), console=console) as board:
        board.note("of another base\x1b[2J")
    assert "of another base" in said.getvalue() and "\x1b[2J" not in said.getvalue()
