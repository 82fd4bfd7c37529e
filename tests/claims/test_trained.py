"""Real trained weights: a pre-norm Llama, and a post-norm character model in GPT-1's blocks."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy, layer_norm
from transformers import AutoModelForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

import layerlab
from layerlab.report.views.inspection.bounds import violations

PARTS = {
    "attn.c_proj": "self_attn.W_o",
    "mlp.c_fc": "ffn.linear1",
    "mlp.c_proj": "ffn.linear2",
}


def post_norm(folder):
    """The stored model in transformers' GPT-1 blocks, and its own final norm and head."""
    stored = load_file(folder / "safetensors" / "gpt.safetensors")
    shape = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 128}
    model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=65, afn="relu", **shape)).eval()
    weights = {
        "tokens_embed.weight": stored["token_embedding.weight"],
        "positions_embed.weight": stored["pos_embedding.weight"],
    }
    for layer in range(4):
        own, theirs = f"h.{layer}", f"blocks.{layer}"
        for kind in ("weight", "bias"):
            joined = [stored[f"{theirs}.self_attn.W_{name}.{kind}"] for name in "qkv"]
            weights[f"{own}.attn.c_attn.{kind}"] = _turned(torch.cat(joined))
            for mine, part in PARTS.items():
                weights[f"{own}.{mine}.{kind}"] = _turned(stored[f"{theirs}.{part}.{kind}"])
            for number in (1, 2):
                weights[f"{own}.ln_{number}.{kind}"] = stored[f"{theirs}.norm{number}.{kind}"]
    model.transformer.load_state_dict(weights, strict=False)
    return model, stored


def _turned(weights):
    """As GPT-1's Conv1D stores them: the transpose of a matrix, a bias as it is."""
    return weights.T.contiguous() if weights.dim() == 2 else weights


@pytest.fixture(scope="module")
def character(data):
    folder = data / "model-tensorforge-postnorm"
    letters = json.loads((folder / "meta.json").read_text())["chars"]
    text = (data / "tinyshakespeare" / "input.txt").read_text()
    held_out = text[-(len(text) // 10) :]
    windows = [held_out[start : start + 128] for start in range(0, len(held_out) - 128, 2200)]
    ids = torch.tensor([[letters.index(letter) for letter in window] for window in windows])
    return *post_norm(folder), ids


def oracle(model, ids):
    """Singular values in float64 of the attention that the model itself returns."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = model(ids[None], output_attentions=True).attentions
    return torch.stack([torch.linalg.svdvals(one[0].double())[:, 0] for one in matrices])


def norms(report):
    frame = report.frame("spectrum").sort_values(["layer", "head"])
    return torch.tensor(frame["norm"].to_numpy())


def broken(report):
    """Readings on the wrong side of a bound, by measure."""
    found = {}
    for measure in report.to_dict()["measures"]:
        for bound in measure["bounds"]:
            rows = report.frame(measure["name"])
            found[measure["name"], bound["limit"]] = int(violations(rows, bound, "float32").sum())
    return {place: count for place, count in found.items() if count}


@pytest.mark.full
def test_the_post_norm_weights_are_read_as_they_were_trained(character):
    model, stored, ids = character
    with torch.no_grad():
        hidden = model.transformer(ids).last_hidden_state
        hidden = layer_norm(hidden, (128,), stored["ln_f.weight"], stored["ln_f.bias"])
        logits = hidden @ stored["lm_head.weight"].T + stored["lm_head.bias"]
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    # The card has 1.480 over all of the validation text; a layout read wrongly costs a nat or more.
    assert abs(loss.item() - 1.480) < 0.15


@pytest.mark.full
def test_post_norm_readings_hold_on_trained_weights(character):
    model, _, ids = character
    report = layerlab.inspect(model, input_ids=ids[:1], progress=False)
    exact = oracle(model, ids[0]).flatten()
    assert ((norms(report) - exact).abs() <= 1e-6 * exact).all()
    assert broken(report) == {}
    stream = report.frame("stream").set_index("layer")["norm"]
    gains = [block.ln_2.weight.abs().max().item() for block in model.transformer.h]
    shifts = [block.ln_2.bias.norm().item() for block in model.transformer.h]
    for layer, (gain, shift) in enumerate(zip(gains, shifts, strict=True)):
        assert stream[layer] <= gain * 128**0.5 + shift, "a post-norm stream ends on its norm"


@pytest.mark.full
def test_pre_norm_readings_hold_on_trained_weights(data):
    folder = data / "model-stories260K" / "hf"
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(3, 203)[None] % 512
    report = layerlab.inspect(model, input_ids=ids, progress=False)
    exact = oracle(model, ids[0]).flatten()
    # Scores reach the hundreds here, and the model itself takes its softmax in float32.
    largest = report.frame("attention")["logit_max"].max()
    slack = 1e-6 + 4 * largest * torch.finfo(torch.float32).eps
    assert ((norms(report) - exact).abs() <= slack * exact).all()
    assert broken(report) == {}
