"""A continued vocabulary: old cuts are only joined, text comes back, ids stay, no token is lost."""

import hashlib
import json
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.tokenization.bpe_file import read_bpe
from layerlab.tokenization.train import train_fallback_bpe
from layerlab.tokenization.vocabulary.extend import extend, unreachable
from layerlab.tokenization.vocabulary.prune import prune
from layerlab.tokenization.word_counts import word_counts
from tests.adaptation.bpe import GENERAL, KINDS, LAW, MARK, bytewise, fallback, fast
from tests.support.refused import refusal, refuses

BASE = {kind: make() for kind, make in KINDS.items()}
# Where unknown characters are bytes, many entries go to the characters themselves.
NEW = {kind: 80 if "fallback" in kind else 40 for kind in KINDS}
GROWN = {kind: extend(words, LAW, NEW[kind]) for kind, words in BASE.items()}

BYTE = re.compile("<0x[0-9A-F]{2}>")
kinds = pytest.mark.parametrize("kind", KINDS)
# Letters that the tokenizers know stand beside all of Unicode.
known = st.lists(st.sampled_from("".join(LAW + GENERAL).split(" ")), max_size=12).map(" ".join)
texts = st.one_of(st.text(), known, st.tuples(known, st.text(), known).map("".join))


def ids(words: PreTrainedTokenizerFast, text: str) -> list[int]:
    return words.backend_tokenizer.encode(text, add_special_tokens=False).ids


def back(words: PreTrainedTokenizerFast, text: str) -> str:
    return words.backend_tokenizer.decode(ids(words, text), skip_special_tokens=False)


def ends(words: PreTrainedTokenizerFast, text: str) -> set[int]:
    """Where tokens end, in bytes of what the tokenizer writes them in."""
    tokens = words.backend_tokenizer.encode(text, add_special_tokens=False).tokens
    return set(accumulate(1 if BYTE.fullmatch(one) else len(one.encode()) for one in tokens))


@kinds
@given(text=texts)
@settings(max_examples=150, deadline=None)
def test_cuts_are_only_joined_and_text_comes_back_as_before(kind, text):
    base, new = BASE[kind], GROWN[kind]
    assert ends(new, text) <= ends(base, text)
    assert len(ids(new, text)) <= len(ids(base, text))
    assert back(new, text) == back(base, text)
    if "fallback" not in kind:
        assert back(new, text) == text


@kinds
def test_old_ids_stay_and_new_ones_follow_the_largest(kind):
    old, new = BASE[kind].get_vocab(), GROWN[kind].get_vocab()
    assert {token: new[token] for token in old} == old
    first = max(old.values()) + 1
    assert sorted(set(new.values()) - set(old.values())) == list(range(first, first + NEW[kind]))
    for text in LAW:
        assert len(ids(GROWN[kind], text)) < len(ids(BASE[kind], text))
    fresh = [token for token in new if token not in old]
    assert unreachable(GROWN[kind].backend_tokenizer, fresh) == []


@kinds
def test_a_saved_tokenizer_is_the_same_when_it_is_read(kind, tmp_path):
    GROWN[kind].save_pretrained(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert read.get_vocab() == GROWN[kind].get_vocab()
    assert read.special_tokens_map == BASE[kind].special_tokens_map
    for text in (*LAW, *GENERAL, f"a{MARK}b zebra"):
        assert ids(read, text) == ids(GROWN[kind], text)


def test_tokens_added_behind_the_vocabulary_keep_their_place_and_their_part():
    base, new = BASE["bytewise"], GROWN["bytewise"]
    text = f"the cat{MARK}zebra被告人"
    assert base.convert_tokens_to_ids(MARK) in ids(new, text)
    assert ids(new, text)[: len(ids(base, f"the cat{MARK}zebra"))] == ids(
        base, f"the cat{MARK}zebra"
    )
    assert new.backend_tokenizer.get_added_tokens_decoder().keys() == {0, 330, 331}
    assert new.decode(ids(new, text), skip_special_tokens=True) == "the catzebra被告人"


def test_what_is_around_a_text_and_how_it_is_told_stays():
    base = fallback()
    base.chat_template, base.padding_side = "{{ messages }}", "left"
    content = json.loads(base.backend_tokenizer.to_str())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    framed = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{{ messages }}",
        padding_side="left",
        model_max_length=77,
    )
    framed.pad_token = "</s>"
    framed.truncation_side = "left"
    new = extend(framed, LAW, 5)
    assert new.special_tokens_map == framed.special_tokens_map and new.pad_token == "</s>"
    assert new("the cat")["input_ids"][0] == 1 and new("the cat") == framed("the cat")
    assert (new.chat_template, new.padding_side) == ("{{ messages }}", "left")
    assert (new.truncation_side, new.model_max_length) == ("left", 77)


