"""Recipes: what is wrong in one is named, and what decides a run decides its hash."""

import hashlib
import json
import math
import re
from typing import Annotated, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from layerlab import UserError
from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.adaptation import AdaptationRecipe as Adaptation
from layerlab.recipes.error_messages import describe_expected
from layerlab.recipes.training import TrainingRecipe, list_packaged, load_recipe, make_recipe
from tests.support.forked import empty_python
from tests.support.refused import refusal, refuses

LENGTH = {"train": {"max_steps": 3}}
ARM = {"variant": "gpt2", "name": 'a"b', "options": {"shortcut.form": "full"}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"train": {"max_steps": 3, "rte": 1}},
            r"\[train\] has no 'rte'; did you mean 'learning_rate'\?",
        ),
        ({"trian": {}, **LENGTH}, r"a recipe has no 'trian'; did you mean 'train'\?"),
        (
            {"train": {"max_steps": "a"}},
            r"train\.max_steps is 'a'; expected a whole number from 1 to 1e\+15: write",
        ),
        (
            {"train": {"max_steps": 3, "learning_rate": -1}},
            r"train\.learning_rate is -1; expected a number above 0: write train\.learning_rate = ",
        ),
        (
            {"data": {"tokenizer": {"train": "bpe-falback"}}, **LENGTH},
            r"data\.tokenizer\.train is 'bpe-falback'; expected 'bpe' or 'bpe-fallback': write",
        ),
        (
            {"data": {"tokenizer": {"train": "bpe", "special": ["<a>"]}}, **LENGTH},
            r"\[data\.tokenizer\] has no 'special'; did you mean 'special_tokens'\? known",
        ),
        (
            {"train": {"max_steps": 3, "parametrization": "muP"}},
            r"is 'muP'; expected 'standard' or 'mup': write train\.parametrization = \"mup\"",
        ),
        (
            {"train": {"max_steps": 3, "parametrization": "mup"}},
            r'train\.parametrization is "mup", which scales a model from a base width; write',
        ),
        (
            {"train": {"max_steps": 3, "mup_base_width": 64}},
            r'train\.mup_base_width is 64, and train\.parametrization is "standard", which has no',
        ),
        (
            {"train": {"max_steps": 3, "parametrization": "mup", "mup_base_width": -64}},
            r"train\.mup_base_width is -64; expected a whole number from 1",
        ),
        (
            {"train": {"max_steps": 1, "tokens": 3}},
            "train gives max_steps and tokens; expected one of",
        ),
        (
            {},
            "train gives no length; expected one of max_steps, tokens, num_train_epochs: write max",
        ),
        ({**LENGTH, "compare": {"arms": [{"nam": "x"}]}}, r"arms\]\] number 1 has no 'nam'; did"),
        (
            {**LENGTH, "compare": {"arms": []}},
            r"arms is \[\]; expected a list of 1 or more, each a text or a table: write compare\.",
        ),
        ({**LENGTH, "compare": {"seeds": [1]}}, r"compare\.arms is missing; expected a list of 1"),
        (
            {**LENGTH, "train": 3},
            r"train is 3; expected a table: write \[train\] above its settings",
        ),
        ({**LENGTH, "model": {"inner": "x"}}, "model.inner is 'x'; expected a whole number or a"),
        (
            {**LENGTH, "run": {"report_to": ["x"]}},
            r"'trackio': write run.report_to = \[\"tensorboard\"\]",
        ),
        (
            {**LENGTH, "compare": {"arms": ["a"], "claims": [{"source": "x", "statement": 3}]}},
            'claims.0.statement is 3; expected a text that is not empty: write statement = "NAME"',
        ),
        ({**LENGTH, "data": {"sources": [{"txt": "x"}]}}, "has no 'txt'; did you mean 'text'"),
        (
            {"train": {"max_steps": 3, "lr_scheduler_type": "cos"}},
            "'cosine', 'linear', 'constant' or 'wsd'",
        ),
        ({"train": {"max_steps": 3, "learning_rate": math.nan}}, r"train\.learning_rate is nan"),
        ({**LENGTH, "run": {"save_total_limit": 1}}, r"run\.save_total_limit is 1"),
        ({**LENGTH, "run": {"slurm": {"minutes": 2}}}, r"run\.slurm\.minutes is 2;"),
        (
            {**LENGTH, "run": {"max_parallel": "many"}},
            r"a whole number from 1 to 4096 or 'auto': write run.max_parallel = .auto",
        ),
        (
            {**LENGTH, "name": "../out"},
            r"name is '\.\./out'; .*a digit or _: write name = \"my-recipe\"$",
        ),
        (
            {**LENGTH, "compare": {"arms": ["llama"], "lockstep": True, "search": "optuna"}},
            r"compare\.lockstep runs all arms side by side, and a search decides as it goes",
        ),
    ],
)
def test_what_is_wrong_is_named(content, said):
    assert refuses(said, make_recipe, content, "my.toml").startswith("my.toml: ")


