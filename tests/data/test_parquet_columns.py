"""What a Parquet file unpacks to, counted before it is unpacked."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layerlab import UserError
from layerlab.data.parquet_columns import read_batches, text_columns, unpacked_size
from layerlab.data.sources import open_source, rows, to_source


def words(count: int, length: int) -> Any:
    indices = pa.array([0] * count, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(["a" * length]))


def store(column: Any, file: Path, **options: Any) -> Path:
    pq.write_table(pa.table({"text": column}), file, compression="zstd", **options)
    return file


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("schema", [False, True])
def test_a_long_word_in_each_row_is_counted_before_it_is_repeated(
    schema, listed, tmp_path, monkeypatch
):
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", str(20 << 20))
    column = words(60, 1 << 20)
    if listed:
        column = pa.ListArray.from_arrays(pa.array(range(61), pa.int32()), column)
    file = store(column, tmp_path / "a.parquet", store_schema=schema)
    before = pa.total_allocated_bytes()
    peak: list[int] = []
    monkeypatch.setattr(
        "layerlab.data.parquet_columns.unpacked_size",
        lambda column: peak.append(pa.total_allocated_bytes()) or unpacked_size(column),
    )
    with pytest.raises(UserError, match="unpacks to more than 20,971,520 bytes"):
        list(rows(str(file)))
    assert peak[0] - before < 24 << 20


@pytest.mark.parametrize(
    "value", ["word", ["a", "b"], {"a": "b", "c": [{"d": "e"}]}, b"\x00", 3, None, [["a"], []]]
)
def test_values_are_those_that_were_stored(value, tmp_path):
    pq.write_table(pa.table({"text": [value, value]}), tmp_path / "a.parquet")
    assert [row["text"] for _, row in rows(str(tmp_path / "a.parquet"))] == [value, value]


def test_a_field_is_read_and_a_dictionary_is_not_counted_for_each_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", str(3 << 20))
    names = [f"{number:01000}" for number in range(1000)]
    column = pa.array((names * 2)[:2000])
    file = store(column, tmp_path / "a.parquet")
    found = [one.text for one in open_source(to_source(str(file))).pieces()]
    assert found == (names * 2)[:2000]


def test_texts_of_one_group_are_not_gathered_in_a_dictionary_that_grows_with_each_batch(
    tmp_path, monkeypatch
):
    texts = [f"{number:0500}" for number in range(10_000)]
    file = store(texts, tmp_path / "a.parquet")
    assert pq.read_metadata(file).num_row_groups == 1
    assert text_columns(pq.read_metadata(file)) == []
    batches = read_batches(file, "text")
    sizes = [(len(one), one.columns[0].get_total_buffer_size()) for one in batches]
    assert sum(rows for rows, _ in sizes) == len(texts)
    assert max(size for _, size in sizes) < 1 << 20
    listed = store([[one] for one in texts[:9]], tmp_path / "b.parquet")
    assert text_columns(pq.read_metadata(listed)) == ["text.list.element"]
    # In lists they are: so few batches are read.
    asked, read = list[int](), pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda self, **options: asked.append(options["batch_size"]) or read(self, **options),
    )
    assert [row["text"] for _, row in rows(str(listed))] == [[one] for one in texts[:9]]
    assert asked == [4096]