def slow(words: PreTrainedTokenizerFast, texts: list[str], number: int) -> list[str]:
    """Continued BPE, letter by letter of its definition: the tokens that it adds, in order.

    Of pairs that are equally frequent the one comes first whose parts were there first.
    """
    found = read_bpe(words)
    machine = found.bare()
    counted = {
        tuple(machine.encode(word).tokens): count
        for word, count in word_counts(found, texts).items()
    }
    seen = {token for word in counted if len(word) > 1 for token in word}
    rank = {token: place for place, token in enumerate(sorted(seen, key=found.vocab.get))}
    made: list[str] = []
    while len(made) < number:
        pairs = Counter()
        for word, count in counted.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], rank[pair[0]], rank[pair[1]]))
        token = "".join(best)
        made.append(token)
        rank.setdefault(token, len(rank))
        joined: dict[tuple[str, ...], int] = {}
        for word, count in counted.items():
            parts, place = list(word), 0
            while place < len(parts) - 1:
                if tuple(parts[place : place + 2]) == best:
                    parts[place : place + 2] = [token]
                place += 1
            joined[tuple(parts)] = joined.get(tuple(parts), 0) + count
        counted = joined
    return made


def test_the_tokens_are_those_of_the_definition():
    base = bytewise()
    new = extend(base, LAW, 30).get_vocab()
    fresh = sorted(new.keys() - base.get_vocab().keys(), key=new.get)
    assert fresh == slow(base, LAW, 30)


