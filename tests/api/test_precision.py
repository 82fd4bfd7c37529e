"""`layerlab.precision`: the same models and texts as `inspect`, and a model left as it was."""

import pytest
import torch
from accelerate import cpu_offload
from transformers import AutoTokenizer

import layerlab
from layerlab import builtin
from layerlab.api.precision import logits
from layerlab.numerics.mixed_precision.policy_runs import PolicyRuns
from tests.support.refused import refuses

IDS = [torch.arange(3, 40), torch.arange(5, 17)]


TEXTS = ["A short text.", "And another one that is longer."]


@pytest.mark.full
def test_a_loaded_model_is_advised_and_left_as_it_was(tiny, tmp_path, capfd):
    model = tiny("llama", vocab_size=512)
    tokenizer = AutoTokenizer.from_pretrained(builtin.path("llama"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    name = model.config._attn_implementation
    advice = layerlab.precision(model, "fp16", 0.9, tokenizer=tokenizer, texts=TEXTS)
    assert advice.reached and advice.policy.format == "fp16"
    assert "LlamaForCausalLM, fp16" in capfd.readouterr().err
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.config._attn_implementation == name
    assert not any(module._forward_pre_hooks for module in model.modules())

    advice.policy.save(tmp_path / "policy.toml")
    policy = layerlab.load_policy(tmp_path / "policy.toml")
    assert policy == advice.policy and policy.measured["budget"] == 0.9
    pieces = [torch.tensor(tokenizer(text)["input_ids"]) for text in TEXTS]
    with layerlab.emulate(model, "fp64"):
        true = logits(model, pieces)
    with torch.no_grad():
        real = logits(layerlab.apply_precision(model, policy), pieces).double()
    error = float((real - true).square().sum() / true.square().sum())
    assert error == pytest.approx(advice.real * advice.real_error, rel=1e-3)


@pytest.mark.full
def test_dropout_of_a_model_in_training_is_no_rounding(tiny):
    model = tiny("gpt2", resid_pdrop=0.5).eval()
    given = {"input_ids": IDS[0][None], "context": 16, "progress": False}
    expected = layerlab.precision(model, "bf16", 0.9, **given)
    found = layerlab.precision(model.train(), "bf16", 0.9, **given)
    assert str(found) == str(expected) and all(one.training for one in model.modules())


@pytest.mark.full
def test_sequences_of_different_length_count_by_their_tokens(tiny):
    model = tiny("llama")
    parts = [
        PolicyRuns(model, lambda one, ids=ids: logits(one, [ids]), "bf16", lambda what: None)
        for ids in IDS
    ]
    whole = PolicyRuns(model, lambda one: logits(one, IDS), "bf16", lambda what: None)
    sizes = [float(part.true.square().sum()) for part in parts]
    errors = [part.whole * size for part, size in zip(parts, sizes, strict=True)]
    assert whole.true.shape == (1, sum(map(len, IDS)), 64)
    assert whole.whole == pytest.approx(sum(errors) / sum(sizes), rel=1e-6)


@pytest.mark.full
def test_a_model_whose_weights_wait_elsewhere_is_searched_by_emulation(tiny):
    whole, away = tiny("llama"), tiny("llama")
    away.load_state_dict(whole.state_dict())
    cpu_offload(away, torch.device("cpu"))
    here, there = (
        layerlab.precision(one, input_ids=IDS[0], progress=False) for one in (whole, away)
    )
    assert there.real is None and here.real is not None
    assert there.choices[0].alone == here.choices[0].alone
    assert there.error == here.error and all(weight.is_meta for weight in away.parameters())


@pytest.mark.parametrize(
    ("options", "text", "early"),
    [
        ({"budget": 1.5}, "a share of the squared error, between 0 and 1", True),
        ({"format": "bf61"}, "bf61", True),
        ({"format": "fp32"}, "there is nothing to keep", True),
        ({"texts": "a", "input_ids": [1, 2]}, "both texts and input_ids", False),
        ({"context": 10**6}, "longer than the 256 positions", False),
    ],
)
def test_mistakes_are_told_and_before_a_model_is_loaded_where_they_can_be(
    options, text, early, monkeypatch, capfd
):
    def load(*given, **how):
        raise AssertionError(given)

    if early:
        monkeypatch.setattr("layerlab.api.precision.load_model", load)
    refuses(text, layerlab.precision, "llama", **options)
    assert not early or capfd.readouterr().err == ""
