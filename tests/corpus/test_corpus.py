"""Corpora: made once, the same every time, whole or not at all."""

import json
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.corpus.corpus import Corpus, extent, prepare
from layerlab.corpus.stored import SCHEMA
from layerlab.corpus.streams import TokenStream
from layerlab.errors import DamageWarning
from layerlab.recipes.training_sections import DataSection, Source
from layerlab.records.parse import seal
from layerlab.system.locks import TIMEOUT, lock_folder
from layerlab.tokenization.load import train_tokenizer
from tests.support.mounted import disk
from tests.support.refused import refuses

LINE = "The cat sat on the mat, and ate a käse.\r\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "texts"
    place.mkdir()
    for number in range(30):
        (place / f"{number:02}.txt").write_text(f"Text {number}.\r\n" + LINE * 3, newline="")
    (place / "05a.txt").write_text("")
    return place


def data(*places: Path, **settings: object) -> DataSection:
    sources = tuple(Source(text=str(place)) for place in places)
    return DataSection(
        sources=sources, **{"vocab_size": 300, "validation_fraction": 0.2, **settings}
    )


def documents(corpus: Corpus, stream: TokenStream) -> list[str]:
    parts = np.split(stream.tokens[:], stream.starts[1:])
    assert all(part[0] == corpus.separator for part in parts)
    return [corpus.tokenizer.decode(part[1:].tolist()) for part in parts]


def test_documents_come_back_from_their_tokens(folder, tmp_path):
    corpus = prepare(data(folder), tmp_path)
    texts = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    train, held = corpus.train[0], corpus.validation[0]
    found = documents(corpus, train) + documents(corpus, held)
    assert found == [text for text in texts if text]
    assert (train.documents, held.documents) == (24, 6)
    assert train.bytes + held.bytes == sum(len(text.encode()) for text in texts)
    assert corpus.validation_bytes == held.bytes == sum(len(t.encode()) for t in found[24:])
    assert held.ends is not None and held.ends[-1] == held.bytes and train.ends is None
    assert train.tokens.dtype == np.uint16 and not train.tokens.flags.writeable


@pytest.mark.parametrize("meant", [False, True])
def test_a_special_token_that_a_document_spells_is_text_unless_it_is_meant(meant, tmp_path):
    mark = "<|endoftext|>"
    texts = [f"{mark}{LINE}", LINE * 2, f"of {mark} and\n{mark}\n", LINE, f"held out {mark} too"]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = data(file, validation_fraction=0.1).model_copy(
        update={"sources": (Source(text=str(file), special_tokens=meant),)}
    )
    corpus = prepare(given, tmp_path)
    train, held = corpus.train[0], corpus.validation[0]
    separators = [int((one.tokens[:] == corpus.separator).sum()) for one in (train, held)]
    assert (train.documents, held.documents) == (4, 1)
    assert separators == ([7, 2] if meant else [4, 1])
    told = f"3 documents of {file} spell special tokens of the tokenizer, as '{mark}'"
    assert any(note.startswith(told) for note in corpus.notes) != meant
    assert corpus.notes == prepare(given, tmp_path).notes and not corpus.loss
    assert held.ends is not None and held.ends[-1] == held.bytes == len(texts[4])
    if not meant:
        assert documents(corpus, train) + documents(corpus, held) == texts


def test_it_is_made_once_and_found_again(folder, tmp_path, monkeypatch):
    said: list[str] = []
    first = prepare(data(folder), tmp_path, lambda what, share: said.append(f"{what} {share:g}"))
    assert "training a tokenizer 0" in said and said[-1] == "encoding validation-0 1"
    again = prepare(
        data(folder, document_masking=True, block_size=8),
        tmp_path,
        lambda *news: pytest.fail(str(news)),
    )
    assert again.folder == first.folder and again.digest == first.digest
    assert again.documents and not first.documents
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "elsewhere"))
    assert prepare(data(folder)).digest == first.digest
    assert (tmp_path / "elsewhere" / "corpora-2").is_dir()


def test_whatever_changes_the_tokens_changes_the_digest(folder, tmp_path):
    moved = folder.rename(tmp_path / "moved")
    first = prepare(data(moved), tmp_path)
    others = [
        prepare(data(moved, **{name: value}), tmp_path)
        for name, value in (("vocab_size", 290), ("validation_fraction", 0.3))
    ]
    limited = (Source(text=str(moved), limit=2000),)
    others.append(prepare(data(moved).model_copy(update={"sources": limited}), tmp_path))
    moved.rename(folder)
    assert prepare(data(folder), tmp_path).digest == first.digest, "its place is no part of it"
    (folder / "00.txt").write_text("Another text.\n" + LINE)
    others.append(prepare(data(folder), tmp_path))
    assert len({first.digest, *(other.digest for other in others)}) == 5


