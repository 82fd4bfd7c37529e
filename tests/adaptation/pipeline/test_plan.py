"""A stage is planned anew where a file of its base changed that a loader may read."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab import UserError
from layerlab.adaptation.pipeline.plan import check_inputs, plan_stages, rules_of
from layerlab.adaptation.pipeline.stage import Stage, StageStore
from layerlab.api.adapt import plan_adaptation
from layerlab.builtin import path
from layerlab.console.progress import NullProgress
from layerlab.data.cleaning.clean import KEEP_ALL
from layerlab.plugins import load
from layerlab.recipes.adaptation import make_recipe
from layerlab.variants import registry
from layerlab.variants.template import write_template
from tests.adaptation.lessons import recipe
from tests.support.refused import refuses

READ = (
    *("tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt"),
    *("generation_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("model.safetensors.index.json", "modeling_own.py", "vocab.bpe", "qwen.tiktoken"),
    *("additional_chat_templates/rag.jinja", "shards/model-00002-of-00002.safetensors"),
)
UNREAD = ("README.md", "NOTES.md", "LICENSE", "curve.png", ".cache", ".git/a.py", "old.bin")
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(path("llama"), tmp_path / "model"))


def lessons(model: Path, **changes: Any) -> dict[str, Any]:
    """A recipe whose base is a folder."""
    usual = {"base": {"model": str(model)}, "vocabulary": None, "embedding": None}
    return recipe(model.parent, **{**usual, **changes})


def keys(model: Path) -> set[str]:
    return {one.key for one in plan_stages(make_recipe(lessons(model))) if one.kind != "clean"}


@pytest.mark.parametrize("name", READ)
def test_another_file_of_the_base_moves_all_stages(name, model):
    before = keys(model)
    file = model / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("one")
    new = keys(model)
    file.write_text("two")
    assert not before & new and not new & keys(model)


def test_another_file_of_the_model_of_an_adapter_moves_all_stages(model, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{model}"}}')
    before = keys(adapter)
    (model / READ[0]).write_text("one")
    assert not before & keys(adapter)


@pytest.mark.parametrize("name", UNREAD)
def test_what_no_loader_reads_moves_none(name, model):
    before = keys(model)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("one")
    assert keys(model) == before


@pytest.mark.parametrize("part", ["tokenizer", "eval_sources"])
def test_what_a_trained_base_reads_by_its_path_moves_all_stages(part, tmp_path):
    content = recipe(tmp_path, vocabulary=None, embedding=None)
    data = content["base"]["recipe"]["data"]
    shutil.copytree(path("llama"), tmp_path / "words")
    (tmp_path / "held.txt").write_text("one")
    data |= {
        "tokenizer": {"tokenizer": str(tmp_path / "words")},
        "eval_sources": {"eval_sources": [{"text": str(tmp_path / "held.txt")}]},
    }[part]

    def found() -> set[str]:
        return {one.key for one in plan_stages(make_recipe(content)) if one.kind != "clean"}

    before = found()
    assert found() == before
    (tmp_path / "held.txt").write_text("two")
    (tmp_path / "words" / "added_tokens.json").write_text("{}")
    assert not before & found()


@pytest.mark.full
@pytest.mark.parametrize("how", ["trained", "saved"])
def test_code_that_the_file_of_a_base_imports_moves_all_stages(how, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ADDED", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "beside_idea", raising=False)
    file, helper = write_template(tmp_path / "my_idea.py"), tmp_path / "beside_idea.py"
    content = recipe(tmp_path, vocabulary=None, embedding=None)
    content["base"]["recipe"]["model"]["variant"] = "my-idea"

    def found() -> set[str]:
        load(file)
        stages = plan_stages(make_recipe(content))
        return {one.key for one in stages if one.kind != "clean"}

    text = file.read_text("utf-8")
    file.write_text(
        text.replace("import torch\n", "import torch\nimport beside_idea\n", 1), "utf-8"
    )
    helper.write_text("SCALE = 1\n")
    if how == "saved":
        load(file)
        layerlab.build("my-idea", width=16, layers=1, heads=2).save_pretrained(tmp_path / "saved")
        content["base"] = {"model": str(tmp_path / "saved")}
    before = found()
    assert found() == before
    helper.write_text("SCALE = 2\n")
    assert not found() & before


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"data.validation_fraction": 0.3}, {"base"}),
        ({"pretrain.ratio": [2, 1]}, {"base", "clean", "contamination"}),
        ({"sft.sources": 5}, {"base", "clean", "pretrain"}),
        ({"data.domain": 900}, {"base"}),
    ],
)
def test_a_setting_moves_the_stages_that_hang_on_it(model, change, kept):
    content = lessons(model, evaluate=None)
    content["clean"]["benchmarks"] = [content["sft"]["sources"][0]["path"]]
    before = make_recipe(content)
    ((name, value),) = change.items()
    if name in ("sft.sources", "data.domain"):  # a limit
        section, part = name.split(".")
        value = [{**content[section][part][0], "limit": value}]
    after = before.change({name: value})
    keys = [{one.kind: one.key for one in plan_stages(read)} for read in (before, after)]
    assert {kind for kind in keys[0] if keys[0][kind] == keys[1][kind]} == kept


def test_a_base_in_another_dtype_is_another_base(model):
    read = make_recipe(lessons(model, pretrain=None, sft=None))
    first, *_ = plan_stages(read)
    other, *_ = plan_stages(read.change({"base.dtype": "bfloat16"}))
    assert first.kind == other.kind == "base" and first.key != other.key


def test_every_seed_begins_with_one_model_and_the_first_is_gone_on_from(model):
    content = lessons(model)
    content["pretrain"]["seeds"] = [3, 4]
    stages = plan_stages(make_recipe(content))
    first, second = (one for one in stages if one.kind == "pretrain")
    assert (first.seed, second.seed) == (3, 4) and first.key != second.key
    (base,) = (one for one in stages if one.kind == "base")
    assert first.needs["model"] == second.needs["model"] == base.key
    (tuned,) = (one for one in stages if one.kind == "tune")
    assert tuned.needs["model"] == first.key


def test_general_text_is_cleaned_where_that_is_asked_for(model):
    for general in (True, False):
        rules = {"min_chars": 10, "repetition": False, "near_duplicate_threshold": 0}
        read = make_recipe(lessons(model, clean={**rules, "general": general}))
        assert rules_of(read, "domain") == read.clean
        assert rules_of(read, "general") == (read.clean if general else KEEP_ALL)


def test_a_stage_whose_rows_changed_meanwhile_is_refused(model):
    content = lessons(model, evaluate=None)
    read = make_recipe(content)
    (tuned,) = (one for one in plan_stages(read) if one.kind == "tune")
    check_inputs(read, tuned)
    Path(content["sft"]["sources"][0]["path"]).write_text('[{"instruction": "a", "output": "b"}]')
    refuses("were changed before the stage tune had read them", check_inputs, read, tuned)


def test_how_special_tokens_of_a_text_are_read_moves_its_stages(model):
    content = lessons(model)
    before = {one.kind: one.key for one in plan_stages(make_recipe(content))}
    content["data"]["domain"][0]["special_tokens"] = True
    now = {one.kind: one.key for one in plan_stages(make_recipe(content))}
    assert before["clean"] != now["clean"] and before["pretrain"] != now["pretrain"]


def test_rows_that_are_no_longer_read_move_the_stage(model, tmp_path):
    content = lessons(model, pretrain=None, evaluate=None)
    (source,) = content["sft"]["sources"]
    home = tmp_path / "rows"
    home.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        shutil.copy(source["path"], home / name)
    source["path"] = str(home)

    def found() -> set[str]:
        return {one.key for one in plan_stages(make_recipe(content)) if one.kind == "tune"}

    before = found()
    assert found() == before
    (home / "b.jsonl").rename(home / "b.jsonl.off")
    assert not before & found()


def test_files_of_a_stage_are_checked_again_once_they_changed(tmp_path):
    store, stage = StageStore(tmp_path), Stage(kind="clean", settings={})
    file = store.of(stage.key) / "text.jsonl"
    file.parent.mkdir()
    file.write_text("one")
    store.finish(stage, {}, 1.0)
    assert store.check(stage.key) == file.parent
    known = file.stat()
    file.write_text("two")
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    refuses(r"text\.jsonl is not what was written", store.check, stage.key)


@pytest.mark.parametrize(
    "other",
    [
        {"settings": {"seed": 1, "rate": 1e-4}},
        {"kind": "tune"},
        {"needs": {"model": "base-2", "text": "clean-1"}},
    ],
)
def test_a_stage_that_was_copied_over_another_is_not_taken_for_it(tmp_path, other):
    given = {"settings": {"seed": 2, "rate": 1e-4}, "needs": {"model": "base-1", "text": "clean-1"}}
    store, stage = StageStore(tmp_path), Stage(**{"kind": "pretrain", **given})
    another = Stage(**{"kind": "pretrain", **given, **other})
    store.finish(another, {"model": "name"}, 1.0)
    assert store.read(another.key) is not None and store.read(stage.key) is None
    shutil.copytree(store.of(another.key), store.of(stage.key))
    for read in (store.read, store.model, store.check):
        refuses(f"that of another stage, {another.key}; delete it", read, stage.key)


def test_a_model_that_is_gone_is_not_looked_for_elsewhere(tmp_path, monkeypatch):
    store, stage = StageStore(tmp_path / "stages"), Stage(kind="pretrain", settings={})
    own = store.of(stage.key) / "model"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    store.finish(stage, {"model": "model", "words": "model"}, 1.0)
    assert store.model(stage.key) == store.words(stage.key) == str(own)
    shutil.rmtree(own)
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()  # of the user's, where the command is typed
    for read in (store.model, store.words):
        refuses(r"what its stage wrote: model/config\.json is missing; delete it", read, stage.key)


@pytest.mark.parametrize("name", ["model", "words"])
def test_a_base_that_is_called_as_a_folder_of_ours_is_taken(tmp_path, name):
    store = StageStore(tmp_path)
    stage = Stage(kind="base", settings={"model": name, "files": []})
    (store.of(stage.key) / "words").mkdir(parents=True)
    store.finish(stage, {"model": name, "words": "words"}, 1.0)
    assert store.model(stage.key) == name
    assert store.words(stage.key) == str(store.of(stage.key) / "words")


def test_finished_stages_of_another_base_are_named(tmp_path):
    store, base = StageStore(tmp_path), Stage(kind="base", settings={"files": ["one"]})
    assert store.other_base([base]) == ""
    store.finish(Stage(kind="base", settings={"files": ["two"]}), {}, 1.0)
    said = store.other_base([base])
    assert f"finished in {tmp_path} are of a base with other settings or other files" in said
    store.finish(base, {}, 1.0)
    assert store.other_base([base]) == ""


@pytest.mark.full
def test_another_chat_template_is_tuned_with(model, tmp_path, monkeypatch):
    content = lessons(model, pretrain=None, evaluate=None)
    first = layerlab.adapt(content, out=tmp_path / "out", progress=False)
    file = model / "tokenizer_config.json"
    settings = {**json.loads(file.read_text()), "chat_template": TEMPLATE}
    file.write_text(json.dumps(settings))
    notes: list[str] = []
    monkeypatch.setattr(NullProgress, "note", lambda self, text: notes.append(text))
    second = layerlab.adapt(content, out=tmp_path / "out", progress=False)
    assert len(notes) == 1 and "are of a base with other settings or other files" in notes[0]
    fresh = layerlab.adapt(content, out=tmp_path / "fresh", progress=False)
    assert second.content["tune"][0]["after"] == fresh.content["tune"][0]["after"]
    assert second.content["tune"][0]["after"] != first.content["tune"][0]["after"]


@pytest.mark.full
@pytest.mark.parametrize("strict", [False, True])
def test_a_tokenizer_that_does_not_fit_is_refused_before_any_stage(model, strict):
    """So is a plan; a vocabulary that changes, or a base that learns nothing, is not."""
    file = model / "tokenizer.json"
    words = json.loads(file.read_text("utf-8"))
    words["added_tokens"].append({**words["added_tokens"][0], "id": 512, "content": "<more>"})
    file.write_text(json.dumps(words), encoding="utf-8")
    content = lessons(model)
    with pytest.raises(UserError, match="has 513 entries and the model embeds 512 tokens; type: "):
        plan_adaptation(content, model.parent / "out", strict=strict)
    for other in ({"vocabulary": {"size": "+8"}}, {"pretrain": None, "sft": None}):
        kinds = plan_adaptation({**content, **other}, model.parent / "out", strict=strict).stages
        assert kinds[0].kind == "base"
    assert not (model.parent / "out").exists()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("part", ["pretrain", "sft"])
def test_rows_that_a_base_cannot_read_are_refused_before_any_stage(model, part, strict):
    content = lessons(model)
    content[part] = {**content[part], "block_size": 10_000}
    said = r"block_size is 10000, more than the model's context of \d+; write block_size = \d+$"
    with pytest.raises(UserError, match=said) as no:
        plan_adaptation(content, model.parent / "out", strict=strict)
    context = int(str(no.value).rsplit(maxsplit=1)[-1])
    content[part]["block_size"] = context
    assert plan_adaptation(content, model.parent / "out", strict=strict).stages


def test_another_commit_of_a_base_of_the_hub_moves_all_stages(tmp_path, monkeypatch):
    """Its name stays, and nothing of it lies in a folder of that name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "models--some--model"
    (kept / "refs").mkdir(parents=True)
    planned = lessons(tmp_path / "any", base={"model": "some/model"})
    found = list[set[str]]()
    for commit in ("1" * 40, "2" * 40, "1" * 40):
        (kept / "refs" / "main").write_text(commit)
        if not (kept / "snapshots" / commit).exists():
            shutil.copytree(path("llama"), kept / "snapshots" / commit)
        stages = plan_stages(make_recipe(planned))
        found.append({one.key for one in stages if one.kind != "clean"})
    assert found[0] and not found[0] & found[1] and found[0] == found[2]
