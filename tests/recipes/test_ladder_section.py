"""A ladder as it is written: sizes in words, and what is refused in one line."""

from typing import Any

import pytest

from layerlab import UserError
from layerlab.recipes.training import TrainingRecipe, load_recipe, make_recipe
from tests.support.refused import refusal


def recipe(ladder: Any, **compare: Any) -> TrainingRecipe:
    section = {"arms": ["llama", "gpt2"], "seeds": [1, 2, 3], **compare}
    return make_recipe({"train": {"max_steps": 40}, "compare": section, "ladder": ladder})


def test_sizes_are_numbers_or_words_with_a_prefix():
    found = recipe({"sizes": ["1M", 3e6, "10.5 M", "0.1B"], "beyond": ["1 B"]}).ladder
    assert found is not None and found.sizes == (1e6, 3e6, 10.5e6, 1e8) and found.beyond == (1e9,)
    assert found.steps == 4
    again = make_recipe(recipe({"sizes": ["1M", "2M"]}).model_dump(mode="json"))
    assert again.ladder is not None and again.ladder.sizes == (1e6, 2e6)


def test_a_count_takes_the_place_of_sizes_and_leaves_the_rest():
    given = recipe({"sizes": ["1M", "2M"], "tokens_per_parameter": 5})
    found = given.change({"ladder.count": 3}).ladder
    assert found is not None and found.sizes is None and found.steps == 3
    assert found.tokens_per_parameter == 5
    bare = load_recipe("eight-residuals-twin", {"ladder.count": 3}).ladder
    assert bare is not None and (bare.steps, bare.ratio) == (3, 3.0)


def test_one_that_extends_may_give_a_count_in_place_of_sizes():
    given = make_recipe({"extends": "ladder-pangu", "ladder": {"count": 2}}).ladder
    assert given is not None and given.sizes is None and given.steps == 2


def test_a_ladder_is_no_part_of_what_decides_a_run():
    given = recipe({"count": 2})
    assert given.hash() == given.change({"ladder": None}).hash()
    assert "ladder" not in given.decisive()


@pytest.mark.parametrize(
    ("ladder", "compare", "words"),
    [
        ({}, {}, "ladder gives neither sizes nor count; expected one of the two"),
        ({"sizes": ["1M", "2M"], "count": 2}, {}, "ladder gives sizes and count"),
        ({"sizes": ["1M"]}, {}, "ladder has 1 size, and one size tells of no other"),
        ({"count": 1}, {}, "ladder has 1 size, and one size tells of no other"),
        ({"sizes": ["3M", "1M"]}, {}, "which does not rise; expected each larger"),
        ({"count": 2, "learning_rates": [[], 1e-3]}, {}, "ladder.learning_rates.0 is []; expected"),
        ({"sizes": ["1M", "1M"]}, {}, "write sizes = [1e+06]"),
        ({"sizes": ["big", "1M"]}, {}, "a size of the ladder is 'big'; expected a number of"),
        ({"sizes": [0, 1e6]}, {}, "expected a number above 0"),
        (
            {"sizes": ["1M", "2M"], "tokens": [1], "tokens_per_parameter": 2},
            {},
            "ladder gives tokens and tokens_per_parameter",
        ),
        (
            {"sizes": ["1M", "2M"], "tokens": [1000]},
            {},
            "ladder.tokens has 1 for 2 sizes; expected one for each: write tokens = [1000, 1000]",
        ),
        (
            {"sizes": ["1M", "2M"], "learning_rates": [1e-3]},
            {},
            "ladder.learning_rates has 1 for 2 sizes",
        ),
        (
            {"sizes": ["1M", "2M"], "learning_rates": [1e-3, [1e-3, 2e-3], 1e-3]},
            {},
            "write learning_rates = [0.001, [0.001, 0.002]]",
        ),
        (
            {"sizes": ["1M", "2M"], "tokens": [20_000_000, 20_000_000]},
            {},
            "ladder.tokens gives 20, 10 tokens per parameter, so that length changes with size; "
            "write tokens_per_parameter = 10, or declare it: unequal_tokens = true",
        ),
        ({"count": 3}, {"seeds": [1, 2]}, "compare.seeds has 2, too few seeds for a ladder"),
        ({"count": 3}, {"looks": [2, 3]}, "compare.looks stops a comparison early"),
    ],
)
def test_what_no_ladder_can_be_is_one_line(ladder, compare, words):
    assert words in refusal(recipe, ladder, **compare)


def test_unequal_tokens_may_be_declared():
    given = {"sizes": ["1M", "2M"], "tokens": [20_000_000, 20_000_000], "unequal_tokens": True}
    assert recipe(given).ladder is not None


def test_a_ladder_needs_arms_and_a_length_that_does_not_hang_on_the_text():
    with pytest.raises(UserError, match="the recipe has no compare section; write"):
        make_recipe({"train": {"max_steps": 4}, "ladder": {"count": 3}})
    with pytest.raises(UserError, match="num_train_epochs is the length of one size"):
        recipe({"count": 3}).change({"train.num_train_epochs": 1})
