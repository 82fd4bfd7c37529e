"""Studies on models and texts that a user names: numbers by hand, words, keys, and refusals."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from layerlab import UserError
from layerlab.known_names import OF_MODELS
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.theory import attention_lambda
from layerlab.studies.spectral25 import unit_ball
from layerlab.studies.spectral25.gpt1_gpt2 import resample
from layerlab.studies.spectral25.norms_by_depth import judge_bounded_product, norm_of_product
from layerlab.studies.support.passages import excerpts, get_model
from tests.studies.small import FAMILIES, QUICK, change_json, drawing, given_of, made
from tests.support.refused import refuses

# What a study cannot say of a family, in the words of the refusal; all else it judges.
THEORY = {
    **dict.fromkeys(("qwen3", "gemma2", "olmo2"), "QK-norm are not in the theory"),
    **dict.fromkeys(("gptj", "phi", "gpt_neox"), "not one that the theory of rounding knows"),
}
DEPTH = {**THEORY, "olmo2": "no norm in front of its attention"}
REFUSED = {
    "bounds-table": THEORY,
    "bound-depth": DEPTH,
    "pangu-theorems": THEORY,
    "path-length": {**DEPTH, **dict.fromkeys(("gpt2", "qwen2"), "its biases are no part")},
    "mlp-lipschitz": {"mamba": "feed-forward of layer 0 cannot be scaled alone"},
    "deep-curve": {"openai-gpt": "compares layers, 3 at least, and openai-gpt has 2"},
    "unit-ball": {"gptj": "neither queries nor keys"},
    "block-anatomy": dict.fromkeys(("gptj", "openai-gpt"), "hands over no values"),
}
# Of random models that a study draws beside those of a user, whichever those are.
SMALL = {"collapse-depth": {"layers": 4, "width": 16}}
# Words that are true of the built-in models alone.
BUILT_IN = re.compile(r"built-in (llama|models:|pair)|trained llama|0\.45 M|(pre|post)-norm model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give the folder of a saved model of a family, with a tokenizer beside it."""
    place = tmp_path_factory.mktemp("models")

    def give(family, name=None, words=True, **changes):
        kept = place / (name or family)
        if not kept.exists():
            made(family, **changes).save_pretrained(kept)
            if words:
                get_model("llama").tokenizer.save_pretrained(kept)
        return str(kept)

    return give


def said(record):
    content = record.to_dict()
    parts = [(one["claim"], one["said"], one["scale"], one["unit"]) for one in content["verdicts"]]
    return [content["claim"], *content["remarks"], *(text for part in parts for text in part)]


def test_lambda_of_a_model_of_a_user_is_what_a_hand_computes(folder):
    given = given_of("attention-lambda", model=folder("llama"))
    draws = [drawing(2, 3, **given) for _ in range(2)]
    found = attention_lambda.one(draws[0], 16, ["llama"])["llama"]
    draws[1].normal(16, 16)
    ids = excerpts(draws[1], "llama", 16)
    model = made("llama").double()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(ids, output_attentions=True).attentions
    a = torch.cat(layers, 1)
    middle = torch.eye(16, dtype=torch.float64) - 1 / 16
    hand = torch.linalg.eigvalsh(a.mT @ middle @ a)[..., -1]
    assert found.shape == hand.shape == (2, 12)
    # The model's own attention is in float32.
    assert torch.allclose(found, hand, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["attention-lambda", "collapse-depth", "deep-curve"])
def test_verdicts_speak_of_the_models_and_the_text_that_were_named(name, folder, tmp_path):
    text = tmp_path / "words.txt"
    text.write_text("A few words of no great weight, said again and again. " * 60)
    named = [folder("llama"), folder("gpt2")]
    found = study(name, model=named, text=str(text), **QUICK)
    texts = said(found)
    assert [text for text in texts if BUILT_IN.search(text)] == []
    content = found.to_dict()
    judged = [one for one in content["verdicts"] if "random" not in one["scale"]]
    judged = [one for one in judged if "constructed" not in one["scale"]]
    assert judged
    for one in judged:
        both = r"llama of \d+ k parameters and gpt2 of \d+ k parameters"
        whose = [model for model in ("llama", "gpt2") if model in one["said"]]
        alone = rf"{whose[0]} of \d+ k parameters"
        assert re.fullmatch(both if len(whose) == 2 else alone, one["scale"])
        assert f"passages of {text}, one model of each name" in one["unit"]
    assert "llama" in texts[-1] or any("llama" in one["said"] for one in judged)
    typed = shlex.split(content["command"])
    assert [typed[at + 1] for at, word in enumerate(typed) if word == "--model"] == named
    assert typed[typed.index("--text") + 1] == str(text)


