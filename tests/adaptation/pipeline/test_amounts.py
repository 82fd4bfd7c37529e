"""What a plan takes a stage to read is what it reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from layerlab import build
from layerlab.adaptation.pipeline import amounts
from layerlab.adaptation.pipeline.amounts import PER_TOKEN, count_tokens, measure_amount
from layerlab.adaptation.pipeline.estimate import forecast
from layerlab.adaptation.pipeline.plan import plan_stages
from layerlab.adaptation.pipeline.stage import Stage, StageStore
from layerlab.adaptation.pipeline.texts import rows_of
from layerlab.adaptation.pretraining.train import count_updates
from layerlab.adaptation.sft.chat_template import add_plain_template
from layerlab.adaptation.sft.dataset import PackedRows, prepare_dataset
from layerlab.recipes.adaptation import AdaptationRecipe, make_recipe
from layerlab.tokenization.convert import load_or_convert
from tests.adaptation.spoken import FORGETFUL

BLOCK = 128


def tuning(folder: Path, **settings: Any) -> tuple[AdaptationRecipe, Stage]:
    """A recipe that tunes a built-in model on rows of two lengths."""
    sources = []
    for name, length in (("short", 2), ("long", 6)):
        rows = [
            {"instruction": f"what is {number}?", "output": "a number " * length}
            for number in range(90)
        ]
        (folder / f"{name}.json").write_text(json.dumps(rows))
        sources.append({"name": name, "path": str(folder / f"{name}.json")})
    section = {"batch_size": 4, "micro_batch_size": 2, "sources": sources, **settings}
    recipe = make_recipe({"base": {"model": "llama"}, "sft": section})
    return recipe, plan_stages(recipe)[-1]


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"packing": False},
        {"packing": False, "tokens": 2000},
        {"num_train_epochs": 3.0, "validation_fraction": 0.3},
    ],
)
def test_rows_are_counted_as_they_are_read(settings, tmp_path):
    recipe, stage = tuning(tmp_path, **settings)
    assert recipe.sft is not None
    found = measure_amount(recipe, stage, count_tokens(recipe, stage), BLOCK)
    words = load_or_convert("llama")
    add_plain_template(words)
    rows = {one.name: rows_of(one) for one in recipe.sft.sources}
    read = prepare_dataset(words, rows, recipe.sft, BLOCK)
    assert found is not None and found.encoding > 0
    assert found.updates == pytest.approx(read.updates, rel=0.04)
    batches = list(PackedRows(read))
    passes = [read.collator(batches[at : at + 2]) for at in range(0, len(batches), 2)]
    longest = [one["input_ids"].shape[1] for one in passes]
    assert found.row == pytest.approx(sum(longest) / len(longest), rel=0.06)
    held = [len(one.ids) for source in read.sources for one in source.held]
    assert found.held == pytest.approx(sum(held), rel=0.06)
    assert found.held_passes == sum(-(-len(one.held) // 2) for one in read.sources)
    assert found.readings == 1 + -(-read.updates // max(1, read.updates // 10))


@pytest.mark.full
@pytest.mark.parametrize("limit", [None, 300])
def test_rows_are_taken_from_all_over_a_source_or_by_its_size(limit, tmp_path, monkeypatch):
    """Rows that get longer to the end; of a large file its beginning alone is read."""
    file = tmp_path / "rows.json"
    lines = [{"instruction": f"what is {n}?", "output": "a " * (n // 20)} for n in range(20, 520)]
    file.write_text(json.dumps(lines))
    sources = [{"name": "a", "path": str(file), "limit": limit}]
    section = {"batch_size": 4, "num_train_epochs": 1.0, "sources": sources}
    recipe = make_recipe({"base": {"model": "llama"}, "sft": section})
    assert recipe.sft is not None
    words = load_or_convert("llama")
    add_plain_template(words)
    stage, read = plan_stages(recipe)[-1], rows_of(recipe.sft.sources[0])
    whole = prepare_dataset(words, {"a": read}, recipe.sft, BLOCK).sources[0].tally.tokens
    found = measure_amount(recipe, stage, None, BLOCK)
    assert found is not None and found.tokens == pytest.approx(whole, rel=0.02)
    alone = {"sft.packing": False, "sft.micro_batch_size": 1}
    part = recipe.change({"sft.tokens": whole // 8, **alone})
    few = measure_amount(part, stage, None, BLOCK)
    assert part.sft is not None and few is not None
    drawn = PackedRows(prepare_dataset(words, {"a": read}, part.sft, BLOCK))
    lengths = [len(drawn[number][0].ids) for number in range(len(drawn))]
    assert few.row == pytest.approx(sum(lengths) / len(lengths), rel=0.2)
    monkeypatch.setattr(amounts, "WHOLE", 0)
    large = measure_amount(recipe, stage, None, BLOCK)
    assert large is not None
    if limit is None:
        apart = 1 - recipe.sft.validation_fraction
        assert large.tokens == pytest.approx(apart * file.stat().st_size / PER_TOKEN, rel=0.02)
    else:  # of 256 of the 300 rows that are learned from
        assert 0.8 * found.tokens < large.tokens < found.tokens


@pytest.mark.full
def test_answers_that_are_rows_of_their_own_are_counted_and_told(tmp_path):
    rows = [
        {"instruction": f"is {n} even?", "output": "no", "history": [["a", "b"], ["what?", "it"]]}
        for n in range(600)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    words = load_or_convert("llama")
    words.chat_template = FORGETFUL
    base = tmp_path / "base"
    words.save_pretrained(base)
    build("llama", width=16, layers=1, heads=2, vocab=len(words), context=256).save_pretrained(base)
    section = {"batch_size": 4, "block_size": 256, "num_train_epochs": 1.0}
    sources = [{"name": "law", "path": str(tmp_path / "rows.json")}]
    recipe = make_recipe({"base": {"model": str(base)}, "sft": {"sources": sources, **section}})
    assert recipe.sft is not None
    stages = plan_stages(recipe)
    found = measure_amount(recipe, stages[-1], count_tokens(recipe, stages[-1]), 256)
    read = prepare_dataset(words, {"law": rows_of(recipe.sft.sources[0])}, recipe.sft, 256)
    assert found is not None and found.updates == pytest.approx(read.updates, abs=2)
    assert found.tokens == pytest.approx(read.sources[0].tally.tokens, rel=0.02)
    held = sum(len(one.ids) for one in read.sources[0].held)
    assert found.held == pytest.approx(held, rel=0.06)
    (note,) = found.notes
    assert "law: 600 conversations become 1,800 examples, one for each answer" in note
    assert note == read.notes[-1]
    told = forecast(recipe, stages, StageStore(tmp_path))
    assert f"{note}." in told.remarks() and told.to_dict()["stages"][-1]["notes"] == (note,)


@pytest.mark.full
def test_texts_are_counted_by_their_beginning(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the court held that the contract was void\n" * 20_000)
    content = {
        "base": {"model": "llama"},
        "data": {"domain": [{"text": str(file)}], "validation_fraction": 0.1},
        "pretrain": {"tokens": 4096, "batch_size": 4, "ratio": [1, 0], "max_eval_blocks": 0},
    }
    recipe = make_recipe(content)
    stage = plan_stages(recipe)[-1]
    found = measure_amount(recipe, stage, count_tokens(recipe, stage), BLOCK)
    words = load_or_convert("llama")
    tokens = len(words(file.read_text(), add_special_tokens=False).input_ids)
    assert found is not None and found.updates == 8 and found.row == BLOCK
    assert found.held == pytest.approx(0.1 * tokens, rel=0.02)
    assert found.held_passes == pytest.approx(0.1 * tokens / BLOCK / 4, rel=0.02)
    capped = recipe.change({"pretrain.max_eval_blocks": 8})
    found = measure_amount(capped, stage, 4100, BLOCK)
    assert found is not None and found.held == 8 * BLOCK and found.held_passes == 2
    assert found.tokens == found.updates * 4 * BLOCK == 4096  # updates are whole


@pytest.mark.full
def test_batches_that_are_read_to_draw_some_of_them_take_their_time(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the court held that the contract was void\n" * 100)
    pretrain = {"tokens": 10**9, "batch_size": 4, "micro_batch_size": 2, "ratio": [1, 0]}
    text = {"domain": [{"text": str(file)}], "validation_fraction": 0.1}
    whole = make_recipe({"base": {"model": "llama"}, "data": text, "pretrain": pretrain})
    part = whole.change({"pretrain.resample_fraction": 0.5})
    stages = [plan_stages(one) for one in (whole, part)]
    assert count_tokens(part, stages[1][-1]) == 10**9 // 2
    blocks = 4 * count_updates(whole.pretrain, BLOCK)
    found = measure_amount(part, stages[1][-1], count_tokens(part, stages[1][-1]), BLOCK)
    assert found is not None and (found.drawn, found.drawn_passes) == (blocks * BLOCK, blocks / 2)
    pieces = whole.change({"pretrain.micro_batch_size": 4})
    rows = [
        forecast(one, every, StageStore(tmp_path)).rows[-1]
        for one, every in zip((whole, part, pieces), (*stages, plan_stages(pieces)), strict=True)
    ]
    told = [row.parts for row in rows]
    assert told[0] is not None and told[1] is not None
    # A pass forward takes about a third of one forward and backward.
    assert 0.1 < (told[1].beside - told[0].beside) / told[0].updates < 0.7
    # Pieces of a batch are no work of their own; half of the batches is half of it.
    assert rows[0].flops == rows[2].flops == pytest.approx(2 * rows[1].flops, rel=1e-6)


def test_of_a_text_that_is_cut_its_part_is_counted_without_words_too(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the court held\n" * 1000)
    text = {"domain": [{"text": str(file), "limit": 3000}], "validation_fraction": 0.1}
    pretrain = {"tokens": 4096, "batch_size": 4, "ratio": [1, 0], "max_eval_blocks": 0}
    own = {"base": {"recipe": "pangu-pretrain"}, "data": text, "pretrain": pretrain}
    recipe = make_recipe(own)
    found = measure_amount(recipe, plan_stages(recipe)[-1], 4096, BLOCK)
    assert found is not None and found.held == pytest.approx(0.1 * 3000 / PER_TOKEN)


def test_without_rows_nothing_is_counted_and_without_words_bytes_are(tmp_path):
    recipe, stage = tuning(tmp_path)
    assert recipe.sft is not None
    size = sum(Path(one.path).stat().st_size for one in recipe.sft.sources)
    own = recipe.change({"base.model": None, "base.recipe": "pangu-pretrain"})
    tokens = count_tokens(own, stage)
    assert tokens == round(size / PER_TOKEN)
    found = measure_amount(own, stage, tokens, BLOCK)
    assert found is not None and found.row == BLOCK and found.encoding == 0
    for one in recipe.sft.sources:
        Path(one.path).unlink()
    assert count_tokens(recipe, stage) is None
    assert measure_amount(recipe, stage, None, BLOCK) is None


@pytest.mark.parametrize(
    ("given", "block", "tokens"),
    [
        ({"max_steps": 10}, 32, 10 * 4 * 32),
        ({"max_steps": 10}, None, 10 * 4 * 64),  # of the model's context
        ({"tokens": 5000}, 32, 5000),
        ({"num_train_epochs": 2.0}, 32, None),
    ],
)
def test_each_stage_trains_on_tokens_of_its_own(given, block, tokens, tmp_path):
    text = {"domain": [{"text": "python-docs"}], "validation_fraction": 0.1}
    (tmp_path / "rows.json").write_text('[{"instruction": "a", "output": "b"}]')
    sources = [{"name": "a", "path": str(tmp_path / "rows.json")}]
    sizes = {"width": 16, "layers": 1, "heads": 2, "vocab": 64, "context": 64}
    training = {
        "model": {"variant": "llama", **sizes},
        "data": {} if block is None else {"block_size": block},
        "train": {"batch_size": 4, **given},
    }
    content = {
        "base": {"recipe": training},
        "data": text,
        "pretrain": {"tokens": 4096, "ratio": [1, 0]},
        "sft": {"tokens": 700, "sources": sources},
    }
    recipe = make_recipe(content)
    found = {one.kind: count_tokens(recipe, one) for one in plan_stages(recipe)}
    trained = {"base": tokens, "pretrain": 4096, "tune": 700}
    assert {kind: found[kind] for kind in trained} == trained
    assert {found[kind] for kind in found.keys() - trained} <= {None}