@pytest.mark.full
def test_the_order_of_texts_and_the_process_do_not_matter():
    def digest(words: PreTrainedTokenizerFast) -> str:
        return hashlib.sha256(words.backend_tokenizer.to_str().encode()).hexdigest()

    shuffled = random.Random(0).sample(LAW, len(LAW))
    told = {digest(extend(bytewise(), shuffled, 40)), digest(GROWN["bytewise"])}
    code = (
        "import hashlib\nfrom tests.adaptation.bpe import LAW, bytewise\n"
        "from layerlab.tokenization.vocabulary.extend import extend\n"
        "text = extend(bytewise(), LAW, 40).backend_tokenizer.to_str()\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told == {said.stdout.strip()}


def test_characters_that_are_bytes_come_first_if_there_are_as_many_as_a_merge_needs():
    base = fallback()
    new = extend(base, ["ДД ЖЖЖ Ф"], 2).get_vocab()
    assert sorted(new.keys() - base.get_vocab().keys(), key=new.get) == ["Ж", "Д"]


def by_hand(merges: list[str]) -> PreTrainedTokenizerFast:
    """Over bytes, with merges as given, each as two parts with a space."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(letters)}
    for merge in merges:
        vocab.setdefault(merge.replace(" ", ""), len(vocab))
    content = json.loads(bytewise().backend_tokenizer.to_str())
    content["model"] |= {"vocab": vocab, "merges": merges}
    content["added_tokens"] = []
    return fast(content)


# "abc" is there, but "ab" always comes before it; only a new merge makes it, and then "abce".
HIDDEN = ["a b", "b c", "a bc", "abc e"]


def test_a_merge_that_makes_an_older_token_takes_no_id():
    base = by_hand(HIDDEN)
    assert base.tokenize("abcd") == ["ab", "c", "d"]
    new = extend(base, ["abc\nabcd\nabcd"], 1)
    assert new.tokenize("abcd") == ["abcd"]
    assert new.get_vocab().keys() - base.get_vocab().keys() == {"abcd"}
    # It sets off an older merge, which still only joins.
    assert base.tokenize("abce") == ["ab", "c", "e"] and new.tokenize("abce") == ["abce"]


def test_a_merge_of_the_base_keeps_its_rank():
    base = by_hand(HIDDEN)
    with pytest.raises(UserError, match=r"gives 0 of 1 new .* occur 2 times; give more text$"):
        extend(base, ["abc\nabce\nabce"], 1)
    new = extend(base, ["abc\nabce\nabce\nabcexy\nabcexy"], 1)
    merges = json.loads(new.backend_tokenizer.to_str())["model"]["merges"]
    assert merges[:4] == [merge.split() for merge in HIDDEN]
    assert merges.count(["abc", "e"]) == 1


def test_a_token_out_of_reach_gives_way_to_the_next():
    text = "\n".join(["abc"] * 10 + ["ed"] * 5 + ["xyxy"] * 2 + ["abced"] * 3)
    base = by_hand(HIDDEN)
    new = extend(base, [text], 3)
    fresh = new.get_vocab().keys() - base.get_vocab().keys()
    # "abced" would be next, but "abce" is made before "ed" is.
    assert new.tokenize("abced") == ["abce", "d"] and fresh == {"ed", "xy", "xyxy"}


def test_digits_and_scripts_are_kept_apart_where_whole_texts_reach_the_merges():
    words = word_counts(read_bpe(fallback()), ["第12条 the law，law 第3条"])
    assert words == {"▁第": 1, "12": 1, "条": 2, "▁the": 1, "▁law": 1, "，": 1, "law": 1} | {
        "▁第": 2,
        "3": 1,
    }


@pytest.mark.parametrize(
    "words", [bytewise(), train_fallback_bpe(LAW, vocab=400)], ids=["bytes", "characters"]
)
def test_words_are_those_of_a_tokenizer_that_cuts_them_itself(words):
    cut = words.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    wanted = Counter(word for text in LAW for word, _ in cut(text))
    assert word_counts(read_bpe(words), LAW) == wanted


def test_what_cannot_be_extended_is_named():
    def refused(engine: Tokenizer) -> str:
        error = refusal(extend, PreTrainedTokenizerFast(tokenizer_object=engine), LAW, 4)
        return error

    one = {"a": 0, "b": 1}
    assert "of a Unigram tokenizer: its pieces compete" in refused(
        Tokenizer(models.Unigram([("a", 0.0), ("b", 0.0)], unk_id=0))
    )
    assert "of a WordPiece tokenizer: it takes the longest" in refused(
        Tokenizer(models.WordPiece(one, unk_token="a"))
    )
    assert "of a WordLevel tokenizer: its entries are whole" in refused(
        Tokenizer(models.WordLevel(one, unk_token="a"))
    )
    assert "a BPE that marks parts of words with '</w>'" in refused(
        Tokenizer(models.BPE(one, [], end_of_word_suffix="</w>"))
    )
    assert "a BPE without bytes: a character" in refused(Tokenizer(models.BPE(one, [])))
    content = json.loads(fallback().backend_tokenizer.to_str())
    lost = content["model"]["vocab"].pop("<0xFF>")
    content["model"]["vocab"]["spare"] = lost
    assert "a BPE without bytes: a character" in refused(Tokenizer.from_str(json.dumps(content)))
    drawn = Tokenizer.from_str(bytewise().backend_tokenizer.to_str())
    drawn.model.dropout = 0.5
    assert "leaves out merges at random (dropout 0.5)" in refused(drawn)


def test_texts_and_sizes_that_give_nothing_are_named():
    refuses("cannot add 0 entries to a vocabulary; expected 1 or more", extend, bytewise(), LAW, 0)
    for empty in ([], ["", ""], [MARK]):
        refuses("no text to learn a vocabulary from; give one", extend, bytewise(), empty, 4)
    for size in (9999, 999_999_999):
        said = rf"gives \d+ of {size:,} new entries.*or ask for \+\d+$"
        refuses(said, extend, bytewise(), LAW, size)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\ud800b", r"texts\[1\] holds half of a surrogate pair \('\\ud800'\), which is no text"),
        (None, r"texts\[1\] is None; expected a str: decode bytes"),
        (b"x", r"texts\[1\] is b'x'; expected a str: decode bytes"),
    ],
)
def test_what_is_no_text_is_named(text, said):
    base = bytewise()
    refuses(said, extend, base, ["a text", text], 3)
    refuses(said, prune, base, ["a text", text], len(base) - 1)