@pytest.mark.parametrize("name", list_packaged())
def test_recipes_of_the_package_are_recipes(name):
    found = load_recipe(name)
    assert found.name == name and found.about.endswith((".", "?"))


def test_a_name_that_is_no_recipe_is_told_its_nearest_and_all_there_are():
    with pytest.raises(UserError, match="no recipe 'eight-residual'; did you mean eight-residuals"):
        load_recipe("eight-residual")
    said = r"no recipe 'eight'; .*expected a TOML file or one of .*eight-residuals-twin"
    refuses(said, load_recipe, "eight")


def test_a_name_beside_a_file_of_that_name_is_told_so(tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text('extends = "smoke"\n')
    (tmp_path / "mine.toml").write_text('extends = "tiny"\n')
    refuses(r"no recipe 'tiny'; did you mean tiny\.toml\?", load_recipe, tmp_path / "mine.toml")
    monkeypatch.chdir(tmp_path)
    refuses(r"no recipe 'tiny'; did you mean tiny\.toml\?", load_recipe, "tiny")


def test_a_recipe_of_the_package_is_found_beside_the_folder_of_its_comparison(
    tmp_path, monkeypatch
):
    (tmp_path / "smoke").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_recipe("smoke").name == "smoke"
    refuses("cannot read the recipe 'other': Is a directory", load_recipe, "other")


def test_a_file_that_is_no_toml_is_told_so(tmp_path):
    file = tmp_path / "mine.toml"
    refuses("cannot read the recipe", load_recipe, file)
    file.write_text("[train\n")
    refuses("is not TOML", load_recipe, file)
    file.write_bytes(b"\xff\xfe")
    refuses("it is not UTF-8", load_recipe, file)
    file.write_text("[train]\nmax_steps = 3\n")
    assert load_recipe(file).name == "mine"


def test_the_sweep_at_the_source_size_has_the_runs_at_the_source_rate():
    swept, source = load_recipe("eight-residuals-rates"), load_recipe("eight-residuals")
    assert swept.model == source.model and swept.data == source.data
    assert swept.compare.arms == source.compare.arms and len(swept.compare.arms) == 8
    at_source = swept.change({"compare.learning_rates": [source.train.learning_rate]})
    text = CorpusSize(vocab=32_000, tokens=10**8, digest="d")
    runs, own = (plan(one, text) for one in (swept, at_source))
    assert len(runs) == 72 and len(own) == 24
    assert {run.name for run in own} < {run.name for run in runs}
    tokens = swept.train.max_steps * swept.train.batch_size * swept.model.context
    assert tokens == pytest.approx(9.8e6, rel=0.01)


@pytest.mark.parametrize("name", ["eight-residuals", "eight-residuals-rates", "pangu-h100"])
def test_a_comparison_on_one_gpu_keeps_no_models_that_nothing_reads(name):
    found = load_recipe(name)
    assert found.run.device == "cuda" and not found.run.save_model
    assert not found.compare.measures


def test_a_recipe_takes_from_another_what_it_does_not_say(tmp_path):
    twin = load_recipe("eight-residuals-twin")
    file = tmp_path / "long.toml"
    file.write_text('extends = "eight-residuals-twin"\n[train]\nmax_steps = 600\n')
    found = load_recipe(file)
    assert found == twin.change({"name": "long", "train.max_steps": 600})
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "mine.toml").write_text(
        'extends = "../long.toml"\n[train]\ntokens = 4096\n[model.options]\nqk_norm = true\n'
        '[compare]\narms = ["llama", "gpt2"]\nclaims = []\n'
    )
    mine = load_recipe(tmp_path / "more" / "mine.toml")
    assert (mine.train.tokens, mine.train.max_steps, mine.train.batch_size) == (4096, None, 16)
    assert mine.model.options == {"head": "untied", "qk_norm": True}
    assert mine.compare.arms == ("llama", "gpt2") and mine.compare.baseline == "llama"
    alone = make_recipe({"extends": "smoke", "train": {"learning_rate": 0.5}})
    assert (alone.name, alone.train.learning_rate) == ("recipe", 0.5)
    assert alone.train.max_steps == load_recipe("smoke").train.max_steps


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("extends = 3", r"mine\.toml: extends is 3; expected a TOML file or the name of a recipe"),
        ('extends = "smke"', "no recipe 'smke'; did you mean smoke"),
        ('extends = "none.toml"', "cannot read the recipe '.*none.toml': No such file"),
        ('extends = "mine.toml"', "extends 'mine.toml', which extends it in turn; leave one out"),
        ('extends = "other.toml"', r"other\.toml: extends 'mine.toml', which extends it in turn"),
        ('extends = "deep/../mine.toml"', r"which extends it in turn"),
        ('extends = "wrong.toml"\n[train]\nmax_steps = 2', r"mine\.toml: a recipe has no 'batch'"),
        ('extends = "smoke"\ntrain = 3', r"mine\.toml: train is 3"),
    ],
)
def test_what_cannot_be_extended_is_named(tmp_path, line, said):
    (tmp_path / "mine.toml").write_text(f"{line}\n")
    (tmp_path / "other.toml").write_text('extends = "mine.toml"\n')
    (tmp_path / "wrong.toml").write_text("batch = 3\n")
    (tmp_path / "deep").mkdir()
    refuses(said, load_recipe, tmp_path / "mine.toml")


