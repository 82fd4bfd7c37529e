"""Documents on disk: none is lost, and held-out text begins where a document or a line does."""

import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.data import documents
from layerlab.data.documents import DocumentStore, store_documents
from layerlab.data.sources import TextChunk
from tests.support.refused import refuses


def of(*texts: str) -> DocumentStore:
    starts = array("q", [0])
    for text in texts:
        starts.append(starts[-1] + len(text.encode()))
    return DocumentStore("".join(texts).encode(), starts)


def read(store: DocumentStore) -> list[str]:
    return ["".join(document) for document in store.documents()]


def test_documents_come_back_without_the_empty_ones(tmp_path):
    pieces = [
        TextChunk("", True),
        TextChunk("ä", True),
        TextChunk("", False),
        TextChunk("b", False),
    ]
    pieces += [TextChunk("", True), TextChunk("c", True), TextChunk("", True)]
    with store_documents(pieces, tmp_path / "a", "text", None) as store:
        assert read(store) == ["äb", "c"] and store.size == 4
        assert list(store.pieces()) == [TextChunk("äb", True), TextChunk("c", True)]


@pytest.mark.parametrize(("limit", "kept"), [(2, ["ab"]), (4, ["abc"]), (5, ["abc", "ä"])])
def test_a_limit_cuts_after_a_whole_character(tmp_path, limit, kept):
    with store_documents(
        [TextChunk("abc", True), TextChunk("ääh", True)], tmp_path / "a", "text", limit
    ) as store:
        assert read(store) == kept


def test_what_is_no_text_is_named(tmp_path):
    with pytest.raises(UserError, match=r"it.txt holds no text; give one with words"):
        with store_documents([TextChunk("", True)], tmp_path / "a", "it.txt", None):
            pass
    said = r"holds half of a surrogate pair \('\\ud800'\), which is no text, behind 'a'; mend"
    with pytest.raises(UserError, match=said):
        with store_documents([TextChunk("a\ud800", True)], tmp_path / "a", "it.txt", None):
            pass


def test_held_out_text_begins_at_the_nearest_document():
    train, held = of("a" * 40, "b" * 38, "c" * 12, "d" * 10).split(0.2, "text")
    assert [one[0] for one in read(train)] == ["a", "b"] and read(held) == ["c" * 12, "d" * 10]
    assert train.size + held.size == 100


def test_a_long_document_is_cut_at_a_line_else_between_words_else_between_characters():
    def split(text: str) -> list[str]:
        return [one for side in of(text).split(0.2, "text") for one in read(side)]

    assert split("a b " * 20 + "\n" + "c d " * 4) == ["a b " * 20 + "\n", "c d " * 4]
    assert split("ab cd " * 16) == ["ab cd " * 12 + "ab cd ", "ab cd " * 3]
    assert split("€" * 31) == ["€" * 24, "€" * 7]


@pytest.mark.full
def test_places_of_documents_take_few_bytes_each(tmp_path):
    count = 100_000
    tracemalloc.start()
    pieces = (TextChunk("ab", True) for _ in range(count))
    with store_documents(pieces, tmp_path / "a", "text", None) as store:
        train, held = store.split(0.25, "text")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(train.starts), len(held.starts)) == (75_001, 25_001)
    assert peak < 30 * count


def test_a_text_that_cannot_be_cut_is_refused():
    refuses(r"has 1 bytes of text, too few to hold out 0.05 of them", of("a").split, 0.05, "text")


@given(
    st.lists(st.text(alphabet="a€\n 😀", min_size=1, max_size=12), min_size=1, max_size=8),
    st.floats(0.01, 0.99),
    st.integers(4, 9),
)
@settings(max_examples=100, deadline=None)
def test_both_sides_together_are_the_text(texts, share, piece):
    whole = of(*texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", piece)
        assert read(whole) == texts
        assert all(len(text.encode()) <= piece for text, _ in whole.pieces())
        try:
            sides = whole.split(share, "text")
        except UserError:
            # Nothing is left on one side: the cut falls into the first character, or behind all.
            cut = round(whole.bytes * (1 - share))
            assert cut < 4 or cut == whole.bytes
            return
        assert "".join(text for side in sides for text in read(side)) == "".join(texts)
        assert all(side.size and "" not in read(side) for side in sides)
