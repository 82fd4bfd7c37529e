"""The table fits its terminal, and nothing of it is read as markup."""

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from layerlab.training.compare import compared
from layerlab.training.comparison import Comparison
from tests.training.drawn import recipe, records

BETTER = {1: 2.99, 2: 3.2895, 3: 3.0905}


def comparison(gpt2: Mapping[int, float] = BETTER, **given: object) -> Comparison:
    losses = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": gpt2}
    found = compared(recipe(), records(recipe(), losses))
    return Comparison({**found.content, **given})


def printed(found: Comparison, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(found.table(width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 160, 200])
def test_it_fits_and_keeps_what_decides(width: int) -> None:
    said = printed(comparison(), width)
    assert max(map(len, said.splitlines())) <= width
    row = next(line for line in said.splitlines() if line.startswith("gpt2") and "better" in line)
    assert "-0.0100" in row
    assert ("0.00083" in row) == (width >= 70)
    assert ("-0.0112 to -0.0088" in row) == (width >= 80)
    cost = next(line for line in said.splitlines() if line.startswith("gpt2") and " MB" in line)
    assert cost.split()[-4:] == ["100", "1.05", "MB", "0:10"] or cost == row
    assert "1,000" in cost and (cost == row) == ("Cost" not in said) == (width >= 160)
    assert "differences to llama" in " ".join(said.split())
    assert "compared at one learning rate" in " ".join(said.split())


def test_what_can_be_detected_has_the_digits_of_the_difference_beside_it() -> None:
    near = comparison({1: 2.99999, 2: 3.299988, 3: 3.099991})
    row = near.row("gpt2")
    assert 1e-6 < row["detectable"] < 5e-5
    (line, *_) = (one for one in printed(near, 120).splitlines() if one.startswith("gpt2"))
    assert f"{row['difference']:+.2g}" in line and f" {row['detectable']:.2g} " in line


def test_a_verdict_breaks_between_its_words() -> None:
    losses = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 3.1, 2: 3.2, 3: 3.1}}
    said = printed(compared(recipe(), records(recipe(), losses)), 80)
    head = said[: said.index("Cost")]
    assert "not" in head.split() and "distinguishable" in head.split()


def test_what_came_from_outside_is_text() -> None:
    hostile = "[/b] [red]x\x1b[31m\x07\u202e\nnext"
    said = printed(comparison(name=hostile, about=hostile, remarks=[hostile]), 100)
    assert said.count("[/b] [red]x [31m") == 3
    assert "\x1b" not in said and "\x07" not in said and "\u202e" not in said


def test_what_is_unknown_is_a_dash() -> None:
    said = printed(compared(recipe(), []), 200)
    line = next(line for line in said.splitlines() if line.startswith("gpt2"))
    assert line.split().count("-") >= 8 and "no verdict" in line