def test_how_a_run_is_carried_out_does_not_decide_it():
    plain = make_recipe(LENGTH)
    other = make_recipe(
        {**LENGTH, "name": "x", "about": "y", "run": {"threads": 2, "max_parallel": 3}}
    )
    assert plain.hash() == other.hash()


@given(
    st.sampled_from([("train.learning_rate", 0.5), ("model.width", 64), ("data.vocab_size", 300)])
)
def test_every_other_setting_decides_it(setting):
    plain = make_recipe(LENGTH)
    assert plain.change(dict([setting])).hash() != plain.hash()


def test_a_setting_left_at_its_default_leaves_the_name_of_a_run():
    """The hash is of before there were optimizers, or parametrizations, to choose from."""
    plain = make_recipe({"train": {"max_steps": 3, "batch_size": 4}})
    content = [{"train": {"batch": 4, "updates": 3}}, []]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert plain.hash() == hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    assert plain.change({"train.optimizer": "adamw"}).hash() == plain.hash()
    assert plain.change({"train.optimizer": "muon"}).hash() != plain.hash()
    assert plain.change({"train.parametrization": "standard"}).hash() == plain.hash()
    scaled = {"train.parametrization": "mup", "train.mup_base_width": 64}
    assert plain.change(scaled).hash() != plain.hash()


def test_a_variant_of_ones_own_decides_by_its_content(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("a = 1\n")
    first = make_recipe({**LENGTH, "model": {"load": [str(file)]}})
    before = first.hash()
    file.write_text("a = 2\n")
    assert first.hash() != before


@pytest.mark.full
def test_a_hash_is_the_same_in_every_process():
    code = (
        "from layerlab.recipes.training import load_recipe;"
        "print(load_recipe('eight-residuals-twin').hash())"
    )
    found = {empty_python("-c", code, check=True).stdout.strip() for _ in range(2)}
    assert found == {load_recipe("eight-residuals-twin").hash()}
    assert re.fullmatch(r"[0-9a-f]{12}", found.pop())


def test_a_comparison_may_be_set_on_a_recipe_that_has_none():
    found = make_recipe(LENGTH).change({"compare.arms": ["llama", "gpt2"], "compare.seeds": [1]})
    assert found.compare is not None and found.compare.seeds == (1,)


def test_settings_are_changed_by_their_paths():
    found = make_recipe(LENGTH).change(
        {"train.tokens": 1000, "model.options.r": 3, "model.options.shortcut.form": "full"}
    )
    assert found.train.max_steps is None and found.train.tokens == 1000
    assert found.model.options == {"r": 3, "shortcut.form": "full"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("train.bach", r"no setting 'train\.bach'; did you mean 'train\.batch_size'"),
        ("nothing.x", r"no setting 'nothing\.x'"),
        (
            "train.batch_size.x",
            r"no setting 'train\.batch_size\.x'; train\.batch_size is a value, no table; known",
        ),
        ("trian.batch_size", r"no setting 'trian\.batch_size'; did you mean 'train\.batch_size'"),
        ("nothing.train", r"no setting 'nothing\.train'; known here: .*train"),
        (
            "data.sources.0.text",
            r"no setting 'data\.sources\.0\.text': data\.sources is a list, and a list is set "
            r"whole; write data\.sources = \[\{ text = ",
        ),
        ("model.load.0", r"model\.load is a list, and a list is set whole; write model\.load = \["),
    ],
)
def test_a_path_that_leads_nowhere_is_told_its_nearest(path, said):
    refuses(said, make_recipe(LENGTH).change, {path: 1})