@pytest.mark.full
def test_keys_hang_on_weights_text_and_device_and_only_where_they_are_named(folder, tmp_path):
    name, plain = "layernorm-against-rmsnorm", {"draws": 4, "progress": False, "threads": 1}

    def key(**given):
        return study(name, **plain, **given).to_dict()["key"]

    text = tmp_path / "words.txt"
    text.write_text("Some other words. " * 80)
    one, other = folder("llama"), folder("llama", "wider", intermediate_size=64)
    # The same weights in another folder are other files of the same bytes.
    keys = [
        key(),
        key(model="llama"),
        key(model=one),
        key(model=other),
        key(model=one, text=str(text)),
        key(model=one, device="cpu"),
        key(model=one, dtype="float64"),
    ]
    assert len({*keys}) == len(keys)
    assert key(model=one) == keys[2] and key() == keys[0]


@pytest.mark.full
def test_a_kept_result_is_of_this_configuration_and_this_tokenizer(folder, tmp_path):
    name, out = "layernorm-against-rmsnorm", tmp_path / "out"
    plain = {"draws": 4, "progress": False, "threads": 1, "out": out}
    one = Path(folder("llama", "edited"))
    first = study(name, model=str(one), **plain).to_dict()
    # Neither shows in the weights.
    change_json(one / "config.json", num_attention_heads=2, num_key_value_heads=1, head_dim=16)
    second = study(name, model=str(one), **plain).to_dict()
    words = json.loads((one / "tokenizer.json").read_text())
    words["model"]["merges"] = words["model"]["merges"][:50]
    (one / "tokenizer.json").write_text(json.dumps(words))
    third = study(name, model=str(one), **plain).to_dict()
    assert len({one["key"] for one in (first, second, third)}) == 3
    assert first["frames"] != second["frames"] != third["frames"]


def test_roles_are_those_that_were_typed_whatever_the_checkpoints_are_called(folder, tmp_path):
    for run, step in (("late", 200), ("early", 100)):
        kept = tmp_path / run / f"checkpoint-{step}"
        kept.parent.mkdir()
        shutil.copytree(folder("gpt2"), kept)
    pair = [str(tmp_path / "late" / "checkpoint-200"), str(tmp_path / "early" / "checkpoint-100")]
    told = " ".join(study("gpt-curves", model=pair, **QUICK).to_dict()["remarks"])
    assert "pre-norm is late/checkpoint-200, post-norm is early/checkpoint-100" in told


def test_random_weights_named_twice_are_two_models():
    pair = ["gpt2:layers=2,width=32,heads=2,vocab=600,context=64"] * 2
    told = " ".join(study("gpt-curves", model=pair, **QUICK).to_dict()["remarks"])
    assert f"pre-norm is random {pair[0]}, post-norm is random {pair[0]} (2)" in told


def test_a_weight_that_is_no_number_is_refused(folder):
    model = made("gpt2")
    model.transformer.h[1].mlp.c_fc.weight.data[0, 0] = torch.nan
    with pytest.raises(
        UserError, match=r"GPT2LMHeadModel: .*h\.1\.mlp.* holds 1 of .* numbers that are NaN"
    ):
        study("bounds-table", model=model, tokenizer=get_model("llama").tokenizer, **QUICK)


def test_a_model_that_carries_a_policy_is_said_to_be_read_without_it(folder):
    kept = Path(folder("gpt2", "carried"))
    change_json(kept / "config.json", precision_policy={"format": "bf16", "keep": []})
    told = study("deep-curve", model=str(kept), **QUICK).to_dict()["remarks"]
    assert any("saved with a precision policy, which is not applied here" in one for one in told)


def test_what_no_command_could_name_has_none():
    words = get_model("llama").tokenizer
    found = study("deep-curve", model=made("gpt2"), tokenizer=words, **QUICK)
    assert found.to_dict()["command"] == ""


