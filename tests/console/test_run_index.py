"""The index of a folder in a terminal: whole at every width, and nothing that steers it."""

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from layerlab.console.run_index import count_entries, render_index
from layerlab.records.index.entry import Entry

ENTRY = Entry(
    kind="comparison",
    name="eight-residuals",
    state="finished",
    headline="history-6 comes out ahead of llama by 0.1096 nats; of 7 arms: 5 are worse",
    folder="out/eight-residuals",
    page="out/eight-residuals/report.html",
    changed=datetime(2026, 11, 20, 12, 30, tzinfo=UTC),
)


def changed(**given: Any) -> Entry:
    return Entry(**{**ENTRY.__dict__, **given})


def drawn(*entries: Entry, width: int = 80, folder: str = "runs", remarks: Any = ()) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False, highlight=False)
    console.print(render_index(entries, remarks, Path(folder)))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_width_has_all_of_it(width):
    text = drawn(ENTRY, width=width)
    joined = "".join(text.split())
    for part in ("2026-11-20 12:30", "comparison", "finished", ENTRY.name, ENTRY.headline):
        assert "".join(part.split()) in joined
    assert "runs/out/eight-residuals/report.html" in joined
    assert max(map(len, text.splitlines())) <= width


def test_a_path_has_a_line_of_its_own_from_where_one_stands():
    assert "\n  runs/out/eight-residuals/report.html" in drawn(ENTRY)
    assert "\n  out/eight-residuals\n" in drawn(changed(page=None), folder=".") + "\n"


def test_a_name_is_neither_markup_nor_an_escape_sequence():
    text = drawn(changed(name="[red]a\x1b[31m", headline="b\x07\n\u202ec"))
    assert "[red]a [31m" in text and "b" in text
    assert not [one for one in text if not one.isprintable() and one != "\n"]


def test_it_ends_with_how_many_there_are_and_what_was_passed_over():
    entries = [ENTRY, changed(kind="study"), changed(kind="study"), changed(kind="run")]
    assert count_entries(entries) == "1 comparison, 2 studies, 1 run"
    assert (
        drawn(*entries, remarks=["x was not looked into"])
        .rstrip()
        .endswith("1 comparison, 2 studies, 1 run\n- x was not looked into")
    )


def test_of_many_the_newest_are_shown_and_all_are_counted():
    entries = [changed(name=f"run-{number}") for number in range(25)]
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None)
    console.print(render_index(entries, (), Path("runs"), 20))
    text = out.getvalue()
    assert "run-19" in text and "run-20" not in text
    assert text.endswith("25 comparisons\nThe newest 20 of 25; --all shows the others.\n")


def test_an_empty_folder_says_what_to_type():
    assert drawn() == ("Nothing of layerlab's is in runs; type for example layerlab train smoke\n")