def test_the_example_of_a_list_can_be_typed():
    from layerlab.cli.train import read_settings

    given = make_recipe({**LENGTH, "compare": {"arms": [ARM]}})
    path, _, value = (
        refuses("is set whole", given.change, {"compare.arms.0.name": "c"})
        .partition("write ")[2]
        .partition(" = ")
    )
    found = given.change(read_settings([f"{path}={value}"]))
    assert found.compare == given.compare


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            "train.batch_size",
            "a",
            "train.batch_size is 'a'; expected a whole number from 1 to 1e+15: write",
        ),
        (
            "data.sources",
            [{"text": "x", "weight": -1}],
            "data.sources.0.weight is -1; expected a number above 0 to 1e+09: write weight = 1.0",
        ),
    ],
)
def test_a_setting_that_is_refused_is_named_once(path, value, said):
    assert refusal(
        make_recipe(LENGTH).change, {"train.learning_rate": 0.1, path: value}
    ).startswith(said)


def test_settings_may_complete_a_recipe(tmp_path):
    file = tmp_path / "frag.toml"
    file.write_text('[compare]\narms = ["llama", "gpt2"]\n')
    refuses(r"frag\.toml: train gives no length", load_recipe, file)
    settings = {
        "train.max_steps": 10,
        "model.options.head": "tied",
        "compare.allowed_differences": ["model.*"],
    }
    found = load_recipe(file, settings)
    assert (found.train.max_steps, found.model.options) == (10, {"head": "tied"})
    assert found == load_recipe(file, {"train.max_steps": 10}).change(settings)
    assert load_recipe("smoke", {"train.tokens": 100}).train.max_steps is None
    assert load_recipe(file, {"train.max_steps": 1, "run.slurm.gpus": 2}).run.slurm.gpus == 2
    refuses(r"^train\.max_steps is 0; ", load_recipe, file, {"train.max_steps": 0})
    for path in ("train.batch_size.x", "trian.updates", "compare.arms.0.name", "train.options.x"):
        refuses("a recipe has no setting", load_recipe, file, {"train.max_steps": 1, path: 1})


def test_every_setting_has_words_and_an_example_that_it_takes():
    """All of both kinds of recipe, by their own declarations: what is advised is accepted."""
    for kind in (TrainingRecipe, Adaptation):
        found = {path: describe_expected(kind, path.split(".")) for path in leaves(kind)}
        assert [path for path, one in found.items() if one is None] == []
        for path, (words, name, example) in found.items():
            assert "a value" not in words and name == path
            *_, field = fields(kind, path)
            if example == [{}]:  # told to write [[...]] above the settings of each
                continue
            taken = TypeAdapter(Annotated[field.annotation, field])
            taken.validate_json(json.dumps(example))


def leaves(kind, place=""):
    for name, field in kind.model_fields.items():
        inside = section(field)
        if inside is None:
            yield f"{place}{name}"
        else:
            yield from leaves(inside, f"{place}{name}.")


def fields(kind, path):
    for name in path.split("."):
        field = kind.model_fields[name]
        yield field
        kind = section(field)


def section(field):
    kinds = [field.annotation, *get_args(field.annotation)]
    tables = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
    return tables[0] if tables and get_origin(field.annotation) not in (tuple, dict) else None