@pytest.mark.full
def test_a_page_counts_passages_of_the_text_that_was_read(folder):
    found = study("attention-lambda", model=folder("gpt2"), **QUICK).to_dict()
    assert found["unit"] == "passages of the built-in text, one model of each name"


def test_rounding_to_16_bits_is_no_counterexample(folder):
    half = folder("llama", "half", dtype=torch.bfloat16)
    first = study("block-anatomy", model=half, draws=4, **QUICK).to_dict()["verdicts"][0]
    assert first["word"] == "holds" and 1e-4 < first["number"] < 0.05
    # Every token attends to the first alone: the product has the largest norm there is.
    model = made("llama").bfloat16()
    given = given_of("deep-curve", model=model, tokenizer=get_model("llama").tokenizer)
    (name,) = given
    ones = torch.full((18, 1), 1.0 + 2**-8).double() * torch.eye(18).double()[:1]
    found = {key: one[None].numpy() for key, one in norm_of_product(ones.expand(3, 18, 18)).items()}
    parts = {name: {**found, "norm": np.ones((1, 3))}}
    assert judge_bounded_product(parts, given).word == "fails"


def test_a_precision_is_that_of_the_weights_and_stands_in_the_command(folder):
    half = folder("llama", "half", dtype=torch.bfloat16)
    given = {"model": [half, "llama:layers=1,width=16,heads=2,context=256"], "dtype": "float64"}
    for one in given_of("attention-lambda", **given).values():
        assert one.subject.model.dtype == torch.float64
    found = study("bounds-table", model=half, dtype="float32", draws=4, **QUICK).to_dict()
    assert shlex.split(found["command"])[-2:] == ["--dtype", "float32"]
    assert found["settings"]["dtype"] == "float32"


@pytest.mark.full
def test_axes_of_features_are_those_of_the_named_model_and_of_no_llama(folder):
    found = study("features-pca", model=folder("gpt2"), draws=4, **QUICK).to_dict()
    assert found["claim"] == "The features of gpt2 lie along one axis."


@pytest.mark.full
def test_a_built_in_model_by_name_has_the_numbers_of_the_study_itself():
    own = study("collapse-depth", **QUICK).frame("layers")
    found = study("collapse-depth", model=["llama", "pre-norm"], **QUICK).frame("layers")
    own["model"] = own["model"].str.removesuffix(", trained")
    assert found.equals(own)


def test_a_model_in_memory_is_left_as_it_was():
    model = made("gpt2").train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    kind = model.config._attn_implementation
    words = get_model("llama").tokenizer
    found = study("gpt-curves", model=[model, "post-norm"], tokenizer=words, **QUICK)
    assert model.training
    again = study("gpt-curves", model=[model.eval(), "post-norm"], tokenizer=words, **QUICK)
    # No dropout.
    assert found.frame("norms").equals(again.frame("norms"))
    assert model.config._attn_implementation == kind
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_curves_of_unequal_depth_meet_at_their_relative_depths(folder):
    rows = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    kept = resample({"own": rows, "padded": rows, "uniform": np.ones(1)}, 3)
    assert kept["own"].tolist() == [[1.0, 3.0, 5.0]]
    assert resample({"own": rows, "padded": rows}, 2)["padded"].tolist() == [[1.0, 5.0]]
    pair = [folder("gpt2"), folder("openai-gpt")]
    found = study("gpt-curves", model=pair, **QUICK)
    layers = found.frame("norms").groupby("model")["layer"].max().to_dict()
    assert layers == {"pre-norm": 3, "post-norm": 2}
    told = " ".join(found.to_dict()["remarks"])
    assert "pre-norm is gpt2, post-norm is openai-gpt" in told
    assert "They have 3 and 2 layers: the deeper one is read at the relative depths" in told


def test_a_preset_with_a_colon_is_its_random_weights():
    pair = ["gpt2:layers=3,width=32,heads=2,vocab=600,context=64", "gpt1:layers=2,width=32,heads=2"]
    found = study("gpt-curves", model=pair, **QUICK)
    told = found.to_dict()
    assert "pre-norm is random gpt2:layers=3" in " ".join(told["remarks"])
    assert shlex.split(told["command"])[-4:] == ["--model", pair[0], "--model", pair[1]]
    with pytest.raises(UserError, match="no variant is called 'gtp2'; did you mean 'gpt2'"):
        study("gpt-curves", model=["gtp2:", pair[1]], **QUICK)


