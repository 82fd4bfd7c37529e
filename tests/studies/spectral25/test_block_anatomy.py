"""Heads that add up, entropies and distances that are known, and words for known numbers."""

import numpy as np
import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from layerlab.errors import NotApplicable
from layerlab.studies.engine.given_models import GivenModel
from layerlab.studies.engine.pictures import heat
from layerlab.studies.engine.runner import study
from layerlab.studies.spectral25.block_anatomy import (
    KEYS,
    MODELS,
    ROUNDING,
    anatomy,
    apart,
    contributions,
    entropy,
    judge_carried,
    judge_closer,
    judge_elsewhere,
    judge_further,
    judge_summed,
    matrices,
    weights,
)
from layerlab.studies.support.passages import for_each_layer, get_model, tokens_of
from tests.families.examination import subject
from tests.families.recipe import build
from tests.studies.small import drawing

TOKENS = 20


def uniform():
    rows = torch.ones(TOKENS, TOKENS, dtype=torch.float64).tril()
    return rows / rows.sum(1, keepdim=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_head_that_is_left_out_is_missed(name):
    found = []

    def read(layer):
        if layer.attention is not None:
            found.append((layer.attention, layer.sublayers["attention"].left.double()))

    for_each_layer(get_model(name), tokens_of(name)[None, :TOKENS], read)
    for known, (attended, left) in zip(weights(name).values(), found, strict=True):
        added = contributions(attended, known)
        bias = 0 if known.output_bias is None else known.output_bias.double()
        assert (added.sum(0) + bias - left).norm() < ROUNDING * left.norm()
        lacking = added[1:].sum(0) + bias - left
        assert torch.allclose(lacking, -added[0], atol=1e-4)
        assert lacking.norm() > 100 * ROUNDING * left.norm()


def test_an_output_that_is_not_seen_to_join_the_stream_is_no_length_of_what_does():
    whole = subject(build("llama"))
    for block in whole.stack.blocks:
        # What is behind the last sum is another one.
        block.register_forward_hook(lambda module, given, left: left * torch.rand(left.shape))
    given = {"own": GivenModel(subject=whole, tokens=torch.arange(10, 200), text=None)}
    draw = drawing(**given)
    with pytest.raises(NotApplicable, match="no sum in a block shows"):
        anatomy(draw, "own")


def test_entropy_is_one_for_equal_weights_and_none_for_one_key():
    assert entropy(uniform()[None]).item() == pytest.approx(1)
    assert entropy(torch.eye(TOKENS, dtype=torch.float64)[None]).item() == 0
    # Rows with few keys are left out.
    mixed = uniform()
    mixed[: KEYS - 1] = torch.eye(TOKENS, dtype=torch.float64)[: KEYS - 1]
    assert entropy(mixed[None]).item() == pytest.approx(1)


def test_heads_are_apart_by_what_they_have_elsewhere():
    first = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    first[:, 0] = 1
    own = torch.eye(TOKENS, dtype=torch.float64)
    assert apart(torch.stack([own, own])).tolist() == [0, 0]
    assert apart(torch.stack([own, first])).tolist() == [1, 1]
    assert apart(torch.stack([own, own, first])).tolist() == [0.5, 0.5, 1]
    half = (own + first) / 2
    assert apart(torch.stack([own, half])).tolist() == [0.5, 0.5]


def planted(error=1e-7, apart=0.5, attention=(0.8, 0.4), mlp=(0.4, 0.8), added=0.5):
    """Two models, 12 passages, 2 layers, 2 heads."""
    heads = np.zeros((12, 2, 2, 5))
    heads[..., 0], heads[..., 4] = error, apart
    norms = np.ones((12, 2, 3))
    norms[..., 1:] = added
    residuals = np.zeros((12, 2, 4))
    residuals[:] = (*attention, *mlp)
    part = {"heads": heads, "norms": norms, "residuals": residuals}
    return {name: part for name in MODELS}


def judged(parts):
    return [
        judge_summed(parts).word,
        *(
            one(parts, 0).word
            for one in (judge_elsewhere, judge_closer, judge_further, judge_carried)
        ),
    ]


def test_words_for_known_numbers():
    assert judged(planted()) == ["holds"] * 5
    found = planted(error=1e-4, apart=0.1, attention=(0.4, 0.8), mlp=(0.8, 0.4), added=2)
    assert judged(found) == ["fails", "smaller than asked", "fails", "fails", "fails"]
    assert judge_closer(planted(), 0).number == pytest.approx(2)
    assert judge_further(planted(), 0).number == pytest.approx(2)


def test_one_model_of_two_is_enough_against_a_claim():
    parts = planted()
    parts[MODELS[1]] = planted(mlp=(0.8, 0.4), apart=0.1)[MODELS[1]]
    assert (
        judge_elsewhere(parts, 0).word == "smaller than asked"
        and judge_further(parts, 0).word == "fails"
    )


def test_one_batch_has_every_head_of_every_layer():
    found = anatomy(drawing(), "llama")
    assert found["heads"].shape == (1, 8, 4, 5) and found["norms"].shape == (1, 8, 3)
    assert found["heads"][..., 3].sum(-1).allclose(torch.ones(1, 8, dtype=torch.float64))
    # What enters the second block is what the first left: the stream grows, and is finite.
    assert (found["norms"] > 0).all() and found["residuals"].isfinite().all()


def test_attention_is_shown_with_its_words():
    picture = matrices(MODELS[0])
    assert len(picture.data) == 4 and picture.data[0]["x"][0] == "0 The"
    for panel in picture.data:
        rows = np.array(panel["z"])
        assert rows.sum(1) == pytest.approx(1, abs=0.01) and not np.triu(rows, 1).any()
    assert {"xaxis4", "yaxis4"} <= set(picture.layout)
    assert [one["text"] for one in picture.layout["annotations"]] == [f"head {n}" for n in range(4)]


def test_one_matrix_takes_the_whole_picture():
    panel = {"x": ["a"], "y": ["b"], "z": [[1.0]]}
    alone, four = (heat("h", "H", [panel] * count, x="x", y="y") for count in (1, 4))
    assert alone.layout["xaxis"]["domain"] == [0, 1] and "xaxis2" not in alone.layout
    domains = [four.layout[f"{side}axis{n}"]["domain"] for side in "xy" for n in ("", 2, 3, 4)]
    assert all(0 <= low < high <= 1.0001 for low, high in domains)


@pytest.mark.full
def test_the_fast_run_says_that_heads_add_up():
    found = study("block-anatomy", fast=True, draws=4, progress=False, threads=1)
    assert found.verdicts[0]["word"] == "holds" and 0 < found.verdicts[0]["number"] < ROUNDING


def test_a_layer_has_the_number_of_its_block_where_not_all_have_attention():
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    more = {"num_key_value_heads": 2, "block_ff_dim": 32, "conv_L_cache": 3, "vocab_size": 600}
    model = Lfm2ForCausalLM(Lfm2Config(**sizes, **more, layer_types=["conv", "full_attention"] * 2))
    given = {"model": model.eval(), "tokenizer": get_model("llama").tokenizer}
    found = study("block-anatomy", **given, fast=True, draws=4, progress=False, threads=1)
    assert {*found.frame("heads")["layer"]} == {*found.frame("sublayers")["layer"]} == {2, 4}
    pictures = {one["name"]: one for one in found.to_dict()["pictures"]}
    assert pictures["norms"]["data"][0]["x"] == [2, 4]
    assert pictures["entropy"]["data"][0]["y"] == ["2", "4"]
    title = pictures["attention"]["title"]
    assert title.startswith("Attention of heads 0 to 1 of layer") and "layer 3" not in title


def test_the_layer_that_adds_most_of_many_is_judged_as_one_of_them():
    norms = np.zeros((12, 41, 3))
    norms[..., 0] = 1
    norms[:, 1:, 1] = 1.05 + 0.05 * np.linspace(-1.6, 1.6, 12)[:, None]
    assert judge_carried({"one": {"norms": norms[:, :3]}}, 0).word == "fails"
    assert judge_carried({"one": {"norms": norms}}, 0).word == "not decided"
