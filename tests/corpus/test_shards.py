"""Texts in shards: read on beside training, the same order and bits whoever writes them."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.corpus.batches import BatchOrder
from layerlab.corpus.corpus import Corpus, extent, prepare
from layerlab.corpus.shards import SHARDS
from layerlab.data.documents import TextCursor
from layerlab.data.fingerprint import LARGE
from layerlab.data.sources import TextChunk
from layerlab.data.text_files import READ
from layerlab.recipes.training_sections import DataSection, Source
from tests.support.forked import OwnFork, python
from tests.support.refused import refuses

SIZE = 8192
# What Python says of a fork while another thread waits, as that of xdist does.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers begin as copies of this process, which has imported what they do."""
    monkeypatch.setattr(subprocess, "Popen", OwnFork)


def line(number: int) -> str:
    return f"Document {number} tells of the cat, the mat and {number * number} other things.\n"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    texts = (json.dumps({"text": line(number) * (1 + number % 5)}) for number in range(300))
    file.write_text("\n".join(texts) + "\n")
    return file


def data(*files: Path, **settings: object) -> DataSection:
    sources = tuple(Source(text=str(file)) for file in files)
    given = {"vocab_size": 300, "validation_fraction": 0.2, "shard_bytes": SIZE, **settings}
    return DataSection(sources=sources, **given)


def texts_of(corpus: Corpus, tokens: np.ndarray) -> list[str]:
    parts = np.split(tokens, np.flatnonzero(tokens == corpus.separator))
    return [corpus.tokenizer.decode(part[1:].tolist()) for part in parts if len(part)]


def everything(corpus: Corpus) -> list[np.ndarray]:
    """All tokens of the first source, shard by shard."""
    shards = corpus.train[0].shards
    assert shards is not None
    found, number = [np.array(corpus.train[0].tokens)], 0
    while not shards.is_last(number):
        number += 1
        found.append(np.array(shards.tokens(number)))
    return found


def test_the_shards_hold_the_whole_text_in_its_order(rows, tmp_path):
    corpus = prepare(data(rows), tmp_path)
    parts = everything(corpus)
    assert len(parts) > 4
    held = "".join(texts_of(corpus, corpus.validation[0].tokens))
    before, *behind = ("".join(texts_of(corpus, part)) for part in parts)
    texts = [json.loads(one)["text"] for one in rows.read_text().splitlines()]
    assert before + held + "".join(behind) == "".join(texts)
    assert extent(corpus, 8).tokens is None
    assert any("read on while the run goes on" in note for note in corpus.notes)


def test_nothing_behind_the_first_shard_is_read_before_it_is_asked_for(rows, tmp_path):
    rows.write_text(rows.read_text() + '{"text": broken\n')
    corpus = prepare(data(rows), tmp_path)
    order = BatchOrder(corpus, 8, 0)
    assert len(order.rows(0, 4)) == 4, "the first shard is there"
    refuses(r"rows.jsonl, line 301 is not JSON.*mend that line$", everything, corpus)