def test_axes_of_narrow_heads_are_those_of_the_whole_map():
    given = given_of("unit-ball", model="llama")
    whole = unit_ball.axes(unit_ball.maps("llama"))
    assert torch.allclose(unit_ball.axes_of("llama", given), whole, rtol=1e-9, atol=1e-9)


def test_what_a_study_cannot_read_is_one_line(folder, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("Hardly a word.")
    bare = folder("mamba", "bare", words=False)
    narrow = folder("gpt2", "narrow", n_positions=16)
    shallow = folder("llama", "shallow", num_hidden_layers=1)
    coarse = folder("gpt_neox", "coarse", dtype=torch.bfloat16)
    wide = folder("gpt2", "wide", vocab_size=300)
    for name, given, words in (
        (
            "attention-lambda",
            {"model": folder("mamba")},
            r"looks at attention, and mamba \(mamba\)",
        ),
        ("rounding-depth", {"model": "llama"}, "reads no model and no text; leave --model"),
        ("rounding-depth", {"text": str(short)}, "Those that do: attention-gain, "),
        (
            "attention-lambda",
            {"text": str(short)},
            r"tokens for llama, and study attention-lambda cuts passages of 64 from it: give at "
            "least 65 tokens with --text FILE",
        ),
        ("collapse-depth", {"model": narrow}, "passages of 128 tokens, and narrow can read 16"),
        ("collapse-depth", {"model": bare}, "bare has no tokenizer; put its tokenizer files"),
        ("collapse-depth", {"model": made("gpt2")}, "has no tokenizer; put its tokenizer files"),
        (
            "gpt-curves",
            {"model": "llama"},
            "compares 2 models, first pre-norm, then post-norm, and got 1: give --model twice",
        ),
        ("saliency-repeat", {"text": str(short)}, "reads texts of its own; leave --text out"),
        *(
            (name, {"model": shallow}, f"layers, {least} at least, and shallow has 1 with")
            for name, least in (("block-anatomy", 2), ("deep-curve", 3))
        ),
        ("saliency-repeat", {"model": narrow}, "narrow: its context is 16 tokens, and a text has"),
        ("bounds-table", {"model": coarse}, "coarse rounds to 16 bits, which may hide it: type"),
        ("gpt-curves", {"model": ["llama", shallow]}, "compares layers, 2 at least, and shallow"),
        ("predictor", {"model": str(tmp_path)}, "has no config.json"),
        ("predictor", {"model": "llama", "device": "gpu"}, "device 'gpu' is not here"),
        ("predictor", {"model": "llama", "dtype": "fp8"}, "dtype is 'fp8'; expected float32, "),
        ("rounding-depth", {"dtype": "float32"}, "leave --model, --text, --device and --dtype out"),
        ("collapse-depth", {"model": wide}, "the vocabulary of wide has 300 entries from 0; is it"),
    ):
        refuses(words, study, name, **QUICK, **given)


def test_the_names_of_these_studies_are_known_before_torch():
    assert [*OF_MODELS] == [one.name for one in studies().values() if one.models]
    for one in studies().values():
        assert not one.roles or len(one.roles) == len(one.models)
        assert one.models or not (one.passage or one.roles or one.attention)
        assert one.passage in one.options or isinstance(one.passage, int)


@pytest.mark.full
@pytest.mark.parametrize("family", [*FAMILIES])
@pytest.mark.parametrize("name", OF_MODELS)
def test_every_study_judges_every_family_or_says_in_a_line_why_not(name, family, folder):
    found = studies()[name]
    model = [folder(family)] * (len(found.roles) or 1)
    if found.roles:
        model[1] = folder("llama", "other")
    refused = REFUSED.get(name, {}).get(family)
    if family == "openai-gpt" and name in {"bound-depth", "path-length", "unit-ball"}:
        refused = "does not apply to openai-gpt: "
    if family == "mamba" and found.attention:
        refused = "looks at attention, and mamba"
    if not refused:
        found = study(name, model=model, draws=4, **QUICK, **SMALL.get(name, {}))
        assert found.verdicts and not any(map(BUILT_IN.search, said(found)))
        return
    with pytest.raises(UserError, match=refused):
        study(name, model=model, draws=4, **QUICK)
