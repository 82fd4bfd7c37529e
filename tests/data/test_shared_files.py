"""What is held out of one source and learned from another is told where no copy shows it."""

from pathlib import Path

import pytest

from layerlab.corpus.corpus import prepare
from layerlab.data.shared_files import describe_learned, describe_shared
from layerlab.recipes.training_sections import DataSection, Source

WORDS = " ".join(f"{7919 * number % 10007:05d}" for number in range(3000))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two files, in which one stands."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / "texts" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "texts" / name).write_text(f"{name} {WORDS}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


WHOLE, PART = Source(text="texts/a.txt"), Source(text="./texts/a.txt", limit=9000)
FOLDER = Source(text="texts")


@pytest.mark.parametrize(
    ("trained", "held", "told"),
    [
        ([WHOLE, PART], None, 1),
        ([FOLDER, WHOLE], None, 1),
        ([WHOLE], [PART], 1),
        ([FOLDER], [WHOLE], 1),
        ([PART], [WHOLE], 0),
        ([WHOLE, WHOLE.model_copy(update={"weight": 2.0})], None, 0),
        ([WHOLE, Source(text="texts/b.txt")], None, 0),
        ([Source(), Source(limit=9000)], None, 1),
        ([Source()], None, 0),
    ],
)
def test_files_that_two_sources_share_are_told(trained, held, told, home):
    assert len(describe_shared(trained, held)) == told


@pytest.mark.parametrize(
    ("base", "held", "share", "told"),
    [
        ({}, (WHOLE, False), 0.05, 0),
        ({}, (WHOLE, False), 0.01, 0),
        ({}, (WHOLE, False), 0.1, 1),
        ({"shard_bytes": 2**20}, (WHOLE, False), 0.05, 1),
        ({}, (WHOLE, True), 0.05, 1),
        ({}, (PART, False), 0.05, 1),
        ({"sources": (PART,)}, (WHOLE, False), 0.05, 0),
        ({"sources": (FOLDER,)}, (WHOLE, False), 0.05, 1),
        ({}, (Source(text="texts/b.txt"), True), 0.5, 0),
    ],
)
def test_what_a_base_may_have_learned_is_told(base, held, share, told, home):
    data = DataSection.model_validate({"sources": (WHOLE,), "validation_fraction": 0.05, **base})
    assert len(describe_learned(data, [held], share)) == told


def test_what_is_held_out_of_a_part_is_learned_from_the_whole(home):
    data = DataSection(sources=(WHOLE, PART), vocab_size=300)
    corpus = prepare(data, home / "cache")
    held = corpus.tokenizer.decode(corpus.validation[1].tokens.tolist())
    assert held[100:200] in corpus.tokenizer.decode(corpus.train[0].tokens.tolist())
    assert corpus.notes == (
        "./texts/a.txt (limit = 9000) and texts/a.txt share files, of which they hold out other "
        "ends: what is held out of one may be learned from the other, and its loss then tells what "
        "was memorized",
    )
