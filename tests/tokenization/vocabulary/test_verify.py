"""The proof finds what other ways to extend a tokenizer break, and counts as is said."""

import json

import pytest
from tokenizers import normalizers

from layerlab import UserError
from layerlab.tokenization.bpe_file import read_bpe, rebuild
from layerlab.tokenization.compression import compression
from layerlab.tokenization.vocabulary.extend import extend
from layerlab.tokenization.vocabulary.table import render_check
from layerlab.tokenization.vocabulary.verify import verify
from tests.adaptation.bpe import GENERAL, KINDS, LAW, bytewise

SETS = {"law": LAW, "general": GENERAL}


def told(proof, width: int = 80) -> str:
    from rich.console import Console

    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(render_check(proof, width))
    return capture.get()


@pytest.mark.parametrize("kind", KINDS)
def test_a_continued_vocabulary_is_proved(kind):
    base = KINDS[kind]()
    new = extend(base, LAW, 20)
    proof = verify(base, new, SETS, terms=["有期徒刑", "the defendant"])
    assert proof.holds and proof.unreachable == () and (proof.added, proof.removed) == (20, 0)
    law, general = proof.tallies
    assert (law.back, law.broken, law.longer, law.coarser) == (12, 0, 0, 12)
    assert law.ratio < 1 and general.ratio <= 1
    assert law.base == compression(base, LAW) and law.new == compression(new, LAW)
    assert proof.terms.terms == 2 and proof.terms.new < proof.terms.base
    content = json.loads(json.dumps(proof.to_dict()))
    assert content["holds"] and content["texts"][0]["new"]["tokens"] == law.new.tokens
    assert all(f"{one.ratio:.4f}" in told(proof) for one in proof.tallies)


def test_sizes_are_counted_on_text():
    found = compression(bytewise(), ["the cat", "", "天"])
    assert (found.texts, found.characters, found.bytes) == (2, 8, 10)
    tokens = sum(len(bytewise()(text)["input_ids"]) for text in ("the cat", "天"))
    assert (found.tokens, found.per_character, found.per_byte) == (tokens, tokens / 8, tokens / 10)


def test_an_added_token_that_does_not_come_back_is_found():
    """The decoder takes a character that stands for a byte for that byte."""
    base = bytewise()
    new = rebuild(base, read_bpe(base).engine(read_bpe(base).vocab, read_bpe(base).merges))
    new.add_tokens(["××"])
    proof = verify(base, new, SETS)
    assert not proof.holds and proof.tallies[0].broken == 4 and proof.tallies[1].broken == 0
    assert told(proof).startswith("NOT proved")


def test_a_token_without_merges_and_a_cut_that_moved_are_found():
    base = bytewise()
    found = read_bpe(base)
    number = max(found.vocab.values()) + 1
    lost = rebuild(base, found.engine({**found.vocab, "Ġcourt": number}, found.merges))
    proof = verify(base, lost, SETS)
    assert proof.unreachable == ("Ġcourt",) and proof.unused == 1 and not proof.holds
    # A merge before all others: "ca" + "t" where the base has "c" + "at".
    first = rebuild(base, found.engine({**found.vocab, "ca": number}, [("c", "a"), *found.merges]))
    assert "ca" not in found.vocab
    first = verify(base, first, SETS)
    assert not first.holds
    assert any(one.coarser < one.new.texts for one in first.tallies)
    # Within no token: each is still in reach, and "cats" is cut anew.
    assert not any("ts" in token for token in found.vocab)
    moved = rebuild(base, found.engine({**found.vocab, "ts": number}, [("t", "s"), *found.merges]))
    proof = verify(base, moved, {"cats": ["the cats"]})
    assert (proof.unreachable, proof.removed, proof.tallies[0].broken) == ((), 0, 0)
    assert not proof.holds


def test_tokens_are_shown_without_what_steers_a_terminal():
    base = bytewise()
    new = extend(base, ["[/b]\x1b[31m\x1b[31m[/b] [/b]"] * 3, 4)
    said = told(verify(base, new, {"a [bold]\x1b[31m name": LAW}))
    assert "\x1b" not in said and "[bold]" in said


def test_no_number_is_cut_on_a_narrow_terminal():
    base = bytewise()
    proof = verify(base, extend(base, LAW, 20), {"the law of all lands.jsonl": LAW})
    (one,) = proof.tallies
    for width in (40, 60, 80):
        said = told(proof, width)
        assert all(name in said for name in ("tokens/char", "bytes/token", "only joined"))
        assert f"{one.ratio:.4f}" in said and f"{one.new.per_byte:.4f}" in said
        assert max(map(len, said.splitlines())) <= width


def test_a_set_without_text_is_named():
    with pytest.raises(UserError, match=r"nothing.txt holds no text to compare tokenizers on"):
        verify(bytewise(), bytewise(), {"nothing.txt": [""]})
    blind = bytewise()
    blind.backend_tokenizer.normalizer = normalizers.Strip()
    with pytest.raises(UserError, match=r"blank.txt holds no text to compare tokenizers on"):
        verify(blind, blind, {"blank.txt": ["  "]})
