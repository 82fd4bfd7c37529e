"""Recipes, runs and hashes of layerlab 0.1, whose settings had other names."""

import copy
import json
import warnings
from pathlib import Path

import pytest

from layerlab.errors import UserError
from layerlab.recipes import adaptation, training
from layerlab.records.parquet.folded_runs import unfold_runs
from layerlab.records.renamed_settings import (
    ADDED,
    NAMES,
    current_manifest,
    current_settings,
    settings_of_0_1,
)
from layerlab.records.run import read_record
from layerlab.training.run_spec import RunSpec
from tests.support.forked import python
from tests.support.refused import refuses

ROOT = Path(__file__).resolve().parents[2]
OLD = """
[data]
vocab = 300
held = [{ text = "brown" }]
[train]
updates = 20
rate = 1e-3
clip = 0.5
[compare]
arms = ["llama", { name = "half", variant = "llama", set = { "train.batch" = 2 } }]
differ = ["train.batch"]
[run]
slots = 1
"""


def test_every_name_of_today_is_a_setting_and_none_of_0_1_is():
    schemas = [
        kind.model_json_schema() for kind in (training.TrainingRecipe, adaptation.AdaptationRecipe)
    ]
    known = {
        name
        for one in schemas
        for part in (one, *one["$defs"].values())
        for name in part.get("properties", ())
    }
    for place, names in NAMES.items():
        assert set(names.values()) <= known, place
        assert not {old for old in names} & set(names.values())


def test_a_recipe_of_0_1_is_that_of_today_with_one_line(tmp_path):
    (tmp_path / "old.toml").write_text(OLD)
    with pytest.warns(FutureWarning, match=r"data\.vocab is now called data\.vocab_size and"):
        found = training.load_recipe(tmp_path / "old.toml")
    assert (found.data.vocab_size, found.train.max_steps, found.train.max_grad_norm) == (
        300,
        20,
        0.5,
    )
    assert found.compare is not None and found.compare.allowed_differences == ("train.batch_size",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training.make_recipe(found.model_dump(mode="json")) == found
        assert found.change({"train.rate": 2e-3}).train.learning_rate == 2e-3


def test_a_setting_under_both_names_is_refused():
    with pytest.raises(UserError, match="given under its older name 'updates' too; leave one out"):
        training.make_recipe({"train": {"updates": 3, "max_steps": 4}})
    both = {"train.rate": 0.1, "train.learning_rate": 0.2}
    said = "train.learning_rate is given under its older name 'train.rate' too; leave one out"
    for settings in (both, dict(reversed(both.items()))):
        refuses(said, training.make_recipe, {"train": {"max_steps": 4}}, settings=settings)
        refuses(said, training.make_recipe, {"compare": {"arms": [{"set": settings}]}})


def test_the_command_says_it_in_one_line(tmp_path):
    (tmp_path / "old.toml").write_text("[train]\nupdates = 2\n[model]\nwidth = 0\n")
    done = python("-m", "layerlab", "train", "old.toml", "--plan", cwd=tmp_path)
    first, second = done.stderr.splitlines()
    assert first.startswith("layerlab: old.toml: train.updates is now called train.max_steps; ")
    assert second.startswith("layerlab: ") and "model.width is 0" in second and done.returncode == 2


def test_names_come_back():
    for place, names in NAMES.items():
        table = {old: number for number, old in enumerate(names)}
        for part in reversed(place.replace("sft", "tune").split(".") if place else []):
            table = {part: table}
        assert settings_of_0_1(current_settings(table)) == table
        for old, new in names.items():
            path = f"{place}.{old}" if place else old
            (found,) = current_settings({"arm": {"set": {path: 1}}})["arm"]["set"]
            assert found == (f"{place}.{new}" if place else new)


@pytest.mark.full
def test_a_run_of_0_1_keeps_its_folder():
    """Its name ends in a hash of recipe and text; what is matched brings more, and is left out."""
    seen = 0
    for place in (ROOT / "docs" / "results").glob("*/manifests.parquet"):
        unfold_runs(place.parent)
    for file in sorted((ROOT / "docs" / "results").glob("*/runs/*/manifest.json"))[::4]:
        stored = json.loads(file.read_text("utf-8"))
        record = read_record(file.parent)
        assert record is not None
        if stored.get("match") is not None or "learning_rate" in stored["recipe"]["train"]:
            continue
        recipe = training.make_recipe(record.manifest["recipe"])
        run = RunSpec(arm=stored["arm"], recipe=recipe, digest=stored["data"]["digest"])
        assert run.name == stored["run"]
        seen += 1
    assert seen > 20


def test_a_run_from_before_a_setting_is_compared_with_one_of_today():
    """It did what is the default now, and differs in nothing."""
    recipe = training.make_recipe({"train": {"max_steps": 3}})
    manifest = {"run": "a", "arm": "llama", "recipe": recipe.decisive()}
    older = copy.deepcopy(manifest)
    for table, settings in ADDED.items():
        for name, value in settings.items():
            assert older["recipe"][table].pop(name) == value
    assert older != manifest and current_manifest(older) == manifest
    assert current_manifest(manifest) == manifest
    other = recipe.change({"train.optimizer": "muon"})
    muon = {**manifest, "recipe": other.decisive()}
    assert current_manifest(muon) == muon
