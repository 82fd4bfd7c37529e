"""Tables for a terminal lose no column, and what is shown steers nothing."""

import json

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from layerlab.console.tables import (
    GAP,
    WORDS,
    add_title,
    grid,
    grids,
    plain,
    printable,
    say,
    show,
    show_json,
    wrap_lines,
)

TEXTS = st.text(st.characters(categories=["L", "N"], max_codepoint=0x9FFF), min_size=1, max_size=12)


def told(drawn: object, width: int) -> list[str]:
    console = Console(width=width, markup=False, highlight=False, color_system=None)
    with console.capture() as caught:
        console.print(drawn)
    return caught.get().splitlines()


@given(st.text(), st.integers(0, 50))
def test_a_text_is_on_one_line_and_steers_nothing(text, most):
    kept = printable(text, most)
    assert len(kept) == min(most, len(text)) and (kept.isprintable() or not kept)
    assert printable(kept) == kept and plain(kept).plain == " ".join(kept.split())


@given(st.lists(TEXTS, min_size=1, max_size=14), st.integers(2 * (WORDS + GAP) + 12, 200))
def test_no_column_vanishes(cells, width):
    headings = ["model", "from", *(f"h{place}" for place in range(len(cells)))]
    rows = [["a model", "measured here", *cells], ["another", "published", *reversed(cells)]]
    lines = told(grids(headings, rows, ("model", "from"), width), width)
    heads = [one.split() for one in lines if one.startswith("model")]
    assert [name for head in heads for name in head[2:]] == headings[2:]
    assert all(head[:2] == ["model", "from"] for head in heads)
    first = [one.split()[4:] for one in lines if one.startswith("a model")]
    assert [cell for part in first for cell in part] == cells
    assert max(Text(one).cell_len for one in lines) <= width
    assert len(heads) <= len(cells)


def test_a_table_that_fits_stays_one():
    headings, rows = ["name", "n", "m"], [["x", "1", "2"]]
    assert told(grids(headings, rows, ("name",), 80), 80) == told(
        grid(headings, rows, ("name",)), 80
    )
    parts = told(grids(headings, rows, ("name",), 8), 8)
    assert [one.split() for one in parts] == [
        ["name", "n"],
        ["x", "1"],
        [],
        ["name", "m"],
        ["x", "2"],
    ]


def test_hostile_cells_are_text():
    content = grid(["[b]h"], [["[red]x\x1b[31m\n"], [Text("[i]y")]])
    said = "\n".join(told(add_title("[b]a\n", content), 40))
    assert all(one in said for one in ("[b]a", "[b]h", "[red]x", "[i]y")) and "\x1b" not in said


STEERS = "a\x1b[31m\u202eb\x9b2Jc"


def test_nothing_that_is_printed_steers_a_terminal(capsys):
    say(f"{STEERS}\nnext")
    say(STEERS, err=True)
    show(Group(STEERS, Table(STEERS), Panel(STEERS, title=STEERS)))
    show(lambda width: Text(f"{width} {STEERS}\nnext"), wrap=False)
    show_json({STEERS: [STEERS]})
    show_json(json.dumps({STEERS: "的"}, ensure_ascii=False))
    told = capsys.readouterr()
    lines = (told.out + told.err).split("\n")
    assert all(one.isprintable() for one in lines)
    assert lines[:2] == ["a [31m b 2Jc", "next"]


def test_json_that_is_shown_is_what_was_given(capsys):
    content = {STEERS: [STEERS, "的", 1.5, None]}
    show_json(content)
    assert json.loads(capsys.readouterr().out) == content


def test_lines_are_wrapped_below_their_content_and_no_word_is_cut():
    path = "/a/path/that/is/longer/than/the/line.html"
    text = f"holds       one two three four\n            five six seven\nThe page: {path}\n\nend"
    assert wrap_lines(text, 24).split("\n") == [
        *("holds       one two", "            three four"),
        *("            five six", "            seven"),
        *("The page:", path, "", "end"),
    ]
    assert wrap_lines(text, 100) == text


@given(st.lists(st.lists(TEXTS, max_size=9).map(" ".join), max_size=4), st.integers(1, 40))
def test_wrapping_changes_nothing_but_where_lines_end(lines, width):
    wrapped = wrap_lines("\n".join(lines), width)
    assert wrapped.split() == " ".join(lines).split()
