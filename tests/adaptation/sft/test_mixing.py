"""Every row once, or shares of tokens: in any case decided by the seed, and counted."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.adaptation.sft.dataset import prepare_dataset
from layerlab.adaptation.sft.encode import Encoder, Example
from layerlab.adaptation.sft.mixing import COPY, EncodedSource, SourceStats, blocks, draw_source
from layerlab.recipes.adaptation_sections import SftSection
from tests.adaptation.spoken import FORGETFUL, encoded, speaker, talk
from tests.support.refused import refuses

lengths = st.lists(st.integers(2, 16), min_size=1, max_size=30)


def made(name: str, sizes: list[int]) -> EncodedSource:
    """A source of examples of these lengths."""
    examples = [Example(np.zeros(size, np.int32), np.arange(size) > 0, (size,)) for size in sizes]
    return EncodedSource(name, examples, [], SourceStats())


@settings(max_examples=50, deadline=None)
@given(first=lengths, second=lengths, seed=st.integers(0, 9), pack=st.booleans())
@example([7], [9, 9], 0, True)  # 7 / 25 * 25 is a little more than 7
def test_an_epoch_is_every_row_once(first, second, seed, pack):
    sources = [made("law", first), made("general", second)]
    total = sum(first) + sum(second)
    found = list(blocks(sources, None, total, block=16, pack=pack, seed=seed))
    assert Counter(row for block in found for row in block) == Counter(
        (place, one) for place, rows in enumerate((first, second)) for one in range(len(rows))
    )
    assert found == list(blocks(sources, None, total, block=16, pack=pack, seed=seed))
    assert [one.tally.passes for one in sources] == [1.0, 1.0]
    if not pack:
        assert all(len(block) == 1 for block in found)


@settings(max_examples=50, deadline=None)
@given(
    first=lengths,
    second=lengths,
    weights=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    rounds=st.floats(0.3, 4),
)
def test_shares_of_tokens_are_kept_within_a_row(first, second, weights, rounds):
    sources = [made("law", first), made("general", second)]
    amount = rounds * (sum(first) + sum(second))
    given = {"law": weights[0], "general": weights[1]}
    found = [
        row
        for block in blocks(sources, given, amount, block=16, pack=True, seed=0)
        for row in block
    ]
    for place, sizes in enumerate((first, second)):
        had = sum(sizes[one] for source, one in found if source == place)
        assert abs(had - amount * weights[place] / sum(weights)) <= max(sizes)
        times = Counter(one for source, one in found if source == place)
        assert max(times.values(), default=0) - min(times[one] for one in range(len(sizes))) <= 1
        assert sources[place].tally.passes == pytest.approx(had / sum(sizes))


def test_rows_of_all_sources_are_shuffled_among_each_other():
    sources = [made("law", [8] * 40), made("general", [8] * 40)]
    found = [
        place
        for block in blocks(sources, None, 640, block=16, pack=True, seed=0)
        for place, _ in block
    ]
    assert 20 < sum(a != b for a, b in pairwise(found)) < 60
    other = [
        place
        for block in blocks(sources, None, 640, block=16, pack=True, seed=1)
        for place, _ in block
    ]
    assert found != other


def test_each_pass_has_an_order_of_its_own():
    sources = [made("law", [8] * 20), made("general", [8] * 20)]
    weights = {"law": 1, "general": 3}  # ten of the first in a round, so that a pass takes two
    found = list(blocks(sources, weights, 4 * 320, block=16, pack=False, seed=0))
    rounds = [
        {one for block in found[first : first + 40] for place, one in block if not place}
        for first in range(0, 160, 40)
    ]
    assert rounds[0] | rounds[1] == rounds[2] | rounds[3] == {*range(20)}
    assert rounds[0] != rounds[2]


def test_what_became_of_the_rows_is_counted():
    encoder = Encoder(speaker())
    rows = [talk("a", "b"), talk("a", "b", "c", "d" * 60), talk("q" * 90, "b"), talk("c", "e")]
    found = draw_source("law", rows, encoder, block=70, validation_fraction=0.4, seed=0)
    tally = found.tally
    assert (tally.rows, tally.held, tally.cut) == (2, 1, 1)
    assert sum(tally.dropped.values()) == 1 and "longer than a block" in next(iter(tally.dropped))
    assert tally.tokens == sum(found.lengths)
    assert tally.answers == sum(int(one.answer.sum()) for one in found.examples)
    again = draw_source("law", iter(rows), encoder, block=70, validation_fraction=0.4, seed=0)
    assert [one.ids.tolist() for one in again.held] == [one.ids.tolist() for one in found.held]


@pytest.mark.full
def test_no_copy_of_a_held_out_row_is_learned():
    encoder = Encoder(speaker())
    rows = [talk(f"say {number}", f"it is {number}") for number in range(20)]
    options = {"block": 70, "validation_fraction": 0.2, "seed": 0}
    once, twice = (draw_source("law", rows * times, encoder, **options) for times in (1, 2))
    held = {one.ids.tobytes() for one in twice.held}
    assert held == {one.ids.tobytes() for one in once.held} and len(held) == 4
    assert not held & {one.ids.tobytes() for one in twice.examples}
    assert (twice.tally.rows, twice.tally.held, twice.tally.dropped) == (32, 4, {COPY: 4})
    assert (once.tally.rows, once.tally.held, once.tally.dropped) == (16, 4, {})
    same = draw_source("law", rows[:1] * 9, encoder, **{**options, "validation_fraction": 0.9})
    assert (same.tally.rows, same.tally.held) == (9, 0), "one row alone cannot be held out too"


@pytest.mark.full
def test_a_row_that_is_held_out_of_one_source_is_learned_from_none():
    rows = [talk(f"say {number}", f"it is {number}") for number in range(20)]
    more = [talk(f"ask {number}", f"it was {number}") for number in range(20)]
    section = SftSection(validation_fraction=0.2)
    given = {"law": rows, "general": [*rows[:15], *more]}
    found = prepare_dataset(speaker(), given, section, 70).sources
    held = {one.ids.tobytes() for source in found for one in source.held}
    assert not held & {one.ids.tobytes() for source in found for one in source.examples}
    assert all(source.tally.rows == len(source.examples) for source in found)
    kept = sum(source.tally.rows + source.tally.held for source in found)
    left = sum(source.tally.dropped.get(COPY, 0) for source in found)
    assert kept + left == len(rows) + 15 + len(more) and left > 0
    assert found[0].tally.tokens == sum(found[0].lengths)
    with pytest.raises(UserError, match=r"no row of b can be learned from \(2 left out: a copy"):
        only = next(one for one in prepare_dataset(speaker(), {"a": rows}, section, 70).sources)
        same = [
            row
            for row in rows
            if encoded(Encoder(speaker()), row).ids.tobytes()
            in {one.ids.tobytes() for one in only.held}
        ]
        prepare_dataset(speaker(), {"a": rows, "b": same[:1] * 2}, section, 70)


@pytest.mark.full
def test_the_answers_of_one_conversation_stay_together():
    rows = [talk(f"say {number}", "yes", "again", f"no {number}") for number in range(20)]
    words = speaker(FORGETFUL)
    section = SftSection(validation_fraction=0.2)
    found = prepare_dataset(words, {"law": rows}, section, 96)
    (source,) = found.sources
    assert (source.tally.rows, source.tally.held, source.tally.turns) == (32, 8, 32)
    assert source.tally.cut == 0
    asked = [
        {words.decode(one.ids).split("<|im_end|>")[0] for one in part}
        for part in (source.held, source.examples)
    ]
    assert not asked[0] & asked[1] and [len(one) for one in asked] == [4, 16]
    every = [len(one.ids) for one in (*source.examples, *source.held)]
    last = [size for one in rows for size in [len(Encoder(words).examples(one)[-1].ids)]]
    assert found.notes[-1] == (
        "law: 20 conversations become 40 examples, one for each answer, with "
        f"{sum(every) / sum(last):.2f} times the tokens, since the chat template writes an answer "
        "differently once others follow"
    )
    short = prepare_dataset(words, {"law": rows}, section, max(last) - 1).sources[0].tally
    assert 0 < short.cut <= 20 and short.rows + short.held == 40 - short.cut
    alike = [talk("hi", "hello", "again", f"no {number}") for number in range(20)]
    learned = prepare_dataset(words, {"law": alike * 2}, section, 96).sources[0].tally
    assert (learned.rows, learned.held, learned.dropped) == (64, 8, {COPY: 8})
    assert not prepare_dataset(speaker(), {"law": rows}, section, 96).sources[0].note


def test_a_source_of_which_nothing_is_left_is_refused():
    encoder = Encoder(speaker())
    with pytest.raises(
        UserError, match=r"no row of law can be learned from \(1 left out: longer than a"
    ):
        draw_source("law", [talk("q" * 90, "b")], encoder, block=40, validation_fraction=0, seed=0)
    refuses("it is empty", draw_source, "law", [], encoder, block=40, validation_fraction=0, seed=0)
    refuses("there is no source to learn from", prepare_dataset, speaker(), {}, SftSection(), 64)


def test_weights_must_name_every_source():
    for weights in ({"law": 1.0}, {"law": 1.0, "general": 0.0}):
        with pytest.raises(UserError, match="expected a number above 0 for each of law, general"):
            list(
                blocks(
                    [made("law", [3]), made("general", [3])], weights, 6, block=8, pack=True, seed=0
                )
            )


def test_rows_fill_the_last_update():
    rows = [talk(f"question {number}", "answer") for number in range(11)]
    section = SftSection(batch_size=4, validation_fraction=0, packing=False)
    found = prepare_dataset(speaker(), {"law": rows}, section, 64)
    assert len(found.rows) == 12 and found.updates == 3 and found.rows[-1] == []
