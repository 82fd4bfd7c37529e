"""A vocabulary cut down: specials and bytes stay, kept tokens are in reach, text comes back."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab.tokenization.bpe_file import is_byte, read_bpe
from layerlab.tokenization.load import engine
from layerlab.tokenization.vocabulary.extend import unreachable
from layerlab.tokenization.vocabulary.prune import parts_of, prune
from layerlab.tokenization.vocabulary.verify import verify
from tests.adaptation.bpe import GENERAL, KINDS, LAW, MARK, bytewise, fallback, looked_up
from tests.support.refused import refuses

TEXTS = [*GENERAL, *LAW]
BASE = {kind: make() for kind, make in KINDS.items()}
LEAST = {kind: prune(words, TEXTS, len(words) - 1).fixed for kind, words in BASE.items()}
SMALL = {kind: prune(words, TEXTS, LEAST[kind] + 20) for kind, words in BASE.items()}
kinds = pytest.mark.parametrize("kind", KINDS)


def back(words: PreTrainedTokenizerFast, text: str) -> str:
    machine = engine(words)
    ids = machine.encode(text, add_special_tokens=False).ids
    return machine.decode(ids, skip_special_tokens=False)


@kinds
@given(text=st.text())
@settings(max_examples=100, deadline=None)
def test_what_came_back_comes_back(kind, text):
    assert back(SMALL[kind].tokenizer, text) == back(BASE[kind], text)


@kinds
@pytest.mark.parametrize("room", [0, 1, 7, 20, 43])
def test_entries_are_as_many_as_asked_for_and_all_within_reach(kind, room):
    pruned = prune(BASE[kind], TEXTS, LEAST[kind] + room)
    old, new = BASE[kind].get_vocab(), pruned.tokenizer.get_vocab()
    assert len(new) == LEAST[kind] + room == len(pruned.kept)
    assert sorted(new.values()) == list(range(len(new)))
    assert {token: pruned.kept[number] for token, number in new.items()} == {
        token: old[token] for token in new
    }
    found = read_bpe(pruned.tokenizer)
    looked_up = ["Ġsaw"] if kind == "looked up" else []
    free = [token for token in new if token not in {*found.fixed, *looked_up}]
    assert unreachable(pruned.tokenizer.backend_tokenizer, free) == []
    special = set(BASE[kind].all_special_tokens)
    assert special <= new.keys()
    if "fallback" in kind:
        assert sum(map(is_byte, new)) == 256 and "▁" in new


@kinds
def test_the_most_frequent_stay(kind):
    """Every token that is left out is rarer than a kept one, or no room was left for its parts."""
    pruned, base = SMALL[kind], BASE[kind]
    found = engine(base).encode_batch_fast(TEXTS, add_special_tokens=False)
    counts = Counter(number for one in found for number in one.ids)
    share = sum(counts[number] for number in pruned.kept) / counts.total()
    assert pruned.coverage == pytest.approx(share)
    assert 0 < pruned.coverage < prune(base, TEXTS, LEAST[kind] + 43).coverage <= 1
    whole, kept = read_bpe(base), set(pruned.tokenizer.get_vocab())
    ranks = {pair: rank for rank, pair in enumerate(whole.merges)}
    best = max(set(base.get_vocab()) - kept, key=lambda token: counts[whole.vocab[token]])
    free = [token for token in kept if parts_of(token, whole, ranks) <= kept and len(token) > 1]
    assert len(parts_of(best, whole, ranks) - kept) > 1 or counts[whole.vocab[best]] <= max(
        counts[whole.vocab[token]] for token in free
    )


def test_a_token_is_made_of_what_its_merges_say():
    found = read_bpe(bytewise())
    ranks = {pair: rank for rank, pair in enumerate(found.merges)}
    for left, right in found.merges:
        used = parts_of(left + right, found, ranks)
        assert {left, right, left + right} | parts_of(left, found, ranks) <= used
    assert parts_of("qqqq", found, ranks) == parts_of("qq", found, ranks) == set()


def test_ids_around_a_text_follow():
    content = json.loads(fallback().backend_tokenizer.to_str())
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    end = {"SpecialToken": {"id": MARK, "type_id": 0}}
    number = max(content["model"]["vocab"].values()) + 1
    mark = {**content["added_tokens"][0], "id": number, "content": MARK}
    content["added_tokens"].append(mark)
    content["post_processor"] = {
        "type": "Sequence",
        "processors": [
            {
                "type": "TemplateProcessing",
                "single": [pair[0], end],
                "pair": pair,
                "special_tokens": {MARK: {"id": MARK, "ids": [number], "tokens": [MARK]}},
            }
        ],
    }
    base = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), eos_token=MARK
    )
    assert base("the cat")["input_ids"][-1] == number
    base.backend_tokenizer.enable_padding(pad_id=number, pad_token=MARK)
    small = prune(base, TEXTS, 300).tokenizer
    assert small.backend_tokenizer.padding["pad_id"] == 299
    assert small("the cat")["input_ids"][-1] == small.eos_token_id == 299
    assert small.convert_ids_to_tokens(299) == MARK


@pytest.mark.parametrize("kind", ["TemplateProcessing", "BertProcessing"])
def test_a_plain_token_that_is_put_around_a_text_stays(kind):
    content = json.loads(bytewise().backend_tokenizer.to_str())
    rare = max(content["model"]["vocab"].items(), key=lambda item: item[1])
    part = {"Sequence": {"id": "A", "type_id": 0}}
    content["post_processor"] = {
        "type": kind,
        "single": [part, {"SpecialToken": {"id": "end", "type_id": 0}}],
        "pair": [part, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"end": {"id": "end", "ids": [rare[1]], "tokens": ["end"]}},
        "sep": list(rare),
        "cls": list(rare),
    }
    base = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)))
    assert base("the cat")["input_ids"][-1] == rare[1]
    small = prune(base, ["the cat"], 265).tokenizer
    assert small.convert_ids_to_tokens(small("the cat")["input_ids"][-1]) == rare[0]


def test_the_proof_of_a_smaller_one_holds():
    for kind, pruned in SMALL.items():
        proof = verify(BASE[kind], pruned.tokenizer, {"texts": TEXTS}, coverage=pruned.coverage)
        assert proof.holds and proof.added == 0 and proof.coverage == pruned.coverage
        assert proof.removed == len(BASE[kind]) - len(pruned.kept)
        assert proof.tallies[0].longer > 0


def test_sizes_that_cannot_be_had_are_named():
    words = bytewise()
    for size in (20, 258, len(words), 10_000):
        refuses(r"cannot prune a vocabulary of 332 entries to .* 259", prune, words, TEXTS, size)
    refuses("no text to tell which tokens are used; give one", prune, words, [""], 300)


def test_a_word_that_was_added_is_looked_up_in_no_other():
    words = looked_up()
    words.add_tokens([AddedToken("zebra", single_word=True)])
    small = prune(words, [*TEXTS, "zebra_"], len(words) - 1)
    for text in ("zebra", "zebra_", "_zebra", "a zebra"):
        ids = small.tokenizer(text)["input_ids"]
        assert [small.kept[number] for number in ids] == words(text)["input_ids"]
