"""`layerlab retrofit`: a saved model in, a variant with the same logits out, or one clear line."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import layerlab
from layerlab import builtin
from tests.cli.several import Said, several
from tests.support.refused import refuses


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Said], Path]:
    """What the commands below gave back, and the folder they were run in."""
    folder = tmp_path_factory.mktemp("retrofit")
    (folder / "mine").mkdir()
    (folder / "mine" / "text.txt").write_text("mine")
    commands = [
        ("pre-norm", "--variant", "pangu-pi", "--option", "r=8", "--out", "new"),
        ("llama", "--variant", "history-1", "--out", "other"),
        ("llama", "--variant", "pangu-pie", "--out", "never"),
        ("llama", "--variant", "pangu-pi", "--option", "r=0", "--out", "never"),
        ("llama", "--out", "mine"),
        ("llama", "--variant", "gpt2", "--out", "never"),
        ("llama", "--option", "sharing=blocks", "--out", "never"),
    ]
    return several([("retrofit", *words) for words in commands], folder), folder


def test_a_rebuilt_model_is_saved_with_its_tokenizer(said):
    found, out = said[0][0], said[1] / "new"
    assert found.code == 0 and found.error == ""
    assert "logits before training: the same, bit for bit" in found.out
    new = AutoModelForCausalLM.from_pretrained(out)
    old = AutoModelForCausalLM.from_pretrained(builtin.path("pre-norm"))
    ids = AutoTokenizer.from_pretrained(out)("A short text.", return_tensors="pt").input_ids
    assert new.config.variant == "pangu-pi"
    with torch.no_grad():
        # Not to the bit: sums of another layout are rounded otherwise on some processors.
        torch.testing.assert_close(new(ids).logits, old(ids).logits, rtol=1e-5, atol=1e-4)


def test_a_variant_that_is_another_function_says_how_far_it_is(said):
    assert said[0][1].code == 0
    assert "logits before training: off by up to" in said[0][1].out


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (2, "did you mean 'pangu-pi'?"),
        (3, "option r of shortcut part"),
        (4, "holds files already; name a new or an empty folder"),
        (5, "a llama model cannot be rebuilt as gpt2: expected a variant of llama"),
        (6, "type --option sharing=none"),
    ],
)
def test_a_mistake_gets_one_line_and_changes_nothing(said, number, message):
    found, folder = said[0][number], said[1]
    assert found.code == 2 and found.out == ""
    assert message in found.error and found.error.count("\n") == 1
    assert {path.name for path in folder.iterdir()} == {"mine", "new", "other"}
    assert [path.name for path in (folder / "mine").iterdir()] == ["text.txt"]


def test_function_takes_a_loaded_model_and_options(tiny):
    model = tiny("llama")
    new = layerlab.retrofit(model, "as-4", shortcut={"bias": True})
    assert new.config.parse_spec().block.shortcut.given()["bias"] is True
    theirs = model.model.layers[0].self_attn.q_proj.weight
    for shared in (False, True):
        new = layerlab.retrofit(model, shared=shared)
        own = new.model.layers[0].attention.query.weight
        assert (own.data_ptr() == theirs.data_ptr()) == shared
    refuses("model is a int; expected a Hub id", layerlab.retrofit, 3)
    refuses("the variant is a int; expected", layerlab.retrofit, model, 5)
    refuses("this one is loaded: call", layerlab.retrofit, model, device="cpu")
