"""What can be asked, whether it is here, and what is wrong with it."""

import io

import pytest
from rich.console import Console

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.results.listing import list_benchmarks, render_listing
from tests.evaluation.written import boolq


def test_a_benchmark_that_cannot_be_read_hides_no_other(tmp_path):
    boolq(tmp_path, "true")
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "piqa.zip").write_bytes(b"PK half")
    rows = {row["benchmark"]: row for row in list_benchmarks(tmp_path)}
    assert list(rows) == list(BENCHMARKS)
    assert [name for name, row in rows.items() if row["here"]] == ["boolq"]
    faults = {name: row["fault"] for name, row in rows.items() if row["fault"]}
    assert list(faults) == ["piqa"]
    said = f"cannot read the archive {tmp_path / 'piqa' / 'piqa.zip'}: File is not a zip file; copy"
    assert faults["piqa"].startswith(said)
    console = Console(width=400, file=io.StringIO(), record=True)
    console.print(render_listing(list(rows.values())))
    said_lines = filter(str.strip, console.export_text().splitlines())
    lines = {line.split()[0]: line for line in said_lines}
    assert " here " in lines["boolq"] and "cannot read the archive" in lines["piqa"]
    assert "put it in ceval/" in lines["ceval"]


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_no_benchmark_and_no_heading_is_broken(width, tmp_path):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render_listing(list_benchmarks(tmp_path), width))
    said = console.export_text()
    assert set(BENCHMARKS) <= set(said.split())
    assert {"subjects", "data", "licence", "examination", "understanding"} <= set(said.split())
    assert max(map(len, said.splitlines())) <= width


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_address_of_every_benchmark_is_whole_on_a_line_of_its_own(width, tmp_path):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render_listing(list_benchmarks(tmp_path), width))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    place = lines.index("Where to get the data")
    assert lines[place + 1 :] == [f"{one.name}: {one.source}" for one in BENCHMARKS.values()]
