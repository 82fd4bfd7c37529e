"""What the pages of a Parquet file unpack to, whatever its end says."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerlab.data.sources import rows
from layerlab.records.parquet import folded_runs
from layerlab.records.parquet.folded_runs import unfold_runs
from layerlab.records.parquet.pages import page_sizes
from tests.support.refused import refuses

LONG = 4 << 20
# One row of nothing, 200,000 times.
LIST = pa.ListArray.from_arrays(pa.array([0, 200_000], pa.int32()), pa.nulls(200_000, pa.bool_()))


def number(value: int) -> bytes:
    """Spell a number as the end of a Parquet file does."""
    value, found = value << 1, b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def lie(file: Path) -> None:
    """Let the end of a file say that its pages unpack to a small part of what they do."""
    group = pq.read_metadata(file).row_group(0)
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        # A number may be spelled with more bytes than it needs.
        low, *high = number(size >> 9)
        short = bytes([low | 128, *(one | 128 for one in high)])
        before = number(size)
        file.write_bytes(
            file.read_bytes().replace(before, short.ljust(len(before) - 1, b"\x80") + b"\0")
        )
    assert pq.read_metadata(file).row_group(0).total_byte_size < LONG >> 8


def store(column: Any, file: Path, name: str = "text", **options: Any) -> Path:
    pq.write_table(pa.table({name: column}), file, compression="zstd", **options)
    return file


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_the_sizes_are_those_of_an_honest_end(dictionary, version, codec, tmp_path):
    table = pa.table({"a": ["abc"] * 5000 + [None], "b": [[1.5, 2.5]] * 5001, "c": range(5001)})
    options: Any = {"data_page_version": version, "use_dictionary": dictionary}
    pq.write_table(
        table, tmp_path / "a", compression=codec, row_group_size=999, data_page_size=99, **options
    )
    metadata = pq.read_metadata(tmp_path / "a")
    groups = [metadata.row_group(one) for one in range(metadata.num_row_groups)]
    honest = sum(one.total_byte_size for one in groups)
    listed = sum(one.column(1).num_values for one in groups) * 12
    found = page_sizes(tmp_path / "a", metadata)
    assert honest * 0.5 < found.total - listed <= honest and 0 < found.largest < honest


def test_a_group_without_rows_has_no_page_of_data(tmp_path):
    tables = [pa.table({"text": pa.array(words, pa.string())}) for words in (["a"], [], ["b"])]
    with pq.ParquetWriter(tmp_path / "a.parquet", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    assert [row["text"] for _, row in rows(str(tmp_path / "a.parquet"))] == ["a", "b"]


@pytest.mark.parametrize(("column", "lies"), [([("a" * LONG)], True), (LIST, False)])
def test_nothing_is_unpacked_of_what_is_too_long(column, lies, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", str(1 << 20))
    file = store(column, tmp_path / "a.parquet", use_dictionary=False, store_schema=False)
    if lies:
        lie(file)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("unpacked"))
    refuses("unpacks to more than 1,048,576 bytes", list, rows(str(file)))


def test_nothing_is_unpacked_of_runs_that_are_too_long(tmp_path, monkeypatch):
    for name in ("manifests.parquet", "curves.parquet"):
        lie(store(["a" * LONG], tmp_path / name, "run", use_dictionary=False))
    monkeypatch.setattr(folded_runs, "LARGEST", 1 << 20)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("unpacked"))
    refuses("unpacks to more than 1 MiB", unfold_runs, tmp_path)


def test_pages_that_are_none_are_one_line(tmp_path):
    file = store(["word"] * 9, tmp_path / "a.parquet", use_dictionary=False)
    good, at = file.read_bytes(), 4
    for head in (b"\xff", b"\x15\x00\x15\x01", b"\x1c" * 20, b"\x15" + b"\xff" * 20):
        file.write_bytes(good[:at] + head + good[at + len(head) :])
        refuses("is no Parquet that can be read", list, rows(str(file)))
