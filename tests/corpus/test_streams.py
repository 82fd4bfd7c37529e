"""Streams: documents that stand in training and in held-out text are found, wherever cut."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from layerlab.corpus.corpus import prepare
from layerlab.corpus.streams import KeptTokens, TokenStream, drop_documents, leave_out_copies
from layerlab.recipes.training_sections import Source
from tests.corpus.test_corpus import LINE, data, documents


def repeated(folder: Path, name: str, *numbers: int) -> Path:
    rows = (json.dumps({"text": f"Document {number} " + "abc " * number}) for number in numbers)
    (folder / name).write_text("\n".join(rows))
    return folder / name


def test_documents_that_are_held_out_and_learned_are_counted(tmp_path):
    once = prepare(data(repeated(tmp_path, "once.jsonl", *range(1, 41))), tmp_path)
    assert once.notes == ()
    twice = data(repeated(tmp_path, "twice.jsonl", *range(1, 41), 40, 3, 50), vocab_size=290)
    found = prepare(twice, tmp_path)
    held = documents(found, found.validation[0])
    copied = [text for text in held if text in documents(found, found.train[0])]
    size = sum(len(text.encode()) for text in copied)
    assert copied and len(copied) < len(held)
    assert found.notes == (
        f"{size:,} of {found.validation_bytes:,} held-out bytes of {tmp_path / 'twice.jsonl'} "
        f"({len(copied)} of {len(held)} documents) stand in the training text too, word for word: "
        "their loss tells what was memorized",
    )


def test_copies_of_what_is_held_out_are_not_learned_where_that_is_asked(tmp_path):
    asked = data(repeated(tmp_path, "a.jsonl", *range(1, 41), 40, 3, 50), vocab_size=290)
    whole, apart = prepare(asked, tmp_path), prepare(asked, tmp_path, copies=False)
    held = documents(whole, whole.validation[0])
    left = [text for text in documents(whole, whole.train[0]) if text not in held]
    assert documents(apart, apart.train[0]) == left
    count = whole.train[0].documents - len(left)
    assert apart.notes == (
        f"{count} of {whole.train[0].documents} documents of {tmp_path / 'a.jsonl'} are copies of "
        "held-out ones, and are not learned",
    )
    assert apart.digest != whole.digest and apart.validation[0].tokens is not None
    clean = data(repeated(tmp_path, "b.jsonl", *range(1, 41)))
    assert prepare(clean, tmp_path, copies=False).digest == prepare(clean, tmp_path).digest


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=9))
def test_tokens_that_are_kept_are_found_where_they_lie(documents):
    sizes, left = (np.array(one) for one in zip(*documents, strict=True))
    tokens, starts = np.arange(sizes.sum(), dtype=np.uint16), np.cumsum(sizes) - sizes
    kept, wanted = KeptTokens(tokens, starts, left), drop_documents(tokens, starts, left)
    assert len(kept) == len(wanted) and np.array_equal(kept[:], wanted)
    assert np.array_equal(kept[1:4], wanted[1:4]) and kept[:].dtype == kept.dtype == np.uint16
    places = np.arange(len(wanted))[::-1].reshape(-1, 1)
    assert np.array_equal(kept[places], wanted[places])


def test_what_is_left_out_takes_no_copy_of_what_is_learned():
    tokens, hashes = np.zeros(4_000_000, np.uint16), np.arange(4000, dtype=np.uint64)
    train = TokenStream(
        **{"name": "a", "ends": None, "bytes": 1, "weight": 1.0, "hashes": hashes},
        **{"tokens": tokens, "starts": np.arange(0, 4_000_000, 1000)},
    )
    tracemalloc.start()
    (kept,), _ = leave_out_copies([train], [replace(train, hashes=hashes[5:6])])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept.tokens) == 3_999_000 and kept.documents == 3999 and peak < 500_000


def test_a_copy_of_a_document_is_found_where_its_end_alone_is_held_out(tmp_path):
    place = tmp_path / "texts"
    place.mkdir()
    text = "".join(f"Line {number}: {LINE.strip()}\n" for number in range(200))
    (place / "a.txt").write_text("Another text.\n" * 99)
    (place / "z.txt").write_text(text)
    assert prepare(data(place), tmp_path).notes == ()
    (place / "copy of z.txt").write_text(text)
    found, apart = prepare(data(place), tmp_path), prepare(data(place), tmp_path, copies=False)
    (held,) = documents(found, found.validation[0])
    assert text.endswith(held) and held != text, "the end of a document"
    assert text in documents(found, found.train[0])
    size = len(held.encode())
    assert found.notes[0].startswith(f"{size:,} of {size:,} held-out bytes of {place} (1 of 1")
    assert text not in documents(apart, apart.train[0])
    assert apart.train[0].documents == found.train[0].documents - 1


def test_held_out_text_of_its_own_is_looked_for_in_the_training_text(tmp_path):
    train = repeated(tmp_path, "a.jsonl", *range(1, 41))
    held = Source(text=str(repeated(tmp_path, "b.jsonl", 1, 2, 77, 78, 79, 80, 81, 2)))
    found = prepare(
        data(train, eval_sources=(held,), validation_fraction=0.4, vocab_size=280), tmp_path
    )
    (note,) = found.notes
    assert f"held-out bytes of {tmp_path / 'b.jsonl'} (1 of" in note
