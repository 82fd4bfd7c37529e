"""A stage is kept under the hash of what it read, or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.adaptation.pipeline.plan import check_inputs, plan_stages
from layerlab.adaptation.pipeline.run_stage import STEPS, StageContext
from layerlab.adaptation.pipeline.stage import WORDS, StageStore
from layerlab.data.cleaning.clean import TEXT
from layerlab.recipes.adaptation import make_recipe
from layerlab.records.json_values import Json
from layerlab.tokenization.load import load_tokenizer
from tests.adaptation.lessons import recipe
from tests.adaptation.small import llama, words
from tests.support.refused import refuses


def context(folder: Path, kind: str, tell: Any = lambda said, share: None) -> StageContext:
    read = make_recipe(recipe(folder, arm=[{"name": "one"}, {"name": "two"}]))
    stage = next(one for one in plan_stages(read) if one.kind == kind)
    return StageContext(read.arms()["one"], stage, StageStore(folder / "stages"), tell)


def test_a_text_that_is_changed_while_it_is_cleaned_is_not_kept(tmp_path):
    """The second of two is edited while the first is read."""

    def edit(said: str, share: float) -> None:
        file = tmp_path / "nature.jsonl"
        file.write_text(file.read_text().replace("river", "brook"))

    place = context(tmp_path, "clean", edit)
    with pytest.raises(UserError, match=r"were changed before the stage clean had read") as refused:
        STEPS["clean"](place)
    assert "\n" not in str(refused.value)
    again = context(tmp_path, "clean")  # which puts the text back
    assert STEPS["clean"](again)["result"]["sources"] and again.folder == place.folder
    assert "brook" not in (again.folder / "general-0" / TEXT).read_text()


CHANGES: dict[str, Callable[[Path], Any]] = {
    "tune": lambda folder: (folder / "rows.json").write_text('[{"instruction": "a"}]'),
    "contamination": lambda folder: (folder / "asked.jsonl").write_text('{"question": "b"}'),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_rows_and_questions_that_change_are_found_out(tmp_path, kind):
    (tmp_path / "asked.jsonl").write_text('{"question": "a"}')
    clean = {"benchmarks": [str(tmp_path / "asked.jsonl")], "near_duplicate_threshold": 0}
    read = make_recipe(recipe(tmp_path, clean=clean))
    stage = next(one for one in plan_stages(read) if one.kind == kind)
    check_inputs(read, stage)
    CHANGES[kind](tmp_path)
    refuses(f"changed before the stage {kind} had read them; type the", check_inputs, read, stage)


def carried_out(folder: Path, kind: str, **changes: Any) -> list[Json]:
    """What the stages of a kind leave, on a model of a folder."""
    llama().save_pretrained(folder / "base")
    words().save_pretrained(folder / "base")
    usual = {"base": {"model": str(folder / "base")}, "evaluate": None}
    read = make_recipe(recipe(folder, **{**usual, **changes}))
    store, left = StageStore(folder / "stages"), list[Json]()
    for stage in plan_stages(read):
        if stage.kind == "base":
            words().save_pretrained(store.of(stage.key) / WORDS)
            store.finish(stage, {"model": str(folder / "base"), "words": WORDS}, 0.0)
        elif stage.kind in ("clean", kind):
            left.append(STEPS[stage.kind](StageContext(read, stage, store, lambda *_: None)))
            store.finish(stage, left[-1], 0.0)
    return [one["result"] for one in left[1:]]


NO_WORDS = {"vocabulary": None, "embedding": None}


@pytest.mark.full
def test_each_seed_reads_the_text_in_an_order_of_its_own(tmp_path):
    section = {"tokens": 256, "batch_size": 4, "block_size": 16, "seeds": [1, 2]}
    first, second = carried_out(tmp_path, "pretrain", pretrain=section, sft=None, **NO_WORDS)
    assert first["before"] == second["before"] and first["after"] != second["after"]


@pytest.mark.full
def test_rows_are_learned_by_their_weights(tmp_path):
    rows = [{"instruction": f"Is {number} void?", "output": "It is."} for number in range(12)]
    sources = []
    for name, weight in (("much", 3.0), ("little", 1.0)):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps([{**one, "output": f"{name}."} for one in rows]))
        sources.append({"name": name, "path": str(file), "weight": weight})
    section = {"sources": sources, "batch_size": 4, "block_size": 64, "num_train_epochs": 2}
    (found,) = carried_out(tmp_path, "tune", sft=section, pretrain=None, **NO_WORDS)
    much, little = (found["sources"][name]["passes"] for name in ("much", "little"))
    assert much == pytest.approx(3 * little, rel=0.2)


def test_new_words_are_those_of_the_domain_and_proved_on_what_is_held_out(tmp_path):
    (found,) = carried_out(tmp_path, "vocabulary", sft=None, pretrain=None)
    made = next((tmp_path / "stages").glob("vocabulary-*")) / WORDS
    base, new = words().get_vocab(), load_tokenizer(str(made))
    added = [new.decode([number]) for token, number in new.get_vocab().items() if token not in base]
    assert len(added) == 8
    law = (tmp_path / "law.jsonl").read_text()
    assert all(one in law for one in added)
    sizes = {one["name"]: one["base"]["bytes"] for one in found["texts"]}
    assert sizes["law (domain)"] > 2 * sizes["law (domain, held out)"] > 0