def reseal(made: Path, **change: object) -> None:
    table = json.loads((made / "corpus.json").read_text())
    (made / "corpus.json").write_text(json.dumps(seal({**table, **change})))


def edit(made: Path, name: str, value: object) -> None:
    table = json.loads((made / "corpus.json").read_text())
    table["corpus"][name] = value
    (made / "corpus.json").write_text(json.dumps(table))


def swap(made: Path) -> None:
    """Swap two entries of the tokenizer, so that its texts are those of other tokens."""
    file = made / "tokenizer" / "tokenizer.json"
    table = json.loads(file.read_text())
    vocab = table["model"]["vocab"]
    vocab["e"], vocab["t"] = vocab["t"], vocab["e"]
    file.write_text(json.dumps(table))


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda made: (made / "train-0.tokens").write_bytes(b"\1\0"), "train-0.tokens is not"),
        (lambda made: (made / "validation-0.ends").unlink(), "validation-0.ends"),
        (lambda made: (made / "corpus.json").write_text('{"schema": 1}'), "is not what was writ"),
        (lambda made: (made / "corpus.json").write_text('{"digest": "'), "corpus.json: Unterm"),
        (lambda made: (made / "corpus.json").write_bytes(b""), "corpus.json: Expecting value"),
        (
            lambda made: (made / "train-0.starts").write_bytes(
                bytes((made / "train-0.starts").stat().st_size)
            ),
            "train-0.starts is not what was written",
        ),
        (lambda made: (made / "tokenizer").rename(made / "gone"), "its tokenizer is not"),
        (swap, "its tokenizer is not what was written"),
        (lambda made: (made / "tokenizer" / "tokenizer.json").write_text(""), "its tokenizer is"),
        (lambda made: (made / "tokenizer" / "added_tokens.json").write_text("{}"), "its token"),
        (lambda made: edit(made, "vocab", 7), "corpus.json: it is not what was written"),
        (lambda made: edit(made, "digest", "0" * 32), "corpus.json: it is not what was written"),
        (lambda made: edit(made, "sources", []), "corpus.json: it is not what was written"),
        (lambda made: reseal(made, key="0" * 32), "corpus.json is that of another corpus"),
        (lambda made: reseal(made, corpus=[]), "TypeError"),
        (lambda made: reseal(made, corpus={"schema": SCHEMA, "sources": []}), "zip"),
        (lambda made: reseal(made, corpus={"schema": 1}), "was written by another version"),
        (
            lambda made: (made / "corpus.json").write_text(  # as 0.1 wrote it
                json.dumps(json.loads((made / "corpus.json").read_text())["corpus"])
            ),
            "or is of an earlier version",
        ),
    ],
)
def test_a_damaged_one_is_made_again(folder, tmp_path, damage, why):
    first = prepare(data(folder), tmp_path)
    tokens, words = first.train[0].tokens.tolist(), first.tokenizer.get_vocab()
    damage(first.folder)
    (first.folder.parent / f".{first.folder.name}.left.partial").mkdir()
    with pytest.warns(DamageWarning, match=f"is made again: .*{why}") as said:
        again = prepare(data(folder), tmp_path)
    assert len(said) == 1 and "\n" not in str(said[0].message)
    assert again.digest == first.digest and again.train[0].tokens.tolist() == tokens
    assert again.vocab == first.vocab and again.tokenizer.get_vocab() == words
    assert again.tokenizer.eos_token_id == again.separator
    assert [one.name for one in first.folder.parent.iterdir()] == [first.folder.name]


def test_a_full_cache_is_told_with_what_moves_it(folder, tmp_path):
    with disk(tmp_path / "full", "16k"):
        refuses("make room there, or set LAYERLAB_CACHE", prepare, data(folder), tmp_path / "full")


def _digest(folder: Path, cache: Path) -> str:
    return prepare(data(folder), cache).digest


