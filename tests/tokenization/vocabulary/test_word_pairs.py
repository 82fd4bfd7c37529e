"""Merges learned on distinct words and their counts: those of the library's own trainer."""

import json
import random

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from layerlab.tokenization.vocabulary.word_pairs import WordPairs


def learn(words: dict[str, int], number: int, least: int) -> list[tuple[str, str]]:
    pairs = WordPairs(
        np.array([ord(letter) for word in words for letter in word], np.int32),
        np.array([len(word) for word in words], np.int64),
        np.array([*words.values()], np.int64),
        least,
    )
    while len(pairs.merges) < number and pairs.merge():
        pass
    spelled = list(map(chr, range(pairs.first)))
    for left, right in pairs.merges:
        spelled.append(spelled[left] + spelled[right])
    return [(spelled[left], spelled[right]) for left, right in pairs.merges]


def library(words: dict[str, int], number: int, least: int) -> list[tuple[str, str]]:
    """Merges of the trainer that is handed every word as often as it occurs."""
    letters = len(set().union(*words))
    most = min(number, sum(len(word) - 1 for word in words))
    trainer = trainers.BpeTrainer(
        vocab_size=letters + most, min_frequency=least, show_progress=False
    )
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    engine.train_from_iterator((f"{word} " * count for word, count in words.items()), trainer)
    return [tuple(pair) for pair in json.loads(engine.to_str())["model"]["merges"]]


@pytest.mark.parametrize("letters", [1, 2, 3, 8])
def test_merges_are_those_of_the_library_ties_and_runs_included(letters):
    draw = random.Random(letters)
    for _ in range(8):
        words = {
            "".join(draw.choices("abcdefgh"[:letters], k=draw.randint(2, 20))): draw.choice(
                [1, 1, 2, 3, draw.randint(1, 60)]
            )
            for _ in range(draw.choice([1, 5, 20, 60]))
        }
        number, least = draw.choice([1, 10, 40, 10_000]), draw.choice([1, 2, 2, 4])
        assert learn(words, number, least) == library(words, number, least)


def test_counts_beyond_those_of_the_library_are_right():
    # The library counts pairs in 32 bits.
    assert learn({"ab": 2**31, "cd": 2**40, "ef": 3}, 3, 2) == [("c", "d"), ("a", "b"), ("e", "f")]
