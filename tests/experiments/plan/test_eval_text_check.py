"""Held-out text is the same for all arms, or the comparison is refused by its plan."""

from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.experiments.session import prepare

SMALL = {
    "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 2, "batch_size": 2},
    "evaluate": {"max_eval_blocks": 2},
}


def test_a_part_of_the_held_out_text_is_another_text_in_other_words(tmp_path: Path) -> None:
    own = {"name": "words", "variant": "llama", "set": {"data.vocab_size": 290}}
    recipe = {
        **SMALL,
        "compare": {"arms": ["llama", own], "allowed_differences": ["data.vocab_size"]},
    }
    said = (
        r"evaluate\.max_eval_blocks = \d+ would judge each on another part of it; .*as there are: "
    )
    with pytest.raises(UserError, match=said) as told:
        prepare(recipe, tmp_path, progress=False)
    enough = int(str(told.value).rpartition(" ")[2])
    assert prepare(recipe, tmp_path, {"evaluate.max_eval_blocks": enough}, progress=False).runs
    with pytest.raises(UserError, match=said):
        prepare(recipe, tmp_path, {"evaluate.max_eval_blocks": enough - 1}, progress=False)


def test_arms_of_one_tokenizer_may_be_judged_on_a_part(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Apples fell and fell.\n" * 200)
    own = {"data.sources": [{"text": str(tmp_path / "own.txt")}]}
    arm = {"name": "text", "variant": "llama", "set": own}
    tokenizer = {"data": {"tokenizer": "pre-norm"}}
    recipe = {
        **SMALL,
        **tokenizer,
        "compare": {"arms": ["llama", arm], "allowed_differences": ["data.sources"]},
    }
    assert prepare(recipe, tmp_path, progress=False).runs