def test_two_processes_at_once_do_not_collide(folder, tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.starmap(_digest, [(folder, tmp_path)] * 4, chunksize=1)
    assert len(set(found)) == 1 and len(list((tmp_path / "corpora-2").iterdir())) == 1


@pytest.mark.full
def test_who_comes_second_waits(folder, tmp_path):
    made = prepare(data(folder), tmp_path)
    shutil.rmtree(made.folder)
    context = multiprocessing.get_context("fork")
    with lock_folder(made.folder):
        second = context.Process(target=_digest, args=(folder, tmp_path))
        second.start()
        second.join(5 * TIMEOUT)
        assert second.is_alive(), "longer than a lock is tried for"
    second.join()
    assert second.exitcode == 0


def test_a_cache_that_cannot_be_written_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written to; set LAYERLAB_CACHE to a folder"):
        prepare(data(folder), tmp_path / "file")


def test_a_failure_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{}\n')
    refuses("line 2 has no field 'text'", prepare, data(tmp_path / "a.jsonl"), tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("second", ["a.txt", "folder"])
def test_a_text_that_is_changed_while_it_is_read_is_not_kept(folder, tmp_path, second):
    """Its key is that of the old text, under which the new one would be found from then on."""
    (tmp_path / "a.txt").write_text(LINE * 40)
    asked = data(folder, folder if second == "folder" else tmp_path / second)
    changed = folder / "29.txt" if second == "folder" else tmp_path / second
    before, cache = changed.read_bytes(), tmp_path / "cache"

    def edit(said: str, share: float) -> None:
        if said.startswith("reading"):  # the first of the two
            changed.write_bytes(before.replace(b"cat", b"dog"))

    with pytest.raises(UserError, match="was changed while it was read, and nothing was ke") as no:
        prepare(asked, cache, edit)
    assert "\n" not in str(no.value)
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    changed.write_bytes(before)
    made = prepare(asked, cache)
    assert not any("dog" in one for stream in made.train for one in documents(made, stream))


def test_a_small_text_gives_a_small_tokenizer_and_says_so(tmp_path):
    (tmp_path / "a.txt").write_text("ab " * 20)
    corpus = prepare(data(tmp_path / "a.txt", vocab_size=1000), tmp_path)
    assert corpus.vocab < 300
    assert (
        f"a tokenizer of {corpus.vocab} entries, not the 1000 of data.vocab_size" in corpus.notes[0]
    )


def test_the_notes_of_a_source_reach_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    corpus = prepare(
        DataSection(sources=(Source(text="brown", limit=9000),), vocab_size=300), tmp_path
    )
    assert corpus.name == "python-docs" and "brown is not here" in corpus.notes[0]
    assert corpus.train[0].bytes + corpus.validation_bytes == 9000


def test_sources_keep_their_weights_and_their_own_held_out_text(folder, tmp_path):
    sources = (Source(text=str(folder)), Source(limit=5000, weight=3.0))
    corpus = prepare(
        DataSection(sources=sources, vocab_size=300, validation_fraction=0.1), tmp_path
    )
    assert [stream.weight for stream in corpus.train] == [1.0, 3.0]
    assert [stream.name for stream in corpus.validation] == [str(folder), "python-docs"]
    assert corpus.validation_bytes == sum(stream.bytes for stream in corpus.validation) > 500


@pytest.mark.full
def test_a_vocabulary_over_65535_is_written_wider(tmp_path):
    table = {f"w{number}": number for number in range(65_540)} | {"</s>": 65_540}
    words = Tokenizer(models.WordLevel(table, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(
        tmp_path / "words"
    )
    (tmp_path / "a.txt").write_text("w65539 w1\n" * 50)
    corpus = prepare(data(tmp_path / "a.txt", tokenizer=str(tmp_path / "words")), tmp_path)
    tokens = corpus.train[0].tokens
    assert corpus.vocab == 65_541 and tokens.dtype == np.uint32
    assert tokens[:3].tolist() == [65_540, 65_539, 1]


def test_a_tokenizer_is_part_of_what_a_corpus_is_by_more_than_its_size(folder, tmp_path):
    made = []
    for name, text in (("a", LINE), ("b", LINE[::-1])):
        train_tokenizer([text], 262).save_pretrained(tmp_path / name)
        made.append(prepare(data(folder, tokenizer=str(tmp_path / name)), tmp_path))
    assert made[0].folder != made[1].folder and made[0].digest != made[1].digest
    one, other = (documents(found, found.train[0]) for found in made)
    assert one == other and made[0].vocab == made[1].vocab == 262


def test_extent_counts_whole_blocks_and_refuses_less_than_one(folder, tmp_path):
    corpus = prepare(data(folder), tmp_path)
    count = len(corpus.train[0].tokens) - 1
    found = extent(corpus, 64)
    assert (found.vocab, found.tokens) == (300, count // 64 * 64)
    assert extent(corpus, count).tokens == count and found.digest == corpus.digest
    said = rf"gives {count} tokens to train on, fewer than one block of {count + 1}; give a longer"
    refuses(said, extent, corpus, count + 1)


def test_long_documents_are_encoded_in_bounded_pieces(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text((LINE * 400).replace("\r", ""))
    whole = prepare(data(tmp_path / "a.txt"), tmp_path / "whole")
    monkeypatch.setattr("layerlab.data.documents.PIECE", 1000)
    monkeypatch.setattr("layerlab.corpus.tokenize.CHUNK", 3000)
    parts = prepare(data(tmp_path / "a.txt"), tmp_path / "parts")
    assert parts.train[0].documents == 1 and parts.digest == whole.digest


def test_other_text_may_be_held_out_in_the_same_words(folder, tmp_path):
    (tmp_path / "own.txt").write_text("An apple fell, and then another one fell.\n" * 80)
    alone = prepare(data(tmp_path / "own.txt"), tmp_path)
    judge = prepare(data(folder), tmp_path)
    found = prepare(data(tmp_path / "own.txt", eval_sources=(Source(text=str(folder)),)), tmp_path)
    assert np.array_equal(found.train[0].tokens, alone.train[0].tokens)
    assert found.validation_bytes == judge.validation_bytes
    held = documents(found, found.validation[0])
    assert held == documents(judge, judge.validation[0])
    assert found.digest not in (alone.digest, judge.digest)
    assert found.tokenizer.get_vocab() == alone.tokenizer.get_vocab()


def test_held_out_text_that_does_not_come_back_has_no_bytes_to_count(tmp_path):
    words = Tokenizer(models.WordLevel({"</s>": 0, "w": 1, "the": 2, "cat": 3}, unk_token="w"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    kept = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    kept.save_pretrained(tmp_path / "words")
    (tmp_path / "a.txt").write_text("the cat " * 90 + "the dog " * 9 + "the dog")
    (tmp_path / "b.txt").write_text("the cat " * 99 + "the cat")
    own = {"tokenizer": str(tmp_path / "words")}
    lost, whole = (prepare(data(tmp_path / name, **own), tmp_path) for name in ("a.txt", "b.txt"))
    assert "dog the dog" in lost.loss and "w the w" in lost.loss and lost.loss in lost.notes[0]
    assert lost.notes[0].startswith(f"bits per byte of {tmp_path / 'a.txt'} are not given")
    assert (whole.loss, whole.notes) == ("", ())
    held = {"eval_sources": (Source(text=str(tmp_path / "b.txt")),), **own}
    elsewhere = prepare(data(tmp_path / "a.txt", **held), tmp_path)
    assert elsewhere.loss == "" and not any("bits per byte" in one for one in elsewhere.notes)


def test_a_corpus_of_the_cache_has_the_settings_of_the_tokenizer_that_is_named(folder, tmp_path):
    words = train_tokenizer([LINE], 270)
    found = []
    for name, template, length in (("one", "ONE", 64), ("two", "TWO", 32)):
        words.chat_template, words.model_max_length = template, length
        words.save_pretrained(tmp_path / name)
        found.append(prepare(data(folder, tokenizer=str(tmp_path / name)), tmp_path))
    first, second = found
    assert first.folder == second.folder and first.digest == second.digest
    for corpus, template, length in ((first, "ONE", 64), (second, "TWO", 32)):
        settings = corpus.tokenizer.chat_template, corpus.tokenizer.model_max_length
        assert settings == (template, length)
    held = data(folder, tokenizer=str(tmp_path / "two"), eval_sources=(Source(text=str(folder)),))
    assert prepare(held, tmp_path).tokenizer.chat_template == "TWO"


def test_a_tokenizer_as_of_sentencepiece_is_a_corpus_of_its_own(folder, tmp_path):
    asked = {"train": "bpe-fallback", "special_tokens": ("<|user|>",)}
    corpus = prepare(data(folder, tokenizer=asked, vocab_size=310), tmp_path)
    assert corpus.tokenizer.convert_tokens_to_ids(["<|user|>", "<0x00>"]) == [1, 2]
    assert corpus.vocab == 310 and not corpus.loss
    texts = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    found = documents(corpus, corpus.train[0]) + documents(corpus, corpus.validation[0])
    assert found == [text for text in texts if text]
    bytewise = prepare(data(folder, tokenizer={"train": "bpe"}, vocab_size=310), tmp_path)
    assert bytewise.folder == prepare(data(folder, vocab_size=310), tmp_path).folder
    assert bytewise.digest != corpus.digest