@pytest.mark.full
def test_a_plan_reads_only_the_head(tmp_path):
    file = tmp_path / "large.txt"
    with file.open("wb") as stream:
        stream.write("".join(map(line, range(40_000))).encode())
        stream.truncate(1 << 34)  # 16 GiB of nothing, which takes no room
    code = (
        "from pathlib import Path\n"
        "from layerlab.api.train import prepare\n"
        "def read(): return int(open('/proc/self/io').read().split()[1])\n"
        "import layerlab.corpus.corpus, layerlab.training.trainer\n"
        f"source = {{'text': {str(file)!r}}}\n"
        "model = {'width': 16, 'layers': 1, 'heads': 2, 'context': 16}\n"
        "data = {'sources': [source], 'shard_bytes': 100_000, 'vocab_size': 300}\n"
        "before = read()\n"
        "task = prepare({'model': model, 'data': data, 'train': {'max_steps': 5}},"
        f" Path({str(tmp_path / 'out')!r}), progress=False)\n"
        "print(read() - before, task.runs[0].digest)"
    )
    done = python("-c", code, env={**os.environ, "LAYERLAB_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    size = int(done.stdout.split()[0])
    assert 100_000 <= size < 32 << 20, "one block of the text, and what Python loads late"


@pytest.mark.full
def test_the_order_is_the_same_whoever_writes_and_whenever(rows, tmp_path):
    first = BatchOrder(prepare(data(rows), tmp_path / "a"), 8, 3)
    turns = sum(len(part) // 8 for part in everything(first.corpus))
    whole = first.rows(0, 3 * turns)
    again = BatchOrder(prepare(data(rows), tmp_path / "b"), 8, 3)
    late = again.rows(2 * turns + 5, turns - 5)  # a run that is resumed asks for nothing before
    assert np.array_equal(late, whole[2 * turns + 5 :])
    assert np.array_equal(again.rows(0, 3 * turns), whole)
    other = BatchOrder(first.corpus, 8, 4)
    assert not np.array_equal(other.rows(0, turns), whole[:turns])


def test_each_pass_takes_each_block_once(rows, tmp_path):
    corpus = prepare(data(rows), tmp_path)
    parts = everything(corpus)
    blocks = [(len(part) - 1) // 8 for part in parts]
    order, count = BatchOrder(corpus, 8, 1), sum(blocks)
    _, found = order.places(np.arange(2 * count))
    for one in np.split(found, 2):
        assert sorted(one.tolist()) == list(range(count))
    starts = np.cumsum([0, *blocks])
    shards = np.searchsorted(starts, found[:count], side="right")
    assert (np.diff(shards) >= 0).all(), "shards come in their order"
    cut = [part[8 * n :][:9] for part, size in zip(parts, blocks, strict=True) for n in range(size)]
    assert np.array_equal(order.rows(0, count), np.stack(cut)[found[:count]])
    assert not np.array_equal(found[:count], found[count:])


@pytest.mark.full
def test_a_writer_that_is_killed_within_a_shard_leaves_none_of_it(rows, tmp_path):
    whole = everything(prepare(data(rows), tmp_path / "whole"))
    corpus = prepare(data(rows), tmp_path / "killed")
    shards = corpus.train[0].shards
    assert shards is not None
    shards.ask(1)
    process = shards.writer._process
    assert process is not None
    while not list(shards.folder.glob(".*.partial")) and not (shards.folder / "000003").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    made = [one for one in shards.folder.glob("00*") if one.is_dir()]
    assert len(made) < len(whole), "it was killed before the end"
    again = everything(prepare(data(rows), tmp_path / "killed"))
    assert all(map(np.array_equal, again, whole)) and len(again) == len(whole)
    assert not list(shards.folder.glob(".*.partial")), "what was left of it is gone"


def test_a_run_that_waits_for_a_killed_writer_says_so(rows, tmp_path):
    shards = prepare(data(rows), tmp_path).train[0].shards
    assert shards is not None
    shards.ask(0)
    process = shards.writer._process
    assert process is not None
    process.kill()
    refuses(r"has ended with code -9: it was killed; type the command", shards.table, 9)


@pytest.mark.full
def test_the_writer_ends_with_whoever_started_it(rows, tmp_path, monkeypatch):
    """It is the one that is started as a user's is."""
    monkeypatch.undo()
    corpus = prepare(data(rows), tmp_path)
    shards = corpus.train[0].shards
    assert shards is not None
    shards.ask(0)
    process = shards.writer._process
    assert process is not None and process.poll() is None
    del corpus, shards
    assert process.poll() is not None


@pytest.mark.full
def test_a_damaged_shard_is_named_and_made_anew(rows, tmp_path):
    whole = everything(prepare(data(rows), tmp_path))
    corpus = prepare(data(rows), tmp_path)
    shards = corpus.train[0].shards
    assert shards is not None
    file = shards.folder / "000002" / "shard.tokens"
    file.write_bytes(bytes(file.stat().st_size))
    refuses(r"000002 in the cache is not what was written; delete", everything, corpus)
    del corpus, shards  # and their writer
    shutil.rmtree(file.parent)
    assert all(map(np.array_equal, everything(prepare(data(rows), tmp_path)), whole))


@pytest.mark.full
@pytest.mark.parametrize("other", ["shard", "source", "corpus"])
def test_a_shard_that_was_copied_over_another_is_named_and_made_anew(rows, tmp_path, other):
    """Whole as each is: its number, its source and its corpus are others."""
    second = tmp_path / "second.jsonl"
    second.write_text(rows.read_text().replace("cat", "dog"))
    whole = everything(prepare(data(rows, second), tmp_path))
    corpus = prepare(data(rows, second), tmp_path)
    both = [one.shards for one in corpus.train]
    first, its = (one for one in both if one is not None)
    its.tokens(1)
    taken = {"shard": first.folder / "000002", "source": its.folder / "000001"}
    if other == "corpus":
        longer = prepare(data(rows, second, shard_bytes=2 * SIZE), tmp_path)
        everything(longer)
        assert longer.train[0].shards is not None
        taken[other] = longer.train[0].shards.folder / "000001"
    copied = first.folder / "000001"
    shutil.rmtree(copied)
    shutil.copytree(taken[other], copied)
    del corpus, both, first, its  # and their writer, which would mend it meanwhile
    with pytest.raises(UserError, match=r"000001 in the cache is not what was written; delete"):
        everything(prepare(data(rows, second), tmp_path))
    shutil.rmtree(copied)
    assert all(map(np.array_equal, everything(prepare(data(rows, second), tmp_path)), whole))


def test_what_is_held_out_is_not_learned_where_it_comes_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    texts = [line(number) * 3 for number in range(200)]
    file.write_text("\n".join(json.dumps({"text": text}) for text in [*texts, *texts]))
    corpus = prepare(data(file), tmp_path)
    held = set(texts_of(corpus, corpus.validation[0].tokens)) & set(texts)
    learned = [text for part in everything(corpus)[1:] for text in texts_of(corpus, part)]
    assert held and not held & set(learned)
    assert len(set(texts) - held - set(learned)) <= 60, "what stands in the first shard, or was cut"


def test_a_text_that_changes_is_refused(rows, tmp_path):
    corpus = prepare(data(rows), tmp_path)
    rows.write_text(rows.read_text() + json.dumps({"text": "more"}))
    refuses(r"rows.jsonl was changed since it was planned", everything, corpus)


def test_a_text_is_known_by_its_content_and_not_by_its_time(rows, tmp_path):
    before, parts = prepare(data(rows), tmp_path), {one.name for one in tmp_path.glob("*/*")}
    os.utime(rows, ns=(1, 1))
    assert prepare(data(rows), tmp_path).digest == before.digest
    assert {one.name for one in tmp_path.glob("*/*")} == parts
    rows.write_text(rows.read_text().replace("cat", "dog", 1))
    os.utime(rows, ns=(1, 1))
    assert prepare(data(rows), tmp_path).digest != before.digest


def test_a_short_text_has_one_shard(rows, tmp_path):
    corpus = prepare(data(rows, shard_bytes=10**6), tmp_path)
    assert len(everything(corpus)) == 1
    order = BatchOrder(corpus, 8, 0)
    assert len(order.rows(0, 3 * order.blocks[0])) == 3 * order.blocks[0]


def test_two_sources_are_mixed_by_their_weights(rows, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("".join(map(line, range(2000, 3000))))
    sources = (Source(text=str(rows)), Source(text=str(other), weight=3.0, limit=30_000))
    corpus = prepare(data(rows).model_copy(update={"sources": sources}), tmp_path)
    order = BatchOrder(corpus, 8, 0)
    assert np.bincount(order.places(np.arange(400))[0]).tolist() == [100, 300]
    second = corpus.train[1].shards
    assert second is not None
    taken, number = corpus.train[1].bytes + corpus.validation[1].bytes, 0
    while not second.is_last(number):
        number += 1
        taken += second.table(number)["bytes"]
    assert taken == 30_000


@pytest.mark.parametrize("meant", [False, True])
def test_a_special_token_that_a_later_shard_spells_is_text_unless_it_is_meant(meant, tmp_path):
    file = tmp_path / "rows.jsonl"
    texts = [line(number) + "<|endoftext|>" * (number > 250) for number in range(400)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = data(file).model_copy(
        update={"sources": (Source(text=str(file), special_tokens=meant),)}
    )
    corpus = prepare(given, tmp_path)
    tokens = np.concatenate(everything(corpus)[1:])
    assert tokens[-1] != corpus.separator or meant
    assert any("<|endoftext|>" in text for text in texts_of(corpus, tokens)) != meant


def test_what_decides_the_shards_decides_the_digest(rows, tmp_path):
    digests = {prepare(data(rows, shard_bytes=size), tmp_path).digest for size in (SIZE, 9000)}
    assert len(digests | {prepare(data(rows, shard_bytes=None), tmp_path).digest}) == 3
    assert prepare(data(rows), tmp_path / "b").digest in digests


@pytest.mark.full
@given(
    st.lists(st.tuples(st.text(max_size=30), st.booleans()), max_size=12),
    st.integers(0, 60),
    st.integers(1, 40),
    st.none() | st.integers(0, 200),
)
def test_a_cursor_takes_a_text_apart_and_loses_nothing(pieces, skip, size, limit):
    chunks = [TextChunk(text, first) for text, first in pieces]
    whole = "".join(text for text, _ in pieces).encode()
    wanted = whole[skip : None if limit is None else max(limit, skip)].decode(errors="ignore")
    if whole[:skip].decode(errors="ignore").encode() != whole[:skip]:
        return  # no shard ends within a character
    cursor, found = TextCursor(iter(chunks), "it", skip, limit), ""
    while cursor.more:
        part = "".join(chunk.text for chunk in cursor.take(size))
        assert part and len(part.encode()) <= size + 3
        found += part
        fresh = TextCursor(iter(chunks), "it", skip + len(found.encode()), limit)
        assert fresh.more == cursor.more
    assert found.startswith(wanted) and len(found) <= len(wanted) + 1


@pytest.mark.full
def test_a_text_that_changed_unseen_is_not_gone_on_with(rows, tmp_path):
    """Its size and time are those of before, as the name of a data set of the Hub stays."""
    time, text = rows.stat().st_mtime_ns, rows.read_text()

    def write(text: str) -> None:
        rows.write_text(text * (2 + READ // len(text)))
        os.truncate(rows, LARGE)  # so that all of it takes long to read
        os.utime(rows, ns=(time, time))

    write(text)
    sources = (Source(text=str(rows), limit=30_000),)
    given = data(rows).model_copy(update={"sources": sources})
    parts = everything(prepare(given, tmp_path))
    write(text.replace("cat", "dog", 1))
    (last,) = tmp_path.glob(f"{SHARDS}/*/0/{len(parts) - 1:06}")
    shutil.rmtree(last)
    with pytest.raises(UserError, match=r"rows.jsonl was changed: .* put it back, or give a copy"):
        everything(prepare(given, tmp_path))
    write(text)
    again = everything(prepare(given, tmp_path))
    assert all(np.array_equal(*each) for each in zip(parts, again, strict=True))
