"""Recipes for adaptation: what is wrong in one is named, and stages are shared by what decides."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainingArguments

from layerlab import UserError
from layerlab.adaptation.pipeline import plan
from layerlab.adaptation.pipeline.estimate import forecast
from layerlab.adaptation.pipeline.plan import plan_stages
from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.adaptation.sft.chat_template import add_plain_template
from layerlab.adaptation.sft.conversations import conversation
from layerlab.adaptation.sft.encode import Encoder
from layerlab.data.cleaning import deduplication
from layerlab.data.places import find_text
from layerlab.recipes.adaptation import list_packaged, load_adaptation, make_recipe
from layerlab.tokenization.convert import load_or_convert
from tests.adaptation.lessons import recipe
from tests.adaptation.spoken import encoded
from tests.support.refused import refuses

BASE = {"base": {"model": "pre-norm"}}
TEXT = {"data": {"domain": [{"text": "python-docs"}]}}
ROWS = {"name": "a", "path": "a.json"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "base is missing; expected a table: write .base. above its settings"),
        ({**BASE, "pretrian": {}}, r"a recipe has no 'pretrian'; did you mean 'pretrain'\?"),
        (
            {**BASE, **TEXT, "pretrain": {"parametrization": "mup"}},
            r"\[pretrain\] has no 'parametrization'; muP begins with a model's first weights",
        ),
        ({**BASE, "vocabulary": {"siez": "+1"}}, r"\[vocabulary\] has no 'siez'; .* 'size'\?"),
        ({"base": {"recipe": {"train": {"rte": 1}}}}, r"\[base\.recipe\.train\] has no 'rte'"),
        ({"base": {"recipe": {"train": {}}}}, "train gives no length; expected one of"),
        (
            {"base": {"model": "a", "recipe": "b"}},
            "base gives both of model and recipe; expected one of them",
        ),
        ({"base": {}}, "base gives neither of model and recipe"),
        (
            {"base": {"model": "a", "dtype": "bf16"}},
            r"base\.dtype is 'bf16'; expected .*float32.*bfloat16",
        ),
        (
            {"base": {"model": "a", "dtype": "bfloat16"}, "sft": {"sources": [ROWS]}},
            r'base\.dtype is "bfloat16" and sft trains all weights, .* give it a \[sft\.lora\]',
        ),
        (
            {
                "base": {"model": "a", "dtype": "bfloat16"},
                "sft": {"sources": [ROWS], "lora": {"modules_to_save": ["embed_tokens"]}},
            },
            r"sft\.lora\.modules_to_save trains embed_tokens whole, .* leave modules_to_save out",
        ),
        (
            {
                "base": {"model": "a"},
                "vocabulary": {"size": "+8"},
                "pretrain": {"tokens": 128, "ratio": [1, 0], "lora": {"r": 2}},
                "data": {"domain": [{"text": "a"}]},
            },
            r"pretrain\.lora leaves the rows of its new tokens as they begin; write pretrain\.lora",
        ),
        (
            {**BASE, "sft": {"sources": [ROWS], "lora": {"lora_dropout": 1.0}}},
            r"sft\.lora\.lora_dropout is 1\.0; expected a number .*below 1",
        ),
        (
            {**BASE, "run": {"sharding": "fsdp"}},
            r'run\.sharding is "fsdp" and run\.num_processes is 1: nothing can be shared out',
        ),
        (
            {**BASE, "sft": {"sources": [ROWS]}, "run": {"num_processes": 3}},
            r"sft\.batch_size is 16, which 3 processes cannot share evenly; .* batch_size = 18",
        ),
        (
            {**BASE, "run": {"num_processes": 2, "device": "cuda:1"}},
            r'run\.device is "cuda:1", one device, for 2 processes; write device = "cuda"',
        ),
        (
            {**BASE, **TEXT, "vocabulary": {"size": "1e3"}},
            "expected a text: a whole number from 1, or one behind a",
        ),
        ({**BASE, "pretrain": {"tokens": 9}}, "pretrain needs text of the domain, and there is"),
        ({**BASE, "vocabulary": {"size": "+9"}}, "vocabulary needs text of the domain"),
        ({**BASE, "clean": {}}, "clean needs text of the domain"),
        ({**BASE, "embedding": {}}, "embedding gives rows to new tokens, and there are none"),
        ({**BASE, "sft": {}}, "sft has nothing to learn from; write sources"),
        (
            {**BASE, **TEXT, "pretrain": {"tokens": 9}},
            r"pretrain\.ratio replays general text, and there is none; write general",
        ),
        (
            {**BASE, **TEXT, "pretrain": {"tokens": 9, "ratio": [0, 1]}},
            r"pretrain\.ratio reads nothing of the domain",
        ),
        (
            {**BASE, "sft": {"sources": [{**ROWS, "weight": 1}, {**ROWS, "name": "b"}]}},
            r"some of sft\.sources have a weight and others have none",
        ),
        ({**BASE, "sft": {"sources": [ROWS, ROWS]}}, r"sft\.sources has the name 'a' twice"),
        ({**BASE, "arm": [{"name": "a"}, {"name": "a"}]}, "arm has the name 'a' twice; give each"),
        (
            {**BASE, "arm": [{"name": "a, b"}, {"name": "a"}, {"name": "b"}]},
            "arm.0.name is 'a, b'; expected a text without a comma: write name = ",
        ),
    ],
)
def test_what_is_wrong_is_named(content, said):
    assert refuses(said, make_recipe, content, "my.toml").startswith("my.toml: ")


@pytest.mark.parametrize("name", list_packaged())
def test_recipes_of_the_package_are_recipes(name):
    found = load_adaptation(name)
    assert found.name == name and found.about.endswith(".") and found.inferred.endswith(".")


def test_a_setting_is_changed_in_a_table_that_was_not_there():
    found = make_recipe({**BASE, **TEXT}).change({"clean.near_duplicate_threshold": 0.5})
    assert found.clean is not None and found.clean.near_duplicate_threshold == 0.5
    with pytest.raises(
        UserError,
        match=r"no setting 'clean\.neer'; did you mean 'clean\.near_duplicate_threshold'\?",
    ):
        found.change({"clean.neer": 0.5})


def test_a_setting_inside_of_a_recipe_that_is_only_named_is_refused():
    named = make_recipe({"base": {"recipe": "smoke"}})
    with pytest.raises(UserError, match=r"base\.recipe is the name 'smoke', no table; write the"):
        named.change({"base.recipe.train.max_steps": 3})
    written = named.change({"base.set": {"train.max_steps": 3}}).training()
    assert written is not None and written.train.max_steps == 3


def test_the_base_is_one_run(tmp_path):
    with pytest.raises(UserError, match="compares several runs; give a recipe that trains one"):
        make_recipe({"base": {"recipe": "eight-residuals-twin"}}).training()


def test_an_arm_sets_what_its_stages_are_and_nothing_else():
    other = make_recipe({**BASE, "arm": [{"name": "a", "set": {"run.threads": 2}}]})
    refuses("the arm 'a' sets run, which is the same for all arms", other.arms)


def test_arms_share_the_stages_they_have_in_common(tmp_path):
    arms = [{"name": "a"}, {"name": "b", "set": {"pretrain.ratio": [1, 0]}}]
    stages = plan_stages(make_recipe(recipe(tmp_path, arm=arms)))
    shared = {stage.kind for stage in stages if stage.arms == ("a", "b")}
    assert shared == {"base", "clean", "vocabulary", "embedding", "evaluate"}
    assert sum(stage.kind == "pretrain" for stage in stages) == 2
    assert sum(stage.kind == "tune" for stage in stages) == 2
    assert len({stage.key for stage in stages}) == len(stages)
    known: set[str] = set()
    for stage in stages:  # whatever a stage needs stands before it
        assert set(stage.needs.values()) <= known
        known.add(stage.key)


def test_what_follows_goes_on_from_the_first_seed(tmp_path):
    content = recipe(tmp_path)
    content["pretrain"]["seeds"] = [5, 3]
    stages = plan_stages(make_recipe(content))
    first, second = (stage for stage in stages if stage.kind == "pretrain")
    (tuned,) = (stage for stage in stages if stage.kind == "tune")
    assert (first.seed, second.seed) == (5, 3) and tuned.needs["model"] == first.key


@given(
    st.sampled_from(
        [
            ("pretrain.learning_rate", 0.5, {"pretrain", "tune"}),
            ("sft.num_train_epochs", 9.0, {"tune"}),
            ("embedding.input", "first", {"embedding", "pretrain", "tune"}),
            ("vocabulary.size", "+9", {"vocabulary", "embedding", "pretrain", "tune"}),
            (
                "base.recipe.train.learning_rate",
                0.5,
                {"base", "vocabulary", "embedding", "pretrain", "tune"},
            ),
            (
                "data.validation_fraction",
                0.3,
                {"clean", "vocabulary", "embedding", "pretrain", "tune"},
            ),
            ("run.threads", 7, set()),
            ("about", "other", set()),
        ]
    )
)
def test_a_setting_moves_its_stage_and_those_behind_it_alone(tmp_path_factory, change):
    path, value, moved = change
    plain = make_recipe(recipe(tmp_path_factory.getbasetemp(), evaluate=None))
    keys = [
        {one.kind: one.key for one in plan_stages(each)}
        for each in (plain, plain.change({path: value}))
    ]
    assert {kind for kind in keys[0] if keys[0][kind] != keys[1][kind]} == moved


def test_other_words_in_a_file_move_its_stages(tmp_path):
    content = recipe(tmp_path)
    before = {stage.kind: stage.key for stage in plan_stages(make_recipe(content))}
    (tmp_path / "rows.json").write_text('[{"instruction": "a", "output": "b"}]')
    after = {stage.kind: stage.key for stage in plan_stages(make_recipe(content))}
    assert before["tune"] != after["tune"] and before["pretrain"] == after["pretrain"]


def test_a_file_is_found_in_the_data_folder_too(tmp_path, monkeypatch):
    (tmp_path / "rows.json").write_text("[]")
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    assert find_text("rows.json") == tmp_path / "rows.json"
    refuses("there is no file or folder 'none', nor is it in the data", find_text, "none")


def test_a_package_that_is_missing_is_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    content = recipe(tmp_path)
    content["evaluate"]["suite"] = "law"
    with pytest.raises(UserError, match=r"evaluate\.suite needs lm_eval and jieba, which cannot"):
        plan_stages(make_recipe(content))


def test_near_copies_need_their_package_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(deduplication, "find_spec", lambda name: None)
    content = recipe(tmp_path, clean={"near_duplicate_threshold": 0.8})
    with pytest.raises(
        UserError, match=r"found by datasketch, which .* or write near_duplicate_threshold = 0"
    ):
        plan_stages(make_recipe(content))
    assert plan_stages(make_recipe({**content, "clean": {"near_duplicate_threshold": 0}}))


def test_questions_that_are_not_here_are_missed_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    content = recipe(tmp_path)
    content["vocabulary"]["jec_qa"] = True
    with pytest.raises(UserError, match="jec-qa is not here: LAYERLAB_DATA names no folder with"):
        plan_stages(make_recipe(content))


@pytest.mark.parametrize(("share", "updates"), [(0.0, 0), (0.1, 10), (1.0, 100)])
def test_a_warmup_is_a_share_of_the_updates(share, updates, tmp_path):
    from layerlab.adaptation.trainer.arguments import section_arguments

    read = make_recipe({**BASE, "sft": {"sources": [ROWS], "warmup_ratio": share}})
    assert read.sft is not None
    told = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **section_arguments(read.sft))
    assert told.get_warmup_steps(100) == updates


@pytest.mark.full
def test_a_forecast_counts_the_rows_that_are_taken(tmp_path):
    rows = [{"instruction": "a" * 60, "output": "b" * 30} for _ in range(10)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    source = {"name": "a", "path": str(tmp_path / "rows.json"), "limit": 3}
    small = {"num_train_epochs": 2, "batch_size": 1, "block_size": 128}
    read = make_recipe({**BASE, "sft": {"sources": [source], **small}})
    found = forecast(read, plan_stages(read), StageStore(tmp_path))
    words = load_or_convert(BASE["base"]["model"])
    add_plain_template(words)
    (example, *_) = (encoded(Encoder(words), conversation(row)) for row in rows)
    assert [row.tokens for row in found.rows] == [None, 2 * 3 * len(example.ids)]
